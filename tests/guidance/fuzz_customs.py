"""Grammars of custom tools (ffi/guidance, quote.rs) without a model: random expressions and random Lark grammars as the input of a
call; every input that ends is decoded from its JSON string and checked by Python's own `re`. And bytes that are no grammar at all:
refused, never a panic.

usage: fuzz_customs.py LIBRARY.a [SEED] [SECONDS] (in the environment of tests/e2e/requirements.txt)
"""

import json
import random
import re
import sys
import time

from fuzz_schemas import Guidance

LARK = 3
ATOMS = ["a", "b", "[ab]", '[^"a]', r"\\", r"\n", r"\t", '"', "/", ".", r"[\n-a]", r"[\x00-\x1f]", "[0-9]", "é", r"[\\\]]", "(?:ab|b)", " "]
FRAGMENTS = ["start", ":", "rule", "TERM", '"a"', "/b+/", "|", "(", ")", "[", "]", "{", "}", "~2", "~1..3", "..", "->", "%ignore", "%import",
             " common.LF", "\n", " ", "*", "+", "?", "!", "//", "#", '"', "/", "\\", "<", ">", "@", "&", "~", "é", "\x00", "%json", ".1", "i", ","]


def expression(rng, depth):
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        return rng.choice(ATOMS)
    if kind < 0.7:
        return "".join(expression(rng, depth - 1) for _ in range(rng.randrange(1, 4)))
    if kind < 0.85:
        return "(?:" + "|".join(expression(rng, depth - 1) for _ in range(rng.randrange(1, 4))) + ")"
    return "(?:" + expression(rng, depth - 1) + ")" + rng.choice(["{0,2}", "?", "{1,3}", "{2}"])


def grammar(rng):
    """A Lark grammar without recursion, and the same as one expression."""
    terminals = {f"T{i}": expression(rng, 2) for i in range(rng.randrange(1, 4))}
    rules, lines, forms = {}, [], dict(terminals)
    for i in range(rng.randrange(1, 4)):
        options = []
        for _ in range(rng.randrange(1, 3)):
            parts = []
            for _ in range(rng.randrange(1, 4)):
                name = rng.choice(list(forms))
                op = rng.choice(["", "", "", "?", "~1..2"])
                parts.append((name + op, f"(?:{forms[name]})" + op.replace("~1..2", "{1,2}")))
            options.append((" ".join(p for p, _ in parts), "".join(f for _, f in parts)))
        rules[f"r{i}"] = " | ".join(o for o, _ in options)
        forms[f"r{i}"] = "(?:" + "|".join(f for _, f in options) + ")"
    last = list(rules)[-1]
    lines.append(f"start: {last}")
    lines += [f"{name}: {body}" for name, body in rules.items()]
    lines += [f"{name}: /{form.replace('/', chr(92) + '/')}/" for name, form in terminals.items()]
    return "\n".join(lines) + "\n", forms[last]


def custom(syntax, definition):
    value = json.dumps({"tool": "t", "syntax": syntax, "definition": definition})
    return f'start: "\\"" input "\\""\ninput: %custom {value}\n'


def main():
    guidance, rng = Guidance(sys.argv[1]), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    end = time.monotonic() + (float(sys.argv[3]) if len(sys.argv) > 3 else 10)
    counts = {"grammars": 0, "refused": 0, "inputs": 0, "rubbish": 0}

    def run(syntax, definition, form):
        matcher, why = guidance.compile(custom(syntax, definition), LARK)
        counts["grammars" if matcher else "refused"] += 1
        assert matcher or 'grammar of the tool "t"' in why or "too" in why, (definition, why)
        for _ in range(4 if matcher else 0):
            text = guidance.walk(matcher, rng, 120)
            if text is None:
                continue
            counts["inputs"] += 1
            said = json.loads(text)
            assert re.fullmatch(form, said), f"{definition!r} let through {said!r}"
        guidance.lib.ng_matcher_free(matcher)

    while time.monotonic() < end:
        form = expression(rng, 3)
        run("regex", form, form)
        run("lark", *grammar(rng))
        rubbish = "".join(rng.choice(FRAGMENTS) for _ in range(rng.randrange(1, 30)))
        matcher, _ = guidance.compile(custom(rng.choice(["lark", "regex"]), rubbish), LARK)  # a panic fails here
        guidance.lib.ng_matcher_free(matcher)
        counts["rubbish"] += 1
    print(f"{counts}, all valid")


if __name__ == "__main__":
    main()
