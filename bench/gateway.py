"""Our gateway (through engine/openai) against sglang-router, vllm-router and haproxy, all before the same mock engine.

Proxies take turns within each scenario and round; `direct` is one mock engine without a proxy. CPU per request is user +
system time of the proxy's process tree over the requests of the run, read from /proc (resolution: one clock tick).
"""

import contextlib
import pathlib
import random
import subprocess
import tempfile

import lib

SCENARIOS = {"c1_plain": (1, 0), "c1_16chunks": (1, 1), "c64_plain": (64, 0), "c64_16chunks": (64, 1)}
HAPROXY = """
global
  nbthread 2
  maxconn 4000
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  http-reuse always
  option http-no-delay
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  balance leastconn
{servers}
"""


def wrk(binary, port, connections, stream, seconds):
    run = subprocess.run([binary, "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(pathlib.Path(__file__).with_name("post.lua")),
                          f"http://127.0.0.1:{port}", "--", str(stream), "400"], capture_output=True, text=True, check=True)
    fields = next(line for line in run.stdout.splitlines() if line.startswith("RESULT")).split()
    requests, micros, p50, p99, errors = int(fields[1]), int(fields[2]), float(fields[3]), float(fields[4]), int(fields[5])
    if requests == 0 or errors > requests * 0.001:
        raise SystemExit(f"port {port}: {requests} requests, {errors} errors")
    return requests, requests / (micros / 1e6), p50, p99


def main():
    args = lib.arguments(__doc__)
    seconds, rounds = (1, 1) if args.quick else (4, 3)
    peers = lib.peers()
    out = pathlib.Path(tempfile.mkdtemp(prefix="nereid-bench-"))
    with contextlib.ExitStack() as stack:
        def start(name, argv, port):
            child = stack.enter_context(lib.process(argv, out / f"{name}.log"))
            lib.wait_http(port, "/v1/chat/completions", child, out / f"{name}.log", method="POST",
                          body='{"model":"mock","messages":[{"role":"user","content":"hi"}],"max_tokens":2}')
            return child.pid, port

        mocks = [lib.free_port() for _ in range(4)]
        pids = {}
        for i, port in enumerate(mocks):
            pids[f"mock{i}"] = start(f"mock{i}", [peers["MOCK_ENGINE"], "-port", str(port), "-n", "16"], port)
        urls = [f"http://127.0.0.1:{p}" for p in mocks]
        ports = {name: lib.free_port() for name in ("ours", "sglang", "vllm", "haproxy", "prom1", "prom2")}
        config = out / "haproxy.cfg"
        config.write_text(HAPROXY.format(port=ports["haproxy"], servers="\n".join(
            f"  server w{i} 127.0.0.1:{p}" for i, p in enumerate(mocks))))
        proxies = {"direct": pids["mock0"]}
        proxies["ours"] = start("ours", [lib.BINARY, "gateway", "--port", str(ports["ours"]), "--model-name", "mock",
                                         "--gateway.access-log=off", *(x for u in urls for x in ("--backend", u))], ports["ours"])
        proxies["haproxy"] = start("haproxy", [peers["HAPROXY"], "-f", str(config), "-db"], ports["haproxy"])
        proxies["sglang"] = start("sglang", [*peers["SGLANG_ROUTER"].split(), "--host", "127.0.0.1", "--port", str(ports["sglang"]),
                                             "--prometheus-port", str(ports["prom1"]), "--log-level", "error", "--policy", "random",
                                             "--worker-urls", *urls], ports["sglang"])
        proxies["vllm"] = start("vllm", [peers["VLLM_ROUTER"], "--host", "127.0.0.1", "--port", str(ports["vllm"]),
                                         "--prometheus-port", str(ports["prom2"]), "--worker-urls", *urls, "--policy", "round_robin",
                                         "--log-level", "error"], ports["vllm"])
        idle = {name: lib.rss_mib(pid) for name, (pid, _) in proxies.items()}
        got = {}
        for r in range(rounds):
            for scenario, (connections, stream) in SCENARIOS.items():
                order = list(proxies)
                random.Random(f"{r}{scenario}").shuffle(order)
                for name in order:
                    pid, port = proxies[name]
                    before = lib.cpu_seconds(pid)
                    requests, rps, p50, p99 = wrk(peers["WRK"], port, connections, stream, seconds)
                    cpu = (lib.cpu_seconds(pid) - before) * 1e6 / requests
                    cell = got.setdefault(scenario, {}).setdefault(name, {"rps": [], "p50_us": [], "p99_us": [], "cpu_us": []})
                    for key, value in (("rps", rps), ("p50_us", p50), ("p99_us", p99), ("cpu_us", cpu)):
                        cell[key].append(value)
                    lib.say(f"round {r} {scenario} {name}: {rps:.0f} rps, p50 {p50:.0f} us, p99 {p99:.0f} us, cpu {cpu:.1f} us")
        rss = {name: lib.rss_mib(pid) for name, (pid, _) in proxies.items()}

    def median(scenario, name, key):
        return lib.spread(got[scenario][name][key])["median"]

    metrics = {f"{scenario}.{name}": {key: lib.spread(v)["median"] for key, v in cell.items()}
               for scenario, cells in got.items() for name, cell in cells.items()}
    for name in ("ours", "haproxy", "sglang", "vllm"):
        prefix = "" if name == "ours" else f"{name}_"
        metrics[prefix + "added_p50_us"] = median("c1_plain", name, "p50_us") - median("c1_plain", "direct", "p50_us")
        metrics[prefix + "cpu_us_plain"] = median("c64_plain", name, "cpu_us")
        metrics[prefix + "cpu_us_16chunks"] = median("c64_16chunks", name, "cpu_us")
        metrics[prefix + "cpu_us_plain_c1"] = median("c1_plain", name, "cpu_us")
        metrics[prefix + "cpu_us_16chunks_c1"] = median("c1_16chunks", name, "cpu_us")
        metrics[prefix + "rss_mib"] = rss[name]
        metrics[prefix + "rss_idle_mib"] = idle[name]
    rps = {name: median("c64_plain", name, "rps") for name in proxies}
    stream_rps = {name: median("c64_16chunks", name, "rps") for name in proxies}
    ratios = {"rps_vs_sglang_router": rps["ours"] / rps["sglang"], "rps_vs_vllm_router": rps["ours"] / rps["vllm"],
              "rps_vs_haproxy": rps["ours"] / rps["haproxy"],
              "rps_16chunks_vs_sglang_router": stream_rps["ours"] / stream_rps["sglang"],
              "rps_16chunks_vs_haproxy": stream_rps["ours"] / stream_rps["haproxy"]}
    lib.finish("gateway", metrics, ratios, [
        f"{rounds} rounds of {seconds} s, interleaved; sglang-router 0.3.2 random, vllm-router 0.1.17 round robin, haproxy leastconn "
        "with http-no-delay, nbthread 2", "wrk, mocks and proxies share the cores"])


if __name__ == "__main__":
    main()
