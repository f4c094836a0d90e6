"""Structured output with the real model: a sample of tests/data/schemas; bench/structured.py runs all of it."""

import random
import subprocess
import sys

import pytest

from conftest import CACHE, ROOT

sys.path.insert(0, str(ROOT / "bench"))
import structured  # noqa: E402


def port_of(server):
    return int(server.url.rsplit(":", 1)[1].split("/")[0])


def test_answers_validate(server):
    """What finishes validates, whatever the schema: eight tool definitions in their bounded form, and one feature each."""
    port = port_of(server)
    entries = random.Random(2).sample(structured.load("bfcl"), 4)
    entries += [e for e in structured.load("features") if e["name"] in ("ref", "any_of", "pattern", "enum_unicode", "integer_bounds")]
    counts, results = structured.run(port, entries, structured.bounded, 160, 4)
    assert counts["INVALID"] == 0, [r for r in results if r[0] == "INVALID"]
    assert counts["refused"] == 0, [r for r in results if r[0] == "refused"]
    assert counts["valid"] >= len(entries) // 2, counts


@pytest.mark.parametrize("entry", [e for e in structured.load("features") if e.get("refused")], ids=lambda e: e["name"])
def test_what_cannot_be_enforced_is_refused(server, entry):  # A59, A62, A65
    status, answer = structured.ask(port_of(server), structured.body_of(entry, entry["schema"], 8))
    assert status == 400, answer
    assert answer["error"]["message"]


def test_random_schemas_without_a_model():
    """tests/guidance/fuzz_schemas.py: random walks under the mask, checked by the same validator."""
    archive = CACHE / "third_party/rust/libnereid_guidance.a"
    done = subprocess.run([sys.executable, ROOT / "tests/guidance/fuzz_schemas.py", archive, "1", "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    assert "all valid" in done.stdout
