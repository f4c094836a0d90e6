"""The KV index: keys per second and core, bytes per entry, longest prefix of 512 blocks; against Mooncake's batch_is_exist.

Ours is CPU time of one thread over a table that does not fit any cache (--quick: 10 M entries, else 100 M), without a network.
Mooncake's is the wall time of its client against its master on loopback, in a network namespace of its own; batches of 512 keys.
Both run in turns.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import lib

MOONCAKE_KEYS = 20_000
BATCH = 512


def ours(entries, seconds):
    out = subprocess.run([str(pathlib.Path(lib.BINARY).with_name("kv_index_bench")), f"--entries={entries}",
                          "--benchmark_format=json", f"--benchmark_min_time={seconds}"],
                         check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    rows = {row["name"]: row for row in json.loads(out)["benchmarks"]}
    for row in rows.values():
        if row.get("error_occurred"):
            raise SystemExit(f"{row['name']}: {row['error_message']}")
    return rows


def store():
    """In the namespace, under Mooncake's Python: one JSON line per round asked for on stdin."""
    from mooncake.store import MooncakeDistributedStore
    s = MooncakeDistributedStore()
    if s.setup("127.0.0.1", "P2PHANDSHAKE", 256 << 20, 64 << 20, "tcp", "", f"127.0.0.1:{sys.argv[2]}") != 0:
        raise SystemExit("the store did not set up")
    keys = [f"model@1@0@{i:032x}" for i in range(MOONCAKE_KEYS)]
    for k in keys:
        if s.put(k, b"x") != 0:
            raise SystemExit("put failed")
    print("READY", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        found = 0
        for at in range(0, len(keys), BATCH):
            found += sum(1 for x in s.batch_is_exist(keys[at:at + BATCH]) if x == 1)
        seconds = time.perf_counter() - begin
        print("ROUND " + json.dumps({"found": found, "keys_per_s": len(keys) / seconds}), flush=True)
    s.close()


def inside():
    """In the namespace: the master, then the store on our stdin and stdout."""
    master, python, folder = sys.argv[2:5]
    port = lib.free_port()
    with lib.process([master, "--rpc_address=127.0.0.1", f"--rpc_port={port}", "--metrics_host=127.0.0.1",
                      f"--metrics_port={lib.free_port()}", "--default_kv_lease_ttl=600000", "--logtostderr"],
                     f"{folder}/master.log"):
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                import socket
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"Mooncake's master is not up; see {folder}/master.log")
            time.sleep(0.1)
        sys.exit(subprocess.run([python, __file__, "--store", str(port)], stderr=open(f"{folder}/store.log", "wb")).returncode)


@contextlib.contextmanager
def mooncake():
    peers = lib.peers("kv")
    folder = tempfile.mkdtemp(prefix="nereid-bench-")
    command = 'ip link set lo up; exec "$@"'
    child = subprocess.Popen(["unshare", "-rn", "sh", "-c", command, "sh", sys.executable, __file__, "--inside",
                              peers["MOONCAKE_MASTER"], peers["KV_PYTHON"], folder],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(word):
        for text in child.stdout:
            if text.startswith(word):
                return text[len(word):]
        raise SystemExit(f"Mooncake ended; see {folder}/*.log")

    def one_round():
        child.stdin.write("go\n")
        child.stdin.flush()
        got = json.loads(line("ROUND"))
        if got["found"] != MOONCAKE_KEYS:
            raise SystemExit(f"Mooncake found {got['found']} of {MOONCAKE_KEYS} keys")
        return got["keys_per_s"]

    try:
        line("READY")
        yield one_round
    finally:
        with contextlib.suppress(OSError):
            child.stdin.close()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def main():
    args = lib.arguments(__doc__)
    entries, seconds, rounds = (10_000_000, 0.3, 2) if args.quick else (100_000_000, 1, 2)
    runs, peer = [], []
    with mooncake() as one_round:
        one_round()  # warm
        for r in range(rounds):
            runs.append(ours(entries, seconds))
            peer += [one_round() for _ in range(3)]
            lib.say(f"round {r}: ours {runs[-1]['hit/4096']['items_per_second'] / 1e6:.1f} M keys/s, Mooncake {peer[-1] / 1e6:.2f} M")

    def median(name, key="items_per_second"):
        return lib.spread([run[name][key] for run in runs])["median"]

    theirs = lib.spread(peer)["median"]
    metrics = {
        "entries": median("insert/iterations:1", "entries"),
        "bytes_per_entry": median("insert/iterations:1", "bytes_per_entry"),
        "load": median("insert/iterations:1", "load"),
        "keys_per_s_core": median("hit/4096"),
        "keys_per_s_core_batch128": median("hit/128"),
        "keys_per_s_core_miss": median("miss/4096"),
        "inserts_per_s_core": median("insert/iterations:1"),
        "prefix512_per_s_core": median("prefix/0"),
        "prefix512_all_hit_per_s_core": median("prefix/512"),
        "prefix512_one_hit_per_s_core": median("prefix/1"),
        "mooncake_batch_is_exist_keys_per_s": theirs,
    }
    notes = [f"{rounds} rounds; prefix512: of 512 keys a random number is there",
             "ours: CPU time of one thread, in process; Mooncake 0.3.13: wall time of client and master on loopback, batches of 512"]
    if args.quick:
        notes.append("--quick: 10 M entries (213 MB) instead of 100 M (2.1 GB)")
    lib.finish("kv-index", metrics, {"keys_vs_mooncake_batch_is_exist": median("hit/4096") / theirs}, notes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--store"]:
        store()
    elif sys.argv[1:2] == ["--inside"]:
        inside()
    else:
        main()
