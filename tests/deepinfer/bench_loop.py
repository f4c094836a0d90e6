"""One run of bench/deepinfer.py: `bench_loop.py bare|agent STEPS`. 256 rows decode on the real LLMEngine; the last line is
JSON. `agent`: the agent with its socket, and a client process that reads the frames and sends commands."""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "cpu"), str(HERE.parents[1] / "python")]

ROWS = 256


def reader(path: str, steps: int, out: multiprocessing.Queue) -> None:
    """The gateway's part: submits 256 requests, reads every frame."""
    from client import Client
    from nereid_deepinfer import wire

    client = Client(path)
    client.send(*[wire.AddRequest(i, prompt=[5 + i % 200] * 24, max_tokens=1900) for i in range(ROWS)])
    seen = tokens = 0
    waits: list[float] = []
    probe, sent = 10_000, 0.0
    while seen < steps:
        message = client.receive(60)
        if not isinstance(message, wire.StepFrame):
            continue
        if message.load.running >= ROWS - 1:
            seen += 1
            tokens += len(message.tokens)
        ended = {f.id for f in message.finished}
        if sent and probe in ended:
            waits.append(time.perf_counter() - sent)
            sent = 0.0
        elif not sent and seen and seen % 5 == 0:
            # A command is answered by the frame of the step that follows it: an unknown role is refused at once.
            probe += 1
            sent = time.perf_counter()
            client.send(wire.AddRequest(probe, mode=wire.AddMode.EMBED, prompt=[5]))
    out.put((waits, tokens / max(1, seen)))
    client.sock.close()


def start() -> object:
    import world
    from nereid_deepinfer.config import Config
    from script import Script

    config = Config.of({"model": world.model_folder(), "max_model_len": 2048, "max_num_batched_tokens": 8192, "max_num_seqs": ROWS,
                        "load_format": "dummy", "prefix_share": 0.0, "structured_output": False, "log_interval_steps": 100})
    os.environ.update({k: v for k, v in config.environment(0).items() if not k.startswith("MASTER")})
    script = Script()
    script.accept = int(os.environ.get("NEREID_CPU_ACCEPT", "0"))
    script.token = lambda name, at: 100 + at % 800  # type: ignore[method-assign]
    runner = world.install(script)
    from nereid_deepinfer.real import start as start_engine

    runtime = start_engine(config, 0)

    class Silent(list):
        def append(self, _: object) -> None: ...

    runner.trace = Silent()
    return runtime


def bare(steps: int) -> dict[str, object]:
    """LLMEngine's own loop with what any caller must do: read id, token and reason of every output."""
    import numpy as np

    runtime = start()
    engine, output = runtime.engine, runtime.output
    for i in range(ROWS):
        engine.add_request("bench", str(i), {"max_tokens": 1900}, np.asarray([5 + i % 200] * 24, dtype=np.int32))
    times, tokens = [], 0
    while len(times) < steps:
        began = time.perf_counter()
        engine.has_unfinished_requests()
        outputs = engine.step()
        for pointer in outputs:
            output.get_request_id(int(pointer)), output.get_token_id(int(pointer)), output.get_finish_reason(int(pointer))
        if engine.scheduler.get_sum_prompt_len_running()[0] == ROWS:
            times.append(time.perf_counter() - began)
            tokens += len(outputs)
    return {"step_ms": statistics.median(times[10:]) * 1e3, "rows": ROWS, "tokens_per_step": tokens / steps}


def agent(steps: int) -> dict[str, object]:
    from nereid_deepinfer.agent import Agent
    from nereid_deepinfer.live import Options
    from nereid_deepinfer.link import Server

    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/s"
        client = context.Process(target=reader, args=(path, steps, results), daemon=True)
        client.start()
        runtime = start()
        agent = Agent(runtime, Options(prefix_share=0.0))
        server = Server(agent, path, lambda line: None)
        inside = 0.0
        original = runtime.engine.step

        def timed() -> object:
            nonlocal inside
            began = time.perf_counter()
            out = original()
            inside = time.perf_counter() - began
            return out

        runtime.engine.step = timed
        times, added = [], []
        while client.is_alive():
            inside = 0.0
            began = time.perf_counter()
            server.turn(False)
            whole = time.perf_counter() - began
            if inside and runtime.engine.scheduler.get_sum_prompt_len_running()[0] == ROWS:
                times.append(whole)
                added.append(whole - inside)
            if not results.empty():
                break
        waits, tokens = results.get(timeout=30)
    return {"step_ms": statistics.median(times[10:]) * 1e3, "agent_us_per_step": statistics.median(added[10:]) * 1e6,
            "command_to_step_us": statistics.median(waits) * 1e6 if waits else None, "rows": ROWS, "tokens_per_step": tokens}


if __name__ == "__main__":
    result = (bare if sys.argv[1] == "bare" else agent)(int(sys.argv[2]))
    print(json.dumps(result), flush=True)
    os._exit(0)
