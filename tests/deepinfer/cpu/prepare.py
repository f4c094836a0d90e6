"""`prepare` of a group's configuration: makes a rank run on a machine without a device (world.py). Its model answers in
bytes: 40 letters and the end token, or what NEREID_CPU_ANSWER says in the tokens of the model's tokenizer.json
(NEREID_CPU_MODEL names its folder). NEREID_CPU_ENDLESS: over and over, without an end."""

from __future__ import annotations

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent if "__file__" in globals() else pathlib.Path(os.environ["NEREID_DEEPINFER_CPU"])
sys.path[:0] = [str(HERE), str(HERE.parent)]

import world  # noqa: E402
from script import Script  # noqa: E402

TEXT = b"Two nymphs swam past the old lighthouse."
assert len(TEXT) == 40


ANSWER = list(TEXT)
if "NEREID_CPU_ANSWER" in os.environ:
    ANSWER = world.tokenizer_of(os.environ["NEREID_CPU_MODEL"]).encode(os.environ["NEREID_CPU_ANSWER"], add_special_tokens=False)


class Letters(Script):
    def token(self, name: str, at: int) -> int:
        endless = int(os.environ.get("NEREID_CPU_ENDLESS", "0"))
        if at >= len(ANSWER) and not endless:
            return 1
        return ANSWER[at % len(ANSWER)]


script = Letters()
script.accept = int(os.environ.get("NEREID_CPU_ACCEPT", "0"))
world.install(script)
