"""JSON schemas before they reach xgrammar.

DeepInfer hands a schema to xgrammar, which compiles what it knows and lets the rest pass: an answer may then break what the
caller asked for. The gateway's own engines use llguidance, which refuses what it cannot enforce. So that an answer means
the same on both, what llguidance refuses is refused here, and so is what xgrammar was seen to let pass: GAPS, each with a
sample that tests/deepinfer/real_parts.py tries on the real library, together with samples of what it does enforce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Keywords that constrain and that both enforce, or that are annotations.
_NOTES = frozenset("""title description default examples example $schema $id $comment deprecated readOnly writeOnly $defs
    definitions""".split())
_OF_TYPE = {
    "string": frozenset("minLength maxLength pattern format".split()),
    "number": frozenset("minimum maximum exclusiveMinimum exclusiveMaximum".split()),
    "array": frozenset("items prefixItems minItems maxItems".split()),
    "object": frozenset("properties required additionalProperties patternProperties minProperties maxProperties".split()),
}
_OF_TYPE["integer"] = _OF_TYPE["number"]
_OTHER_TYPES = frozenset(["boolean", "null"])
_KNOWN = _NOTES.union(*_OF_TYPE.values(), "type enum const anyOf oneOf allOf $ref".split())
FORMATS = frozenset("email date time date-time duration ipv4 ipv6 hostname uuid uri".split())
# llguidance refuses these: it would have to look ahead or back.
REFUSED = frozenset(
    """not if then else contains minContains maxContains uniqueItems dependentRequired dependentSchemas dependencies
    propertyNames unevaluatedItems unevaluatedProperties $dynamicRef $recursiveRef contentSchema contentEncoding
    contentMediaType""".split())
# xgrammar compiles these and does not enforce them.
PASSED_BY_XGRAMMAR = frozenset(["multipleOf"])
# What else it lets pass: (name, schema, an answer that breaks it and that xgrammar takes).
GAPS: list[tuple[str, dict[str, Any], str]] = [
    ("multipleOf", {"type": "integer", "multipleOf": 5}, "7"),
    ("format", {"type": "string", "format": "nonsense"}, '"x"'),
    ("pattern with a length", {"type": "string", "pattern": "^a+$", "maxLength": 1}, '"aaa"'),
    ("a number's keyword without type", {"minimum": 3}, "1"),
    ("a string's keyword without type", {"pattern": "^a$"}, '"b"'),
    ("an array's keyword without type", {"maxItems": 1}, "[1, 2]"),
    ("an object's keyword without type", {"required": ["a"]}, "{}"),
    ("required beyond properties", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]}, '{"a": 1}'),
    ("several in allOf", {"allOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]}, "1"),
    ("oneOf that overlaps", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1"),
    ("beside anyOf", {"anyOf": [{"type": "integer"}], "type": "integer", "minimum": 5}, "1"),
    ("beside $ref", {"$ref": "#/$defs/x", "type": "integer", "minimum": 5, "$defs": {"x": {"type": "integer"}}}, "1"),
    ("enum of another type", {"type": "integer", "enum": [1, "a"]}, '"a"'),
    ("const of another type", {"type": "integer", "const": "a"}, '"a"'),
]
# It enforces these: (schema, an answer that it must not take).
ENFORCED: list[tuple[dict[str, Any], str]] = [
    ({"type": "string", "minLength": 3}, '"a"'), ({"type": "string", "maxLength": 1}, '"abc"'), ({"type": "string", "pattern": "^a+$"}, '"b"'),
    *(({"type": "string", "format": name}, '"!"') for name in sorted(FORMATS)),
    ({"type": "number", "maximum": 3}, "5"), ({"type": "integer", "exclusiveMaximum": 3}, "3"), ({"type": "integer", "maximum": 3}, "4"),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 1}, "[1, 2]"),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "[1]"),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, '["a"]'),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, "{}"),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}, '{"b": 1}'),
    ({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1}, '{"a": 1, "b": 2}'),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1}, "{}"),
    ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}, '{"y": 1}'),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, '"a"'), ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, '"a"'),
    ({"allOf": [{"type": "integer", "maximum": 3}]}, "5"), ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}}, '"a"'),
    ({"enum": [1, "b"]}, '"a"'), ({"const": 3}, "4"), ({"type": "integer", "enum": [1, 2]}, "3"),
]
_MAX_DEPTH = 64
_UNDER = ("items", "additionalProperties")
_EACH = ("properties", "$defs", "definitions", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")


def _is(value: Any, name: str) -> bool:
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}[name] is type(value)


def _types(schema: dict[str, Any]) -> list[str] | None:
    """The types that it names; None when it names none."""
    named = schema.get("type")
    if named is not None and not isinstance(named, (str, list)):
        raise TypeError("type")
    return None if named is None else [named] if isinstance(named, str) else named


def _values(schema: Any) -> list[Any] | None:
    if isinstance(schema, dict) and "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if isinstance(schema, dict) and isinstance(schema.get("enum"), list) else None


def _apart(a: Any, b: Any) -> bool:
    """No value satisfies both, as far as can be seen at once: other types, other constants, or a required property of both
    whose constants differ (a discriminator)."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return False
    left, right = _values(a), _values(b)
    if left is not None and right is not None:
        return not any(type(x) is type(y) and x == y for x in left for y in right)
    one, two = _types(a), _types(b)
    if one is not None and two is not None:
        one = ["number" if t == "integer" else t for t in one]
        two = ["number" if t == "integer" else t for t in two]
        if not set(one) & set(two):
            return True
    shared = set(a.get("required", ())) & set(b.get("required", ()))
    mine, theirs = a.get("properties"), b.get("properties")
    return isinstance(mine, dict) and isinstance(theirs, dict) and any(
        name in mine and name in theirs and _values(mine[name]) is not None and _values(theirs[name]) is not None
        and _apart(mine[name], theirs[name]) for name in shared)


def _alone(schema: dict[str, Any], at: str) -> str | None:
    """anyOf, $ref, enum... decide by themselves in xgrammar: what stands beside them is not looked at."""
    for name in ("$ref", "anyOf", "oneOf", "allOf", "enum", "const"):
        if name not in schema:
            continue
        beside = sorted(set(schema) - _NOTES - {name} - ({"type"} if name in ("enum", "const") else set()))
        if beside:
            return f"{at}: {beside[0]} beside {name} cannot be enforced"
        types, values = _types(schema), _values(schema)
        if types is not None and values is not None and not all(any(_is(v, t) for t in types) for v in values):
            return f"{at}: a value of {name} is of another type"
        if name == "allOf" and isinstance(schema[name], list) and len(schema[name]) > 1:
            return f"{at}: several schemas in allOf cannot be enforced together"
        if name == "oneOf" and isinstance(schema[name], list):
            parts = schema[name]
            for i, part in enumerate(parts):
                if not all(_apart(part, other) for other in parts[i + 1 :]):
                    return f"{at}: oneOf cannot be enforced where its schemas are not plainly apart; anyOf can"
    return None


def _of_type(schema: dict[str, Any], at: str) -> str | None:
    types = _types(schema)
    if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
        return f"{at}: enum is no list"
    if types is not None and not all(isinstance(t, str) and (t in _OF_TYPE or t in _OTHER_TYPES) for t in types):
        return f"{at}: no such type"
    allowed = frozenset().union(*(_OF_TYPE.get(t, frozenset()) for t in types or ()))
    for name in schema:
        if name in frozenset().union(*_OF_TYPE.values()) and name not in allowed:
            return f"{at}: {name} cannot be enforced without its type"
    if ("pattern" in schema or "format" in schema) and ("minLength" in schema or "maxLength" in schema) \
            or "pattern" in schema and "format" in schema:
        return f"{at}: pattern, format and a length cannot be enforced together"
    if "format" in schema and schema["format"] not in FORMATS:
        return f"{at}: the format {str(schema['format'])[:40]} cannot be enforced"
    required, properties = schema.get("required", []), schema.get("properties", {})
    if not isinstance(required, list) or not isinstance(properties, dict) or any(r not in properties for r in required):
        return f"{at}: required names what properties does not"
    return None


def schema_fault(schema: Any) -> str | None:
    """What is wrong with it, with the path in the schema; None when nothing is."""
    try:
        return _fault(schema, "", 0)
    except (TypeError, ValueError, KeyError) as bad:  # a keyword whose value is of no use
        return f"this is no JSON schema: {bad}"


def _fault(schema: Any, path: str, depth: int) -> str | None:
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
    rules: tuple[Callable[[dict[str, Any], str], str | None], ...] = (_of_type, _alone)
    for rule in rules:
        fault = rule(schema, at)
        if fault is not None:
            return fault
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
        fault = _fault(value, f"{path}/{name}", depth + 1)
        if fault is not None:
            return fault
    return None


_COMBINED = frozenset("anyOf oneOf allOf $ref enum const".split())


def widened(schema: Any, depth: int = 0) -> Any:
    """Without what schema_fault finds in it: takes every answer that it takes, and schema_fault finds nothing."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema if isinstance(schema, bool) else True
    out = {name: value for name, value in schema.items() if name in _KNOWN and name not in PASSED_BY_XGRAMMAR}
    for name in _UNDER:
        if name in out:
            out[name] = widened(out[name], depth + 1)
    for name in _EACH:
        if name in out:
            parts = out[name] if isinstance(out[name], dict) else {}
            out[name] = {key: widened(value, depth + 1) for key, value in parts.items()}
    for name in _LISTS:
        if isinstance(out.get(name), list):
            out[name] = [widened(value, depth + 1) for value in out[name]]
    properties = out.get("properties", {})
    if isinstance(out.get("required"), list):
        out["required"] = [name for name in out["required"] if isinstance(name, str) and name in properties]
    notes = {name: out[name] for name in out if name in _NOTES}
    for kept in (_KNOWN, _KNOWN - {"pattern", "format"}, _KNOWN - _COMBINED, _COMBINED - {"enum", "const"}, frozenset(["type"])):
        tried = {**notes, **{name: value for name, value in out.items() if name in kept}}
        if schema_fault(tried) is None:
            return tried
    return notes
