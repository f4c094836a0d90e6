"""What a case is given: an agent around an engine (the fake, or the real one), the script that it follows, and what came out.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nereid_deepinfer import hooks, wire
from nereid_deepinfer.agent import Agent
from nereid_deepinfer.live import Options
from nereid_deepinfer.runtime import Runtime
from nereid_deepinfer.store import Loaded
from nereid_deepinfer.wire import (AddRequest, EngineInfo, EndReason, GrammarKind, KvLayout, MapRegion, Replay, Role, StepFrame)

EOS = 1
BLOCK = 128


@dataclass
class Told:
    """What frames said about one request, in order."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    ends: list[wire.Finished] = field(default_factory=list)

    @property
    def end(self) -> wire.Finished:
        assert len(self.ends) == 1, f"{len(self.ends)} ends"
        return self.ends[0]

    @property
    def reason(self) -> EndReason:
        return self.end.reason


class DictStore:
    """A KV node in memory: {(namespace, key, kind): bytes}."""

    def __init__(self) -> None:
        self.kept: dict[tuple[bytes, bytes, int], bytes] = {}
        self.fails = False

    def load(self, namespace: bytes, keys: list[bytes], tokens: int) -> Loaded | None:
        if self.fails:
            raise OSError("the node is gone")
        for count in range(len(keys), 0, -1):
            parts = [self.kept.get((namespace, key, 0)) for key in keys[:count]] + [self.kept.get((namespace, keys[count - 1], 1))]
            if all(p is not None for p in parts):
                return Loaded(count, bytearray(b"".join(parts)))  # type: ignore[arg-type]
        return None

    def missing_from(self, namespace: bytes, keys: list[bytes]) -> int | None:
        there = 0
        while there < len(keys) and (namespace, keys[there], 0) in self.kept:
            there += 1
        return None if there == len(keys) and (namespace, keys[-1], 1) in self.kept else there

    def save(self, namespace: bytes, keys: list[bytes], first: int, blocks: memoryview, state: memoryview) -> None:
        size = len(blocks) // max(1, len(keys) - first)
        for at in range(first, len(keys)):
            self.kept[namespace, keys[at], 0] = bytes(blocks[(at - first) * size : (at - first + 1) * size])
        self.kept[namespace, keys[-1], 1] = bytes(state)


class Rig:
    def __init__(self, runtime: Runtime, script: Any, trace: list[Any], options: Options | None = None) -> None:
        self.runtime, self.script, self.trace = runtime, script, trace
        self.now = 0
        self.agent = Agent(runtime, options, clock=self.clock)
        self.told: dict[int, Told] = {}
        self.frames: list[StepFrame] = []
        self.kv_ready: list[wire.KvReady] = []
        self.kv_failed: list[wire.KvFailed] = []
        self.start_free = self.free()
        self.region_path: pathlib.Path | None = None

    def renew(self, options: Options | None = None, **how: Any) -> None:
        """Another agent around the same engine, which must be at rest."""
        self.rest()
        self.agent = Agent(self.runtime, options, clock=self.clock, **how)

    def settle(self) -> None:
        """Until nothing is on another thread."""
        while self.agent.copies.pending or self.agent.stores.pending:
            self.step()

    def clock(self) -> int:
        self.now += 1000
        return self.now

    @property
    def engine(self) -> Any:
        return self.runtime.engine

    def free(self) -> tuple[int, int]:
        return self.engine.block_manager.get_num_free_blocks(), self.engine.state_manager.get_num_free_blocks()

    def add(self, request: int, prompt: int | list[int] = 10, max_tokens: int = 4, **more: Any) -> None:
        sampling = more.pop("sampling", wire.SamplingParams())
        tokens = self.prompt(prompt) if isinstance(prompt, int) else prompt
        if self.runtime.engine_type == "PROMPT":
            more.setdefault("mode", wire.AddMode.PREFILL_ONLY)
        self.agent.submit(AddRequest(request, prompt=tokens, max_tokens=max_tokens, sampling=sampling, **more))

    @staticmethod
    def prompt(length: int, first: int = 5) -> list[int]:
        return [first + i % 1000 for i in range(length)]

    def step(self, times: int = 1) -> StepFrame:
        frame = StepFrame()
        for _ in range(times):
            # What leaves is what the wire carries.
            decoder = wire.Decoder()
            decoder.feed(wire.encode(self.agent.step()))
            decoded = decoder.next()
            assert isinstance(decoded, StepFrame)
            frame = decoded
            self.frames.append(frame)
            for s in frame.started:
                self._of(s.id).started.append(s.cached_tokens)
            for t in frame.tokens:
                assert not self._of(t.id).ends, f"a token of {t.id} after its end"
                self._of(t.id).tokens.append(t.token)
                self._of(t.id).logprobs.append(t.logprob)
                self._of(t.id).top.append(t.top)
            for f in frame.finished:
                self._of(f.id).ends.append(f)
                assert len(self._of(f.id).ends) == 1, f"{f.id} ended twice"
            self.kv_ready += frame.kv_ready
            self.kv_failed += frame.kv_failed
        return frame

    def _of(self, request: int) -> Told:
        return self.told.setdefault(request, Told())

    def run(self, limit: int = 3000) -> int:
        """Steps until nothing is left to do, as the server would; returns how many."""
        steps = 0
        while self.agent.has_work() or self.engine.has_unfinished_requests() or self.agent.asking:
            self.step()
            steps += 1
            assert steps < limit, f"still busy after {limit} steps: {[(n, l.seq.status) for n, l in self.agent.by_name.items()]}"
        return steps

    def rest(self) -> None:
        """Everything came back: blocks, slots, holds. Prefixes that are kept are given up first."""
        self.run()
        for request in list(self.agent.held):
            self.agent.submit(wire.Release(request))
        self.agent.prefixes.clear()
        assert not self.agent.by_id and not self.agent.by_name and not self.agent.queue and not self.agent.held
        assert self.free() == self.start_free, f"leaked: {self.start_free} -> {self.free()}"
        assert self.agent.uncached == 0

    @contextlib.contextmanager
    def region(self, size: int) -> Iterator[memoryview]:
        """A shared region, mapped by the agent and by us."""
        import mmap

        with tempfile.NamedTemporaryFile(prefix="nereid-region-") as file:
            file.truncate(size)
            self.agent.submit(MapRegion(file.name, size))
            view = mmap.mmap(file.fileno(), size)
            yield memoryview(view)
            self.agent.region = None


def fake_info(engine_type: str, **more: Any) -> EngineInfo:
    roles = {"NORMAL": Role.UNIFIED, "PROMPT": Role.PREFILL, "COMPLETION": Role.DECODE}
    values: dict[str, Any] = dict(
        engine="deepinfer", engine_version="0.1.0", model_id="fake", vocab_size=129280, context_tokens=2048, eos_ids=[EOS],
        layout=KvLayout("deepinfer/v4.1", BLOCK, 64, 40, 140, "yoco=compact", []), roles=roles[engine_type],
        grammars=GrammarKind.JSON_SCHEMA | GrammarKind.REGEX | GrammarKind.EBNF, logprobs=True, max_top_logprobs=20, seeds=True,
        replay=Replay.BOUNDED, max_running=16, max_queued=512)
    values.update(more)
    return EngineInfo(**values)


def fake_runtime(engine_type: str, script: Any, group: list[Any] | None = None, engine_options: dict[str, Any] | None = None,
                 **info: Any) -> Runtime:
    from fake_engine import FakeArenas, FakeEngine, FakePeek, Output, Status

    engine = hooks.served(FakeEngine)(engine_type, script, **(engine_options or {}))
    if group is not None:
        group.append(engine)
        engine.group = group
    return Runtime(
        engine=engine, output=Output, status=Status, peek=FakePeek(), arenas=FakeArenas(engine), tokens=list,
        info=fake_info(engine_type, max_running=engine.max_num_seqs, **info), engine_type=engine_type,
        data_parallel=1 if group is None else 2, nextn=engine.nextn, keep_tokens=140, exact_states=False,
        chunked_prefill=engine.chunked_prefill)


def fake_rig(engine_type: str = "NORMAL", options: Options | None = None, group: list[Any] | None = None, **engine_options: Any) -> Rig:
    from script import Script

    script = Script()
    runtime = fake_runtime(engine_type, script, group, engine_options)
    return Rig(runtime, script, runtime.engine.trace, options)
