"""The simulator against real engines: two embedded llama.cpp engines on this machine under Poisson load.

First the engine's step costs are fitted from measurements of one engine alone (prompts of several lengths, decode at several
widths and contexts), and by how much another one beside it lengthens them (cores that share caches, memory or a pipeline); then
both serve a Poisson stream in turn, and the same arrivals go through `nereid sim run tests/scenarios/llama_engines.toml`. Errors are |predicted - measured| / measured per request; medians.
"""

import json
import pathlib
import random
import subprocess
import tempfile
import threading
import time

import lib

SIM = lib.os.environ.get("NEREID_SIM", lib.BINARY)
WORDS = ("sea wave salt wind sail shore tide pearl coral reef storm cloud light stone sand bird fish rope mast keel harbor "
         "island current moon star deep blue green cold warm north south").split()


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def ask(port, rng, count, tokens):
    return lib.Answer(port, {"model": "default", "prompt": f"[{rng.random()}] " + words(rng, count), "max_tokens": tokens})


def solve(rows, values, weights):
    """Weighted least squares with non-negative coefficients, by dropping negative ones: a handful of unknowns."""
    active = list(range(len(rows[0])))
    while True:
        n = len(active)
        m = [[sum(w * r[a] * r[b] for r, w in zip(rows, weights)) for b in active] +
             [sum(w * r[a] * v for r, v, w in zip(rows, values, weights))] for a in active]
        for i in range(n):
            pivot = max(range(i, n), key=lambda k: abs(m[k][i]))
            m[i], m[pivot] = m[pivot], m[i]
            for k in range(n):
                if k != i and m[i][i]:
                    f = m[k][i] / m[i][i]
                    m[k] = [x - f * y for x, y in zip(m[k], m[i])]
        got = {a: m[i][n] / m[i][i] for i, a in enumerate(active)}
        if min(got.values()) >= 0 or n == 1:
            return [max(0.0, got.get(a, 0.0)) for a in range(len(rows[0]))]
        active.remove(min(got, key=got.get))


def paces(answers):
    """Milliseconds between tokens of each stream while all of them decode."""
    begin, end = max(a.first for a in answers), min(a.last for a in answers)
    if end - begin < 0.3 * (answers[0].last - answers[0].first):
        return []
    return [(a.last - a.first) * 1000 / (a.tokens - 1) for a in answers]


def wave(port, rng, width, count, tokens):
    return lib.concurrently([lambda i=i: ask(port, random.Random(f"{rng.random()}{i}"), count, tokens) for i in range(width)], width)


def calibrate(ports, rounds):
    """Step costs of an engine that has the machine to itself, and by how much another one that works beside it lengthens them."""
    rng = random.Random(time.time())

    def both(job):
        return lib.concurrently([lambda p=p, i=i: job(p, random.Random(f"{rng.random()}{i}")) for i, p in enumerate(ports)], len(ports))

    prefill, decode, slowdown = ([], []), ([], []), []
    for _ in range(rounds):
        for count in (40, 120, 250, 500, 900):
            a = ask(ports[0], rng, count, 1)
            n = a.prompt_tokens
            prefill[0].append([1 + (n - 1) // 512, n, n * n / 2])    # a step takes 512 tokens at most
            prefill[1].append(a.ttft * 1000)
            if count in (120, 500):
                per_token = [x.ttft / x.prompt_tokens for x in both(lambda port, r, c=count: ask(port, r, c, 1))]
                slowdown += [x / (a.ttft / n) for x in per_token]
        for width, count, tokens in ((1, 40, 24), (1, 150, 24), (1, 400, 24), (2, 100, 20), (2, 350, 20), (4, 40, 16), (4, 200, 16)):
            answers = wave(ports[0], rng, width, count, tokens)
            for pace in paces(answers):
                decode[0].append([1, width, sum(a.prompt_tokens + a.tokens / 2 for a in answers)])
                decode[1].append(pace)
            if width == 1 and count == 150:
                slowdown += [p / paces(answers)[0] for x in both(lambda port, r: wave(port, r, 1, 150, 24)) for p in paces(x)]

    def fit(rows, values):
        return solve(rows, values, [1 / v ** 2 for v in values])
    for name, (rows, values), costs in (("prefill", prefill, fit(*prefill)), ("decode", decode, fit(*decode))):
        lib.say(name + " (rows, measured, fitted): " + " ".join(
            f"{row[1]}/{row[2]:.0f}:{v:.0f}/{sum(c * x for c, x in zip(costs, row)):.0f}" for row, v in zip(rows, values)))
    lib.say("slowdown: " + " ".join(f"{x:.2f}" for x in sorted(slowdown)))
    return fit(*prefill), fit(*decode), max(1.0, median(slowdown))


def load(ports, seconds, rate, seed):
    rng = random.Random(seed)
    jobs, at, i = [], 0.0, 0
    while at < seconds:
        jobs.append((at, ports[i % len(ports)], rng.randrange(40, 500), rng.randrange(6, 28)))
        at += rng.expovariate(rate)
        i += 1
    begin, done, threads = time.perf_counter() + 0.2, [None] * len(jobs), []

    def one(k, start, port, count, tokens):
        time.sleep(max(0, begin + start - time.perf_counter()))
        done[k] = (start, ask(port, random.Random(f"load{seed}{k}"), count, tokens))

    for k, job in enumerate(jobs):
        threads.append(threading.Thread(target=one, args=(k, *job)))
        threads[-1].start()
    for t in threads:
        t.join()
    return done


def predict(done, prefill, decode, slowdown, folder):
    trace = folder / "load.jsonl"
    with open(trace, "w") as out:
        for k, (start, a) in enumerate(done):
            out.write(json.dumps({"timestamp": round(start * 1000), "input_length": a.prompt_tokens, "output_length": a.tokens,
                                  "hash_ids": [k * 1000 + b for b in range(-(-a.prompt_tokens // 512))]}) + "\n")
    argv = [SIM, "sim", "run", "tests/scenarios/llama_engines.toml", "--quiet", "--json", "-", f"--workload.trace={trace}",
            f"--engine.prefill-fixed-ms={prefill[0]}", f"--engine.prefill-token-us={prefill[1] * 1e3}",
            f"--engine.prefill-pair-ns={prefill[2] * 1e6}", f"--engine.decode-fixed-ms={decode[0]}",
            f"--engine.decode-request-ms={decode[1]}", f"--engine.decode-kv-token-ns={decode[2] * 1e6}",
            f"--engine.neighbour-slowdown={slowdown}"]
    out = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, cwd=lib.ROOT).stdout
    return {r["id"]: r for r in json.loads(out)["requests"]}


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    args = lib.arguments(__doc__)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nereid-sim-"))
    ports = [lib.free_port(), lib.free_port()]
    with lib.contextlib.ExitStack() as stack:
        for port in ports:
            log = folder / f"{port}.log"
            child = stack.enter_context(lib.process(
                [lib.BINARY, "serve", "--port", str(port), "--model", lib.MODEL, "--engine.threads=1", "--gateway.access-log=off",
                 "--cache.enabled=false"], log))
            lib.wait_http(port, "/ready", child, log)
        for port in ports:
            ask(port, random.Random(port), 40, 4)
        prefill, decode, slowdown = calibrate(ports, 1 if args.quick else 3)
        lib.say(f"prefill ms = {prefill[0]:.2f} a step + {prefill[1]:.4f} a token + {prefill[2]:.3g} a pair; decode ms = "
                f"{decode[0]:.2f} + {decode[1]:.2f} a request + {decode[2]:.3g} a KV token; times {slowdown:.2f} beside a busy one")
        done = load(ports, 14 if args.quick else 60, 1.1, 5)
    predicted = predict(done, prefill, decode, slowdown, folder)
    ttft, itl = [], []
    for k, (_, a) in enumerate(done):
        p = predicted[k]
        ttft.append((p["ttft_ms"], a.ttft * 1000))
        if a.tokens > 1 and a.last > a.first:
            itl.append((p["itl_ms"], (a.last - a.first) * 1000 / (a.tokens - 1)))
    metrics = {
        "requests": len(done),
        "ttft_error_median": median([abs(p - m) / m for p, m in ttft]), "itl_error_median": median([abs(p - m) / m for p, m in itl]),
        "ttft_ms_measured_p50": median([m for _, m in ttft]), "ttft_ms_predicted_p50": median([p for p, _ in ttft]),
        "itl_ms_measured_p50": median([m for _, m in itl]), "itl_ms_predicted_p50": median([p for p, _ in itl]),
        "prefill_fixed_ms": prefill[0], "prefill_token_ms": prefill[1], "prefill_pair_ms": prefill[2],
        "decode_fixed_ms": decode[0], "decode_request_ms": decode[1], "decode_kv_token_ms": decode[2], "neighbour_slowdown": slowdown,
    }
    lib.finish("sim_engines", metrics, {}, ["pairs (predicted, measured) TTFT ms: " +
               " ".join(f"{p:.0f}/{m:.0f}" for p, m in ttft), "ITL ms: " + " ".join(f"{p:.0f}/{m:.0f}" for p, m in itl)])


if __name__ == "__main__":
    main()
