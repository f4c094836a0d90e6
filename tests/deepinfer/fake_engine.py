"""A stand-in with LLMEngine's call surface, for machines without torch. It has the engine's queues, voting, chunking, block
and slot counts, its one step of delay and its traps (facts/deepinfer.md section 2: 5-9, 13-16); no tensors.

It is held to the real engine twice: the cases of cases.py run on both, and traces/ holds what the real engine scheduled and
returned in each of them, step by step, which the fake must repeat (test_agent.py).
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from enum import Enum
from types import SimpleNamespace
from typing import Any

from script import Script

BLOCK = 128


class Status(Enum):
    WAITING = 0
    RUNNING = 1
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_IGNORED = 6
    FINISHED_PREEMPTED = 7
    FINISHED_SO_FAILED = 8
    FINISHED_VE_FAILED = 9


REASONS = {
    Status.FINISHED_STOPPED: "stop", Status.FINISHED_LENGTH_CAPPED: "length", Status.FINISHED_ABORTED: "abort",
    Status.FINISHED_IGNORED: "prompt_length_exceeded", Status.FINISHED_PREEMPTED: "insufficient_system_resource",
    Status.FINISHED_SO_FAILED: "xgrammar runtime errors or timeout", Status.FINISHED_VE_FAILED: "ve_error",
}


class Blocks:
    """DeepInfer's BlockManager: a reference-counted free list; id 0 is never handed out."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = deque(range(1, count))
        self.references = [0] * count

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def take(self, count: int) -> list[int]:
        if count > len(self.free):
            raise RuntimeError("list is empty, but pop_front is called")
        out = [self.free.popleft() for _ in range(count)]
        for block in out:
            self.references[block] = 1
        return out

    def pin_blocks(self, ids: list[int]) -> None:
        for block in ids:
            if self.references[block] == 0:
                raise RuntimeError("try to pin free block")
            self.references[block] += 1

    def unpin_blocks(self, ids: list[int]) -> None:
        for block in reversed(ids):
            self.references[block] -= 1
            if self.references[block] < 0:
                raise RuntimeError("ref_count corrupted: ref_count < 0")
            if self.references[block] == 0:
                self.free.append(block)


class Seq:
    def __init__(self, name: str, prompt: list[int], params: dict[str, Any]) -> None:
        self.request_id = name
        self.tokens = list(prompt)
        self.prompt_len = len(prompt)
        self.params = params
        self.status = Status.WAITING
        self.num_cached_tokens = self.cached_hit_tokens = 0
        self.state_id = -1
        self.chunked_rest_len = 0
        self.chunk_checkpoints: list[int] = []
        self.last_next_n_token: list[int] = []
        self.schedulable = True
        self.multi_modal_data: Any = None
        self.table: list[int] = []
        self.in_flight = self.last_in_flight = 0  # tokens of steps that are not processed

    def get_len(self) -> int:
        return len(self.tokens)

    def finished(self) -> bool:
        return self.status not in (Status.WAITING, Status.RUNNING)

    def blocks(self) -> int:
        return -(-(len(self.tokens) + self.in_flight + len(self.last_next_n_token)) // BLOCK)

    def launch(self, count: int) -> None:
        self.in_flight += count
        self.last_in_flight = count

    def land(self) -> None:
        if self.in_flight == self.last_in_flight:
            self.in_flight = self.last_in_flight = 0
        else:
            self.in_flight = self.last_in_flight


class Scheduler:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.waiting: deque[Seq] = deque()
        self.prompted: deque[Seq] = deque()
        self.running: list[Seq] = []
        self.decode_step = 0
        self.decode_perf_curve: list[tuple[int, float]] = []
        self.preempted = 0

    # What the agent calls.
    def add_sequence(self, seq: Seq) -> None:
        self.waiting.append(seq)

    def try_allocate_seq(self, seq: Seq) -> bool:
        if seq.table or seq.state_id != -1:
            raise RuntimeError("Block table not empty")
        blocks, states = self.engine.block_manager, self.engine.state_manager
        if seq.blocks() >= blocks.count:
            raise RuntimeError(f"can never allocate {seq.blocks()} blocks")
        if seq.blocks() > len(blocks.free) or not states.free:
            return False
        self.allocate(seq)
        return True

    def set_schedulable(self, name: str) -> None:
        for seq in self.waiting:
            if seq.request_id == name:
                seq.schedulable = True

    def free_seq(self, seq: Seq) -> None:
        if seq.state_id != -1:
            self.engine.state_manager.unpin_blocks([seq.state_id])  # state_id stays: a second call corrupts (trap 14)
        self.engine.block_manager.unpin_blocks(seq.table)
        seq.table = []

    def get_sum_prompt_len_running(self) -> tuple[int, int]:
        return len(self.running), sum(s.prompt_len for s in self.running)

    def get_sum_prompt_len_waiting(self) -> tuple[int, int]:
        return len(self.waiting) + len(self.prompted), sum(s.prompt_len for s in self.waiting)

    def get_sum_prompt_len_chunked(self) -> tuple[int, int]:
        partly = [s for s in self.waiting if s.chunked_rest_len > 0]
        return len(partly), sum(s.prompt_len for s in partly)

    def get_num_preempted_seqs(self) -> int:
        return self.preempted

    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running or self.prompted)

    # A step.
    def allocate(self, seq: Seq) -> None:
        seq.table = self.engine.block_manager.take(seq.blocks())
        seq.state_id = self.engine.state_manager.take(1)[0]

    def abort(self, name: str) -> list[Seq]:
        found = [s for s in [*self.running, *self.waiting] if s.request_id == name and not s.finished()]
        for seq in found:  # not in `prompted` (trap 8), nor where a grammar still compiles (trap 9)
            seq.status = Status.FINISHED_ABORTED
        return found

    def wants_prefill(self) -> bool:
        blocks = self.engine.block_manager
        used = (blocks.count - len(blocks.free)) / blocks.count
        return used <= 0.9 and bool(self.waiting) and self.waiting[0].schedulable

    def schedule(self) -> SimpleNamespace:
        out = self._choose()
        if out.prompt_run:
            self.decode_step = 0
        else:
            self.running = list(out.scheduled_seqs)
            self.decode_step += 1
        return out

    def _choose(self) -> SimpleNamespace:
        e = self.engine
        if e.engine_type == "PROMPT":
            return self._prefill()
        if e.engine_type == "COMPLETION":
            return self._decode()
        anyone = self.decode_step != 0 and self.decode_step % e.any_interval == 0
        everyone = self.decode_step % e.interval == 0
        wants = [peer.scheduler.wants_prefill() for peer in e.group]
        if (anyone and any(wants)) or (not anyone and everyone and all(wants)):
            out = self._prefill() if self.wants_prefill() else None
            if out is not None and (out.scheduled_seqs or out.ignored):
                return out
            if len(e.group) > 1:
                return SimpleNamespace(prompt_run=True, scheduled_seqs=[], q=[], finished=[], ignored=[])
        return self._decode()

    def _prefill(self) -> SimpleNamespace:
        e, scheduled, q, ignored, batched = self.engine, [], [], [], 0
        rows = len(self.running)
        while self.waiting:
            seq = self.waiting[0]
            if seq.finished():
                ignored.append(self.waiting.popleft())
                continue
            if not seq.schedulable:
                break
            if not seq.table:
                if len(seq.tokens) > e.max_model_len or seq.blocks() >= e.block_manager.count:
                    seq.status = Status.FINISHED_IGNORED
                    ignored.append(self.waiting.popleft())
                    continue
                if seq.blocks() > len(e.block_manager.free) or not e.state_manager.free:
                    break
            if rows + 1 > e.max_num_seqs:
                break
            left = len(seq.tokens) - seq.num_cached_tokens
            take = min(left, e.max_batched - batched)
            while seq.chunk_checkpoints and seq.chunk_checkpoints[0] <= seq.num_cached_tokens:
                seq.chunk_checkpoints.pop(0)
            if seq.chunk_checkpoints and seq.num_cached_tokens + take >= seq.chunk_checkpoints[0]:
                take = seq.chunk_checkpoints.pop(0) - seq.num_cached_tokens
            if take == 0:
                if not scheduled:  # a hit equal to the prompt's length (trap 16)
                    raise RuntimeError(f"a request waits and cannot be scheduled, len={len(seq.tokens)}, cached={seq.num_cached_tokens}")
                break
            cut = take < left
            if cut and not e.chunked_prefill:
                break
            batched += take
            if not seq.table:
                self.allocate(seq)
            if not cut:
                rows += 1
                seq.status = Status.RUNNING
            scheduled.append(seq)
            q.append(take)
            seq.chunked_rest_len = len(seq.tokens) - seq.num_cached_tokens - take if cut else 0
            self.waiting.popleft()
            if cut and e.engine_type == "NORMAL":
                break
        return SimpleNamespace(prompt_run=True, scheduled_seqs=scheduled, q=q, finished=[], ignored=ignored)

    def _decode(self) -> SimpleNamespace:
        e = self.engine
        finished = [s for s in self.running if s.finished()]
        self.running = [s for s in self.running if not s.finished()]
        ignored = [s for s in self.waiting if s.finished()]
        self.waiting = deque(s for s in self.waiting if not s.finished())
        while self.prompted and len(self.running) < e.max_num_seqs:
            seq = self.prompted.popleft()
            if seq.finished():
                finished.append(seq)
                continue
            seq.status = Status.RUNNING
            self.running.append(seq)
        rows = sorted(self.running, key=lambda s: -(len(s.tokens) - s.prompt_len))
        scheduled: list[Seq] = []
        while rows:
            seq = rows[-1]
            while not e.block_manager.free and len(rows) > 1:
                self._preempt(rows.pop(0), ignored)
            rows.pop()
            if e.block_manager.free:
                if len(seq.table) < seq.blocks():
                    seq.table += e.block_manager.take(1)
                elif len(seq.table) > seq.blocks():
                    e.block_manager.unpin_blocks(seq.table[seq.blocks() :])
                    del seq.table[seq.blocks() :]
                scheduled.append(seq)
            else:
                self._preempt(seq, ignored)
        scheduled.sort(key=lambda s: -len(s.tokens))
        return SimpleNamespace(prompt_run=False, scheduled_seqs=scheduled, q=[1 + e.nextn] * len(scheduled), finished=finished,
                               ignored=ignored)

    def _preempt(self, seq: Seq, ignored: list[Seq]) -> None:
        seq.status = Status.FINISHED_PREEMPTED
        self.free_seq(seq)
        ignored.append(seq)
        self.preempted += 1


class Output:
    """RequestOutput: static accessors by pointer. A pointer dies with the step after the one that returned it (trap 5)."""

    pool: dict[int, dict[str, Any]] = {}

    @classmethod
    def of(cls, pointer: int) -> dict[str, Any]:
        if pointer not in cls.pool:
            raise AssertionError(f"pointer {pointer} was read after the step that freed it")
        return cls.pool[pointer]

    @classmethod
    def get_top_logprobs(cls, pointer: int) -> list[float]:
        return cls.of(pointer)["top_logprobs"]

    @classmethod
    def get_top_token_ids(cls, pointer: int) -> list[int]:
        return cls.of(pointer)["top_token_ids"]

    @classmethod
    def get_prompt_logprobs(cls, pointer: int) -> list[float]:
        return cls.of(pointer)["prompt_logprobs"]


class FakePeek:
    @staticmethod
    def block_table(seq: Seq) -> list[int]:
        return list(seq.table)

    @staticmethod
    def prompted(scheduler: Scheduler) -> int:
        return len(scheduler.prompted)

    @staticmethod
    def add_prompted(scheduler: Scheduler, seq: Seq) -> None:
        if not seq.table:
            raise RuntimeError("allocate its blocks first")
        if seq.num_cached_tokens != len(seq.tokens) - 1:
            raise RuntimeError("the KV must cover all tokens but the last")
        scheduler.prompted.append(seq)

    @staticmethod
    def adopt(scheduler: Scheduler, seq: Seq, ids: list[int]) -> bool:
        engine, need = scheduler.engine, seq.blocks() - len(ids)
        if seq.table or seq.state_id != -1 or seq.status != Status.WAITING:
            raise RuntimeError("the request owns blocks already")
        if not engine.state_manager.free or need > len(engine.block_manager.free):
            return False
        engine.block_manager.pin_blocks(ids)
        seq.table = list(ids) + engine.block_manager.take(need)
        seq.state_id = engine.state_manager.take(1)[0]
        return True

    @staticmethod
    def output(pointer: int) -> tuple[str, int, str, float, int, int]:
        o = Output.of(pointer)
        return o["name"], o["token"], o["reason"], o["logprob"], o["drafted"], o["accepted"]

    class Rows:
        """nereid_peek's, in Python."""

        def __init__(self) -> None:
            self.rows: dict[str, list[Any]] = {}

        def add(self, name: str, request: int, logprob: bool, stop_ids: list[int]) -> None:
            self.rows[name] = [request, logprob, stop_ids, 0]

        def remove(self, name: str) -> int:
            return self.rows.pop(name, [0])[-1]

        def pack(self, pointers: list[int], at: int, tokens: bytearray, drafts: bytearray) -> int:
            for pointer in pointers[at:]:
                name, token, reason, logprob, drafted, accepted = FakePeek.output(pointer)
                row = self.rows.get(name)
                if reason or row is None or token in row[2]:
                    break
                row[3] += 1
                tokens += struct.pack("<QifI", row[0], token, logprob if row[1] else 0.0, 0)
                if drafted > 1:
                    drafts += struct.pack("<QII", row[0], drafted - 1, accepted - 1)
                at += 1
            return at


class FakeEngine:
    """LLMEngine's surface. The class is mixed with the agent's hooks, as the real one is."""

    def __init__(self, engine_type: str, script: Script, *, blocks: int = 64, max_num_seqs: int = 16, nextn: int = 5,
                 max_model_len: int = 2048, chunked_prefill: bool = True, interval: int = 70, any_interval: int = 100) -> None:
        self.engine_type, self.script, self.nextn = engine_type, script, nextn
        self.max_num_seqs, self.max_model_len, self.chunked_prefill = max_num_seqs, max_model_len, chunked_prefill
        self.max_batched = max_model_len
        self.interval, self.any_interval = interval, any_interval
        self.block_manager = Blocks(blocks)
        self.state_manager = Blocks(int(max_num_seqs * 1.2) + 1)
        self.scheduler = Scheduler(self)
        self.multi_modal_processor: Any = None
        self.group: list[FakeEngine] = [self]
        self.trace: list[Any] = []
        self.compiling: list[tuple[int, Seq]] = []  # grammars: (steps left, request)
        self.eos_id, self.vocab_size = 1, 129280
        self._flight: SimpleNamespace | None = None
        self._pointer = 0
        self._old: list[int] = []

    # Hooks that LLMEngine has.
    def init_pd_split(self) -> None: ...
    def post_schedule(self, scheduler_outputs: Any) -> None: ...
    def pe_do_save_kvcache(self, scheduled: list[Seq], finished: list[Seq]) -> None: ...
    def send_processed_prompts(self) -> None: ...
    def finalize_seq(self, seq: Seq) -> None:
        self.scheduler.free_seq(seq)

    def close(self) -> None: ...

    def add_request(self, user_id: str, request_id: str, sampling_params: dict[str, Any] | None, prompt_token_ids: Any,
                    multi_modal_data: dict[str, Any] | None = None, arrival_time: float | None = None,
                    extra: dict[str, Any] | None = None, enqueue: bool = True,
                    chunk_checkpoints: list[int] | None = None) -> Seq | None:
        prompt = list(prompt_token_ids)
        if not prompt:
            raise ValueError("prompt must not be empty")
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            return None
        if self.multi_modal_processor is not None and multi_modal_data is not None:
            prompt = list(self.multi_modal_processor.overwrite_prompt(prompt, multi_modal_data))
        seq = Seq(request_id, prompt, dict(sampling_params or {}))
        seq.chunk_checkpoints = list(chunk_checkpoints or [])
        if self.multi_modal_processor is not None and multi_modal_data is not None:
            seq.multi_modal_data, seq.schedulable = multi_modal_data, False
        grammar = seq.params.get("so_args")
        if enqueue and grammar is not None:
            self.compiling.append((grammar.get("steps", 2), seq))
        elif enqueue:
            self.scheduler.add_sequence(seq)
            if self.multi_modal_processor is not None:
                self.multi_modal_processor.add(request_id, multi_modal_data)
        return seq

    def abort_request(self, request_id: Any) -> tuple[int, int]:
        names = [request_id] if isinstance(request_id, str) else list(request_id)
        found = [s for name in names for s in self.scheduler.abort(name)]
        return len(found), sum(len(s.tokens) for s in found)

    def get_num_unfinished_requests(self) -> int:
        s = self.scheduler
        return len(s.waiting) + len(s.running) + len(s.prompted) + len(self.compiling)

    def has_unfinished_requests(self) -> bool:
        return any(peer.get_num_unfinished_requests() > 0 for peer in self.group)

    def step(self) -> list[int]:
        for pointer in self._old:
            Output.pool.pop(pointer, None)
        self._old = []
        out = self.scheduler.schedule()
        self.trace.append([bool(out.prompt_run), sorted([s.request_id, q] for s, q in zip(out.scheduled_seqs, out.q))])
        for seq, q in zip(out.scheduled_seqs, out.q):
            seq.launch(q)
        if self.multi_modal_processor is not None:
            self.multi_modal_processor.fetch()
        self.post_schedule(out)
        self._compile()
        for seq in out.finished:
            self.finalize_seq(seq)
        made: list[int] = []
        if self.engine_type != "PROMPT" and self._flight is not None:
            made += self._process(self._flight)
        self._flight = None
        self._sample(out)
        if out.prompt_run or self.engine_type == "PROMPT":
            made += self._process(out)
        else:
            self._flight = out
        self._old = made
        return made

    def flush_inflight_reqs(self) -> list[int]:
        if self._flight is None:
            return []
        out, self._flight = self._flight, None
        made = self._process(out)
        self._old += made
        return made

    def _compile(self) -> None:
        left = []
        for steps, seq in self.compiling:
            if steps > 0:
                left.append((steps - 1, seq))
                continue
            so = seq.params["so_args"]
            bad = so["schema"] == "(" or (so["schema_type"] == "ebnf" and "::=" not in so["schema"])
            if bad and not seq.finished():
                seq.status = Status.FINISHED_SO_FAILED
            self.scheduler.add_sequence(seq)
            if self.multi_modal_processor is not None:
                self.multi_modal_processor.add(seq.request_id, seq.multi_modal_data)
        self.compiling = left

    def _sample(self, out: SimpleNamespace) -> None:
        """In the step that was scheduled, also for rows that will turn out to have ended."""
        out.said = []
        for seq, q in zip(out.scheduled_seqs, out.q):
            held = "so_args" in seq.params
            count = 1 + (0 if out.prompt_run or held else min(self.script.accept, q - 1))
            whole = not out.prompt_run or seq.chunked_rest_len == 0
            said = [self.script.next(seq.request_id) for _ in range(count)] if whole else [0]
            if held and whole:
                said[-1] = self._held(seq, said[-1])
            out.said.append(said)

    def _held(self, seq: Seq, wanted: int) -> int:
        """Of grammars only what the cases ask: one letter or more, a digit."""
        so, before = seq.params["so_args"], seq.tokens[seq.prompt_len :]
        trigger = so.get("trigger_token_ids", [])
        if trigger and not any(before[i : i + len(trigger)] == trigger for i in range(len(before))):
            return wanted
        letter = ord("7") if so["schema_type"] == "json" else ord("a")
        return self.eos_id if wanted == self.eos_id and before and before[-1] == letter else letter

    def _process(self, out: SimpleNamespace) -> list[int]:
        if out.prompt_run:
            self.pe_do_save_kvcache(out.scheduled_seqs, out.finished)
        made: list[int] = []
        back: list[Seq] = []
        for seq, q, said in zip(out.scheduled_seqs, out.q, out.said):
            seq.land()
            if seq.finished():
                if out.prompt_run:
                    self.scheduler.running.append(seq)
                continue
            seq.num_cached_tokens += q
            if out.prompt_run and seq.num_cached_tokens < len(seq.tokens):
                back.append(seq)
                continue
            if out.prompt_run:
                self.scheduler.running.append(seq)
            tokens = said
            if self.nextn and (not out.prompt_run or self.engine_type == "NORMAL"):
                seq.last_next_n_token = [self.vocab_size - 1] * self.nextn  # the drafts for the next step
            drafted = 0 if out.prompt_run else q
            accepted = 0 if out.prompt_run else len(tokens)
            taken = 0
            for token in tokens:
                seq.tokens.append(token)
                taken += 1
                count = len(seq.tokens) - seq.prompt_len
                if token == self.eos_id and not seq.params.get("ignore_eos"):
                    seq.status = Status.FINISHED_STOPPED
                elif len(seq.tokens) > self.max_model_len or count == seq.params.get("max_tokens", 16):
                    seq.status = Status.FINISHED_LENGTH_CAPPED
                last = seq.finished() or taken == len(tokens)
                made.append(self._output(seq, token, REASONS.get(seq.status, "") if seq.finished() else "", -0.5,
                                         drafted if last else 0, accepted if last else 0))
                if seq.finished():
                    break
            if not out.prompt_run:
                seq.num_cached_tokens = len(seq.tokens) - 1
        for seq in back:
            self.scheduler.waiting.appendleft(seq)
        for seq in out.ignored:  # a bogus token (trap 7)
            made.append(self._output(seq, seq.tokens[seq.prompt_len - 1], REASONS[seq.status], 1.0, 0, 0))
        if self.engine_type == "PROMPT":
            self.send_processed_prompts()
        return made

    def _output(self, seq: Seq, token: int, reason: str, logprob: float, drafted: int, accepted: int) -> int:
        self._pointer += 1
        top = seq.params.get("top_logprobs", 0)
        Output.pool[self._pointer] = {
            "name": seq.request_id, "token": token, "reason": reason, "logprob": logprob, "drafted": drafted,
            "accepted": accepted, "top_token_ids": [token + i for i in range(top)], "top_logprobs": [-0.5 - i for i in range(top)],
            "prompt_logprobs": [0.0] * seq.prompt_len if seq.params.get("prompt_logprobs") else [],
        }
        return self._pointer


class FakeArenas:
    """Small blocks and slots of bytes, so that what goes where can be seen."""

    block_bytes, slot_bytes, persisted_bytes, ring_slack = 64, 96, 40, 6

    def __init__(self, engine: FakeEngine) -> None:
        self.blocks = [bytearray(self.block_bytes) for _ in range(engine.block_manager.count)]
        self.slots = [bytearray(self.slot_bytes) for _ in range(engine.state_manager.count)]

    def read_blocks(self, ids: list[int], out: memoryview) -> None:
        out[:] = b"".join(self.blocks[i] for i in ids)

    def write_blocks(self, ids: list[int], data: memoryview) -> None:
        for at, block in enumerate(ids):
            self.blocks[block][:] = data[at * self.block_bytes : (at + 1) * self.block_bytes]

    def copy_state(self, state_id: int, position: int, whole: bool) -> bytes:
        return bytes(self.slots[state_id][: self.slot_bytes if whole else self.persisted_bytes])

    def load_state(self, state_id: int, position: int, state: bytes, whole: bool) -> None:
        self.slots[state_id][: len(state)] = state

    def state_bytes(self, state: bytes, out: memoryview) -> None:
        out[:] = state[: len(out)]

    def state_from(self, data: memoryview) -> bytes:
        return bytes(data)

    def mark(self) -> None: ...

    def beside(self, mark: None) -> Any:
        return contextlib.nullcontext()

    # For tests: writing to and reading from a slot or block.
    def fill(self, block: int | None, slot: int | None, value: int) -> None:
        if block is not None:
            self.blocks[block][:] = bytes([value]) * self.block_bytes
        if slot is not None:
            self.slots[slot][:] = bytes([value]) * self.slot_bytes
