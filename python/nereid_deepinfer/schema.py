"""JSON schemas before they reach xgrammar.

DeepInfer hands a schema to xgrammar, which compiles what it knows and lets the rest pass: an answer may then break a
keyword that the caller asked for. The gateway's own engines use llguidance, which refuses what it cannot enforce. So that
an answer means the same on both, what llguidance refuses is refused here too, and PASSED_BY_XGRAMMAR is what xgrammar was
seen to let pass (tests/deepinfer/test_schema.py, on the real library by `./dev test --deepinfer`).
"""

from __future__ import annotations

from typing import Any

# Keywords that constrain and that llguidance enforces or that are annotations.
_KNOWN = frozenset(
    """type enum const properties required additionalProperties items prefixItems minItems maxItems minLength maxLength
    pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf anyOf oneOf allOf $ref $defs definitions
    patternProperties minProperties maxProperties
    title description default examples example $schema $id $comment deprecated readOnly writeOnly""".split())
# llguidance refuses these: it would have to look ahead or back.
REFUSED = frozenset(
    """not if then else contains minContains maxContains uniqueItems dependentRequired dependentSchemas dependencies
    propertyNames unevaluatedItems unevaluatedProperties $dynamicRef $recursiveRef contentSchema""".split())
# xgrammar 0.2 compiles these and does not enforce them; they are refused as well.
PASSED_BY_XGRAMMAR = frozenset(["multipleOf"])
_MAX_DEPTH = 64
_UNDER = ("items", "additionalProperties")
_EACH = ("properties", "$defs", "definitions", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")


def schema_fault(schema: Any, path: str = "", depth: int = 0) -> str | None:
    """What is wrong with it, with the path in the schema; None when nothing is."""
    at = path or "the schema"
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return f"{at} is neither an object nor a boolean"
    if depth > _MAX_DEPTH:
        return f"{at} is nested deeper than {_MAX_DEPTH}"
    for name in schema:
        if name in REFUSED or name in PASSED_BY_XGRAMMAR:
            return f"{at}: the keyword {name} cannot be enforced"
        if name not in _KNOWN:
            return f"{at}: the keyword {name} is unknown"
    if "$ref" in schema and not str(schema["$ref"]).startswith("#"):
        return f"{at}: $ref to another document"
    inner = [(name, schema[name]) for name in _UNDER if name in schema]
    for name in _EACH:
        if name in schema:
            if not isinstance(schema[name], dict):
                return f"{at}/{name} is no object"
            inner += [(f"{name}/{key}", value) for key, value in schema[name].items()]
    for name in _LISTS:
        if name in schema:
            if not isinstance(schema[name], list) or not schema[name]:
                return f"{at}/{name} is no list"
            inner += [(f"{name}/{i}", value) for i, value in enumerate(schema[name])]
    for name, value in inner:
        fault = schema_fault(value, f"{path}/{name}", depth + 1)
        if fault is not None:
            return fault
    return None
