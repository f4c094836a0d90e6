"""KV between engine processes, on the real LLMEngine (CPU): the invented prefill writes bytes that only the tokens before
them decide (cpu/world.py), so that restored and computed KV can be compared. pytest, by `./dev test --deepinfer`."""

from __future__ import annotations

import json
import mmap
import os
import pathlib
import subprocess
import time
import zlib
from collections.abc import Iterator

import pytest

from nereid_deepinfer import handoff, keys, wire
from nereid_deepinfer.store import NodeStore
from real_ranks import Ranks, ranks  # noqa: F401  (a fixture)

BLOCK, BLOCK_BYTES, STATE_BYTES, SLOT_BYTES = 128, 114048, 1415040, 3128928
BINARY = pathlib.Path(os.environ.get("NEREID_BINARY", pathlib.Path(__file__).resolve().parents[2] / "build/debug/bin/nereid"))
NAMESPACE = bytes(range(32))
PROMPT = [5 + i * 7 % 250 for i in range(1000)]


class Region:
    def __init__(self, folder: pathlib.Path, size: int) -> None:
        self.path, self.size = folder / "region", size
        with open(self.path, "wb+") as file:
            file.truncate(size)
            self.view = mmap.mmap(file.fileno(), size)


@pytest.fixture
def node(tmp_path: pathlib.Path) -> Iterator[dict[str, object]]:
    """`nereid cache serve`, with a secret; gives the keys of a group file."""
    (tmp_path / "secret").write_text("a secret of 16 bytes or more\n")
    child = subprocess.Popen([str(BINARY), "cache", "serve", "--socket", str(tmp_path / "kv.sock"), "--folder", str(tmp_path / "ssd"),
                              "--memory", "32MiB", "--capacity", "64MiB", "--kv.secret_file", str(tmp_path / "secret")],
                             stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    yield {"kv_socket": str(tmp_path / "kv.sock"), "kv_secret_file": str(tmp_path / "secret"),
           "kv_library": str(BINARY.parent / "libnereid_kv.so.1"), "kv_wait_ms": 10_000}
    child.terminate()
    assert child.wait(20) == 0


def add(number: int, prompt: list[int], most: int = 3, **more: object) -> wire.AddRequest:
    return wire.AddRequest(number, prompt=prompt, max_tokens=most, kv_namespace=NAMESPACE, **more)  # type: ignore[arg-type]


def answer(client: object, kind: type) -> object:
    while True:
        message = client.receive(60)  # type: ignore[attr-defined]
        if isinstance(message, wire.StepFrame):
            assert not message.kv_failed, message.kv_failed
            if message.kv_ready:
                return message.kv_ready[0]


def exported(group: Ranks, number: int, count: int, region: Region) -> bytes:
    size = count * BLOCK_BYTES + STATE_BYTES
    region.view[:] = bytes(region.size)
    group.clients[0].send(wire.MapRegion(str(region.path), region.size), wire.ExportBlocks(number, 0, count, 0, region.size))
    ready = answer(group.clients[0], wire.KvReady)
    assert ready.length == size  # type: ignore[attr-defined]
    return region.view[:size]


def scheduled(trace: pathlib.Path, request: int) -> int:
    """Prompt tokens that the engine computed for it."""
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    return sum(q for line in lines if line["prompt"] for name, q in line["rows"] if name.endswith(f":{request}"))


def test_prefix_of_one_process_is_restored_by_another(ranks, node, tmp_path) -> None:
    """Through the KV node. The third process computes all of it: its bytes are those that were restored."""
    region = Region(tmp_path, 4 << 20)
    env = {"NEREID_CPU_KV": "1"}
    first = ranks(1, env=env, **node)
    first.clients[0].send(add(1, PROMPT[:600]))
    told = first.clients[0].until(1)
    assert told[1]["end"].cached_tokens == 0
    saved = exported(first, 1, 3, region)
    assert len(set(saved[at * BLOCK_BYTES : at * BLOCK_BYTES + 64] for at in range(3))) == 3 and any(saved[-STATE_BYTES:])
    other = PROMPT[:600]
    other[500:] = [9] * 100  # the same first 384 tokens and more
    assert stored(node, keys.block_chain(NAMESPACE, PROMPT, BLOCK)[:3])
    first.stop()

    trace = tmp_path / "trace"
    second = ranks(1, env={**env, "NEREID_CPU_TRACE": str(trace)}, **node)
    second.clients[0].send(add(2, other))
    told = second.clients[0].until(1)
    assert told[2]["end"].cached_tokens == 384 and scheduled(trace, 2) == 600 - 384
    restored = exported(second, 2, 3, region)
    assert restored[: 3 * BLOCK_BYTES] == saved[: 3 * BLOCK_BYTES], "blocks of the arena"
    assert restored[3 * BLOCK_BYTES :] == saved[3 * BLOCK_BYTES :], "the state at the boundary"
    second.stop()

    third = ranks(1, env=env)
    third.clients[0].send(add(3, other))
    assert third.clients[0].until(1)[3]["end"].cached_tokens == 0
    assert exported(third, 3, 3, region) == restored, "computed and restored KV are the same"


def stored(node: dict[str, object], chain: list[bytes]) -> bool:
    """Whether the node has these blocks and the state at their end, soon."""
    secret = pathlib.Path(str(node["kv_secret_file"])).read_bytes().rstrip(b"\n")
    store = NodeStore(str(node["kv_socket"]), BLOCK_BYTES, STATE_BYTES, 140, print, secret, str(node["kv_library"]))
    deadline = time.monotonic() + 20
    while store.missing_from(NAMESPACE, chain) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_prefix_travels_by_region_between_processes(ranks, tmp_path) -> None:
    """Without a node: exported by one engine, imported by another from the same shared region."""
    region = Region(tmp_path, 4 << 20)
    env = {"NEREID_CPU_KV": "1"}
    first = ranks(1, env=env)
    first.clients[0].send(add(1, PROMPT[:600]))
    first.clients[0].until(1)
    saved = exported(first, 1, 3, region)
    first.stop()
    trace = tmp_path / "trace"
    second = ranks(1, env={**env, "NEREID_CPU_TRACE": str(trace)})
    chain = keys.block_chain(NAMESPACE, PROMPT, BLOCK)[:3]
    client = second.clients[0]
    client.send(wire.MapRegion(str(region.path), region.size), add(2, PROMPT[:600]), wire.ImportPrefix(2, 0, chain, 0, len(saved)))
    told = client.until(1)
    assert told[2]["end"].cached_tokens == 384 and scheduled(trace, 2) == 216
    assert exported(second, 2, 3, region) == saved


def test_arenas_are_reached_by_their_ipc_records(ranks, tmp_path) -> None:
    """Of the CPU build: a record names a memfd of the engine (cpu/stubs/device_memory.cc); on a device it is CUDA's."""
    report = tmp_path / "report"
    report.mkdir()
    region = Region(tmp_path, 4 << 20)
    group = ranks(1, env={"NEREID_CPU_KV": "1"}, report_folder=str(report))
    group.clients[0].send(add(1, PROMPT[:600]))
    group.clients[0].until(1)
    saved = exported(group, 1, 3, region)
    arenas = json.loads((report / "arenas-0.json").read_text())
    assert arenas["block_bytes"] == BLOCK_BYTES and (report / "arenas-0.json").stat().st_mode & 0o77 == 0
    record = bytes.fromhex(arenas["gpu_blocks"]["handle"])
    assert len(record) == 72
    with open(record[:64].split(b"\0")[0], "rb") as file, mmap.mmap(file.fileno(), arenas["gpu_blocks"]["bytes"], prot=mmap.PROT_READ) as view:
        there = {view[at : at + BLOCK_BYTES] for at in range(0, len(view), BLOCK_BYTES)}
    assert all(saved[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES] in there for at in range(3))


def test_prompt_engine_hands_over_to_a_completion_engine(ranks, tmp_path) -> None:
    """Two engines, as disaggregation has them: the sequence goes through the region, decode goes on with the same KV."""
    tokens, blocks = 300, 3
    region = Region(tmp_path, handoff.HEADER_BYTES + blocks * BLOCK_BYTES + SLOT_BYTES)
    env = {"NEREID_CPU_KV": "1"}
    prefill = ranks(1, env=env, engine_type="PROMPT")
    client = prefill.clients[0]
    client.send(wire.MapRegion(str(region.path), region.size),
                add(1, PROMPT[:tokens], 12, mode=wire.AddMode.PREFILL_ONLY))
    told = client.until(1)
    assert told[1]["end"].reason == wire.EndReason.PREFILLED and len(told[1]["tokens"]) == 1
    client.send(wire.ExportBlocks(1, 0, blocks, 0, region.size))
    assert answer(client, wire.KvReady).length == region.size  # type: ignore[attr-defined]
    client.send(wire.Release(1))
    head = handoff.HEADER_BYTES
    whole = bytes(region.view[head : head + 2 * BLOCK_BYTES])
    trace = tmp_path / "trace"
    decode = ranks(1, env={"NEREID_CPU_KV": "1", "NEREID_CPU_TRACE": str(trace)}, engine_type="COMPLETION")
    client = decode.clients[0]
    first = told[1]["tokens"][0]
    client.send(wire.MapRegion(str(region.path), region.size),
                wire.AdmitDecode(add(2, PROMPT[:tokens], 12), first, 0, region.size))
    ended = client.until(1)[2]
    assert ended["end"].reason == wire.EndReason.LENGTH and len(ended["tokens"]) == 11
    assert ended["end"].cached_tokens == tokens and scheduled(trace, 2) == 0
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    crcs = {c for line in lines for name, c in line["kv"].items() if name.endswith(":2")}
    assert crcs == {zlib.crc32(whole)}, "the decode engine's blocks are those of the prefill engine, to the end"


def test_plan_of_experts_reaches_all_ranks_at_one_step(ranks, tmp_path) -> None:
    """Counts out, a plan in, over two ranks of expert parallelism: the engine's own shuffle moves the weights."""
    report = tmp_path / "report"
    report.mkdir()
    out = tmp_path / "installed"
    group = ranks(2, env={"NEREID_CPU_EXPERTS": str(out), "NEREID_CPU_ENDLESS": "1", "DEEPINFER_MOE_LB_STAT_INTERVAL": "100000"},
                  expert_parallel_size=2, rebalance_interval=1_000_000, report_folder=str(report))
    for client in group.clients:
        client.send(add(1, PROMPT[:20], 700))
    cost = json.loads((report / "cost.json").read_text())
    assert cost["prefill"] and all(flops > 0 for _, _, flops in cost["prefill"])
    # Layer 0 and 1: every expert once, the four more slots by need.
    plan = [[0, 4, 1, 5, 2, 6, 3, 7, 0, 0, 1, 2], [7, 6, 5, 4, 3, 2, 1, 0, 3, 3, 3, 7]]
    part = report / "plan.part"
    part.write_text(json.dumps({"balancer": 0, "physical_to_logical": [plan[0], plan[1][:-1]]}))  # refused by all: 11 slots
    part.rename(report / "plan.json")
    told = [client.until(1)[1] for client in group.clients]
    assert all(t["end"].reason == wire.EndReason.LENGTH for t in told)
    assert not list(tmp_path.glob("installed-*"))
    part.write_text(json.dumps({"balancer": 0, "physical_to_logical": plan}))
    part.rename(report / "plan.json")
    for client in group.clients:
        client.send(add(2, PROMPT[:20], 300))
    for client in group.clients:
        client.until(1)
    installed = [json.loads((tmp_path / f"installed-{rank}").read_text()) for rank in range(2)]
    assert installed[0]["step"] == installed[1]["step"]
    from nereid_deepinfer.experts import derive

    where, counts = derive(plan, 8, 5)
    for rank, found in enumerate(installed):
        assert found["physical"] == plan and found["counts"] == counts
        for layer in range(2):
            assert found["weights"][layer] == plan[layer][rank * 6 : rank * 6 + 6], "the weights followed the map"
            assert [sorted(x) for x in found["logical"][layer]] == [sorted(x) for x in where[layer]]
    reports = [json.loads((report / f"experts-{rank}.json").read_text()) for rank in range(2)]
    assert all(sum(map(sum, r["balancers"][0]["tokens"])) > 0 for r in reports)
    assert all("is not installed" in log.read_text() for log in group.logs)
