"""What `nereid serve` gains from its KV cache: time to the first token of a shared prompt of 4,096 tokens.

Five ways to the same prompt: computed; from the engine's own memory; from the node's memory (the engine has other prompts by then); from the node's
memory by a new engine process (kill -9); from SSD by a new service (kill -9). Each way once per round, a prompt of its own per round. Answers are
greedy, 24 tokens, and have to be the same in all ways; a conversation of four turns has to be the same as without a cache, with a kill -9 of the
engine or the service before each turn.
"""

import contextlib
import os
import pathlib
import random
import shutil
import signal
import tempfile
import time

import lib

WORDS = ("sea wave salt wind sail shore tide pearl coral reef storm cloud light stone sand bird fish rope mast keel harbor "
         "island current moon star deep blue green cold warm north south").split()
TOKENS = 24
LIMIT_S = 300    # a slow machine gets fewer rounds and turns, not no result


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


class Service:
    """`nereid serve`, killed and started again on the same folder."""

    def __init__(self, folder, *args):
        self.folder, self.args, self.log = folder, args, folder / "log"
        self.start()

    def start(self):
        self.port = lib.free_port()
        self.stack = contextlib.ExitStack()
        self.child = self.stack.enter_context(lib.process(
            [lib.BINARY, "serve", "--port", str(self.port), "--model", lib.MODEL, f"--cache.folder={self.folder / 'kv'}",
             "--engine.parallel=1", "--engine.context=8192", "--engine.prefix_store=92MiB", "--cache.memory=512MiB",
             "--gateway.access-log=off", *self.args], self.log))
        lib.wait_http(self.port, "/ready", self.child, self.log)

    def stop(self):
        self.stack.close()

    def restart(self):
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.stop()
        self.start()

    def engine(self):
        return [p for p in lib.tree(self.child.pid)[1:]][0]

    def restart_engine(self):
        deaths = self.metric("nereid_worker_restarts_total")
        os.kill(self.engine(), signal.SIGKILL)
        deadline = time.monotonic() + 20
        while self.metric("nereid_worker_restarts_total") == deaths:  # until then it would still call itself ready
            if time.monotonic() > deadline:
                raise SystemExit(f"the service did not see its engine die; see {self.log}")
            time.sleep(0.02)
        lib.wait_http(self.port, "/ready", self.child, self.log, 60)

    def ask(self, prompt, tokens=TOKENS):
        answer = Text(self.port, {"model": "default", "prompt": prompt, "max_tokens": tokens})
        return answer

    def metric(self, name):
        import urllib.request
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10).read().decode()
        return sum(float(x.rsplit(" ", 1)[1]) for x in text.splitlines() if x.startswith(name))

    def settle(self):
        """Everything that waits to be saved is on SSD."""
        deadline, seen, quiet = time.monotonic() + 30, -1, 0
        while quiet < 5:
            now = self.metric('nereid_kv_client_objects_total{outcome="saved"}')
            quiet = quiet + 1 if now == seen and self.metric("nereid_kv_append_queue") == 0 else 0
            seen = now
            if time.monotonic() > deadline:
                raise SystemExit(f"what was saved did not reach the disk; see {self.log}")
            time.sleep(0.3)


class Text(lib.Answer):
    """lib.Answer with the text."""

    def __init__(self, port, body):
        import http.client
        import json
        body = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True, **body}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
        self.begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise SystemExit(f"status {reply.status}: {reply.read()[:400]!r}")
        self.first, self.text, usage = None, "", {}
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            frame = json.loads(line[6:])
            if frame.get("error"):
                raise SystemExit(line.decode())
            usage = frame.get("usage") or usage
            for choice in frame.get("choices") or []:
                if self.first is None:
                    self.first = time.perf_counter()
                self.text += choice.get("text") or ""
        connection.close()
        self.prompt_tokens = usage["prompt_tokens"]
        self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def shared_prompt(service, rng):
    """Text of 4,096 tokens or a little more, by the server's own count."""
    prefix = f"[{rng.random()}] "
    import json
    import urllib.request

    def tokens(text):
        request = urllib.request.Request(f"http://127.0.0.1:{service.port}/tokenize", json.dumps({"model": "default", "prompt": text}).encode(),
                                         {"content-type": "application/json"})
        return json.loads(urllib.request.urlopen(request).read())["count"]

    text = prefix + words(rng, 3300)
    while tokens(text) < 4096:
        text += " " + words(rng, 20)
    return text


def ways(service, rng, got):
    prompt = shared_prompt(service, rng)

    def measure(way):
        answer = service.ask(prompt)
        got.setdefault(way, []).append(answer.ttft)
        got.setdefault(way + "_cached", []).append(answer.cached)
        lib.say(f"{way}: TTFT {answer.ttft * 1e3:.0f} ms, {answer.cached} of {answer.prompt_tokens} tokens cached")
        return answer.text

    texts = [measure("cold"), measure("engine_memory")]
    service.settle()
    got.setdefault("amplification_cached", []).append(service.metric("nereid_kv_ssd_write_amplification_ratio"))
    service.ask(shared_prompt(service, rng), 1)  # the engine's sequence and its store, which holds one prompt, get another
    service.settle()  # as before each way: no other prompt is still being saved
    texts.append(measure("dram"))
    service.settle()
    service.restart_engine()
    service.ask("Hello.", 1)  # the first step of a process is slower, whatever it does
    texts.append(measure("restart"))
    service.settle()
    service.restart()
    service.ask("Hello.", 1)
    texts.append(measure("ssd"))
    return len(set(texts)) == 1


def conversation(cached, plain, rng, turns, until):
    """The same conversation with and without a cache, with a death before each turn."""
    text, same, hits = f"[{rng.random()}] " + words(rng, 700), True, []
    for turn in range(turns):
        if turn >= 2 and time.monotonic() > until:
            break
        expected, got = plain.ask(text, 48), cached.ask(text, 48)
        same = same and expected.text == got.text
        hits.append(got.cached)
        text += got.text + f" Turn {turn}: " + words(rng, 12) + "."
        cached.settle()
        cached.restart_engine() if turn % 2 == 0 else cached.restart()
    return same, hits


def main():
    args, begin = lib.arguments(__doc__), time.monotonic()
    rounds, turns = (1, 2) if args.quick else (3, 4)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nereid-kv-engine-", dir=os.environ.get("NEREID_BENCH_DISK", str(lib.ROOT / "build"))))
    rng = random.Random(5)
    got, same = {}, True
    (folder / "plain").mkdir()
    services = []
    try:
        service = Service(folder)
        services.append(service)
        service.ask("Hello.", 1)
        while len(got.get("cold", [])) < rounds:
            same = ways(service, rng, got) and same
            spent = time.monotonic() - begin
            if spent + spent / len(got["cold"]) > 0.7 * LIMIT_S:
                break
        plain = Service(folder / "plain", "--cache.enabled=false")
        services.append(plain)
        talk, hits = conversation(service, plain, rng, turns, begin + 0.8 * LIMIT_S)
        bad = {o: service.metric(f'nereid_kv_client_objects_total{{outcome="{o}"}}')
               for o in ("save_dropped", "save_failed", "fetch_timeout", "fetch_failed", "node_given_up")}
    finally:
        for s in services:
            s.stop()
        shutil.rmtree(folder, ignore_errors=True)
    # Counters are of the last process, after the last kill.
    ms = {way: lib.spread([t * 1e3 for t in values]) for way, values in got.items() if not way.endswith("_cached")}
    metrics = {f"ttft_{way}_ms": value for way, value in ms.items()}
    metrics |= {f"cached_tokens_{way}": min(got[way + "_cached"]) for way in ms}
    metrics |= {"tokens_identical": same and talk, "conversation_cached_tokens": hits, "write_amplification": max(got["amplification_cached"]), **bad}
    ratios = {f"ttft_{way}_vs_cold": ms[way]["median"] / ms["cold"]["median"] for way in ms if way != "cold"}
    lib.finish("kv-engine", metrics, ratios, [
        f"{len(got['cold'])} rounds of {rounds}, {len(hits)} turns of {turns}, medians; prompts of 4,096 tokens (94 MB of KV) that nobody has sent before; default model, 1 sequence of 8,192",
        "dram: the node's memory; the engine's sequence and its store of 92 MiB hold another prompt; restart: kill -9 of the engine; "
        "ssd: kill -9 of the service"])


if __name__ == "__main__":
    main()
