"""`prepare` of a group's configuration: makes a rank run on a machine without a device (world.py). Its model answers in
bytes: 40 letters and the end token; after a prompt that ends in "!" (33) without an end."""

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


class Letters(Script):
    def token(self, name: str, at: int) -> int:
        endless = int(os.environ.get("NEREID_CPU_ENDLESS", "0"))
        if at >= len(TEXT) and not endless:
            return 1
        return TEXT[at % len(TEXT)]


script = Letters()
script.accept = int(os.environ.get("NEREID_CPU_ACCEPT", "0"))
world.install(script)
