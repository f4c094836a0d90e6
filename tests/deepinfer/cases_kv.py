"""The cases of KV: prefixes out, in and kept by a node; prefill handed to decode. See cases.py."""

from __future__ import annotations

import random
from typing import Any

from case import case, expected
from nereid_deepinfer import handoff, keys, wire
from nereid_deepinfer.live import Options
from nereid_deepinfer.wire import AbortRequest, EndReason
from rig import BLOCK, EOS, DictStore, Rig


@case("NORMAL", "PROMPT")
def prefix_goes_out_and_comes_back(rig: Rig) -> None:
    """A prefix leaves through the region, is forgotten, and comes back: exactly the uncached tokens are scheduled, and the
    arenas hold the same bytes."""
    arenas, peek = rig.runtime.arenas, rig.runtime.peek
    prompt = rig.prompt(600, first=31)
    hit = (600 - 140) // BLOCK * BLOCK
    count = hit // BLOCK
    size = count * arenas.block_bytes + arenas.persisted_bytes
    with rig.region(2 * size) as region:
        rig.add(1, prompt, 2)
        rig.step()  # prefilled to the checkpoint, where the state was copied
        seq = rig.agent.by_id[1].seq
        for at, block in enumerate(peek.block_table(seq)):
            arenas.fill(block, None, 10 + at)
        entry = rig.agent.prefixes.find(rig.agent.by_id[1].keys, count)
        assert entry is not None and len(entry.ids) == count
        rig.run()
        rig.agent.submit(wire.ExportBlocks(1, 0, count, 0, size))
        rig.step()
        assert not rig.kv_failed and (rig.kv_ready[-1].count, rig.kv_ready[-1].length) == (count, size)
        for at in range(count):
            assert bytes(region[at * arenas.block_bytes : (at + 1) * arenas.block_bytes]) == bytes([10 + at]) * arenas.block_bytes
        if rig.agent.held:
            rig.agent.submit(wire.Release(1))
        rig.agent.prefixes.clear()  # as another process would be
        state = bytes((i * 7 + 3) % 251 for i in range(arenas.persisted_bytes))
        region[count * arenas.block_bytes : size] = state
        chain = keys.block_chain(bytes(32), prompt, BLOCK)[:count]
        rig.add(2, prompt, 2)
        rig.agent.submit(wire.ImportPrefix(2, 0, chain, 0, size))
        rig.agent._admit()
        live = rig.agent.by_id[2]
        assert live.cached == hit and live.seq.num_cached_tokens == hit
        out = bytearray(size)
        arenas.read_blocks(peek.block_table(live.seq)[:count], memoryview(out)[: count * arenas.block_bytes])
        arenas.state_bytes(arenas.copy_state(live.seq.state_id, hit, False), memoryview(out)[count * arenas.block_bytes :])
        assert bytes(out) == bytes(region[:size])
        rig.trace.clear()
        rig.run()
        computed = sum(q for prompt_run, rows in rig.trace if prompt_run for name, q in rows if name.endswith(":2"))
        assert computed == 600 - hit and rig.told[2].end.cached_tokens == hit
        assert rig.kv_ready[-1].id == 2


@case("NORMAL", "PROMPT")
def kv_node_is_asked_before_a_prompt_is_computed(rig: Rig) -> None:
    """What one engine saved another restores: exactly the rest is scheduled, and the bytes are the same."""
    store, arenas, peek = DictStore(), rig.runtime.arenas, rig.runtime.peek
    rig.renew(store=store)
    prompt, hit = rig.prompt(600, first=41), 384
    rig.add(1, prompt, 2)
    rig.run()
    for request in list(rig.agent.held):
        rig.agent.submit(wire.Release(request))
    assert len(store.kept) == 4 and rig.agent.counters.saved_tokens == hit  # three blocks and a state
    chain = keys.block_chain(bytes(32), prompt, BLOCK)[:3]
    for at, key in enumerate(chain):
        store.kept[bytes(32), key, 0] = bytes([90 + at]) * arenas.block_bytes
    store.kept[bytes(32), chain[2], 1] = bytes((i * 5 + 1) % 251 for i in range(arenas.persisted_bytes))
    rig.agent.prefixes.clear()  # as another process would be
    rig.trace.clear()
    rig.add(2, prompt, 2)
    rig.agent._admit()
    assert 2 in rig.agent.asking
    rig.agent.stores.collect()
    rig.agent._admit()
    seq = rig.agent.by_id[2].seq
    out = bytearray(hit // BLOCK * arenas.block_bytes + arenas.persisted_bytes)
    arenas.read_blocks(peek.block_table(seq)[:3], memoryview(out)[: 3 * arenas.block_bytes])
    assert bytes(out[: 3 * arenas.block_bytes]) == b"".join(store.kept[bytes(32), key, 0] for key in chain)
    rig.run()
    assert sum(q for prompt_run, rows in rig.trace if prompt_run for name, q in rows if name.endswith(":2")) == 600 - hit
    assert rig.told[2].end.cached_tokens == hit and rig.agent.counters.loaded_tokens == hit
    if rig.agent.held:
        rig.agent.submit(wire.Release(2))
    rig.add(3, prompt[:512], 2)  # of another length: the same blocks, but no state at its boundary
    rig.run()
    assert rig.told[3].end.cached_tokens in (0, 256) and rig.told[3].end.reason in (EndReason.LENGTH, EndReason.PREFILLED)


@case("NORMAL")
def kv_node_that_is_late_or_fails_is_a_miss(rig: Rig) -> None:
    store = DictStore()
    late = Manual()
    rig.renew(store=store, stores=late)
    prompt = rig.prompt(600, first=43)
    rig.add(1, prompt, 2)
    rig.add(2, rig.prompt(20, first=900), 2)  # too short to ask for: it passes the one that waits
    rig.step(2)
    assert 1 in rig.agent.asking and not rig.told[2].started == [] and 1 not in rig.told
    rig.now += 600_000_000
    rig.run()
    assert rig.told[1].end.cached_tokens == 0 and rig.agent.counters.late_loads == 1
    late.run_all()
    rig.settle()
    store.fails = True
    rig.agent.prefixes.clear()
    rig.add(3, prompt, 2)
    rig.step()
    late.run_all()
    rig.run()
    assert rig.told[3].reason == EndReason.LENGTH and rig.told[3].end.cached_tokens == 0
    rig.agent.prefixes.clear()
    rig.add(4, prompt, 2)
    rig.step()
    rig.agent.submit(AbortRequest(4))  # while the node is asked
    late.run_all()
    rig.run()
    assert rig.told[4].reason == EndReason.ABORTED and not rig.agent.asking


@case("NORMAL", traced=False)
def kv_node_is_slow_and_saves_are_left_out(rig: Rig) -> None:
    """Blocks on their way to the node are pinned; not more than a share of all."""
    store, slow = DictStore(), Manual()
    rig.renew(Options(prefix_share=0.0, save_share=0.1), store=store, stores=slow)
    for i in range(4):
        rig.add(i, rig.prompt(600, first=100 * i), 2)
    rig.step()
    slow.run_all()
    rig.run()
    assert rig.agent.saving == 6 and rig.agent.counters.skipped_saves == 2
    assert rig.free()[0] == rig.start_free[0] - 6
    slow.run_all()
    rig.settle()
    assert rig.agent.saving == 0 and len(store.kept) == 8


class Manual:
    """A Background whose jobs run when a case says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, Any]] = []
        self.done: list[tuple[Any, Any]] = []

    @property
    def pending(self) -> int:
        return len(self.jobs) + len(self.done)

    def run(self, job: Any, then: Any) -> None:
        self.jobs.append((job, then))

    def run_all(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job, then in jobs:
            try:
                self.done.append((then, job()))
            except OSError as bad:
                self.done.append((then, bad))

    def ready(self) -> bool:
        return bool(self.done)

    def collect(self) -> None:
        done, self.done = self.done, []
        for then, result in done:
            then(result)

    def close(self) -> None: ...


@case("NORMAL")
def bad_imports_and_exports_fail_by_themselves(rig: Rig) -> None:
    arenas = rig.runtime.arenas
    prompt = rig.prompt(600)
    chain = keys.block_chain(bytes(32), prompt, BLOCK)
    size = 3 * arenas.block_bytes + arenas.persisted_bytes
    rig.agent.submit(wire.ImportPrefix(7, 0, chain[:3], 0, size))
    rig.agent.submit(wire.ExportBlocks(7, 0, 1, 0, size))
    rig.step()
    assert [f.error.code for f in rig.kv_failed] == ["conflict", "not_found"]
    with rig.region(size):
        for bad in (wire.ImportPrefix(1, 1, chain[1:3], 0, size), wire.ImportPrefix(1, 0, [bytes(16)] * 3, 0, size),
                    wire.ImportPrefix(1, 0, chain[:3], 0, size - 1), wire.ImportPrefix(1, 0, chain[:3], 1, size),
                    wire.ImportPrefix(1, 0, chain[:3], 1 << 63, size), wire.ImportPrefix(1, 0, [], 0, size)):
            rig.kv_failed.clear()
            rig.add(1, prompt, 1)
            rig.agent.submit(bad)
            rig.run()
            assert len(rig.kv_failed) == 1, bad
            assert rig.told[1].end.cached_tokens in (0, 384) and rig.told[1].reason == EndReason.LENGTH
            rig.told.clear()
            rig.agent.prefixes.clear()
    rig.agent.submit(wire.MapRegion("/nonexistent", 1))
    rig.step()
    assert rig.kv_failed[-1].error.code == "io"
    rig.kv_failed.clear()
    with rig.region(size):
        rig.add(1, prompt, 1)
        rig.agent.submit(wire.ImportPrefix(1, 0, chain[:3], 0, size))
    with rig.region(size - 1):  # the region goes before the import is taken
        rig.run()
    assert len(rig.kv_failed) == 1 and rig.told[1].end.cached_tokens == 0


@case("PROMPT")
def prefilled_is_held_until_released(rig: Rig) -> None:
    rig.add(1, 300, 8)
    rig.run()
    told = rig.told[1]
    assert told.reason == EndReason.PREFILLED and told.tokens == expected(rig, 1, 1)
    assert rig.free()[0] == rig.start_free[0] - 3 - rig.agent.prefixes.blocks + _shared(rig)
    rig.agent.submit(wire.Pin(1, 5_000_000))
    rig.step()
    assert 1 in rig.agent.held
    rig.agent.submit(wire.AddRequest(1, prompt=[5], max_tokens=2, mode=wire.AddMode.PREFILL_ONLY))  # the id of one that is held
    frame = rig.agent.step()
    assert [f.error.code for f in frame.finished] == ["conflict"] and 1 in rig.agent.held
    rig.now += 10_000_000
    rig.step()
    assert 1 not in rig.agent.held and rig.agent.counters.expired_leases == 1


def _shared(rig: Rig) -> int:
    """Blocks that a kept prefix pins and a held request has too."""
    held = {b for h in rig.agent.held.values() for b in h.ids}
    return sum(1 for e in rig.agent.prefixes._entries.values() for b in e.ids if b in held)


@case("PROMPT")
def first_token_may_be_the_last(rig: Rig) -> None:
    rig.script.say(1, [EOS])
    rig.script.say(2, [555])
    rig.add(1, 30, 8)
    rig.add(2, 30, 8, stop_ids=[555])
    rig.run()
    assert rig.told[1].reason == EndReason.STOP and rig.told[2].reason == EndReason.STOP
    assert not rig.agent.held


@case("PROMPT")
def many_prompts_pass_through_a_few_rows(rig: Rig) -> None:
    """A PROMPT engine counts what stays in `running`: the agent empties it at every step."""
    for i in range(60):
        rig.add(i, 30 + i, 8)
    steps = 0
    while rig.agent.has_work():
        rig.step()
        for request in list(rig.agent.held):
            rig.agent.submit(wire.Release(request))
        steps += 1
        assert steps < 500
    assert all(rig.told[i].reason == EndReason.PREFILLED for i in range(60))


@case("PROMPT")
def handoff_leaves_by_export(rig: Rig) -> None:
    arenas = rig.runtime.arenas
    rig.add(1, 300, 8)
    rig.run()
    held = rig.agent.held[1]
    for at, block in enumerate(held.ids):
        arenas.fill(block, None, 60 + at)
    size = handoff.size(3, arenas)
    with rig.region(size) as region:
        rig.agent.submit(wire.ExportBlocks(1, 0, 3, 0, size))
        rig.step()
        assert not rig.kv_failed and rig.kv_ready[-1].length == size
        read = handoff.read(region, 300, arenas)
        assert bytes(read.block_bytes) == b"".join(bytes([60 + at]) * arenas.block_bytes for at in range(3))
        assert len(read.state_bytes) == arenas.slot_bytes
        region.release()
        read.block_bytes.release()
        read.state_bytes.release()


def _handoff(rig: Rig, region: memoryview, tokens: int) -> int:
    """Writes one into the region, of blocks 70, 71, ... and a state of 200."""
    import struct

    from nereid_deepinfer.crc32c import crc32c

    arenas, count = rig.runtime.arenas, -(-tokens // BLOCK)
    head = struct.pack("<IHHIIQQ", handoff.MAGIC, 1, 0, tokens, count, arenas.block_bytes, arenas.slot_bytes)
    blocks = b"".join(bytes([70 + at]) * arenas.block_bytes for at in range(count))
    data = head + struct.pack("<I", crc32c(head)) + bytes(28) + blocks + bytes([200]) * arenas.slot_bytes
    region[: len(data)] = data
    return len(data)


@case("COMPLETION")
def decode_goes_on_where_prefill_ended(rig: Rig) -> None:
    for number, tokens in enumerate((300, 256, 255, 250, 1)):
        with rig.region(handoff.size(3, rig.runtime.arenas)) as region:
            size = _handoff(rig, region, tokens)
            add = wire.AddRequest(number, prompt=rig.prompt(tokens), max_tokens=9)
            rig.script.accept = 2
            rig.agent.submit(wire.AdmitDecode(add, 77, 0, size))
            rig.agent._admit()
            live = rig.agent.by_id[number]
            arenas, table = rig.runtime.arenas, rig.runtime.peek.block_table(live.seq)
            count = -(-tokens // BLOCK)
            out = bytearray(count * arenas.block_bytes)
            arenas.read_blocks(table[:count], memoryview(out))
            assert bytes(out) == b"".join(bytes([70 + at]) * arenas.block_bytes for at in range(count))
            rig.run()
            told = rig.told[number]
            assert told.tokens == expected(rig, number, 8) and told.reason == EndReason.LENGTH, (tokens, told)
            assert told.end.cached_tokens == tokens == told.end.prompt_tokens and told.started == [tokens]
            region.release()


@case("COMPLETION")
def handoffs_that_are_none_fail_alone(rig: Rig) -> None:
    size = handoff.size(3, rig.runtime.arenas)
    with rig.region(size) as region:
        for at in (0, 4, 6, 8, 12, 16, 24, 32):
            _handoff(rig, region, 300)
            region[at] ^= 0x40
            rig.agent.submit(wire.AdmitDecode(wire.AddRequest(at, prompt=rig.prompt(300), max_tokens=5), 77, 0, size))
            rig.run()
            error = rig.told[at].end.error
            assert error is not None and error.code == "corrupt", at
        _handoff(rig, region, 300)
        for number, (offset, length, tokens) in enumerate([(0, size - 1, 300), (1, size, 300), (0, 0, 300), (0, size, 299), (0, 10, 300)]):
            rig.agent.submit(wire.AdmitDecode(wire.AddRequest(100 + number, prompt=rig.prompt(tokens), max_tokens=5), 77, offset, length))
            rig.run()
            assert rig.told[100 + number].reason == EndReason.FAILED, number
        rig.add(200, 10)
        rig.run()
        error = rig.told[200].end.error
        assert error is not None and error.code == "unsupported"
        region.release()


@case("COMPLETION")
def abort_in_prompted_frees_once_traps_8_14(rig: Rig) -> None:
    size = handoff.size(2, rig.runtime.arenas)
    with rig.region(size) as region:
        _handoff(rig, region, 200)
        rig.agent.submit(wire.AdmitDecode(wire.AddRequest(1, prompt=rig.prompt(200), max_tokens=50), 77, 0, size))
        rig.agent._admit()
        assert rig.runtime.peek.prompted(rig.engine.scheduler) == 1
        rig.agent.submit(AbortRequest(1))
        rig.run()
        assert rig.told[1].reason == EndReason.ABORTED and rig.agent.counters.freed_by_agent == 0
        region.release()


@case("COMPLETION")
def decode_waits_quietly_for_room(rig: Rig) -> None:
    size = handoff.size(2, rig.runtime.arenas)
    with rig.region(size) as region:
        _handoff(rig, region, 200)
        for i in range(40):
            rig.agent.submit(wire.AdmitDecode(wire.AddRequest(i, prompt=rig.prompt(200), max_tokens=6), 77, 0, size))
        rig.run()
        assert all(rig.told[i].reason == EndReason.LENGTH and len(rig.told[i].tokens) == 5 for i in range(40))
        assert max(f.load.running for f in rig.frames) <= rig.runtime.info.max_running
        region.release()


@case("COMPLETION")
def first_token_may_end_it(rig: Rig) -> None:
    for i, (first, most, stops) in enumerate([(EOS, 5, []), (9, 5, [9]), (9, 1, [])]):
        rig.agent.submit(wire.AdmitDecode(wire.AddRequest(i, prompt=[5], max_tokens=most, stop_ids=stops), first, 0, 1))
    rig.run()
    assert [rig.told[i].reason for i in range(3)] == [EndReason.STOP, EndReason.STOP, EndReason.LENGTH]


@case("COMPLETION")
def abort_storm_of_decode_leaves_nothing(rig: Rig) -> None:
    """Hand-offs admitted and aborted at random points: queued, in `prompted`, running."""
    rng, alive, made, total = random.Random(12), [], 0, 400
    size = handoff.size(3, rig.runtime.arenas)
    with rig.region(3 * size) as region:
        spans = {}
        for at, tokens in enumerate((100, 256, 300)):
            spans[tokens] = at * size, _handoff(rig, region[at * size : (at + 1) * size], tokens)
        while made < total or rig.agent.has_work():
            for _ in range(rng.randrange(4)):
                if made < total:
                    tokens = rng.choice(list(spans))
                    add = wire.AddRequest(made, prompt=rig.prompt(tokens), max_tokens=rng.randrange(1, 30))
                    rig.agent.submit(wire.AdmitDecode(add, 77, *spans[tokens]))
                    alive.append(made)
                    made += 1
            rig.script.accept = rng.randrange(6)
            while alive and rng.random() < 0.4:
                if rng.random() < 0.3:
                    rig.agent._admit()
                rig.agent.submit(AbortRequest(alive.pop(rng.randrange(len(alive)))))
            rig.step()
        rig.run()
        region.release()
    assert len(rig.told) == total and all(len(t.ends) == 1 for t in rig.told.values())
    assert {t.reason for t in rig.told.values()} >= {EndReason.ABORTED, EndReason.LENGTH}
