"""`prepare` of a group's configuration: a rank with the fake engine in the place of the real one, for `nereid serve` before it on
a machine without torch. It says the tokens of NEREID_FAKE_ANSWER (a JSON list), whatever a grammar wants, and then ends. What it
was asked is appended to the file NEREID_FAKE_ASKED, a line of JSON a request."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import types
from typing import Any

HERE = pathlib.Path(os.environ["NEREID_FAKE_FOLDER"])
sys.path.insert(0, str(HERE))

from cases import StubProcessor  # noqa: E402
from nereid_deepinfer import cost  # noqa: E402
from rig import fake_runtime  # noqa: E402
from script import Script  # noqa: E402

ANSWER = [int(i) for i in json.loads(os.environ["NEREID_FAKE_ANSWER"])]


class Says(Script):
    def token(self, name: str, at: int) -> int:
        return ANSWER[at] if at < len(ANSWER) else 1


def start(config: Any, rank: int) -> Any:
    runtime = fake_runtime("NORMAL", Says(), vocab_size=129280, images=True, data_parallel_rank=rank,
                           data_parallel_size=config.data_parallel_size)
    engine = runtime.engine
    engine.multi_modal_processor, runtime.image_token = StubProcessor(engine.scheduler), 129264
    engine._held = lambda seq, wanted: wanted
    add = engine.add_request

    def add_request(*args: Any, **kwargs: Any) -> Any:
        with open(os.environ["NEREID_FAKE_ASKED"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"params": args[2], "images": args[4]["image_sizes"], "bytes": [len(b) for b in args[4]["image_bytes"]],
                                   "prompt": list(args[3])}) + "\n")
        return add(*args, **kwargs)

    engine.add_request = add_request
    return runtime


def reports(runtime: Any, config: Any, rank: int, log: Any) -> None:
    if config.report_folder:
        cost.write(pathlib.Path(config.report_folder), {"model": {
            "prefill": {"per_token_flops": 3e10, "per_token_context_flops": 6e4}, "decode": {"fixed_ms": 11.5, "per_request_ms": 0.08}}})


real = types.ModuleType("nereid_deepinfer.real")
real.start, real.reports = start, reports  # type: ignore[attr-defined]
sys.modules["nereid_deepinfer.real"] = real
