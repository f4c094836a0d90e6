"""Schemas that may go to xgrammar, and the images' sizes that LLMEngine wants."""

from __future__ import annotations

import json
import struct

import pytest

from nereid_deepinfer import ebnf
from nereid_deepinfer.image_size import image_size
from nereid_deepinfer.schema import ENFORCED, GAPS, PASSED_BY_XGRAMMAR, REFUSED, schema_fault, widened


def test_ordinary_schemas_pass() -> None:
    assert schema_fault(True) is None
    assert schema_fault({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"$ref": "#/$defs/x"}},
                         "required": ["a"], "additionalProperties": False, "$defs": {"x": {"enum": ["y", 1, None]}},
                         "description": "d"}) is None
    assert schema_fault({"anyOf": [{"type": "string", "pattern": "^a+$"}, {"type": "array", "items": {"type": "number"}, "maxItems": 3}]}) is None


@pytest.mark.parametrize("name", sorted(REFUSED | PASSED_BY_XGRAMMAR))
def test_keywords_that_are_not_enforced_are_refused_with_their_path(name: str) -> None:
    fault = schema_fault({"type": "object", "properties": {"a": {"type": "array", "items": {name: {}}}}})
    assert fault is not None and name in fault and "/properties/a/items" in fault


@pytest.mark.parametrize("bad", [1, "x", None, [], {"items": 3}, {"anyOf": []}, {"properties": []}, {"nonsense": 1},
                                 {"$ref": "http://elsewhere/schema"}])
def test_what_is_no_schema(bad: object) -> None:
    assert schema_fault(bad) is not None


@pytest.mark.parametrize("asked", [g[1] for g in GAPS], ids=[g[0] for g in GAPS])
def test_gaps_of_xgrammar_are_refused(asked: dict[str, object]) -> None:
    assert schema_fault({"type": "object", "properties": {"a": asked}}) is not None


def test_what_is_enforced_passes() -> None:
    for asked, _ in ENFORCED:
        assert schema_fault(asked) is None, asked
    # A discriminated union, as pydantic writes it.
    assert schema_fault({"oneOf": [
        {"type": "object", "properties": {"kind": {"const": kind, "type": "string"}}, "required": ["kind"]} for kind in ("cat", "dog")]}) is None


@pytest.mark.parametrize("bad", [{"type": 3}, {"type": ["string", 3]}, {"enum": 3}, {"oneOf": [{"type": 3}, {}]}, {"required": 3, "type": "object"},
                                 {"type": "object", "required": [3]}, {"type": "string", "format": {}}, {"allOf": 3}, {"type": {}},
                                 {"oneOf": [{"required": 3}, {"required": [[]]}]}, {"type": "string", "format": ["x"]}])
def test_nonsense_is_a_fault_and_no_exception(bad: object) -> None:
    assert schema_fault(bad) is not None


def test_deep_nesting_ends() -> None:
    schema: object = {}
    for _ in range(2000):
        schema = {"type": "array", "items": schema}
    assert "nested" in str(schema_fault(schema))


def test_sizes_of_images() -> None:
    assert image_size(b"\x89PNG\r\n\x1a\n" + bytes(8) + struct.pack(">II", 640, 480) + bytes(16)) == (640, 480)
    assert image_size(b"GIF89a" + struct.pack("<HH", 3, 4)) == (3, 4)
    jpeg = b"\xff\xd8\xff\xe0\x00\x10" + bytes(14) + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 480, 640) + bytes(20)
    assert image_size(jpeg) == (640, 480)
    assert image_size(b"RIFF" + bytes(4) + b"WEBPVP8X" + bytes(8) + (99).to_bytes(3, "little") + (49).to_bytes(3, "little")) == (100, 50)
    for data in (b"", b"\x89PNG\r\n\x1a\n", jpeg[:24] + bytes(10), b"\xff\xd8" + b"\xff" * 60, b"BM" + bytes(60), bytes(100),
                 b"GIF89a" + struct.pack("<HH", 0, 4)):
        assert image_size(data) is None


@pytest.mark.parametrize("asked", [g[1] for g in GAPS], ids=[g[0] for g in GAPS])
def test_widened_has_no_fault_and_keeps_what_it_can(asked: dict[str, object]) -> None:
    whole = {"type": "object", "properties": {"a": asked, "b": {"type": "integer", "minimum": 3}}, "required": ["a"]}
    out = widened(whole)
    assert schema_fault(out) is None and out["required"] == ["a"] and out["properties"]["b"] == {"type": "integer", "minimum": 3}


@pytest.mark.parametrize("asked", [s for s, _ in ENFORCED])
def test_widened_leaves_alone_what_is_enforced(asked: dict[str, object]) -> None:
    assert widened(asked) == asked


def test_widened_of_what_is_no_schema() -> None:
    for bad in (3, None, "x", [], {"type": 3}, {"properties": []}, {"anyOf": [3]}, {"$ref": "http://x"}, {"required": 3, "type": "object"}):
        assert schema_fault(widened(bad)) is None, bad
    deep: object = {}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    assert schema_fault(widened(deep)) is None
    assert widened({"type": "object", "properties": {"x": {"type": "string"}}, "anyOf": [{"required": ["x"]}]}) == {
        "type": "object", "properties": {"x": {"type": "string"}}}


def test_schemas_in_a_grammar() -> None:
    """Rules of a schema stand in its place, under names of their own; literals and classes keep their letters."""
    inner = 'digit ::= [0-9a-z]\nroot ::= "root" digit ("digit" | root)\n'
    asked: list[str] = []
    out = ebnf.expand('root ::= "a" p\\n\np ::= %json {"type":"integer","$comment":"tool f"}\n', lambda s: asked.append(s) or inner)
    assert out == ('root ::= "a" p\\n\np ::= p_root\np_digit ::= [0-9a-z]\np_root ::= "root" p_digit ("digit" | p_root)\n\n')
    assert json.loads(asked[0]) == {"type": "integer", "$comment": "tool f"}
    strict = 'root ::= %json {"type":"integer","multipleOf":5,"$comment":"tool \\"f\\""}'
    assert "multipleOf" in str(ebnf.fault_of(strict)) and 'tool "f"' in str(ebnf.fault_of(strict))
    assert ebnf.fault_of(strict.replace('"$comment"', '"x-guidance":{"lenient":true},"$comment"')) is None
    assert ebnf.fault_of("root ::= %json {") is not None and ebnf.fault_of('root ::= "%json {"') is None
