"""The router's hot paths at 1,000 workers x 8 ranks: router_select_bench, read into the metrics of issue 6.

select_us: one choice (prefill and decode rank, prefix match of a 32k-token prompt = 512 blocks in an index of about 6 M
blocks). select_book_end_us: with its charges booked and those of the oldest of 30,000 running requests ended.
event_blocks_per_s: KV events applied to a warm index. bytes_per_block, snapshot_rebuild_s: 10 M distinct blocks from
snapshots, nothing reserved. The peers offer no interface to measure the same by, so there are no ratios.
"""

import json
import statistics
import subprocess

import lib


def main():
    args = lib.arguments(__doc__)
    binary = lib.ROOT / "build/release/bin/router_select_bench"
    rounds = 1 if args.quick else 3
    runs = []
    for _ in range(rounds):
        out = subprocess.run([binary, "--benchmark_format=json"], check=True, stdout=subprocess.PIPE, text=True).stdout
        runs.append({b["name"].split("/")[0]: b for b in json.loads(out)["benchmarks"]})

    def median(name, field):
        return statistics.median(run[name][field] for run in runs)

    metrics = {
        "select_us": round(median("choose", "cpu_time"), 3),
        "select_book_end_us": round(median("choose_book_end", "cpu_time"), 3),
        "event_blocks_per_s": round(median("events", "items_per_second")),
        "bytes_per_block": round(median("snapshot", "bytes_per_block"), 2),
        "bytes_per_block_shared": round(median("snapshot_shared", "bytes_per_block"), 2),
        "snapshot_rebuild_s": round(median("snapshot", "real_time"), 3),
    }
    lib.finish("router", metrics, {}, [
        f"{rounds} rounds; choices from an index of {median('choose', 'blocks'):.0f} blocks, on average "
        f"{median('choose', 'cached_tokens'):.0f} tokens of 32,785 found there"])


if __name__ == "__main__":
    main()
