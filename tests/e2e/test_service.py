"""Start, stop, crash and reload of the service."""

import hashlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading

import openai
import pytest

from conftest import BINARY, MODEL, wait_for

NYMPH = [{"role": "user", "content": "Tell a very long story about the sea."}]


def run(*args, **options):
    return subprocess.run([BINARY, *args], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **options)


def test_model_file_missing(tmp_path):
    got = run("serve", "--port", "0", "--model", str(tmp_path / "none.gguf"))
    assert got.returncode == 2 and "none.gguf" in got.stderr and "--model" in got.stderr


@pytest.mark.parametrize("content, word", [(b"not a model at all, only text", "GGUF"), (b"", "GGUF"), ("cut", "truncated")])
def test_model_file_broken(tmp_path, content, word):
    path = tmp_path / "bad.gguf"
    if content == "cut":
        with open(MODEL, "rb") as whole:
            path.write_bytes(whole.read(20_000_000))
    else:
        path.write_bytes(content)
    got = run("serve", "--port", "0", "--model", str(path))
    assert got.returncode == 2 and "bad.gguf" in got.stderr and word in got.stderr, got.stderr


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        got = run("serve", "--port", port, "--model", MODEL)
    assert got.returncode == 2 and port in got.stderr and "in use" in got.stderr


def test_unknown_key_names_the_nearest(tmp_path):
    file = tmp_path / "n.toml"
    file.write_text("[gateway]\nqueue_maxx = 3\n")
    got = run("serve", "--config", str(file), "--model", MODEL)
    assert got.returncode == 2 and "n.toml:2" in got.stderr and "queue_max" in got.stderr
    got = run("serve", "--prot", "1", "--model", MODEL)
    assert got.returncode == 2 and "--port" in got.stderr


def test_open_network_needs_keys():
    got = run("serve", "--host", "0.0.0.0", "--port", "0", "--model", MODEL)
    assert got.returncode == 2 and "--api-keys" in got.stderr


def test_unknown_subcommand():
    got = run("serv")
    assert got.returncode == 2 and "serve" in got.stderr


def test_crash_of_the_engine_is_a_restart(serve):
    """kill -9 of the child: the running request gets an error frame, the next one is answered."""
    server = serve()
    client = server.client()
    stream = client.chat.completions.create(model="default", messages=NYMPH, max_tokens=4000, stream=True,
                                            extra_body={"ignore_eos": True})
    chunks = iter(stream)
    for _ in range(3):
        next(chunks)
    pid = server.worker_pid()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(openai.APIError):    # A26: a broken stream is an error, not an end
        for _ in chunks:
            pass
    answer = client.chat.completions.create(model="default", messages=NYMPH, max_tokens=4)
    assert answer.usage.completion_tokens == 4
    assert server.worker_pid() != pid
    assert server.metric_sum("nereid_worker_restarts_total") == 1


def test_queued_requests_survive_a_crash(serve):
    server = serve("--engine.parallel=1")
    results = {}

    def ask(i, tokens):
        try:
            results[i] = server.client().chat.completions.create(
                model="default", messages=NYMPH, max_tokens=tokens, seed=i,
                extra_body={"ignore_eos": True}).usage.completion_tokens
        except openai.APIError as error:
            results[i] = error

    first = threading.Thread(target=ask, args=(0, 4000))
    first.start()
    wait_for(lambda: server.metric_sum("nereid_engine_running") == 1, 30, "first runs")
    rest = [threading.Thread(target=ask, args=(i, 5)) for i in range(1, 4)]
    for t in rest:
        t.start()
    wait_for(lambda: server.metric_sum("nereid_engine_waiting") == 3, 30, "three wait")
    os.kill(server.worker_pid(), signal.SIGKILL)
    for t in [first, *rest]:
        t.join(120)
    assert isinstance(results[0], openai.APIError)
    assert [results[i] for i in range(1, 4)] == [5, 5, 5]


def test_graceful_stop_finishes_streams(serve):
    server = serve("--service.loops=1")
    chunks = iter(server.client().chat.completions.create(model="default", messages=NYMPH, max_tokens=60, stream=True,
                                                          extra_body={"ignore_eos": True}))
    next(chunks)
    server.process.send_signal(signal.SIGTERM)
    rest = list(chunks)
    assert rest[-1].choices[0].finish_reason == "length"
    assert server.process.wait(40) == 0


def test_keys_concurrency_and_reload(serve, tmp_path):
    keys = tmp_path / "keys"

    def write(*lines):
        keys.write_text("".join(f"{name}:{hashlib.sha256(key.encode()).hexdigest()}{limit}\n" for name, key, limit in lines))

    write(("alice", "sk-alice", ":1"))
    server = serve("--api-keys", str(keys))
    with pytest.raises(openai.AuthenticationError) as caught:
        server.client(api_key="sk-wrong").models.list()
    assert caught.value.code == "invalid_api_key"
    alice = server.client(api_key="sk-alice")
    chunks = iter(alice.chat.completions.create(model="default", messages=NYMPH, max_tokens=4000, stream=True,
                                                extra_body={"ignore_eos": True}))
    next(chunks)
    with pytest.raises(openai.RateLimitError) as caught:
        alice.chat.completions.create(model="default", messages=NYMPH, max_tokens=1)
    assert caught.value.response.headers["retry-after"]
    write(("alice", "sk-alice", ":4"), ("bob", "sk-bob", ""))
    server.process.send_signal(signal.SIGHUP)

    def bob_in():
        try:
            return server.client(api_key="sk-bob").models.list()
        except openai.AuthenticationError:
            return None
    wait_for(bob_in, 20, "the new key works")
    next(chunks)    # the stream went on across the reload
    assert "sk-alice" not in server.log() and "sk-bob" not in server.log()


def test_full_queue_is_said_with_a_hint(serve):
    server = serve("--engine.parallel=1", "--gateway.queue-max=2")
    streams = []
    for _ in range(2):
        streams.append(server.client().chat.completions.create(
            model="default", messages=NYMPH, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}))
    status, headers, body = server.request("POST", "/v1/chat/completions",
                                           {"model": "default", "messages": NYMPH, "max_tokens": 1})
    assert status in (429, 503) and headers["retry-after"] and json.loads(body)["error"]["message"]
    for stream in streams:
        stream.close()


def test_keepalive_comment_while_queued(serve):
    """A57, A58: headers at once, comments in silence."""
    server = serve("--engine.parallel=1", "--gateway.keepalive=200ms")
    hog = server.client().chat.completions.create(model="default", messages=NYMPH, max_tokens=4000, stream=True,
                                                  extra_body={"ignore_eos": True})
    next(iter(hog))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", "/v1/chat/completions", json.dumps(
        {"model": "default", "messages": NYMPH, "max_tokens": 2, "stream": True}), {"content-type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200
    assert reply.readline().startswith(b":")
    connection.close()
    hog.close()


def test_tls_with_reload(serve, tmp_path):
    def certificate(name):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem",
                        "-out", tmp_path / "cert.pem"], check=True, capture_output=True)

    def served():
        got = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-servername", "x"],
                             input=b"", capture_output=True, timeout=20)
        return got.stdout.decode()

    certificate("first")
    server = serve("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"), ready=False)
    wait_for(lambda: "CN = first" in served(), 30, "TLS answers")
    certificate("second")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "CN = second" in served(), 30, "the new certificate")
    pathlib.Path(tmp_path / "cert.pem").write_text("broken")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "cert.pem" in server.log(), 20, "the reload error is logged")
    assert "CN = second" in served()


def test_chat_program(server):
    got = subprocess.run([BINARY, "chat", "--url", f"http://127.0.0.1:{server.port}", "--max-tokens", "30"], input="Say hello.\n/reset\nAnd again.\n",
                         capture_output=True, text=True, timeout=120)
    assert got.returncode == 0 and len(got.stdout.strip()) > 10, got
    nobody = subprocess.run([BINARY, "chat", "--url", "http://127.0.0.1:1"], input="hi\n", capture_output=True, text=True, timeout=30)
    assert nobody.returncode != 0 and "./dev up" in nobody.stderr


def test_metrics_and_health(server):
    assert server.request("GET", "/health")[0] == 200
    status, headers, body = server.request("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE")}
    assert all(name.startswith(("nereid_", "process_")) for name in names), names
