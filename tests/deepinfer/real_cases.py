"""Runs the cases of one engine type on the real LLMEngine (one engine per process, as LLMEngine has it):

    real_cases.py NORMAL|PROMPT|COMPLETION [case ...]      in the environment that `./dev test --deepinfer` makes

Ends with 1 when a case fails. NEREID_RECORD=1 writes traces/TYPE.json, which the fake has to repeat.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "cpu"), str(HERE.parents[1] / "python")]

import world
from cases import CASES, UNTRACED
from nereid_deepinfer.config import Config
from rig import Rig
from script import Script


def main() -> int:
    kind, wanted = sys.argv[1], sys.argv[2:]
    config = Config.of({"model": world.model_folder(), "engine_type": kind, "max_model_len": 2048, "max_num_batched_tokens": 2048,
                        "max_num_seqs": 16, "load_format": "dummy", "prefill_any_interval": 100, "grammar_cpus": 1, "log_interval_steps": 1_000_000})
    os.environ.update({k: v for k, v in config.environment(0).items() if not k.startswith("MASTER")})
    script = Script()
    runner = world.install(script)
    from nereid_deepinfer.real import start

    began = time.perf_counter()
    runtime = start(config, 0)
    print(f"{kind}: engine up in {time.perf_counter() - began:.1f} s, layout {runtime.info.layout.detail}", flush=True)
    failed: list[str] = []
    recorded: dict[str, object] = {}
    passed = 0
    from test_agent import digest

    for name, (types, function) in CASES.items():
        if kind not in types or (wanted and name not in wanted):
            continue
        began = time.perf_counter()
        script.reset()
        runner.trace.clear()
        runtime.engine.scheduler.decode_step = 0
        rig = Rig(runtime, script, runner.trace)
        try:
            function(rig)
            rig.rest()
            print(f"ok     {name} ({time.perf_counter() - began:.2f} s)", flush=True)
            passed += 1
            if name not in UNTRACED:
                recorded[name] = digest(json.loads(json.dumps(runner.trace)))
        except Exception:
            traceback.print_exc()
            print(f"FAILED {name}", flush=True)
            failed.append(name)
            if rig.free() != rig.start_free:
                print("the engine is not empty any more: the other cases are not run")
                break
    if os.environ.get("NEREID_RECORD") and not failed and not wanted:
        (HERE / "traces").mkdir(exist_ok=True)
        (HERE / f"traces/{kind}.json").write_text(json.dumps(recorded, separators=(",", ":")).replace('],"', '],\n"') + "\n")
    print(f"{kind}: {passed} passed, {len(failed)} failed", flush=True)
    os._exit(1 if failed else 0)


main()
