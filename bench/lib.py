"""What the benchmarks share: peers, processes, an SSE client, and the one JSON line at the end."""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = os.environ.get("NEREID_BINARY", str(ROOT / "build/release/bin/nereid"))
MODEL = os.environ.get("NEREID_MODEL", "")


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--quick", action="store_true", help="under 45 s, wider error")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))    # ended from outside: children and folders go as at any end
    return parser.parse_args()


def say(text):
    print(text, file=sys.stderr, flush=True)


def peers(which=""):
    """Paths of the competitors, installed by `./dev peers [WHICH]`: {'LLAMA_SERVER': ..., ...}."""
    out = subprocess.run([str(ROOT / "dev"), "peers", *which.split()], check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def process(argv, log, env=None):
    """A child that is stopped by pid at the end, whatever happens."""
    with open(log, "wb") as out:
        child = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                 env={**os.environ, **(env or {})}, start_new_session=True)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def wait_http(port, path, child, log, seconds=120, method="GET", body=None):
    deadline = time.monotonic() + seconds
    while True:
        if child.poll() is not None:
            raise SystemExit(f"peer ended with {child.returncode}; see {log}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            c.request(method, path, body, {"content-type": "application/json"})
            if c.getresponse().status == 200:
                return
        if time.monotonic() > deadline:
            raise SystemExit(f"port {port} not ready within {seconds} s; see {log}")
        time.sleep(0.1)


class Answer:
    """Times of one streamed completion: of every piece of text, of the first and the last, tokens by the server's own count."""

    def __init__(self, port, body, path="/v1/completions"):
        body = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True, **body}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.begin = time.perf_counter()
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise SystemExit(f"status {reply.status}: {reply.read()[:400]!r}")
        self.times, usage = [], {}
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            if b'"error"' in line[:20]:
                raise SystemExit(line.decode())
            if b'"choices":[]' in line or b'"usage":{' in line:
                usage = json.loads(line[6:]).get("usage") or usage
            else:
                self.times.append(now)
        connection.close()
        self.first, self.last = (self.times[0], self.times[-1]) if self.times else (None, None)
        self.prompt_tokens, self.tokens = usage["prompt_tokens"], usage["completion_tokens"]
        self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    @property
    def ttft(self):
        return self.first - self.begin


def concurrently(jobs, width):
    """Runs callables on `width` threads; returns their results in order."""
    results, lock, indexes = [None] * len(jobs), threading.Lock(), iter(range(len(jobs)))

    def work():
        while True:
            with lock:
                i = next(indexes, None)
            if i is None:
                return
            results[i] = jobs[i]()

    threads = [threading.Thread(target=work) for _ in range(width)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if any(r is None for r in results):
        raise SystemExit("a request failed")
    return results


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def tree(pid):
    """The process and all its descendants."""
    pids, todo = [], [pid]
    while todo:
        p = todo.pop()
        pids.append(p)
        with contextlib.suppress(OSError):
            for children in pathlib.Path(f"/proc/{p}/task").glob("*/children"):
                todo += [int(c) for c in children.read_text().split()]
    return pids


def cpu_seconds(pid):
    ticks = 0
    for p in tree(pid):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_mib(pid):
    total = 0
    for p in tree(pid):
        with contextlib.suppress(OSError, StopIteration):
            line = next(x for x in pathlib.Path(f"/proc/{p}/status").read_text().splitlines() if x.startswith("VmRSS"))
            total += int(line.split()[1]) / 1024
    return round(total, 1)


def finish(bench, metrics, ratios, notes):
    def tidy(value):
        if isinstance(value, float):
            return float(f"{value:.4g}")
        if isinstance(value, dict):
            return {k: tidy(v) for k, v in value.items()}
        return value
    notes = [f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", *notes]
    print(json.dumps({"bench": bench, "metrics": tidy(metrics), "ratios": tidy(ratios), "notes": notes}))
