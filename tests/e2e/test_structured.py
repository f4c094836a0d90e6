"""Structured output with the real model: a sample of tests/data/schemas; bench/structured.py runs all of it."""

import json
import random
import re
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


@pytest.mark.parametrize("fuzzer", ["fuzz_schemas", "fuzz_customs"])
def test_random_grammars_without_a_model(fuzzer):
    """tests/guidance: random walks under the mask, checked by an independent validator (jsonschema, Python's re)."""
    archive = CACHE / "third_party/rust/libnereid_guidance.a"
    done = subprocess.run([sys.executable, ROOT / f"tests/guidance/{fuzzer}.py", archive, "1", "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    assert "all valid" in done.stdout


SQL = {"type": "grammar", "syntax": "lark", "definition": 'start: "SELECT " COLUMN " FROM " COLUMN " WHERE \\"" COLUMN "\\";" LF\n'
       "COLUMN: /[a-z_]{1,8}/\n%import common.LF\n"}


@pytest.mark.parametrize("choice", ["named", "required"])
def test_custom_grammar_holds(server, choice):  # A78
    """A custom tool's input is always a text of its grammar, in both dialects that have custom tools."""
    oai = server.client()
    nested = {"type": "custom", "custom": {"name": "sql", "description": "Runs a query.",
                                           "format": {"type": "grammar", "grammar": {k: SQL[k] for k in ("syntax", "definition")}}}}
    wanted = {"named": {"type": "custom", "custom": {"name": "sql"}}, "required": "required"}[choice]
    answer = oai.chat.completions.create(model="default", max_tokens=200, tools=[nested], tool_choice=wanted, parallel_tool_calls=False,
                                         messages=[{"role": "user", "content": "All names of herons, please."}])
    call, = answer.choices[0].message.tool_calls
    form = re.compile(r'SELECT [a-z_]{1,8} FROM [a-z_]{1,8} WHERE "[a-z_]{1,8}";\n')
    assert call.type == "custom" and form.fullmatch(call.custom.input), call
    tool = {"type": "custom", "name": "sql", "description": "Runs a query.", "format": SQL}
    answer = oai.responses.create(model="default", max_output_tokens=200, input="All names of herons, please.", tools=[tool],
                                  tool_choice={"type": "custom", "name": "sql"} if choice == "named" else "required",
                                  parallel_tool_calls=False)
    call = answer.output[-1]
    assert call.type == "custom_tool_call" and form.fullmatch(call.input), call


def test_a_custom_grammar_that_cannot_be_enforced_is_refused(server):  # A62
    tool = {"type": "custom", "name": "sql", "format": {"type": "grammar", "syntax": "lark", "definition": "start: NOTHING\n"}}
    status, _, raw = server.request("POST", "/v1/responses", {"model": "default", "input": "x", "tools": [tool]})
    error = json.loads(raw)["error"]
    assert status == 400 and 'grammar of the tool "sql"' in error["message"] and error["param"] == "tools", raw
