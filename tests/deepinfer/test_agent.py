"""The agent's cases on the fake, and the fake against traces of the real engine (traces/*.json, made by real_cases.py)."""

from __future__ import annotations

import json
import pathlib

import pytest

from cases import CASES, UNTRACED
from rig import fake_rig

TRACES = pathlib.Path(__file__).with_name("traces")
FAKE_CASES = [(name, kind) for name, (types, _) in CASES.items() for kind in types]

def test_every_trap_has_a_test_of_its_number() -> None:
    """facts/deepinfer.md, section 2: 1 to 16."""
    import re

    names = [*CASES, *re.findall(r"def (test_\w+)", "".join(f.read_text() for f in TRACES.parent.glob("*.py")))]
    numbers = {int(n) for name in names for group in re.findall(r"traps?_([0-9_]+)", name) for n in group.split("_") if n}
    assert numbers >= set(range(1, 17)), set(range(1, 17)) - numbers


def _trace(kind: str, name: str) -> object:
    file = TRACES / f"{kind}.json"
    return json.loads(file.read_text())[name] if file.is_file() and name in json.loads(file.read_text()) else None


@pytest.mark.parametrize(("name", "kind"), FAKE_CASES, ids=[f"{n}[{k}]" for n, k in FAKE_CASES])
def test_case(name: str, kind: str) -> None:
    """The case passes, and the fake schedules, step by step, what the real engine did in it."""
    rig = fake_rig(kind)
    CASES[name][1](rig)
    rig.rest()
    if name in UNTRACED:
        return
    recorded = _trace(kind, name)
    assert recorded is not None, f"traces/{kind}.json has no {name}: run ./dev test --deepinfer with NEREID_RECORD=1"
    assert json.loads(json.dumps(digest(rig.trace))) == recorded


def digest(trace: list[object]) -> object:
    """Short traces are kept whole; of long ones the count and a hash."""
    import hashlib

    text = json.dumps(trace, separators=(",", ":"))
    return trace if len(text) < 4000 else {"steps": len(trace), "sha256": hashlib.sha256(text.encode()).hexdigest()}
