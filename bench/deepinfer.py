#!/usr/bin/env python3
"""The real LLMEngine loop with the agent and its socket, against the real loop alone: forward pass paced to 20 ms, 256 decode
rows, DeepInfer 0.1.0 on the CPU (./dev deepinfer). What the agent adds to a step, and how long a command waits for one."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PART = ROOT / "tests/deepinfer/bench_loop.py"


def say(text):
    print(text, file=sys.stderr, flush=True)


def environment():
    if "NEREID_DEEPINFER_PYTHON" in os.environ:
        return dict(os.environ)
    out = subprocess.run([str(ROOT / "dev"), "deepinfer"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {**os.environ, **dict(line.split("=", 1) for line in out.splitlines() if "=" in line)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    quick = parser.parse_args().quick
    env = environment()
    env.update({"NEREID_CPU_STEP_MS": "20", "NEREID_CPU_ENDLESS": "1", "NEREID_CPU_BLOCKS": "1600", "NEREID_CPU_ACCEPT": "2"})
    rounds, steps = (1, 150) if quick else (3, 300)
    runs = {"bare": [], "agent": []}
    for _ in range(rounds):
        for kind in runs:  # in turn, so that a busy machine hits both
            done = subprocess.run([env["NEREID_DEEPINFER_PYTHON"], str(PART), kind, str(steps)], env=env, stdout=subprocess.PIPE,
                                  text=True, check=True)
            runs[kind].append(json.loads(done.stdout.splitlines()[-1]))
            say(f"{kind}: {runs[kind][-1]}")
    best = {kind: min(r["step_ms"] for r in results) for kind, results in runs.items()}
    agent = min(runs["agent"], key=lambda r: r["agent_us_per_step"])
    print(json.dumps({
        "bench": "deepinfer",
        "metrics": {
            "step_ms_bare": best["bare"], "step_ms_agent": best["agent"], "agent_us_per_step": agent["agent_us_per_step"],
            "command_to_step_us": agent["command_to_step_us"], "rows": agent["rows"], "tokens_per_step": agent["tokens_per_step"],
        },
        "ratios": {"step_time_vs_bare_loop": best["agent"] / best["bare"]},
        "notes": f"DeepInfer 0.1.0's own scheduler, LLMEngine and Worker on a CPU; forward pass paced to 20 ms, 2 of 5 drafts accepted; "
                 f"best of {rounds}; agent_us_per_step is wall time of the loop outside LLMEngine.step, socket and frame included",
    }))


main()
