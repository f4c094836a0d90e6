"""Structured output with the real model: do answers validate, do they finish, what does a grammar cost?

Every schema of tests/data/schemas goes out as response_format json_schema. Answers that finished are checked by an
independent validator (Python's jsonschema). `bounded` variants (strings of at most 40 characters, arrays of at most 3
elements) must also finish within 512 tokens. Cost: tokens/s of the same number of tokens with a grammar and without, in
turns. Schemas that the service refuses with 400 are counted apart. A whole run fails (exit 1) when one of misses() does; a
--quick one only for answers that are wrong.
"""

import copy
import http.client
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import lib

DATA = lib.ROOT / "tests/data/schemas"


def own_python():
    """This benchmark needs jsonschema: the environment of the end-to-end tests has it."""
    try:
        import jsonschema  # noqa: F401
    except ImportError:
        script = f'ROOT={lib.ROOT}; cd "$ROOT"; source tools/dev/lib.sh; venv e2e "$ROOT/tests/e2e/requirements.txt"'
        folder = subprocess.run(["bash", "-c", script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        raise SystemExit(subprocess.call([f"{folder}/bin/python", *sys.argv]))


def load(name):
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def bounded(schema):
    """The schema with an end: strings and arrays get a maximum where they have none."""
    schema = copy.deepcopy(schema)

    def walk(node):
        if isinstance(node, list):
            for each in node:
                walk(each)
        if not isinstance(node, dict):
            return
        types = node.get("type")
        if types == "string" and not {"enum", "const", "pattern", "format"} & node.keys():
            node.setdefault("maxLength", 40)
        if types == "array":
            node.setdefault("maxItems", 3)
            node.setdefault("items", {"type": "integer", "minimum": 0, "maximum": 999})
        if types in ("number", "integer") and not {"enum", "const"} & node.keys():
            node.setdefault("minimum", 0)
            node.setdefault("maximum", 100000)
            if types == "number":
                node["type"] = "integer"
        if types == "object" and not node.get("properties") and "additionalProperties" not in node:
            node["additionalProperties"] = False
        for key, member in node.items():
            if key not in ("enum", "const", "default", "examples"):
                walk(member)

    walk(schema)
    return schema


def body_of(entry, schema, max_tokens, seed=0):
    return {"model": "default", "max_tokens": max_tokens, "temperature": 0.8, "seed": seed,
            "messages": [{"role": "user", "content": f"{entry['prompt']}\nAnswer with the arguments of {entry['name']} as JSON."}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}}


def ask(port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    answer = json.loads(reply.read())
    connection.close()
    return reply.status, answer


def outcome(port, entry, schema, max_tokens):
    """("refused" | "cut" | "valid" | "INVALID", detail)"""
    import jsonschema
    status, answer = ask(port, body_of(entry, schema, max_tokens))
    if status == 400:
        return "refused", answer["error"]["message"]
    if status != 200:
        return "INVALID", f"status {status}: {answer}"
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut", choice["message"]["content"]
    try:
        document = json.loads(choice["message"]["content"])
        validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(document)
    except (json.JSONDecodeError, jsonschema.ValidationError) as error:
        return "INVALID", f"{choice['message']['content']!r}: {str(error).splitlines()[0]}"
    return "valid", choice["message"]["content"]


def run(port, entries, transform, max_tokens, width):
    jobs = [lambda e=e: outcome(port, e, transform(e["schema"]), max_tokens) for e in entries]
    results = lib.concurrently(jobs, width)
    counts = {kind: sum(r[0] == kind for r in results) for kind in ("valid", "cut", "refused", "INVALID")}
    for entry, (kind, detail) in zip(entries, results):
        if kind == "INVALID" or (kind == "refused" and not entry.get("refused")):
            lib.say(f"   {kind}: {entry['name']}: {detail[:300]}")
    return counts, results


# Long whatever the model does: a grammar that cannot end within the tokens asked for.
LONG = {"type": "array", "minItems": 400, "items": {"type": "object", "required": ["name", "size", "kind"], "additionalProperties": False,
        "properties": {"name": {"type": "string", "maxLength": 20}, "size": {"type": "integer", "minimum": 0, "maximum": 999},
                       "kind": {"enum": ["ship", "island", "harbor"]}}}}


def speed(port, width, tokens, grammar, rng):
    """Tokens per second of `width` streams of exactly `tokens` tokens."""
    def one():
        body = {"model": "default", "max_tokens": tokens, "temperature": 0.8, "seed": rng.randrange(1 << 30), "ignore_eos": True,
                "messages": [{"role": "user", "content": f"[{rng.random()}] List things of the sea as JSON."}]}
        if grammar:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "list", "strict": True, "schema": LONG}}
        return lib.Answer(port, body, "/v1/chat/completions")
    answers = lib.concurrently([one] * width, width)
    assert all(a.tokens == tokens for a in answers), [a.tokens for a in answers]
    return sum(a.tokens for a in answers) / (max(a.last for a in answers) - min(a.begin for a in answers))


def misses(metrics, ratios):
    """What the project promises of structured output and these figures do not hold, a line each. Whatever was not measured is one."""
    bounds = [(metrics, "valid_share", 1.0, None), (metrics, "finished_share_bounded_512", 0.9, None),
              (metrics, "refused_share_bfcl", None, 0.05),
              (ratios, "grammar_over_plain_1", 0.9, None), (ratios, "grammar_over_plain_8", 0.9, None)]
    out = []
    for values, name, least, most in bounds:
        value = values.get(name)
        if value is None or not ((least is None or value >= least) and (most is None or value <= most)):
            out.append(f"{name} is {value}, not {f'at least {least}' if most is None else f'at most {most}'}")
    if not metrics.get("finished"):
        out.append("no answer was finished")
    return out


def main():
    args = lib.arguments(__doc__)
    own_python()
    bfcl, features = load("bfcl"), load("features")
    if args.quick:
        bfcl = random.Random(1).sample(bfcl, 16)
    out = pathlib.Path(tempfile.mkdtemp(prefix="nereid-structured-"))
    port = lib.free_port()
    log = out / "nereid.log"
    with lib.process([lib.BINARY, "serve", "--port", str(port), "--model", lib.MODEL, "--gateway.access-log=off",
                      "--cache.enabled=false"], log) as child:
        lib.wait_http(port, "/ready", child, log)
        lib.Answer(port, {"model": "default", "prompt": "Hello", "max_tokens": 8})
        rng = random.Random(3)
        speeds = {}
        for width, rounds in ((1, 1 if args.quick else 5), (8, 1 if args.quick else 5)):
            for grammar in (True, False):
                speed(port, width, 16, grammar, rng)  # warm: compiled, mapped
            for _ in range(rounds):
                for grammar in (True, False):
                    speeds.setdefault((width, grammar), []).append(speed(port, width, 48 if args.quick else 128, grammar, rng))
            lib.say(f"width {width}: " + ", ".join(f"{'with' if g else 'without'} {max(v):.0f} tok/s" for (w, g), v in speeds.items() if w == width))
        begin = time.monotonic()
        free, _ = run(port, bfcl, lambda s: s, 96 if args.quick else 512, 16)
        lib.say(f"as they are: {free} in {time.monotonic() - begin:.0f} s")
        ended, _ = run(port, bfcl[:8 if args.quick else 80], bounded, 512, 16)
        lib.say(f"bounded: {ended} in {time.monotonic() - begin:.0f} s")
        known, results = run(port, features, lambda s: s, 128 if args.quick else 512, 16)
        lib.say(f"features: {known} in {time.monotonic() - begin:.0f} s")
    wrong = [e["name"] for e, (kind, _) in zip(features, results) if (kind == "refused") != bool(e.get("refused"))]
    medians = {key: lib.spread(values)["median"] for key, values in speeds.items()}
    finished = free["valid"] + ended["valid"] + known["valid"]
    invalid = free["INVALID"] + ended["INVALID"] + known["INVALID"]
    metrics = {"schemas": len(bfcl) + len(features), "finished": finished, "invalid": invalid,
               "valid_share": finished / max(1, finished + invalid),
               "finished_share_bounded_512": ended["valid"] / max(1, sum(ended.values()) - ended["refused"]),
               "refused_share_bfcl": (free["refused"] + ended["refused"]) / (sum(free.values()) + sum(ended.values())),
               "features_not_as_expected": len(wrong), "bfcl": free, "bounded": ended, "features": known,
               **{f"tok_s_{w}_{'grammar' if g else 'plain'}": v for (w, g), v in medians.items()}}
    ratios = {f"grammar_over_plain_{w}": medians[w, True] / medians[w, False] for w in (1, 8)}
    missed = [] if args.quick else misses(metrics, ratios)
    notes = ["ratios are ours with a grammar / ours without", *(f"not as expected: {name}" for name in wrong),
             *(f"MISSED: {line}" for line in missed)]
    lib.finish("structured", metrics, ratios, notes)
    for line in missed:
        lib.say(f"   MISSED: {line}")
    if invalid or wrong or missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
