"""The cache node as a process, with real clients: the Python package, a C program, forks and kills."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

BINARY = pathlib.Path(os.environ["NEREID_BINARY"])
ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = BINARY.parent / "libnereid_kv.so.1"
C_CLIENT = BINARY.parent / "kv_client_c"
sys.path.insert(0, str(ROOT / "python"))

import nereid_kv  # noqa: E402

SIZE = 60_000


class Node:
    def __init__(self, folder, *options):
        self.socket = str(folder / "kv.sock")
        self.folder = folder / "ssd"
        self.child = subprocess.Popen([str(BINARY), "cache", "serve", "--socket", self.socket, "--folder", str(self.folder),
                                       "--memory", "32MiB", "--capacity", "64MiB", *options], stdout=subprocess.PIPE, text=True)
        assert self.child.stdout.readline() == "ready\n"

    def stop(self, number=signal.SIGTERM):
        self.child.send_signal(number)
        return self.child.wait(20)

    def client(self, **more):
        return nereid_kv.Client(self.socket, library=str(LIBRARY), **more)

    def held(self):
        """What clients hold, once it is nothing or after 60 s."""
        deadline = time.monotonic() + 60
        with self.client(staging_bytes=0) as kv:
            while True:
                h = kv.stats()["held"]
                held = {k: h[k] for k in ("leases", "pinned_slots", "reservations", "writing_slots", "waiting_gets", "followers", "pollers")}
                if not any(held.values()) or time.monotonic() > deadline:
                    return held

    def flushed(self):
        deadline = time.monotonic() + 60
        with self.client(staging_bytes=0) as kv:
            while any(kv.stats()["held"][k] for k in ("appends", "append_queue")):
                assert time.monotonic() < deadline


@pytest.fixture
def node(tmp_path):
    n = Node(tmp_path)
    yield n
    if n.child.poll() is None:
        assert n.stop() == 0


def namespace(n=1):
    return nereid_kv.Namespace(digest=bytes([n]) * 32, block_tokens=64, history_bytes=SIZE)


def objects(count, first=0):
    return [nereid_kv.Object((first + i).to_bytes(16, "big"), i) for i in range(count)]


def data(i):
    return bytes([i % 251]) * SIZE


def test_python_round_trip(node):
    with node.client() as kv:
        ns = kv.open(namespace())
        wanted = objects(6)
        for i, o in enumerate(wanted):
            assert kv.put(ns, o, data(i)) == nereid_kv.ObjectStatus.OK
        assert kv.put(ns, wanted[0], data(0)) == nereid_kv.ObjectStatus.EXISTS
        found = kv.lookup(ns, [o.key for o in objects(8)], prompt_tokens=8 * 64)
        assert (found.blocks, found.usable_blocks, found.compute_from) == (6, 6, 384)
        with kv.get(ns, objects(8)) as got:
            assert got.contiguous == 6 and got.status[6] == nereid_kv.ObjectStatus.MISS
            for i in range(6):
                assert got.read(i) == data(i)
        with pytest.raises(ValueError), kv.get(ns, wanted) as got:
            got.copy_into(0, bytearray(10))
        with pytest.raises(nereid_kv.KvError):
            kv.lookup(ns + 100, [wanted[0].key])
    assert not any(node.held().values())


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_keeps_what_was_written(tmp_path, end):
    node = Node(tmp_path)
    with node.client() as kv:
        ns = kv.open(namespace())
        for i, o in enumerate(objects(30)):
            assert kv.put(ns, o, data(i)) == nereid_kv.ObjectStatus.OK
    node.flushed()
    node.stop(end)
    node = Node(tmp_path)
    try:
        with node.client() as kv:
            ns = kv.open(namespace())
            deadline = time.monotonic() + 60
            while not kv.stats()["loaded"]:
                assert time.monotonic() < deadline
            with kv.get(ns, objects(30), wait=10) as got:
                assert got.contiguous == 30
                for i in range(30):
                    assert got.read(i) == data(i)
    finally:
        assert node.stop() == 0


def c_client(node, *mode):
    return subprocess.run([str(C_CLIENT), node.socket, *mode], capture_output=True, text=True, timeout=60)


def test_c_program(node):
    r = c_client(node)
    assert (r.returncode, r.stdout) == (0, "ok\n"), r.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_another_user_is_refused():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        node = Node(folder)
        try:
            os.chmod(node.socket, 0o777)    # the file would let them in, the node does not
            try:
                r = subprocess.run([str(C_CLIENT), node.socket], capture_output=True, text=True, timeout=60, user=65534, group=65534, extra_groups=[])
            except PermissionError:
                pytest.skip("this build folder is not for others")
            assert r.returncode == 1 and "not for this user" in r.stderr, r.stderr
            assert c_client(node).stdout == "ok\n"
        finally:
            assert node.stop() == 0


def test_fork(node):
    r = c_client(node, "fork")
    assert (r.returncode, r.stdout) == (0, "ok\n"), r.stderr


def test_a_killed_process_leaves_nothing_held(node):
    for _ in range(5):
        r = c_client(node, "kill")
        assert (r.returncode, r.stdout) == (-signal.SIGKILL, "holding\n"), r.stderr
    assert not any(node.held().values())


def test_clients_killed_at_random_moments(node):
    for i in range(12):
        child = subprocess.Popen([str(C_CLIENT), node.socket], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 0.002 * i
        while time.monotonic() < deadline:
            pass
        child.kill()
        child.wait()
    assert not any(node.held().values())
    assert c_client(node).returncode == 0


def test_only_the_c_abi_is_visible():
    """And no foreign library is needed: an engine brings its own OpenSSL, Boost, C++ runtime."""
    names = [line.split()[-1].split("@")[0] for line in subprocess.run(
        ["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True).stdout.splitlines()]
    assert names and all(n.startswith("nereid_kv_") for n in names), names
    needed = subprocess.run(["objdump", "-p", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    needed = {line.split()[1] for line in needed.splitlines() if "NEEDED" in line}
    assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0"}, needed


def test_no_thread_and_no_handler_of_the_library(node):
    code = ("import sys,os,signal; sys.path.insert(0,sys.argv[1]); import nereid_kv\n"
            "before=open('/proc/self/status').read()\n"
            "kv=nereid_kv.Client(sys.argv[2],library=sys.argv[3]); kv.stats()\n"
            "after=open('/proc/self/status').read()\n"
            "pick=lambda t:[l for l in t.splitlines() if l.split(':')[0] in ('Threads','SigCgt','SigIgn','SigBlk')]\n"
            "assert pick(before)==pick(after),(before,after)\n")
    subprocess.run([sys.executable, "-c", code, str(ROOT / "python"), node.socket, str(LIBRARY)], check=True, timeout=60)


def test_tools(node):
    with node.client() as kv:
        ns = kv.open(namespace())
        for i, o in enumerate(objects(5)):
            kv.put(ns, o, data(i))

    def tool(*args, code=0):
        r = subprocess.run([str(BINARY), "cache", *args], capture_output=True, text=True, timeout=60)
        assert r.returncode == code, r.stderr
        return json.loads(r.stdout) if r.stdout else None

    stats = tool("stats", "--socket", node.socket)
    assert stats["objects"]["committed"] == 5 and stats["ssd"]["capacity_bytes"] == 64 << 20
    listed = tool("ls", "--socket", node.socket)
    assert listed["total"] == 5 and {o["bytes"] for o in listed["objects"]} == {SIZE}
    assert tool("scrub", "--socket", node.socket)["corrupt"] == 0
    node.flushed()
    tool("verify", "--folder", str(node.folder), code=2)  # in use
    assert node.stop() == 0
    assert tool("verify", "--folder", str(node.folder)) == {"records": 5, "corrupt": 0}
    segment = next(p for p in node.folder.iterdir() if p.suffix == ".nks")
    with open(segment, "r+b") as f:
        f.seek(4096 + 20_000)
        byte = f.read(1)
        f.seek(4096 + 20_000)
        f.write(bytes([byte[0] ^ 1]))
    assert tool("verify", "--folder", str(node.folder), code=1) == {"records": 5, "corrupt": 1}
