"""Mooncake's request traces through a cache node: prefix-contiguous block hit ratio by capacity, against the simulated policy.

`gap_points` is the largest distance, in points, to facts/kv.md's simulation of the same policy (S3-FIFO). The traces are
looked for in the folder that NEREID_TRACES names, else in ../shared/traces/mooncake beside the repository.
"""

import json
import os
import pathlib
import subprocess

import lib

# Shares of the unique blocks, infinite; peers/kv/trace_sim.py.
SIMULATED = {
    "conversation": {"0.01": 0.0755, "0.03": 0.1474, "0.1": 0.2437, "0.3": 0.3492, "0.6": 0.3638, "infinite": 0.3664},
    "synthetic": {"0.01": 0.0391, "0.03": 0.1088, "0.1": 0.2696, "0.3": 0.5056, "0.6": 0.6195, "infinite": 0.6396},
}


def main():
    lib.arguments(__doc__)
    folder = pathlib.Path(os.environ.get("NEREID_TRACES", lib.ROOT.parent / "shared/traces/mooncake"))
    metrics, worst = {}, 0
    for name, simulated in SIMULATED.items():
        trace = folder / f"{name}_trace.jsonl"
        if not trace.is_file():
            raise SystemExit(f"{trace} is missing: name the folder of Mooncake's FAST25 traces in NEREID_TRACES")
        out = subprocess.run([str(pathlib.Path(lib.BINARY).with_name("kv_replay_bench")), str(trace)], check=True,
                             stdout=subprocess.PIPE, text=True).stdout
        got = json.loads(out)["hit_ratio"]
        for share, value in simulated.items():
            metrics[f"{name}.{share}"] = got[share]
            worst = max(worst, abs(got[share] - value) * 100)
            lib.say(f"{name} {share}: {got[share]:.4f}, simulated {value:.4f}")
    lib.finish("kv-replay", {"gap_points": worst, **metrics}, {}, ["capacity as a share of the unique blocks; S3-FIFO"])


if __name__ == "__main__":
    main()
