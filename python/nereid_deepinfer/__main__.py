"""One rank: python -m nereid_deepinfer --config GROUP.toml --rank N --socket PATH

`nereid worker` starts it with the environment that --print-environment names (one NAME=VALUE a line, for all ranks of this
machine: `rank N` lines divide them). Ends with 0 after SIGTERM, 2 for what a restart cannot mend, 1 when the engine failed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import runpy
import signal
import sys
import traceback

from nereid_deepinfer.config import Config, ConfigError


def log(line: str) -> None:
    print(f"nereid_deepinfer: {line}", file=sys.stderr, flush=True)


def run(config: Config, rank: int, path: str) -> int:
    if config.prepare:
        runpy.run_path(config.prepare, run_name="nereid_deepinfer_prepare")
    from nereid_deepinfer.agent import Agent
    from nereid_deepinfer.live import Options
    from nereid_deepinfer.background import Background
    from nereid_deepinfer.hooks import Unsupported
    from nereid_deepinfer.link import Server
    from nereid_deepinfer.store import NodeStore

    try:
        from nereid_deepinfer.real import reports, start

        runtime = start(config, rank)
    except (Unsupported, ImportError) as bad:
        log(f"{bad}. Mend: install a DeepInfer of the version matrix in docs/ops/deepinfer.md, and nereid_peek built for it.")
        return 2
    server: Server

    def wake() -> None:
        server.wake()

    store = stores = None
    if config.kv_socket:
        secret = pathlib.Path(config.kv_secret_file).read_bytes().rstrip(b"\n") if config.kv_secret_file else b""
        try:
            store = NodeStore(config.kv_socket, runtime.arenas.block_bytes, runtime.arenas.persisted_bytes, runtime.keep_tokens, log,
                              secret, config.kv_library, config.kv_ttl_s)
        except ImportError as bad:
            log(f"kv_socket needs nereid_kv and its library: {bad}. Mend: kv_library names libnereid_kv.so.1")
            return 2
        stores = Background(wake)
    agent = Agent(runtime, Options(max_queued=config.max_queued, prefix_share=config.prefix_share, prefix_entries=config.prefix_entries,
                                   hold_lease_ns=int(config.hold_lease_s * 1e9), kv_wait_ns=config.kv_wait_ms * 1_000_000),
                  copies=Background(wake), store=store, stores=stores)
    agent.experts = reports(runtime, config, rank, log)
    server = Server(agent, path, log)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    signal.signal(signal.SIGINT, lambda *_: server.stop())
    log(f"rank {rank} of {config.data_parallel_size} is ready: {config.engine_type}, {runtime.info.kv_capacity_tokens} tokens of KV")
    server.run()
    log(f"ends; {agent.counters}")
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="nereid_deepinfer", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--config", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--socket", default="")
    parser.add_argument("--print-environment", action="store_true")
    options = parser.parse_args(arguments)
    try:
        config = Config.load(options.config)
    except ConfigError as bad:
        log(str(bad))
        return 2
    if options.print_environment:
        for rank in config.ranks():
            print(f"rank {rank} {config.data_parallel_size} {config.python or sys.executable}")
            for name, value in sorted(config.environment(rank).items()):
                print(f"{name}={value}")
        return 0
    if options.rank not in config.ranks():
        log(f"rank {options.rank} is not one of {config.ranks()} on this machine")
        return 2
    os.environ.update(config.environment(options.rank))
    code = 1
    try:
        code = run(config, options.rank, options.socket)
    except Exception:  # what it was is in the log; the group ends with this rank
        traceback.print_exc()
        log("the engine failed; the group has to be started again")
    # close() would wait for ranks that may be gone, and a rank of a group must not linger in a collective.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
