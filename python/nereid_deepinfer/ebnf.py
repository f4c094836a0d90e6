"""EBNF with JSON schemas in it: `NAME ::= %json SCHEMA`, a rule of its own line, as src/text/lark.h writes forced calls.

xgrammar knows no such rule, but it prints the grammar that it makes of a schema: its rules, under names of their own, are put
in the place of the schema. That costs 0.1 ms a property, so it is done where DeepInfer compiles, on its thread for grammars
(`install`), and not on the loop's.

A schema with `"x-guidance": {"lenient": true}` (a tool that is not strict) is held to as far as that goes: keywords beyond it
are taken out of it (`widened`). Others with such keywords are refused (`fault_of`). Pure but for `install`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from nereid_deepinfer.schema import schema_fault, widened

_RULE = re.compile(r"^(\w+) ::= %json (.*)$", re.MULTILINE)
_NAME = re.compile(r"^(\w+) ::=", re.MULTILINE)
_WORDS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\w+')  # literals and classes are no names


class BadSchema(ValueError):
    """Names the tool, if the schema does."""


def _schema_of(text: str) -> Any:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as bad:
        raise BadSchema(f"a schema is not JSON: {bad}") from None
    if not isinstance(schema, dict):
        return schema
    guidance = schema.pop("x-guidance", None)
    if isinstance(guidance, dict) and guidance.get("lenient") is True:
        return widened(schema)
    fault = schema_fault(schema)
    if fault is not None:
        raise BadSchema(f"{fault}, in the schema of the {schema['$comment']}" if "$comment" in schema else fault)
    return schema


def fault_of(grammar: str) -> str | None:
    """What of its schemas cannot be enforced."""
    try:
        for rule in _RULE.finditer(grammar):
            _schema_of(rule[2])
    except BadSchema as bad:
        return str(bad)
    return None


def expand(grammar: str, rules_of: Callable[[str], str]) -> str:
    """`rules_of` gives the EBNF of a schema, whose first rule is `root`."""
    def rules(found: re.Match[str]) -> str:
        name = found[1]
        inner = rules_of(json.dumps(_schema_of(found[2])))
        names = set(_NAME.findall(inner))
        inner = _WORDS.sub(lambda word: f"{name}_{word[0]}" if word[0] in names else word[0], inner)
        return f"{name} ::= {name}_root\n{inner}"

    return _RULE.sub(rules, grammar)


def install(compiler: Any) -> None:
    """`compiler`: DeepInfer's XGrammarCompiler. AttributeError when it is another one."""
    import xgrammar

    compile_it = compiler.dispatch_and_compile

    def dispatch_and_compile(schema_type: str, schema: str) -> Any:
        if schema_type == "ebnf" and "%json" in schema:
            try:
                schema = expand(schema, lambda text: str(xgrammar.Grammar.from_json_schema(text, strict_mode=True)))
            except Exception as bad:  # as dispatch_and_compile itself does: a failed grammar, not a dead thread
                raise RuntimeError(f"xgrammar invalid input: {bad}") from bad
        return compile_it(schema_type, schema)

    compiler.dispatch_and_compile = dispatch_and_compile
