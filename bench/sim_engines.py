"""The simulator against real engines: two embedded llama.cpp engines on this machine under Poisson load.

The engine's step costs are fitted from measurements of one engine alone (prompts of several lengths, decode at several widths
and contexts), and by how much another one beside it lengthens them (cores that share caches, memory or a pipeline). Both serve a
Poisson stream in turn, in segments with a round of these measurements before and after each, because a virtual machine's speed
drifts within a minute; a segment's arrivals go through `nereid sim run tests/scenarios/llama_engines.toml` with costs of the shape
that fits all rounds and the speed of the two rounds beside the segment, never of the load itself. Each segment's arrivals run twice,
and a request's time is the mean of both, measured as predicted: `*_error_median` is the median of |predicted - measured| / measured over
all requests, `*_repeat_median` that of |one - other| / mean of the two measurements, which is what the machine differs from itself.
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
    """Milliseconds between tokens of each stream while all of them decode: from when the last of them has begun until one ends."""
    begin, end = max(a.first for a in answers), min(a.last for a in answers)
    inside = [[t for t in a.times if begin <= t <= end] for a in answers]
    return [(times[-1] - times[0]) * 1000 / (len(times) - 1) for times in inside if len(times) > 4]


def wave(port, rng, width, count, tokens):
    return lib.concurrently([lambda i=i: ask(port, random.Random(f"{rng.random()}{i}"), count, tokens) for i in range(width)], width)


def measure(ports):
    """One round: (rows, ms) of prefills and of decodes on an engine that has the machine to itself, and how many times longer they
    took beside another engine that works."""
    rng = random.Random(time.time())

    def both(job):
        return lib.concurrently([lambda p=p, i=i: job(p, random.Random(f"{rng.random()}{i}")) for i, p in enumerate(ports)], len(ports))

    prefill, decode, slowdown = [], [], []
    for count in (40, 120, 250, 500):
        a = ask(ports[0], rng, count, 1)
        n = a.prompt_tokens
        prefill.append(([1 + (n - 1) // 512, n, n * n / 2], a.ttft * 1000))    # a step takes 512 tokens at most
        if count == 250:
            slowdown += [x.ttft / x.prompt_tokens / (a.ttft / n) for x in both(lambda port, r: ask(port, r, 250, 1))]
    for width, count, tokens in ((1, 40, 20), (1, 250, 20), (2, 100, 20), (2, 350, 20), (4, 60, 24)):
        answers = wave(ports[0], rng, width, count, tokens)
        alone = paces(answers)
        decode += [([1, width, sum(a.prompt_tokens + a.tokens / 2 for a in answers)], pace) for pace in alone]
        if width == 1 and count == 250:
            slowdown += [p / alone[0] for x in both(lambda port, r: wave(port, r, 1, 250, 20)) for p in paces(x)]
    return prefill, decode, slowdown


def solve_robust(samples):
    """Least absolute relative deviations, by reweighting: a sample that lost its core for a while does not bend the line."""
    rows, values = [row for row, _ in samples], [ms for _, ms in samples]
    weights = [1 / v ** 2 for v in values]
    for _ in range(30):
        costs = solve(rows, values, weights)
        weights = [1 / v ** 2 / max(0.02, abs(sum(c * x for c, x in zip(costs, row)) / v - 1)) for row, v in zip(rows, values)]
    return costs


def fit(rounds):
    """Per segment the coefficients of prefill and decode, and the neighbour's slowdown. The shape of a cost is fitted to all rounds; the
    machine's speed during a segment is taken from the two rounds beside it (median of measured / fitted)."""
    segments = [[] for _ in rounds[1:]]
    for kind in (0, 1):
        costs = solve_robust([sample for measured in rounds for sample in measured[kind]])
        pace = [[ms / sum(c * x for c, x in zip(costs, row)) for row, ms in measured[kind]] for measured in rounds]
        lib.say(f"{('prefill', 'decode')[kind]}: measured / fitted by round: " + "; ".join(" ".join(f"{x:.2f}" for x in r) for r in pace))
        for k, segment in enumerate(segments):
            speed = median(pace[k] + pace[k + 1])
            segment.append([c * speed for c in costs])
    slowdown = max(1.0, median([x for measured in rounds for x in measured[2]]))
    return [(*segment, slowdown) for segment in segments]


def load(ports, seconds, rate, seed, words_seed):
    """Arrivals and lengths by `seed`; words that no run before had, or a cached prefix would answer."""
    rng = random.Random(seed)
    jobs, at, i = [], 0.0, 0
    while at < seconds:
        jobs.append((at, ports[i % len(ports)], rng.randrange(40, 500), rng.randrange(6, 28)))
        at += rng.expovariate(rate)
        i += 1
    begin, done, threads = time.perf_counter() + 0.2, [None] * len(jobs), []

    def one(k, start, port, count, tokens):
        time.sleep(max(0, begin + start - time.perf_counter()))
        done[k] = (start, ask(port, random.Random(f"{words_seed} {k}"), count, tokens))

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


def outcomes(done, prefill, decode, slowdown, folder):
    """Of one run of a segment: {request: (predicted, measured)} of TTFT and of ITL, ms."""
    predicted = predict(done, prefill, decode, slowdown, folder)
    ttft = {i: (predicted[i]["ttft_ms"], a.ttft * 1000) for i, (_, a) in enumerate(done)}
    itl = {i: (predicted[i]["itl_ms"], (a.last - a.first) * 1000 / (a.tokens - 1)) for i, (_, a) in enumerate(done) if len(a.times) > 1}
    return ttft, itl


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    args = lib.arguments(__doc__)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nereid-sim-"))
    ports = [lib.free_port(), lib.free_port()]
    segments, seconds = (1, 7) if args.quick else (6, 7)
    with lib.contextlib.ExitStack() as stack:
        for port in ports:
            log = folder / f"{port}.log"
            child = stack.enter_context(lib.process(
                [lib.BINARY, "serve", "--port", str(port), "--model", lib.MODEL, "--engine.threads=1", "--gateway.access-log=off",
                 "--cache.enabled=false"], log))
            lib.wait_http(port, "/ready", child, log)
        for port in ports:
            ask(port, random.Random(port), 40, 4)
        rounds, loads = [measure(ports)], []
        for k in range(2 * segments):
            loads.append(load(ports, seconds, 1.1, 5 + k // 2, k))
            rounds.append(measure(ports))
    fits = fit(rounds)
    ttft, itl = [], []    # (predicted, measured, one measurement - the other), ms
    runs = [outcomes(done, *costs, folder) for done, costs in zip(loads, fits)]
    for one, other in zip(runs[::2], runs[1::2]):
        for pairs, a, b in ((ttft, one[0], other[0]), (itl, one[1], other[1])):
            pairs += [((a[i][0] + b[i][0]) / 2, (a[i][1] + b[i][1]) / 2, a[i][1] - b[i][1]) for i in sorted(a.keys() & b.keys())]
    metrics = {"requests": len(ttft), "segments": segments}
    for name, pairs in (("ttft", ttft), ("itl", itl)):
        metrics[f"{name}_error_median"] = median([abs(p - m) / m for p, m, _ in pairs])
        metrics[f"{name}_repeat_median"] = median([abs(d) / m for _, m, d in pairs])
        metrics[f"{name}_ms_measured_p50"], metrics[f"{name}_ms_predicted_p50"] = median([m for _, m, _ in pairs]), median([p for p, _, _ in pairs])
    notes = [f"prefill ms = {p[0]:.2f} a step + {p[1]:.4f} a token + {p[2]:.3g} a pair; decode ms = {d[0]:.2f} + {d[1]:.2f} a request + "
             f"{d[2]:.3g} a KV token; times {s:.2f} beside a busy one" for p, d, s in fits]
    lib.finish("sim_engines", metrics, {}, notes + ["pairs (predicted, measured) TTFT ms: " +
               " ".join(f"{p:.0f}/{m:.0f}" for p, m, _ in ttft), "ITL ms: " + " ".join(f"{p:.0f}/{m:.0f}" for p, m, _ in itl)])


if __name__ == "__main__":
    main()
