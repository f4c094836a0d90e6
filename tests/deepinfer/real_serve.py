"""`nereid serve --engine deepinfer` before the real LLMEngine (CPU, invented model): the openai SDK, kill -9 of a rank, drain.
pytest, by `./dev test --deepinfer`."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator

import openai
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from real_ranks import TEXT, group_file

import importlib.util

_spec = importlib.util.spec_from_file_location("e2e_conftest", HERE.parent / "e2e/conftest.py")
e2e = importlib.util.module_from_spec(_spec)  # type: ignore[arg-type]
_spec.loader.exec_module(e2e)  # type: ignore[union-attr]

ANSWER = TEXT.decode()


@pytest.fixture
def serve(tmp_path: pathlib.Path) -> Iterator[object]:
    servers = []

    def start(ranks: int = 1, env: dict[str, str] | None = None, args: tuple[str, ...] = (), **values: object) -> object:
        file = group_file(tmp_path, data_parallel_size=ranks, **values)
        server = e2e.Server(
            ["serve", "--port", "0", "--engine", "deepinfer", "--engine.deepinfer", str(file), "--engine.deepinfer_name", "invented",
             "--engine.deepinfer_python", os.environ["NEREID_DEEPINFER_PYTHON"], "--engine.deepinfer_package",
             str(HERE.parents[1] / "python"), *args],
            env={"NEREID_DEEPINFER_CPU": str(HERE / "cpu"), **(env or {})})
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()
        server.dir.cleanup()


def rank_pids(server) -> dict[int, int]:
    """{rank: pid} of the group's processes, which are grandchildren of the service."""
    out = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"nereid_deepinfer" in words and b"--rank" in words and str(server_folder(server)).encode() in b" ".join(words):
            out[int(words[words.index(b"--rank") + 1])] = int(path.parent.name)
    return out


def server_folder(server) -> str:
    worker = server.worker_pid()
    words = pathlib.Path(f"/proc/{worker}/cmdline").read_bytes().split(b"\0")
    return pathlib.Path(words[words.index(b"--socket") + 1].decode()).parent


def ask(client, **more) -> object:
    return client.chat.completions.create(model="invented", messages=[{"role": "user", "content": "Hello"}],
                                          **{"max_tokens": 100, **more})


def test_the_sdk_gets_answers(serve) -> None:
    server = serve()
    client = server.client()
    whole = ask(client)
    assert whole.choices[0].message.content == ANSWER and whole.choices[0].finish_reason == "stop"
    streamed = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in streamed if c.choices) == ANSWER
    assert streamed[-1].usage.completion_tokens == whole.usage.completion_tokens == 41
    assert ask(client, max_tokens=7).choices[0].message.content == ANSWER[:7]
    assert ask(client, stop=["past"]).choices[0].message.content == ANSWER.split("past")[0]
    assert [c.message.content for c in ask(client, n=3).choices] == [ANSWER] * 3
    assert [m.id for m in client.models.list()][0] == "invented"
    for field, value in [("frequency_penalty", 0.5), ("logit_bias", {"5": 1})]:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, **{field: value})
        assert field in str(refused.value)


def test_two_ranks_share_the_requests(serve) -> None:
    server = serve(2)
    answers: list[str] = []

    def work() -> None:
        answers.append(ask(server.client()).choices[0].message.content)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert answers == [ANSWER] * 16
    assert sorted(rank_pids(server)) == [0, 1]
    assert '"rank":1' in server.log(), "lines of ranks are tagged"


def test_killed_rank_restarts_the_group(serve) -> None:
    """Clients of running requests get the dialect's error; what waited is admitted again."""
    server = serve(2, env={"NEREID_CPU_ENDLESS": "1", "NEREID_CPU_STEP_MS": "5"}, max_num_seqs=2)
    client = server.client()
    running = [ask(client, stream=True, max_tokens=1500) for _ in range(4)]
    first = [next(iter(s)) for s in running]
    assert all(first)
    waiting: list[object] = []

    def wait() -> None:
        waiting.append(ask(server.client(), max_tokens=5))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for t in threads:
        t.start()
    before = rank_pids(server)
    os.kill(before[1], signal.SIGKILL)
    for stream in running:
        with pytest.raises(openai.APIError):
            for _ in stream:
                pass
    for t in threads:
        t.join(120)
    assert [w.choices[0].message.content for w in waiting] == [ANSWER[:5]] * 3
    after = rank_pids(server)
    assert sorted(after) == [0, 1] and not set(after.values()) & set(before.values()), "a whole new group"
    assert server.metric_sum("nereid_worker_restarts_total") >= 1


def test_configuration_fault_is_told_once(serve, tmp_path: pathlib.Path) -> None:
    file = group_file(tmp_path, engine_type="BOTH")
    server = e2e.Server(["serve", "--port", "0", "--engine", "deepinfer", "--engine.deepinfer", str(file), "--engine.deepinfer_python",
                         os.environ["NEREID_DEEPINFER_PYTHON"], "--engine.deepinfer_package", str(HERE.parents[1] / "python")], ready=False)
    try:
        assert server.process.wait(60) == 2
        assert "engine_type" in server.log()
    finally:
        server.stop()
        server.dir.cleanup()
