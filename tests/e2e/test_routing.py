"""Several servers behind `nereid gateway` and several engines in `nereid serve`: the real binary, real processes, real kills."""

import ctypes
import http.server
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import threading

import pytest

from conftest import BINARY, MODEL, Server, wait_for

SCRIPT = """
model = "m"
[[rule]]
contains = "think-first"
text = "thought about it"
ttft_ms = 400
[[rule]]
contains = "say-slowly"
text = "one two three four five six seven eight nine ten"
itl_ms = 100
[[rule]]
contains = ""
text = "quick"
"""


class Backend:
    """An OpenAI-compatible server that counts, answers "from NAME", and fails when told."""

    def __init__(self, name):
        self.name, self.asked, self.fail, self.hold = name, 0, None, None    # hold: the first request's answer
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                outer.asked += 1
                if outer.hold and outer.asked == 1:
                    outer.hold.wait(30)
                if outer.fail == "close":
                    self.close_connection = True
                    return
                status = outer.fail or 200
                body = {"error": {"message": "told to fail", "type": "x", "code": None}} if outer.fail else {
                    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
                    "choices": [{"index": 0, "finish_reason": "stop",
                                 "message": {"role": "assistant", "content": f"from {outer.name}"}}],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}
                raw = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def backends():
    made = [Backend(n) for n in "abc"]
    yield made
    for backend in made:
        backend.close()


@pytest.fixture
def start():
    """start(*args) runs the binary; all are stopped at the end, and none has told of memory errors."""
    servers = []

    def run(*args, **options):
        servers.append(Server(list(args), **options))
        return servers[-1]

    yield run
    for server in reversed(servers):
        server.stop()
        log = server.log()
        server.dir.cleanup()
        assert "AddressSanitizer" not in log and "runtime error:" not in log, log[-4000:]


def front(start, tmp_path, urls, *args):
    config = tmp_path / "gateway.toml"
    config.write_text("[backend]\nurls = [" + ", ".join(f'"{u}"' for u in urls) + "]\n")
    server = start("gateway", "--config", str(config), "--port", "0", "--model-name", "m", "--gateway.access-log=off",
                   "--service.loops=2", "--router.slow-start=0s", *args, ready=False)
    return server, config


def ask(server, text="hi"):
    status, _, body = server.request("POST", "/v1/chat/completions",
                                     {"model": "m", "messages": [{"role": "user", "content": text}]})
    return status, json.loads(body)


def text_of(answer):
    assert answer[0] == 200, answer
    return answer[1]["choices"][0]["message"]["content"]


def together(n, fn):
    """fn(i) in n threads at once: what they returned."""
    out = [None] * n
    threads = [threading.Thread(target=lambda i=i: out.__setitem__(i, fn(i))) for i in range(n)]
    for t in threads:
        t.start()
    return threads, out


def children(server):
    paths = pathlib.Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return sorted({int(pid) for path in paths for pid in path.read_text().split()})


def chosen(server):
    return {n.split('"')[1]: v for n, v in server.metrics().items() if n.startswith("nereid_router_chosen_total")}


def test_r35_one_failing_backend_costs_no_request(start, tmp_path, backends):
    a, b, _ = backends
    server, _ = front(start, tmp_path, [a.url, b.url])
    for fail in ("close", 500, 503, 429):
        a.fail, before = fail, a.asked
        answers = [ask(server) for _ in range(8)]
        wait_for(lambda: answers.append(ask(server)) or a.asked > before, 10, "a is asked once its marks have ended")
        assert {text_of(x) for x in answers} == {"from b"}, fail
    assert server.metric_sum("nereid_router_retries_total") >= 1
    assert server.metrics()[f'nereid_router_busy_total{{backend="{a.url}"}}'] >= 2    # 503 and 429
    a.fail = 400    # the client's own fault is told, and blames nobody
    wait_for(lambda: ask(server)[0] == 400, 10, "a is asked again")
    opened = server.metrics()[f'nereid_router_breaker_opened_total{{backend="{a.url}"}}']
    for _ in range(20):
        ask(server)
    assert server.metrics()[f'nereid_router_breaker_opened_total{{backend="{a.url}"}}'] == opened
    a.fail = None
    wait_for(lambda: text_of(ask(server)) == "from a", 10, "a serves again")


def test_backends_join_drain_and_leave_at_reload(start, tmp_path, backends):
    a, b, c = backends
    server, config = front(start, tmp_path, [a.url, b.url])
    a.hold, b.fail = threading.Event(), "close"
    (held,), answers = together(1, lambda _: ask(server))
    wait_for(lambda: a.asked == 1, 10, "a has the request")
    config.write_text(config.read_text().replace(a.url, c.url))
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: ask(server)[0] == 200 and c.asked > 0, 20, "c serves")
    asked, b.fail = a.asked, None
    for _ in range(20):
        assert text_of(ask(server)) in ("from b", "from c")
    assert a.asked == asked
    a.hold.set()
    held.join(20)
    assert text_of(answers[0]) == "from a"    # it finished what it had
    wait_for(lambda: server.metrics().get(f'nereid_router_in_flight{{backend="{a.url}"}}') == 0, 10, "a is empty")


@pytest.mark.parametrize("policy", ["round-robin", "least-requests", "cache-aware", "unified-cost", "power-of-two", "lmetric"])
def test_policies_by_name(start, tmp_path, backends, policy):
    server, _ = front(start, tmp_path, [x.url for x in backends], f"--router.policy={policy}")
    for i in range(30):
        assert ask(server, "question " + "x" * (i * 40))[0] == 200
    assert sum(x.asked for x in backends) == 30
    assert all(x.asked > 0 for x in backends)
    balance = [v for n, v in server.metrics().items() if n.startswith("nereid_router_balance_efficiency")]
    assert 0 < max(balance) <= 1


def test_an_unknown_policy_is_told_at_start(start, tmp_path, backends):
    with pytest.raises(AssertionError, match=r"router\.policy(.|\n)*unified-cost(.|\n)*round-robin"):
        front(start, tmp_path, [backends[0].url], "--router.policy=best")


def test_a_killed_server_costs_nobody_who_has_not_had_a_byte(start, tmp_path):
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT)
    servers = [start("serve", "--engine", "scripted", "--script", str(script), "--port", "0") for _ in range(2)]
    server, _ = front(start, tmp_path, [s.url for s in servers], "--router.retry-burst=100")
    threads, answers = together(12, lambda i: server.events("/v1/chat/completions", {
        "model": "m", "messages": [{"role": "user", "content": f"think-first {i}"}]}))
    flying = lambda i: server.metrics().get(f'nereid_router_in_flight{{backend="{servers[i].url}"}}', 0)
    wait_for(lambda: flying(0) >= 4 and flying(1) >= 4, 20, "both have work")
    servers[0].process.kill()
    for t in threads:
        t.join(60)
    for events in answers:
        text = "".join(d["choices"][0]["delta"].get("content") or "" for _, d in events if d != "[DONE]" and d["choices"])
        assert text == "thought about it" and events[-1][1] == "[DONE]", events
    assert server.metric_sum("nereid_router_retries_total") >= 4
    for i in range(10):
        assert text_of(ask(server, f"hello {i}")) == "quick"
    wait_for(lambda: flying(0) == 0, 10, "nothing is counted at the dead one")


def test_engines_are_added_and_leave_at_reload(start, tmp_path):
    script, config = tmp_path / "script.toml", tmp_path / "serve.toml"
    script.write_text(SCRIPT)
    text = f'[engine]\nkind = "scripted"\nscript = "{script}"\n[router]\nslow_start = "0s"\n[service]\nloops = 2\nengines = '
    config.write_text(text + "1\n")
    server = start("serve", "--config", str(config), "--port", "0", "--gateway.access-log=off")
    assert len(children(server)) == 1

    def resize(n):
        config.write_text(text + f"{n}\n")
        server.process.send_signal(signal.SIGHUP)

    resize(2)
    wait_for(lambda: [ask(server, f"{i}") for i in range(4)] and len(chosen(server)) == 2 and
             min(chosen(server).values()) > 0, 30, "both serve")
    assert len(children(server)) == 2
    threads, answers = together(4, lambda i: ask(server, f"say-slowly {i}"))
    flying = lambda: [v for n, v in server.metrics().items() if n.startswith("nereid_router_in_flight")]
    wait_for(lambda: len(flying()) == 2 and min(flying()) >= 1, 10, "both have work")
    resize(1)
    for i in range(5):
        assert text_of(ask(server, f"meanwhile {i}")) == "quick"
    for t in threads:
        t.join(30)
    assert {text_of(a) for a in answers} == {"one two three four five six seven eight nine ten"}
    wait_for(lambda: len(children(server)) == 1, 20, "the second has ended")
    assert server.metric_sum("nereid_worker_restarts_total") == 0
    assert text_of(ask(server)) == "quick"


def test_serve_with_two_engines(start):
    server = start("serve", "--model", MODEL, "--port", "0", "--service.engines=2", "--router.slow-start=0s",
                   "--gateway.access-log=off", "--service.loops=2")
    wait_for(lambda: len(re.findall(r"worker state.*\bready\b", server.log())) == 2, 60, "two engines")
    oai = server.client()

    def say(text, tokens=1):
        return oai.chat.completions.create(model="default", max_tokens=tokens, temperature=0,
                                           messages=[{"role": "user", "content": text}])

    # A shared beginning goes where it is.
    shared = "The heron stands in the shallow water and waits. " * 20
    assert say(shared + "first").usage.prompt_tokens_details.cached_tokens == 0
    (home,) = [name for name, n in chosen(server).items() if n == 1]
    for word in ("second", "third", "fourth"):
        assert say(shared + word).usage.prompt_tokens_details.cached_tokens >= 128
    assert chosen(server)[home] == 4
    # Others spread.
    threads, answers = together(8, lambda i: say(f"{i} is a number", tokens=8))
    for t in threads:
        t.join(60)
    assert all(a.choices[0].finish_reason for a in answers)
    assert len(chosen(server)) == 2 and min(chosen(server).values()) >= 2, chosen(server)
    balance = [v for n, v in server.metrics().items() if n.startswith("nereid_router_balance_efficiency")]
    assert 0 < max(balance) <= 1
    # One dies: the other answers meanwhile.
    os.kill(children(server)[0], signal.SIGKILL)
    for i in range(6):
        assert say(f"still {i}", tokens=2).choices
    wait_for(lambda: server.metric_sum("nereid_worker_restarts_total") == 1 and len(children(server)) == 2, 30, "it is back")


def test_experts_of_a_running_group(tmp_path):
    ranks, layers, experts, slots = 4, 6, 16, 20
    placement = [[s % experts for s in range(slots)] for _ in range(layers)]

    def report():
        for r in range(ranks):
            tokens = [[0] * experts for _ in range(layers)]
            for layer in range(layers):
                for s in range(r * 5, r * 5 + 5):
                    e = placement[layer][s]
                    tokens[layer][e] += 100_000 // (1 + (e + 5 * layer) % experts) // placement[layer].count(e)
            (tmp_path / f"experts-{r}.json").write_text(json.dumps(
                {"rank": r, "balancers": [{"tokens": tokens, "physical_to_logical": placement}]}))

    def look():
        (tmp_path / "plan.json").unlink(missing_ok=True)
        report()
        done = subprocess.run([BINARY, "experts", "--folder", tmp_path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return float(re.search(r"balancedness ([0-9.]+)", done.stdout).group(1))

    seen = []
    while seen.append(look()) or (tmp_path / "plan.json").exists():
        plan = json.loads((tmp_path / "plan.json").read_text())
        assert plan["balancer"] == 0 and all(set(layer) == set(range(experts)) for layer in plan["physical_to_logical"])
        placement = plan["physical_to_logical"]
        assert len(seen) < 30
    assert seen == sorted(seen) and seen[-1] > seen[0] + 0.1, seen
    (tmp_path / "experts-1.json").unlink()
    done = subprocess.run([BINARY, "experts", "--folder", tmp_path], capture_output=True, text=True)
    assert done.returncode != 0 and "rank 1 does not report" in done.stderr


class Zmq:
    """A publisher of KV events as vLLM has it, on libzmq itself: PUB, and a ROUTER that replays what it has kept."""

    def __init__(self):
        z = self.z = ctypes.CDLL("libzmq.so.5")
        z.zmq_ctx_new.restype = z.zmq_socket.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(z.zmq_ctx_new())
        self.kept, self.sequence = [], 0
        self.pub, self.events = self.socket(1)
        self.router, self.replay = self.socket(6)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.serve_replays)
        self.thread.start()

    def socket(self, kind):
        s = ctypes.c_void_p(self.z.zmq_socket(self.context, kind))
        self.z.zmq_setsockopt(s, 17, ctypes.byref(ctypes.c_int(0)), ctypes.c_size_t(4))      # linger
        self.z.zmq_setsockopt(s, 27, ctypes.byref(ctypes.c_int(100)), ctypes.c_size_t(4))    # receive time-out
        assert self.z.zmq_bind(s, b"tcp://127.0.0.1:*") == 0
        at, size = ctypes.create_string_buffer(100), ctypes.c_size_t(100)
        assert self.z.zmq_getsockopt(s, 32, at, ctypes.byref(size)) == 0    # last endpoint
        return s, at.value.decode()

    def send(self, socket, *frames):
        for i, frame in enumerate(frames):
            assert self.z.zmq_send(socket, frame, ctypes.c_size_t(len(frame)), 2 if i + 1 < len(frames) else 0) == len(frame)

    def serve_replays(self):
        frames, buffer = [], ctypes.create_string_buffer(256)
        while not self.stop.is_set():
            n = self.z.zmq_recv(self.router, buffer, ctypes.c_size_t(256), 0)
            if n < 0:
                continue
            frames.append(buffer.raw[:n])
            if len(frames) < 3:
                continue
            who, _, start = frames
            frames = []
            for number, payload in self.kept:
                if number >= int.from_bytes(start, "big"):
                    self.send(self.router, who, b"", number.to_bytes(8, "big"), payload)
            self.send(self.router, who, b"", b"\xff" * 8, b"")

    def publish(self, *events, send=True):
        payload = pack([0.0, list(events)])
        self.kept.append((self.sequence, payload))
        if send:
            self.send(self.pub, b"kv-events", self.sequence.to_bytes(8, "big"), payload)
        self.sequence += 1

    def close(self):
        self.stop.set()
        self.thread.join()
        for s in (self.pub, self.router):
            self.z.zmq_close(s)
        self.z.zmq_ctx_term(self.context)


def pack(v):
    """msgpack of what KV events hold."""
    if v is None:
        return b"\xc0"
    if isinstance(v, float):
        return b"\xcb" + struct.pack(">d", v)
    if isinstance(v, int):
        return b"\xcf" + v.to_bytes(8, "big")
    if isinstance(v, str):
        return b"\xd9" + bytes([len(v)]) + v.encode()
    if isinstance(v, list):
        return b"\xdc" + len(v).to_bytes(2, "big") + b"".join(map(pack, v))
    return b"\xde" + len(v).to_bytes(2, "big") + b"".join(pack(k) + pack(x) for k, x in v.items())


def stored(tokens, first_hash):
    n = len(tokens) // 16
    return {"type": "BlockStored", "block_hashes": list(range(first_hash, first_hash + n)), "parent_block_hash": None,
            "token_ids": tokens[:n * 16], "block_size": 16}


def test_r20_kv_events_over_zeromq(start, server, tmp_path, backends):
    a, b, _ = backends

    def prompt(n):
        text = f"Number {n}. " + f"The heron number {n} stands in the shallow water and waits for fish. " * 30
        status, _, raw = server.request("POST", "/tokenize", {"model": "default", "messages": [{"role": "user", "content": text}]})
        assert status == 200, raw
        return text, json.loads(raw)["tokens"]

    engine = Zmq()
    try:
        text, tokens = prompt(1)
        engine.publish(stored(tokens, 1000), send=False)    # before anybody listens
        front_, _ = front(start, tmp_path, [a.url, b.url], "--backend.tokenizer", MODEL, "--service.loops=1",
                          f"--backend.events={b.url} {engine.events} {engine.replay}")

        def events(kind, what="events"):
            return front_.metrics().get(f'nereid_router_kv_{what}_total{{backend="{b.url}",kind="{kind}"}}', 0)

        def blocks(kind):
            return events(kind, "event_blocks")

        wait_for(lambda: front_.metrics().get(f'nereid_router_kv_events_connected{{backend="{b.url}"}}') == 1, 20, "subscribed")
        # The subscription travels after the handshake: something is published until it is heard.
        wait_for(lambda: engine.publish(stored(list(range(32)), 5000 + engine.sequence * 4)) or blocks("stored") > 0, 20, "heard")
        assert events("gap") == 1 and events("replayed") >= 1 and events("reset") == 0
        wait_for(lambda: blocks("stored") >= len(tokens) // 16, 10, "the replayed blocks")
        for i in range(6):
            assert text_of(ask(front_, text)) == "from b"
        # Removed: nobody holds it any more, and what was only assumed is forgotten; another one is there.
        engine.publish({"type": "BlockRemoved", "block_hashes": list(range(1000, 1000 + len(tokens) // 16))})
        wait_for(lambda: blocks("removed") >= len(tokens) // 16, 10, "removed")
        other, other_tokens = prompt(2)
        before = blocks("stored")
        engine.publish(stored(other_tokens, 9000))
        wait_for(lambda: blocks("stored") >= before + len(other_tokens) // 16, 10, "stored")
        assert text_of(ask(front_, other)) == "from b"
    finally:
        engine.close()
    # The engine begins again elsewhere: the feed stays, and says that it is not connected.
    wait_for(lambda: front_.metrics()[f'nereid_router_kv_events_connected{{backend="{b.url}"}}'] == 0, 20, "gone")
    assert ask(front_, text)[0] == 200


def test_kv_events_are_checked_at_start(start, tmp_path, backends):
    for args, what in ((["--backend.events=x"], "SERVER EVENTS"), (["--backend.events=x http://y"], "ZeroMQ endpoint"),
                       (["--backend.events=x tcp://y:1"], "backend.tokenizer")):
        with pytest.raises(AssertionError, match=what):
            front(start, tmp_path, [backends[0].url], *args)
