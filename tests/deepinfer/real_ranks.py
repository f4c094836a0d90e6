"""Ranks as they are started in production, on the real LLMEngine (CPU): one process each, spoken to over engine-wire.
pytest, by `./dev test --deepinfer`. NEREID_DEEPINFER_PYTHON is the interpreter with torch."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator

import pytest

from client import Client
from nereid_deepinfer import wire

HERE = pathlib.Path(__file__).resolve().parent
TEXT = b"Two nymphs swam past the old lighthouse."


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1]) + 50


def group_file(folder: pathlib.Path, **values: object) -> pathlib.Path:
    merged: dict[str, object] = {
        "model": str(HERE / "cpu/model"), "served_model_name": "invented", "load_format": "dummy", "max_model_len": 2048,
        "max_num_seqs": 16, "max_num_batched_tokens": 2048, "master_port": free_port(), "gloo_timeout_s": 30, "grammar_cpus": 1, "log_interval_steps": 1_000_000,
        "structured_output": values.get("data_parallel_size", 1) == 1,  # a rank's thread for grammars wants a core of its own
        "python": os.environ["NEREID_DEEPINFER_PYTHON"], "prepare": str(HERE / "cpu/prepare.py"), **values}
    lines = [f"{k} = {str(v).lower() if isinstance(v, bool) else v if isinstance(v, (int, float)) else repr(v)}"
             for k, v in merged.items()]
    path = folder / "group.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


class Ranks:
    def __init__(self, count: int, env: dict[str, str] | None = None, **values: object) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="nereid-ranks-")
        root = pathlib.Path(self.folder.name)
        file = group_file(root, data_parallel_size=count, **values)
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "python"), "NEREID_DEEPINFER_CPU": str(HERE / "cpu"), **(env or {})}
        self.processes = []
        self.logs = []
        for rank in range(count):
            self.logs.append(root / f"rank{rank}.log")
            self.processes.append(subprocess.Popen(
                [os.environ["NEREID_DEEPINFER_PYTHON"], "-m", "nereid_deepinfer", "--config", str(file), "--rank", str(rank),
                 "--socket", str(root / f"{rank}.sock")], env=environment, stdout=open(self.logs[-1], "wb"),
                stderr=subprocess.STDOUT))
        try:
            self.clients = [Client(str(root / f"{rank}.sock"), 90) for rank in range(count)]
        except BaseException:
            print(*[log.read_text()[-3000:] for log in self.logs], sep="\n---\n")
            self.stop()
            raise

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()


@pytest.fixture
def ranks() -> Iterator[object]:
    made: list[Ranks] = []

    def start(count: int, **how: object) -> Ranks:
        made.append(Ranks(count, **how))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for one in made:
        one.stop()


def request(number: int, length: int = 20, most: int = 100, **more: object) -> wire.AddRequest:
    return wire.AddRequest(number, prompt=[5 + i % 200 for i in range(length)], max_tokens=most, **more)  # type: ignore[arg-type]


def test_greeting_says_what_is_there_and_what_is_not(ranks) -> None:
    info = ranks(1).clients[0].info
    assert (info.engine, info.engine_version, info.model_id) == ("deepinfer", "0.1.0", "invented")
    # The layout to the byte: docs/formats/deepinfer-kv.md.
    layout = info.layout
    assert (layout.block_tokens, layout.block_bytes, layout.state_bytes) == (128, 114048, 1415040)
    assert [(s.layer, s.offset, s.length) for s in layout.slices] == [
        (2, 0, 22784), (8, 22784, 22784), (14, 45568, 22784), (20, 68352, 45568)]
    assert layout.replay_tokens == 140 and "yoco=compact" in layout.detail and "ring=134" in layout.detail
    assert not (info.penalties or info.logit_bias or info.embeddings or info.adapters or info.images)
    assert info.seeds and info.logprobs and info.speculation and info.roles == wire.Role.UNIFIED


@pytest.mark.parametrize(("values", "state", "ring"), [({"drafts": 0}, 1362560, "ring=129"), ({"store_extra_state": True}, 1415040, "ring=402")])
def test_settings_change_the_layout_and_so_the_namespace(ranks, values, state, ring) -> None:
    info = ranks(1, **values).clients[0].info
    assert info.layout.state_bytes == state and ring in info.layout.detail


def test_one_rank_answers(ranks) -> None:
    client = ranks(1).clients[0]
    client.send(request(1), request(2, 700, 7))
    told = client.until(2)
    assert bytes(told[1]["tokens"][:-1]) == TEXT and told[1]["tokens"][-1] == 1
    assert told[1]["end"].reason == wire.EndReason.STOP and told[2]["end"].reason == wire.EndReason.LENGTH


def test_idle_rank_steps_along_trap_4(ranks) -> None:
    group = ranks(2)
    for client in group.clients:
        client.send(*[request(i, 50 + i) for i in range(8)])
    for client in group.clients:
        told = client.until(8)
        assert all(bytes(t["tokens"][:-1]) == TEXT for t in told.values())
    group.clients[0].send(request(100))  # the other one is idle and has to step along
    assert bytes(group.clients[0].until(1)[100]["tokens"][:-1]) == TEXT
    group.clients[1].send(wire.Ping(5))
    while group.clients[1].receive() != wire.Pong(5):
        pass


def test_abort_storm_over_two_ranks_leaves_nothing(ranks) -> None:
    group = ranks(2, env={"NEREID_CPU_ENDLESS": "1", "NEREID_CPU_ACCEPT": "2"})
    rng = random.Random(2)
    total = 400
    for number in range(total):
        client = group.clients[number % 2]
        client.send(request(number, rng.choice([3, 130, 500, 1400]), rng.randrange(1, 60)))
        if rng.random() < 0.5:
            client.send(wire.AbortRequest(rng.randrange(number + 1) // 2 * 2 + number % 2))
    for client in group.clients:
        assert len(client.until(total // 2, 120)) == total // 2
    for client in group.clients:  # all blocks but those of kept prefixes are back, once a new step says so
        client.send(request(9999, 3, 1))
        client.until(1)
        assert client.load.running <= 1 and client.load.waiting == 0 and client.load.waiting_uncached_tokens == 0
        assert client.load.kv_used_tokens * 114048 // 128 <= client.load.prefix_store_bytes + 2 * 114048


def test_sigterm_ends_a_rank_with_0(ranks) -> None:
    group = ranks(1)
    group.clients[0].send(request(1, 20, 1500))
    group.processes[0].send_signal(signal.SIGTERM)
    assert group.processes[0].wait(20) == 0


def test_engine_that_raises_ends_with_1_and_a_traceback(ranks) -> None:
    group = ranks(1, env={"NEREID_CPU_FAIL_AT": "5"})
    group.clients[0].send(request(1, 20, 1500))
    assert group.processes[0].wait(30) == 1
    with pytest.raises((EOFError, ConnectionError)):
        while True:
            group.clients[0].receive(5)
    assert "the invented device is lost" in group.logs[0].read_text()


def test_machine_without_cores_for_grammars_ends_with_2(tmp_path: pathlib.Path) -> None:
    """DeepInfer would find out in add_request, at the first grammar, and take the group down."""
    file = group_file(tmp_path, grammar_cpus=4096)
    done = subprocess.run([os.environ["NEREID_DEEPINFER_PYTHON"], "-m", "nereid_deepinfer", "--config", str(file), "--rank", "0",
                           "--socket", str(tmp_path / "s")],
                          env={**os.environ, "PYTHONPATH": str(HERE.parents[1] / "python"), "NEREID_DEEPINFER_CPU": str(HERE / "cpu")},
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "grammar_cpus" in done.stderr, done.stderr[-2000:]


def test_bad_configuration_ends_with_2_and_a_line(tmp_path: pathlib.Path) -> None:
    for values, what in [({"engine_type": "BOTH"}, "engine_type"), ({"yoco_keep_tokens": 100}, "yoco_keep_tokens"),
                         ({"model": "/nowhere"}, "model"), ({"nonsense": 1}, "nonsense")]:
        file = group_file(tmp_path, **values)
        done = subprocess.run([os.environ["NEREID_DEEPINFER_PYTHON"], "-m", "nereid_deepinfer", "--config", str(file), "--rank", "0"],
                              env={**os.environ, "PYTHONPATH": str(HERE.parents[1] / "python")}, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and what in done.stderr, done
