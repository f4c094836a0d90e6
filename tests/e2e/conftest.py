"""The running binary, for the end-to-end tests. Started on a free port, in a temporary folder, stopped by pid."""

import binascii
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time

import anthropic
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(
    os.environ.get("NEREID_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "nereid"
)
BINARY = os.environ.get("NEREID_BINARY", str(ROOT / "build/debug/bin/nereid"))
MODEL = os.environ.get("NEREID_MODEL", str(CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))


# What could not be run here, and why: told at the end of the run, never silently left out.
NOT_RUN = {}


def pytest_terminal_summary(terminalreporter):
    for name, why in NOT_RUN.items():
        terminalreporter.write_line(f"NOT RUN: {name}: {why}")


def wait_for(condition, seconds=60, what="condition"):
    """Polls until `condition()` is truthy and returns it; fails the test at the deadline."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        pause.wait(0.02)


def parse_events(raw):
    out = []
    for frame in raw.decode().split("\n\n"):
        name, data = "", None
        for line in frame.split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
        if data is not None:
            out.append((name, data if data == "[DONE]" else json.loads(data)))
    return out


class Server:
    def __init__(self, args, ready=True, env=None):
        self.dir = tempfile.TemporaryDirectory(prefix="nereid-e2e-")
        self.log_path = pathlib.Path(self.dir.name) / "log"
        self.log_file = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            [BINARY, *args], stdout=self.log_file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, "HOME": self.dir.name, **(env or {})},
        )
        try:
            self.port = int(wait_for(self._port, 60, "listening line").group(1))
            if ready:
                wait_for(self.ready, 90, "/ready")
        except BaseException:
            self.stop()
            raise

    def _port(self):
        if self.process.poll() is not None:
            raise AssertionError(f"exited with {self.process.returncode}:\n{self.log()}")
        return re.search(r"https?://127\.0\.0\.1:(\d+)", self.log())

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def log(self):
        return self.log_path.read_text(errors="replace")

    def ready(self):
        with contextlib.suppress(OSError):
            return self.request("GET", "/ready")[0] == 200
        return False

    def request(self, method, path, body=None, headers=None):
        """(status, headers, bytes); `body` may be an object or raw bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            connection.request(method, path, body, {"content-type": "application/json", **(headers or {})})
            reply = connection.getresponse()
            return reply.status, dict((k.lower(), v) for k, v in reply.getheaders()), reply.read()
        finally:
            connection.close()

    def metrics(self):
        """{'name{labels}': value} of /metrics."""
        text = self.request("GET", "/metrics")[2].decode()
        return {m[1]: float(m[2]) for m in re.finditer(r"^([a-zA-Z_:][^ ]*(?:\{.*\})?) (\S+)$", text, re.M)}

    def metric_sum(self, prefix):
        return sum(value for name, value in self.metrics().items() if re.split(r"[{]", name)[0] == prefix)

    def worker_pid(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(pid) for path in children for pid in path.read_text().split()]
        return pids[0] if pids else None

    def client(self, **options):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=options.pop("api_key", "sk-none"),
                             max_retries=options.pop("max_retries", 0), timeout=120, **options)

    def anthropic(self, **options):
        return anthropic.Anthropic(base_url=f"http://127.0.0.1:{self.port}", api_key=options.pop("api_key", "sk-none"),
                                   max_retries=options.pop("max_retries", 0), timeout=120, **options)

    def events(self, path, body, headers=None):
        """[(event name or "", object)] of a streamed answer; `[DONE]` is its last object."""
        status, _, raw = self.request("POST", path, {**body, "stream": True}, headers)
        assert status == 200, raw
        return parse_events(raw)

    def stop(self, number=signal.SIGTERM, seconds=40):
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"did not stop on {number}:\n{self.log()}") from None
        self.log_file.close()
        return self.process.returncode


@pytest.fixture
def serve():
    """serve(*extra_args) starts another `nereid serve`; all are stopped at the end of the test."""
    servers = []

    def start(*args, model=MODEL, **options):
        server = Server(["serve", "--port", "0", "--model", model, *args], **options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()
        server.dir.cleanup()


@pytest.fixture(scope="session")
def server():
    """One service for all tests that do not harm it."""
    shared = Server(["serve", "--port", "0", "--model", MODEL])
    yield shared
    code = shared.stop()
    log = shared.log()
    shared.dir.cleanup()
    assert code == 0, f"exit {code} at the end:\n{log[-4000:]}"
    assert "AddressSanitizer" not in log and "runtime error:" not in log, log[-4000:]


@pytest.fixture
def client(server):
    return server.client()


SCRIPT = pathlib.Path(__file__).with_name("scripts.toml")


def red_png(base64=False):
    """A PNG of one red pixel, or that as base64."""
    text = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
    return text if base64 else binascii.a2b_base64(text)


@pytest.fixture(scope="session")
def seeing(tmp_path_factory):
    """A service whose scripted engine takes images, and says what it was given."""
    script = tmp_path_factory.mktemp("seeing") / "script.toml"
    script.write_text("images = true\n" + SCRIPT.read_text().replace("[[rule]]", """[[rule]]
contains = "what-do-you-see"
text = "I see {images}"

[[rule]]""", 1))
    shared = Server(["serve", "--port", "0", "--engine", "scripted", "--script", str(script), "--gateway.file_private", "true"])
    yield shared
    code = shared.stop()
    shared.dir.cleanup()
    assert code == 0


@pytest.fixture(scope="session")
def scripted():
    """One service whose engine answers by scripts.toml: for what must be exact."""
    shared = Server(["serve", "--port", "0", "--engine", "scripted", "--script", str(SCRIPT)])
    yield shared
    code = shared.stop()
    log = shared.log()
    shared.dir.cleanup()
    assert code == 0, f"exit {code} at the end:\n{log[-4000:]}"
    assert "AddressSanitizer" not in log and "runtime error:" not in log, log[-4000:]


@pytest.fixture
def claude(scripted):
    return scripted.anthropic()
