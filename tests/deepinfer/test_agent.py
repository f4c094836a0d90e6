"""The agent's cases on the fake, and the fake against traces of the real engine (traces/*.json, made by real_cases.py)."""

from __future__ import annotations

import json
import pathlib

import pytest

from cases import CASES
from rig import fake_rig

TRACES = pathlib.Path(__file__).with_name("traces")
FAKE_CASES = [(name, kind) for name, (types, _) in CASES.items() for kind in types]


def _trace(kind: str, name: str) -> object:
    file = TRACES / f"{kind}.json"
    return json.loads(file.read_text())[name] if file.is_file() and name in json.loads(file.read_text()) else None


@pytest.mark.parametrize(("name", "kind"), FAKE_CASES, ids=[f"{n}[{k}]" for n, k in FAKE_CASES])
def test_case(name: str, kind: str) -> None:
    rig = fake_rig("NORMAL" if kind == "FAKE" else kind)
    CASES[name][1](rig)
    rig.rest()


@pytest.mark.parametrize(("name", "kind"), [c for c in FAKE_CASES if c[1] != "FAKE"], ids=[f"{n}[{k}]" for n, k in FAKE_CASES if k != "FAKE"])
def test_fake_schedules_what_the_real_engine_did(name: str, kind: str) -> None:
    recorded = _trace(kind, name)
    if recorded is None:
        pytest.fail(f"traces/{kind}.json has no {name}: run ./dev test --deepinfer with NEREID_RECORD=1")
    rig = fake_rig(kind)
    CASES[name][1](rig)
    rig.rest()
    assert json.loads(json.dumps(digest(rig.trace))) == recorded


def digest(trace: list[object]) -> object:
    """Short traces are kept whole; of long ones the count and a hash."""
    import hashlib

    text = json.dumps(trace, separators=(",", ":"))
    return trace if len(text) < 4000 else {"steps": len(trace), "sha256": hashlib.sha256(text.encode()).hexdigest()}
