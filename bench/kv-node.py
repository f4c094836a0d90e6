"""One cache node against the machine's limits (fio, memcpy) and against Redis 7 and Mooncake Store 0.3.13.

The SSD tier and fio take turns on the same file system with equal block size and bytes in flight, both to stable storage; copies out of
the arena against memcpy from a source four times the last-level cache; put and get of 64 KiB and 1 MiB objects through each system's
own client, one after another within a round.
"""

import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

import lib

BENCH = lib.ROOT / "build/release/bin/kv_ssd_bench"
SIZES = (64 << 10, 1 << 20)

OURS = r"""
import json, os, resource, sys, time
sys.path.insert(0, sys.argv[1])
import nereid_kv
sock, library, rounds = sys.argv[2], sys.argv[3], int(sys.argv[4])
out = {}
for size in (65536, 1048576):
    n = max(32, min(1024, (64 << 20) // size))
    kv = nereid_kv.Client(sock, staging_bytes=8 << 20, library=library)
    data = os.urandom(size)
    ns = kv.open(nereid_kv.Namespace(digest=os.urandom(32), block_tokens=64, history_bytes=size))
    keys = [os.urandom(16) for _ in range(n)]
    objects = [nereid_kv.Object(k, i) for i, k in enumerate(keys)]
    puts, gets = [], []
    for o in objects:
        t = time.perf_counter(); s = kv.put(ns, o, data); puts.append(time.perf_counter() - t)
        assert s == 0, s
    into = bytearray(size)
    for o in objects:
        t = time.perf_counter()
        with kv.get(ns, [o]) as got:
            got.copy_into(0, into)
        gets.append(time.perf_counter() - t)
    assert bytes(into) == data
    puts.sort(); gets.sort()
    out[size] = {"put_gb_s": n * size / sum(puts) / 1e9, "get_gb_s": n * size / sum(gets) / 1e9,
                 "put_p50_us": puts[n // 2] * 1e6, "get_p50_us": gets[n // 2] * 1e6}
    kv.close()
print(json.dumps(out))
"""

REDIS = r"""
import json, os, sys, time, redis
r = redis.Redis(unix_socket_path=sys.argv[1])
out = {}
for size in (65536, 1048576):
    r.flushall()
    n = max(32, min(1024, (64 << 20) // size))
    data = os.urandom(size)
    puts, gets = [], []
    for i in range(n):
        t = time.perf_counter(); r.set(f"a{i}", data); puts.append(time.perf_counter() - t)
    for i in range(n):
        t = time.perf_counter(); x = r.get(f"a{i}"); gets.append(time.perf_counter() - t)
    assert x == data
    puts.sort(); gets.sort()
    out[size] = {"put_gb_s": n * size / sum(puts) / 1e9, "get_gb_s": n * size / sum(gets) / 1e9,
                 "put_p50_us": puts[n // 2] * 1e6, "get_p50_us": gets[n // 2] * 1e6}
print(json.dumps(out))
"""

MOONCAKE = r"""
import json, sys, time, numpy as np
from mooncake.store import MooncakeDistributedStore
mode, master = sys.argv[1], sys.argv[2]
s = MooncakeDistributedStore()
assert s.setup("127.0.0.1", "P2PHANDSHAKE", (1 << 30) if mode == "owner" else 0, 256 << 20, "tcp", "", master) == 0
if mode == "owner":
    print("up", flush=True)
    time.sleep(600)
out = {}
for size in (65536, 1048576):
    n = max(32, min(1024, (64 << 20) // size))
    data = np.random.randint(0, 255, size, dtype=np.uint8)
    into = np.zeros(size, dtype=np.uint8)
    assert s.register_buffer(data.ctypes.data, data.nbytes) == 0 and s.register_buffer(into.ctypes.data, into.nbytes) == 0
    puts, gets = [], []
    tag = time.time_ns()
    for i in range(n):
        t = time.perf_counter(); r = s.put_from(f"{tag}_{size}_{i}", data.ctypes.data, size); puts.append(time.perf_counter() - t)
        assert r == 0, r
    for i in range(n):
        t = time.perf_counter(); r = s.get_into(f"{tag}_{size}_{i}", into.ctypes.data, size); gets.append(time.perf_counter() - t)
        assert r == size, r
    assert (into == data).all()
    puts.sort(); gets.sort()
    out[size] = {"put_gb_s": n * size / sum(puts) / 1e9, "get_gb_s": n * size / sum(gets) / 1e9,
                 "put_p50_us": puts[n // 2] * 1e6, "get_p50_us": gets[n // 2] * 1e6}
print(json.dumps(out), flush=True)
import os
os._exit(0)
"""


def last_json(argv, **more):
    run = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if run.returncode != 0:
        raise SystemExit(f"{argv[:3]}: {run.returncode}\n{run.stderr[-2000:]}")
    return json.loads(next(x for x in reversed(run.stdout.splitlines()) if x.startswith("{")))


def fio(binary, file, mode, block, depth, size=None, seconds=None):
    argv = [binary, "--name=x", f"--filename={file}", "--direct=1", "--ioengine=io_uring", f"--rw={mode}", f"--bs={block}",
            f"--iodepth={depth}", "--output-format=json", f"--size={size}", "--end_fsync=1"]
    if seconds:
        argv += [f"--runtime={seconds}", "--time_based"]
    run = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    job = json.loads(run.stdout[run.stdout.index("{"):])["jobs"][0]
    side = job["write" if "write" in mode else "read"]
    # Of a write the time to stable storage counts, not only the time of the calls.
    return size / (job["job_runtime"] / 1e3) / 1e9 if "write" in mode else side["bw_bytes"] / 1e9


def disk(peers, folder, rounds, size, seconds):
    got = {k: [] for k in ("write", "fio_write", "read64k", "fio_read64k", "read256k", "fio_read256k", "ratio_write", "ratio_read",
                           "ratio_read64k", "amplification", "cpu", "p50_64k_qd1")}
    # 256 KiB blocks leave the tier in writes of 1 MiB, 16 in flight; fio's are the same.
    for r in range(rounds):
        for block, name in ((256 << 10, "256k"), (64 << 10, "64k")):
            tier, file = folder / f"tier{name}", folder / "fio.dat"
            shutil.rmtree(tier, ignore_errors=True)
            ours = theirs = None
            for who in (("ours", "fio") if r % 2 == 0 else ("fio", "ours")):
                if who == "ours":
                    ours = last_json([BENCH, "write", tier, size, block, 16 << 20])
                else:
                    with contextlib.suppress(FileNotFoundError):
                        file.unlink()
                    theirs = fio(peers["FIO"], file, "write", "1M", 16, size)
            if name == "256k":
                got["write"].append(ours["gb_s"])
                got["fio_write"].append(theirs)
                got["ratio_write"].append(ours["gb_s"] / theirs)
                got["cpu"].append(ours["cpu_s_per_gb"])
                got["amplification"].append(ours["write_amplification"])
            depth = 16 if name == "256k" else 32
            for who in (("ours", "fio") if r % 2 == 0 else ("fio", "ours")):
                if who == "ours":
                    ours = last_json([BENCH, "read", tier, seconds, block, depth])
                else:
                    theirs = fio(peers["FIO"], file, "randread", block, depth, size, seconds)
            got["read" + name].append(ours["gb_s"])
            got["fio_read" + name].append(theirs)
            got["ratio_read" if name == "256k" else "ratio_read64k"].append(ours["gb_s"] / theirs)
            if name == "64k":
                got["p50_64k_qd1"].append(last_json([BENCH, "read", tier, seconds / 2, block, 1])["p50_us"])
            lib.say(f"round {r} {name}: {({k: v[-1] for k, v in got.items() if v})}")
    return got


def systems(peers, folder, rounds):
    """Interleaved: every system in every round."""
    rows = {}
    with contextlib.ExitStack() as stack:
        sock = folder / "kv.sock"
        stack.enter_context(lib.process([lib.BINARY, "cache", "serve", "--socket", str(sock), "--memory", "512MiB"], folder / "kv.log"))
        redis_sock = folder / "redis.sock"
        stack.enter_context(lib.process([peers["REDIS_SERVER"], "--port", "0", "--unixsocket", str(redis_sock), "--save", "",
                                         "--appendonly", "no", "--dir", str(folder)], folder / "redis.log"))
        port, metrics = lib.free_port(), lib.free_port()
        master = f"127.0.0.1:{port}"
        stack.enter_context(lib.process([peers["MOONCAKE_MASTER"], "--rpc_address=127.0.0.1", f"--rpc_port={port}",
                                         "--metrics_host=127.0.0.1", f"--metrics_port={metrics}"], folder / "master.log"))
        python = peers["KV_PYTHON"]
        deadline = time.monotonic() + 20
        while not (sock.exists() and redis_sock.exists()):
            if time.monotonic() > deadline:
                raise SystemExit(f"a server did not come up; see {folder}")
            time.sleep(0.05)
        time.sleep(1)
        owner_log = folder / "owner.log"
        stack.enter_context(lib.process([python, "-c", MOONCAKE, "owner", master], owner_log))
        while "up" not in (owner_log.read_text(errors="replace") if owner_log.exists() else ""):
            if time.monotonic() > deadline + 20:
                lib.say(f"Mooncake's owner did not come up; see {owner_log}")
                break
            time.sleep(0.1)
        library = lib.ROOT / "build/release/bin/libnereid_kv.so.1"
        runs = {"ours": [python, "-c", OURS, lib.ROOT / "python", sock, library, "1"],
                "redis": [python, "-c", REDIS, redis_sock],
                "mooncake": [python, "-c", MOONCAKE, "client", master]}
        for r in range(rounds):
            for name, argv in list(runs.items()) if r % 2 == 0 else list(runs.items())[::-1]:
                try:
                    row = last_json(argv, timeout=60)
                except (SystemExit, subprocess.TimeoutExpired) as e:
                    lib.say(f"{name} failed: {str(e)[-300:]}")
                    continue
                for size, cell in row.items():
                    for k, v in cell.items():
                        rows.setdefault((name, int(size)), {}).setdefault(k, []).append(v)
                lib.say(f"round {r} {name}: {row}")
    return {key: {k: statistics.median(v) for k, v in cell.items()} for key, cell in rows.items()}


def main():
    args = lib.arguments(__doc__)
    rounds, size, seconds = (1, 512 << 20, 1) if args.quick else (3, 2 << 30, 3)
    peers = lib.peers("kv")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nereid-kv-", dir=os.environ.get("NEREID_BENCH_DISK", str(lib.ROOT / "build"))))
    try:
        got = disk(peers, folder, rounds, size, seconds)
        dram = last_json([BENCH, "dram", (1400 if args.quick else 2600) << 20, 256 << 10, 1 if args.quick else 5])
        restart = last_json([BENCH, "restart", folder / "restart", 1_000_000 if args.quick else 5_000_000, 16 << 10, 3])
        large = last_json([BENCH, "restart", folder / "restart", 200_000 if args.quick else 1_000_000, 1_441_792, 3])
        turn = last_json([BENCH, "turn"])
        them = systems(peers, folder, rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    median = {k: statistics.median(v) for k, v in got.items()}
    metrics = {
        "get64k_p50_us": them.get(("ours", 65536), {}).get("get_p50_us"),
        "restart_entries_per_s": restart["entries_per_cpu_s"], "restart_wall_entries_per_s": restart["entries_per_s"],
        "restart_large_blocks_entries_per_s": large["entries_per_cpu_s"],
        "restart_large_blocks_wall_entries_per_s": large["entries_per_s"], "serving_after_ms": large["serving_after_ms"],
        "write_amplification": turn["write_amplification"], "write_amplification_256k": median["amplification"], "ssd_write_gb_s": median["write"], "fio_write_gb_s": median["fio_write"],
        "ssd_read256k_gb_s": median["read256k"], "fio_read256k_gb_s": median["fio_read256k"], "ssd_read64k_gb_s": median["read64k"],
        "fio_read64k_gb_s": median["fio_read64k"], "ssd_write_cpu_s_per_gb": median["cpu"], "ssd_get64k_p50_us": median["p50_64k_qd1"],
        "dram_get_gb_s": dram["copy_gb_s"], "memcpy_gb_s": dram["memcpy_gb_s"], "zero_copy_view_ns": dram["view_ns"],
        **{f"{name}_{s >> 10}k_{k}": v for (name, s), cell in them.items() for k, v in cell.items()},
    }
    ratios = {"ssd_write_vs_fio": median["ratio_write"], "ssd_read_vs_fio": median["ratio_read"],
              "ssd_read64k_vs_fio": median["ratio_read64k"], "dram_get_vs_memcpy": dram["ratio"]}
    for name in ("redis", "mooncake"):
        for s in SIZES:
            if (name, s) in them and ("ours", s) in them:
                ratios[f"get{s >> 10}k_p50_vs_{name}"] = them[("ours", s)]["get_p50_us"] / them[(name, s)]["get_p50_us"]
                ratios[f"put{s >> 10}k_gb_s_vs_{name}"] = them[("ours", s)]["put_gb_s"] / them[(name, s)]["put_gb_s"]
                ratios[f"get{s >> 10}k_gb_s_vs_{name}"] = them[("ours", s)]["get_gb_s"] / them[(name, s)]["get_gb_s"]
    lib.finish("kv-node", metrics, ratios, [
        f"{rounds} rounds, interleaved; SSD: {size >> 20} MiB, appends of 256 KiB in writes of 1 MiB, 16 in flight, sealed, against fio 1M depth 16 "
        "with end_fsync; random reads of 256 KiB depth 16 and 64 KiB depth 32",
        "clients are Python: ours over ctypes on a Unix socket with the arena mapped, redis-py 8 over a Unix socket, Mooncake 0.3.13 over loopback TCP",
        "restart: footers of 16 KiB (65k a segment) and of 1.4 MB blocks, into the index; entries per CPU second and per second, medians of 3",
        "write_amplification: three turns of a TTL on the simulated disk and clock, 60 blocks of 114 KB an hour, a fiftieth of all hit each hour"])


if __name__ == "__main__":
    main()
