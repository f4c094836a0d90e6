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
    env.update({"NEREID_CPU_STEP_MS": "20", "NEREID_CPU_ENDLESS": "1", "NEREID_CPU_BLOCKS": "1600"})
    rounds, steps = (1, 100) if quick else (3, 150)  # 1,600 blocks are full after 250 steps of three tokens
    # Once with a token a row and step, once with two of five drafts accepted: three tokens.
    kinds = ["bare", "agent"]
    runs = {(kind, accepted): [] for accepted in (0, 2) for kind in kinds}
    for _ in range(rounds):
        for kind, accepted in runs:  # in turn, so that a busy machine hits all
            done = subprocess.run([env["NEREID_DEEPINFER_PYTHON"], str(PART), kind, str(steps)], stdout=subprocess.PIPE, text=True, check=True,
                                  env={**env, "NEREID_CPU_ACCEPT": str(accepted)})
            runs[kind, accepted].append(json.loads(done.stdout.splitlines()[-1]))
            say(f"{kind}, {accepted} drafts accepted: {runs[kind, accepted][-1]}")
    metrics, ratios = {}, {}
    for accepted, suffix in ((0, ""), (2, "_drafts")):
        best = {kind: min(r["step_ms"] for r in runs[kind, accepted]) for kind in kinds}
        agent = min(runs["agent", accepted], key=lambda r: r["agent_us_per_step"])
        metrics |= {f"step_ms_bare{suffix}": best["bare"], f"step_ms_agent{suffix}": best["agent"]}
        metrics |= {f"{name}{suffix}": agent[name] for name in ("agent_us_per_step", "command_to_step_us", "rows", "tokens_per_step")}
        ratios[f"step_time_vs_bare_loop{suffix}"] = best["agent"] / best["bare"]
    print(json.dumps({
        "bench": "deepinfer", "metrics": metrics, "ratios": ratios,
        "notes": ["DeepInfer 0.1.0's own scheduler, LLMEngine and Worker on a CPU; forward pass paced to 20 ms; one token a row and step, and "
                  f"(_drafts) three; best of {rounds}",
                  "agent_us_per_step is wall time of the loop outside LLMEngine.step, socket and frame included"],
    }))


main()
