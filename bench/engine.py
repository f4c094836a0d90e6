"""Our engine against llama-server: same source tree, same build flags, same model, same threads, over HTTP.

Three servers stay up and take turns, scenario by scenario and round by round: ours with the determinism rule on, ours
with it off, llama-server -np 16. Ratios are ours / theirs of the medians; `*_off` is the second column.
"""

import random
import tempfile
import pathlib
import contextlib

import lib

# llama-server's best flags here: one stream of KV per slot (-no-kvu is faster at 16 than unified), flash attention on,
# 16 slots of the context that the longest scenario needs, the default ubatch, no web interface, no request log.
PEER_FLAGS = ["-np", "16", "-c", str(16 * 5120), "-no-kvu", "-fa", "on", "-b", "2048", "-ub", "512", "--no-webui"]
WORDS = ("sea wave salt wind sail shore tide pearl coral reef storm cloud light stone sand bird fish rope mast keel harbor "
         "island current moon star deep blue green cold warm north south").split()


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def decode(port, rng, width, tokens):
    """Tokens per second of `width` concurrent streams with short, different prompts."""
    prompts = [f"[{rng.random()}] Write a long story about {words(rng, 8)}." for _ in range(width)]
    answers = lib.concurrently([lambda p=p: lib.Answer(port, {"model": "default", "prompt": p, "max_tokens": tokens})
                                for p in prompts], width)
    if width == 1:
        return (answers[0].tokens - 1) / (answers[0].last - answers[0].first)
    return sum(a.tokens for a in answers) / (max(a.last for a in answers) - min(a.begin for a in answers))


def prefill(port, rng, words_count):
    """Prompt tokens per second of one long, new prompt."""
    a = lib.Answer(port, {"model": "default", "prompt": f"{rng.random()} " + words(rng, words_count), "max_tokens": 1})
    if a.cached > 64:
        raise SystemExit(f"the prefill prompt was cached ({a.cached} tokens)")
    return a.prompt_tokens / a.ttft


def shared_prefix(port, rng, groups, requests, width):
    """Mean TTFT in seconds of shuffled requests that share 1,500-token prefixes, after a warm-up of each group."""
    prefixes = [f"[group {rng.random()}] " + words(rng, 1190) for _ in range(groups)]
    for p in prefixes:
        lib.Answer(port, {"model": "default", "prompt": p + " Begin.", "max_tokens": 1})
    jobs = [f"{prefixes[i % groups]} Question {i}: {words(rng, 12)}?" for i in range(requests)]
    rng.shuffle(jobs)
    answers = lib.concurrently([lambda p=p: lib.Answer(port, {"model": "default", "prompt": p, "max_tokens": 16})
                                for p in jobs], width)
    return sum(a.ttft for a in answers) / len(answers), answers


def main():
    args = lib.arguments(__doc__)
    rounds = 1 if args.quick else 4
    peers = lib.peers()
    out = pathlib.Path(tempfile.mkdtemp(prefix="nereid-bench-"))
    ports = {"on": lib.free_port(), "off": lib.free_port(), "llama": lib.free_port()}
    threads = "2"

    def ours(name, determinism):
        return [lib.BINARY, "serve", "--port", str(ports[name]), "--model", lib.MODEL, f"--engine.determinism={determinism}",
                f"--engine.threads={threads}", "--engine.parallel=16", "--gateway.access-log=off",
                "--cache.enabled=false"]  # what an earlier run computed is not to be found

    commands = {"on": ours("on", "true"), "off": ours("off", "false"),
                "llama": [peers["LLAMA_SERVER"], "-m", lib.MODEL, "--port", str(ports["llama"]), "-t", threads, *PEER_FLAGS]}
    with contextlib.ExitStack() as stack:
        children = {}
        for name, argv in commands.items():
            children[name] = stack.enter_context(lib.process(argv, out / f"{name}.log"))
        for name, child in children.items():
            lib.wait_http(ports[name], "/ready" if name != "llama" else "/health", child, out / f"{name}.log")
        idle = {name: lib.rss_mib(child.pid) for name, child in children.items()}
        got = {name: {} for name in commands}
        notes = ["peer: llama-server v0.5.0 " + " ".join(PEER_FLAGS) + f" -t {threads}", f"{rounds} interleaved rounds, medians; shared prefix: one"]
        for r in range(-1 if not args.quick else 0, rounds):    # round -1 warms up and is not counted
            order = list(commands)
            random.Random(r).shuffle(order)
            scenarios = {
                "decode_c1": lambda port, rng: decode(port, rng, 1, 64 if args.quick else 96),
                "decode_c16": lambda port, rng: decode(port, rng, 16, 32 if args.quick else 64),
                "prefill_4k": lambda port, rng: prefill(port, rng, 900 if args.quick else 3300),
            }
            for scenario, measure in scenarios.items():
                if r < 0 and scenario == "prefill_4k":
                    continue
                for name in order:
                    value = measure(ports[name], random.Random(f"{scenario}{r}"))
                    if r >= 0:
                        got[name].setdefault(scenario, []).append(value)
                    lib.say(f"round {r} {scenario} {name}: {value:.1f} tok/s")
        groups, requests = (1, 4) if args.quick else (8, 64)
        for name in commands:
            ttft, answers = shared_prefix(ports[name], random.Random("shared"), groups, requests, 16)
            got[name].setdefault("shared_prefix_ttft", []).append(ttft)
            lib.say(f"shared_prefix {name}: TTFT {ttft * 1e3:.1f} ms, prompt {answers[0].prompt_tokens}, "
                    f"cached {sum(a.cached for a in answers)}")
        busy = {name: lib.rss_mib(child.pid) for name, child in children.items()}
    metrics = {f"{scenario}_{name}": lib.spread(values) for name in got for scenario, values in got[name].items()}
    metrics |= {f"rss_idle_mib_{n}": v for n, v in idle.items()} | {f"rss_after_mib_{n}": v for n, v in busy.items()}

    def ratio(scenario, name):
        return metrics[f"{scenario}_{name}"]["median"] / metrics[f"{scenario}_llama"]["median"]

    ratios = {}
    for scenario in got["on"]:
        ratios[scenario] = ratio(scenario, "on")
        ratios[f"{scenario}_off"] = ratio(scenario, "off")
    if args.quick:
        notes.append("quick: prefill of about 1,000 tokens, one group of 4")
    lib.finish("engine", metrics, ratios, notes)


if __name__ == "__main__":
    main()
