"""Speed and reproducibility of the simulator: 1,000 GPUs for an hour of the Mooncake trace, scaled to over a million requests.

gpu_hours_per_core_second uses the process's CPU time (one thread). same_hash: two runs of the same seed and build end in the
same state, event for event; debug_equals_release compares with the debug build when there is one.
"""

import json
import os
import resource
import subprocess

import lib

SCENARIO = str(lib.ROOT / "tests/scenarios/thousand_gpus.toml")


def run(binary, *knobs):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run([binary, "sim", "run", SCENARIO, "--quiet", "--json", "-", *knobs], check=True,
                         stdout=subprocess.PIPE, text=True, cwd=lib.ROOT).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(out), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    args = lib.arguments(__doc__)
    span = 360 if args.quick else 3600
    result, cpu = run(lib.BINARY, f"--run.end={span}s")
    gpus = sum(result[p]["ranks"] for p in ("prefill", "decode"))
    small = ["--run.end=60s"]
    first, _ = run(lib.BINARY, *small)
    again, _ = run(lib.BINARY, *small)
    other, _ = run(lib.BINARY, *small, "--run.seed=2")
    if other["hash"] == first["hash"]:
        raise SystemExit("another seed gave the same hash: the hash does not see the run")
    metrics = {
        "gpus": gpus, "simulated_s": result["simulated_seconds"], "requests": result["finished"], "events": result["events"],
        "cpu_s": cpu, "wall_s": result["wall_seconds"],
        "gpu_hours_per_core_second": gpus * span / 3600 / cpu,
        "busy_prefill": result["prefill"]["useful"], "busy_decode": result["decode"]["useful"],
        "same_hash": first["hash"] == again["hash"],
    }
    debug = str(lib.ROOT / "build/debug/bin/nereid")
    compared = not args.quick and os.access(debug, os.X_OK) and os.path.getmtime(debug) >= os.path.getmtime(lib.BINARY) - 86_400
    if compared:
        tiny = ["--run.end=20s"]
        try:
            metrics["debug_equals_release"] = run(debug, *tiny)[0]["hash"] == run(lib.BINARY, *tiny)[0]["hash"]
        except subprocess.CalledProcessError:
            compared = False
    notes = ["busy: part of the ranks' time that was work of their own (waiting at the barrier is not busy)"]
    if not compared:
        notes.append("debug build not compared here (absent or too old); Cluster.DebugEqualsRelease in sim_test holds the golden hash")
    if args.quick:
        notes.append("quick: six minutes of the hour; speed falls a little as caches fill")
    lib.finish("sim", metrics, {}, notes)


if __name__ == "__main__":
    main()
