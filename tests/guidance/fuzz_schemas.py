"""ffi/guidance against an independent validator, without a model: random walks under the mask through the corpora of
tests/data/schemas and through random schemas; every document that ends must validate, no walk may end without one, and exactly
the schemas marked `refused` may be refused (random ones may be; they are counted).

usage: fuzz_schemas.py LIBRARY.a [SEED] [SECONDS] (in the environment of tests/e2e/requirements.txt)
"""

import ctypes
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import structured  # noqa: E402

# A vocabulary of our own: all bytes, and tokens that lie across borders.
TOKENS = [bytes([i]) for i in range(256)] + [w.encode() for w in (
    '"a', '": ', '","', '", "', "true", "false", "null", "12", " the", " of", '"}', '"]', "],", "ab", "\u00e9", "\u5199", "\U0001f680")]
END = len(TOKENS)
WORDS = (END + 1 + 31) // 32


class Guidance:
    def __init__(self, archive):
        shared = pathlib.Path(tempfile.mkdtemp()) / "guidance.so"
        subprocess.run(["clang-19", "-shared", "-fuse-ld=mold", "-o", shared, "-Wl,--whole-archive", archive, "-Wl,--no-whole-archive",
                        "-lm", "-ldl", "-lpthread"], check=True)
        self.lib = ctypes.CDLL(str(shared))
        sizes, total = [], 0
        for token in TOKENS + [b"<end>"]:
            total += len(token)
            sizes.append(total)
        count = END + 1
        self.vocab, self.error = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.lib.ng_vocab_new(count, b"".join(TOKENS) + b"<end>", (ctypes.c_uint64 * count)(*sizes),
                                         (ctypes.c_uint8 * count)(*([0] * END + [1])), (ctypes.c_uint32 * 1)(END), ctypes.c_size_t(1),
                                         ctypes.byref(self.vocab), ctypes.byref(self.error)))

    def check(self, code):
        assert code == 0, ctypes.string_at(self.error.value).decode()

    def compile(self, schema, kind=1):
        """`schema` as an object, or the text of another kind of grammar."""
        text = schema if kind != 1 else json.dumps(schema, ensure_ascii=False)
        raw, matcher = text.encode(), ctypes.c_void_p()
        code = self.lib.ng_compile(self.vocab, kind, raw, ctypes.c_size_t(len(raw)), ctypes.byref(matcher), ctypes.byref(self.error))
        if code == 0:
            return matcher, None
        assert code in (1, 2, 3), ctypes.string_at(self.error.value)  # a panic is a defect
        return None, ctypes.string_at(self.error.value).decode()

    def walk(self, start, rng, most):
        """A random document, or None when it does not end within `most` tokens."""
        matcher, words = ctypes.c_void_p(), (ctypes.c_uint32 * WORDS)()
        accepted, stopped, text = ctypes.c_size_t(), ctypes.c_int32(), b""
        self.check(self.lib.ng_matcher_clone(start, ctypes.byref(matcher), ctypes.byref(self.error)))
        try:
            for i in range(most):
                self.check(self.lib.ng_mask(matcher, words, ctypes.c_size_t(WORDS), ctypes.byref(self.error)))
                allowed = [t for t in range(END + 1) if words[t // 32] >> (t % 32) & 1]
                assert allowed, f"nothing may follow {text!r}"
                if allowed[-1] == END:
                    if len(allowed) == 1 or i > most / 2 or rng.random() < 0.5:
                        return text.decode()
                    allowed.pop()
                closing = [t for t in allowed if TOKENS[t][:1] in b'"}],']
                token = rng.choice(closing if closing and rng.random() < (0.3 if i < most / 2 else 0.9) else allowed)
                self.check(self.lib.ng_accept(matcher, (ctypes.c_uint32 * 1)(token), ctypes.c_size_t(1), ctypes.byref(accepted), ctypes.byref(self.error)))
                text += TOKENS[token]
                self.check(self.lib.ng_stopped(matcher, ctypes.byref(stopped), ctypes.byref(self.error)))
                if stopped.value:
                    return text.decode()
            return None
        finally:
            self.lib.ng_matcher_free(matcher)


def validate(schema, text):
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))
    except (json.JSONDecodeError, jsonschema.ValidationError) as error:
        raise SystemExit(f"INVALID: {json.dumps(schema, ensure_ascii=False)}\n  {text!r}\n  {str(error).splitlines()[0]}")


def bound(rng):
    return rng.choice([-3, -1, 0, 1, 2, 2.5, 5, 7, 10, 100])


def random_schema(rng, depth):
    """Combines what llguidance claims to enforce, also where it makes no sense."""
    kind = rng.random()
    if depth <= 0 or kind < 0.35:
        t = rng.choice(['string', 'integer', 'number', 'boolean', 'null'])
        s = {'type': t}
        if t == 'string':
            if rng.random() < 0.4:
                s['minLength'] = rng.randrange(4)
            if rng.random() < 0.7:
                s['maxLength'] = rng.randrange(2, 9)
            if rng.random() < 0.3:
                s['pattern'] = rng.choice(['^a', 'b$', '^[a-c]+$', 'x', '^\\d{2,3}$', '[^a]', 'a|b', '^\\w*$', '\\s', '^(ab)*$', 'é', '^.{3}$'])
            if rng.random() < 0.1:
                s['format'] = rng.choice(['date', 'time', 'date-time', 'uuid', 'ipv4', 'email', 'hostname', 'uri', 'ipv6', 'duration'])
        if t in ('integer', 'number'):
            for kk in ('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'):
                if rng.random() < 0.35:
                    s[kk] = bound(rng)
            if rng.random() < 0.25:
                s['multipleOf'] = rng.choice([1, 2, 3, 5, 0.5, 0.25, 10])
        return s
    if kind < 0.42:
        return {'enum': [rng.choice([1, 'a', None, True, 1.5, 'é"', [1], {'a': 1}]) for _ in range(rng.randrange(1, 4))]}
    if kind < 0.47:
        return {'const': rng.choice([1, 'x\n', False, [], {'b': [None]}])}
    if kind < 0.6:
        s = {'type': 'array'}
        if rng.random() < 0.8:
            s['items'] = random_schema(rng, depth - 1)
        if rng.random() < 0.4:
            s['prefixItems'] = [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
        if rng.random() < 0.4:
            s['minItems'] = rng.randrange(3)
        if rng.random() < 0.8:
            s['maxItems'] = rng.randrange(1, 5)
        return s
    if kind < 0.85:
        names = rng.sample(['a', 'b', 'cc', 'x1', 'é'], rng.randrange(0, 4))
        s = {'type': 'object', 'properties': {n: random_schema(rng, depth - 1) for n in names}}
        if rng.random() < 0.6:
            s['required'] = rng.sample(names + (['z'] if rng.random() < 0.2 else []), rng.randrange(len(names) + 1))
        if rng.random() < 0.5:
            s['additionalProperties'] = rng.choice([False, True, random_schema(rng, depth - 1)])
        if rng.random() < 0.3:
            s['patternProperties'] = {rng.choice(['^a', 'b', '^x[0-9]', '.']): random_schema(rng, depth - 1)}
        if rng.random() < 0.2:
            s['minProperties'] = rng.randrange(3)
        if rng.random() < 0.2:
            s['maxProperties'] = rng.randrange(1, 4)
        return s
    comb = rng.choice(['anyOf', 'oneOf', 'allOf'])
    s = {comb: [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}
    if rng.random() < 0.4:
        s.update(random_schema(rng, depth - 1))
    return s


def main():
    guidance, rng = Guidance(sys.argv[1]), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 10
    counts = {"schemas": 0, "refused": 0, "documents": 0}

    def run(schema, walks, most):
        matcher, why = guidance.compile(schema)
        counts["schemas" if matcher else "refused"] += 1
        for _ in range(walks if matcher else 0):
            text = guidance.walk(matcher, rng, most)
            if text is not None:
                counts["documents"] += 1
                validate(schema, text)
        guidance.lib.ng_matcher_free(matcher)
        return why

    for entry in structured.load("features"):
        why = run(entry["schema"], 12, 600)
        assert bool(why) == bool(entry.get("refused")), (entry["name"], why)
    refused = [entry["name"] for entry in structured.load("bfcl") if run(entry["schema"], 2, 600)]
    assert len(refused) <= 12, refused  # 5 %
    print(f"corpora: {counts}, refused of bfcl: {refused}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        schema = random_schema(rng, 3)
        if rng.random() < 0.2:
            schema = {"$defs": {"d": random_schema(rng, 2)}, "type": "object", "required": ["p"], "properties": {
                "p": {"$ref": "#/$defs/d"}, "q": {"anyOf": [{"$ref": "#/$defs/d"}, {"type": "null"}]}}}
        run(schema, 4, 200)
    print(f"with random ones: {counts}, all valid")


if __name__ == "__main__":
    main()
