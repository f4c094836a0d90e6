"""The agent: engine-wire commands in, one StepFrame per step out, around one LLMEngine. docs/ops/deepinfer.md.

One thread owns the engine: `submit` any number of commands, then `step`. The scheduler's queues have no lock and
LLMEngine.step releases the GIL inside them, so nothing here may run beside a step. What LLMEngine does that a service
must not pass on is handled where it happens; each such place names its trap (facts/deepinfer.md, section 2) and has a test
of that name in tests/deepinfer/test_agent.py.

A request is in one place at a time:

    queue ──▶ engine ──▶ (ended)                 held: prefilled on a PROMPT engine, KV pinned until Release or its lease
     │ ▲        └──────▶ held ──▶ (released)
     ▼ └── a hit waits here for room, in order of arrival
    asking: the KV node is asked for its prefix, on another thread, for `kv_wait_ns` at most

`by_name` holds what is in the engine and not ended. A request that was aborted or cut at a stop id leaves it at once: the
engine may still speak of it, and is not listened to.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from nereid_deepinfer import handoff
from nereid_deepinfer.background import Background, Inline
from nereid_deepinfer.experts import ExpertFolder
from nereid_deepinfer.keys import block_chain
from nereid_deepinfer.live import Counters, Held, Live, Options
from nereid_deepinfer.load import LoadReport
from nereid_deepinfer.prefix import PrefixCache
from nereid_deepinfer.region import Region, RegionError
from nereid_deepinfer.runtime import Runtime
from nereid_deepinfer.sampling import Plan, plan
from nereid_deepinfer.store import KvStore, Loaded
from nereid_deepinfer.wire import (
    AbortRequest, AddMode, AddRequest, AdmitDecode, Command, Drain, EndReason, Error, ExportBlocks, Finished,
    ImportPrefix, KvFailed, KvReady, MapRegion, PackedDrafts, PackedTokens, Pin, PromptLogprobs, Release, Started, StepFrame)

BLOCK = 128
_KEPT_KEYS = 256
# Reasons of outputs whose token is real. All others come from ignored sequences (trap 7): their token is the last prompt
# token, or junk after a grammar died.
_TRUE_ENDS = {"stop": EndReason.STOP, "length": EndReason.LENGTH}


def _new_frame() -> StepFrame:
    return StepFrame(tokens=PackedTokens(), drafts=PackedDrafts())


class Agent:
    def __init__(self, runtime: Runtime, options: Options | None = None, clock: Callable[[], int] = time.monotonic_ns,
                 copies: Background | Inline | None = None, store: KvStore | None = None,
                 stores: Background | Inline | None = None) -> None:
        """`copies` and `stores` run copies to the region and calls of `store` off this thread."""
        self.runtime, self.options, self.clock = runtime, options or Options(), clock
        self.engine = runtime.engine
        self.counters = Counters()
        self.draining = False
        self.queue: deque[Live] = deque()
        self.by_id: dict[int, Live] = {}  # queued or in the engine
        self.by_name: dict[str, Live] = {}  # in the engine
        self.held: dict[int, Held] = {}
        self.asking: dict[int, Live] = {}
        self.copies, self.store, self.stores = copies or Inline(), store, stores or Inline()
        self.saving = 0  # blocks pinned for saves
        self.clients = 0  # that have gone
        self.frame = _new_frame()
        self.rows = runtime.peek.Rows()
        self.region: Region | None = None
        self.kept_keys: OrderedDict[int, list[bytes]] = OrderedDict()  # of ended requests, so that their prefix can go out
        self.uncached = 0  # prompt tokens still to compute: the engine's own sums count cached ones too
        self._steps = 0
        self._in_flight = False  # a decode step may wait to be flushed
        self._names = 0
        self._total_blocks = self.engine.block_manager.get_num_free_blocks()
        share = self.options.prefix_share if runtime.engine_type != "COMPLETION" else 0
        self.prefixes = PrefixCache(int(self._total_blocks * share), self.options.prefix_entries if share else 0,
                                    self.engine.block_manager.unpin_blocks)
        self.report = LoadReport(runtime)
        self.experts: ExpertFolder | None = None
        self.engine.agent = self

    # ------------------------------------------------------------ commands

    def submit(self, command: Command) -> None:
        match command:
            case AddRequest():
                self._add(command, None)
            case AdmitDecode():
                self._add(command.request, command)
            case AbortRequest():
                self._abort(command.id)
            case ImportPrefix():
                self._import(command)
            case ExportBlocks():
                self._export(command)
            case Pin():
                if command.id in self.held:
                    self.held[command.id].expires = self.clock() + command.lease
            case Release():
                self._release(command.id)
            case Drain():
                self.draining = True
            case MapRegion():
                self._map(command)

    def _add(self, add: AddRequest, decode: AdmitDecode | None) -> None:
        if add.id in self.by_id or add.id in self.held:
            # LLMEngine takes the same id twice and an abort would hit both (facts, section 3.1).
            known = self.by_id.get(add.id)
            error = Error("conflict", "the id was added twice")
            if known is not None:
                self._leave_engine(known)
                self._end(known, EndReason.FAILED, error)
            else:  # it is held, and stays so
                self.frame.finished.append(Finished(add.id, EndReason.FAILED, len(add.prompt), 0, 0, 0, 0, 0, 0, error))
            return
        live = Live(add, f"{self._names}:{add.id}", Plan({}), self.clock(), frozenset(add.stop_ids), add.id, add.logprobs,
                    decode=decode, prompt_tokens=len(add.prompt))
        self._names += 1
        self.by_id[add.id] = live
        planned: Plan | Error
        if self.draining:
            planned = Error("overloaded", "the engine is draining")
        elif len(self.by_id) > self.runtime.info.max_running + self.options.max_queued:
            planned = Error("overloaded", "the engine's queue is full")
        elif (decode is not None) != (self.runtime.engine_type == "COMPLETION"):
            planned = Error("unsupported", "a decode-only engine takes AdmitDecode, and no other engine does")
        else:
            planned = plan(add, self.runtime.info, decode=decode is not None)
        if not isinstance(planned, Error) and -(-(len(add.prompt) + 2 + self.runtime.nextn) // BLOCK) > self._total_blocks:
            planned = Error("context_length", f"the prompt needs more than the engine's {self._total_blocks} blocks", "prompt")
        if add.images and self.runtime.image_token >= 0 and add.prompt.count(self.runtime.image_token) != len(add.images):
            # LLMEngine would leave images out that have no place, and take places without an image as text.
            planned = Error("invalid_argument", f"{len(add.images)} images, and {add.prompt.count(self.runtime.image_token)} "
                            "places for them in the prompt", "messages")
        if isinstance(planned, Error):
            self._end(live, EndReason.FAILED, planned)
            return
        live.plan = planned
        if decode is not None and self._ends_at_first(live, decode):
            return
        if (self.options.prefix_share or self.store is not None) and not planned.images and not add.prompt_logprobs and decode is None:
            live.keys = block_chain(add.kv_namespace, add.prompt, BLOCK, add.adapter)
        self.uncached += live.prompt_tokens
        live.counted = True
        self.queue.append(live)

    def _computed(self, live: Live, upto: int) -> None:
        if live.counted:
            self.uncached -= upto - live.computed
        live.computed = upto

    def _ends_at_first(self, live: Live, decode: AdmitDecode) -> bool:
        """The token that prefill sampled may be the last one."""
        eos = not live.add.ignore_eos and decode.first_token in self.runtime.info.eos_ids
        if eos or decode.first_token in live.stop_ids:
            self._end(live, EndReason.STOP)
        elif live.add.max_tokens <= 1:
            self._end(live, EndReason.LENGTH)
        else:
            return False
        return True

    def _abort(self, request: int) -> None:
        live = self.by_id.get(request)
        if live is not None:
            self._leave_engine(live)
            # A running request that is aborted yields no output (trap 8), so its end is made here for all of them.
            self._end(live, EndReason.ABORTED)

    def _leave_engine(self, live: Live) -> None:
        """Takes the request out of the engine's hands, wherever it is, with everything that it owns."""
        if live.seq is None:
            return  # still in our own hands: _forget
        status = self.runtime.status
        waiting = live.seq.status == status.WAITING
        found, _ = self.engine.abort_request(live.name)
        if not found and live.seq.status in (status.WAITING, status.RUNNING):
            # Its grammar is still compiling (trap 9), or it waits in `prompted` (trap 8): abort does not look there.
            live.seq.status = status.FINISHED_ABORTED
        if found and waiting and not live.freed and (live.seq.chunked_rest_len > 0 or live.owned):
            # Trap 13: it comes back as ignored and nobody frees it. Exactly once (trap 14). One in `prompted` was not
            # found: it passes through finalize_seq, which frees it.
            self._free(live)

    def _free(self, live: Live) -> None:
        if not live.freed:
            live.freed = True
            self.counters.freed_by_agent += 1
            self.engine.scheduler.free_seq(live.seq)

    def drop_client(self) -> None:
        """The client is gone: so are its requests and what it holds."""
        for live in list(self.by_id.values()):
            self._leave_engine(live)
            self._forget(live)
        for request in list(self.held):
            self._release(request)
        self.frame = _new_frame()
        self.clients += 1
        self.draining = False
        self.region = None

    # ------------------------------------------------------------ KV in and out

    def _map(self, command: MapRegion) -> None:
        try:
            self.region = Region(command.path, command.size)
        except RegionError as bad:
            self.region = None
            self.frame.kv_failed.append(KvFailed(0, Error("io", str(bad))))

    def _range(self, offset: int, length: int) -> memoryview:
        if self.region is None:
            raise RegionError("no shared region is mapped")
        return self.region.range(offset, length)

    def _import(self, command: ImportPrefix) -> None:
        """Blocks and the state at their end, for a request that has not begun. The bytes are taken when it is admitted."""
        live = self.by_id.get(command.id)
        arenas = self.runtime.arenas
        need = len(command.keys) * arenas.block_bytes + arenas.persisted_bytes
        problem: Error | None = None
        if live is None or live.seq is not None:
            problem = Error("conflict", "the request has begun already, or is unknown")
        elif not command.keys or command.first_block != 0:
            problem = Error("invalid_argument", "an import starts at block 0")
        elif live.keys[: len(command.keys)] != command.keys:
            problem = Error("corrupt", "these are not the names of the prompt's blocks")
        elif command.length != need:
            problem = Error("corrupt", f"{command.length} bytes; {len(command.keys)} blocks and a state are {need}")
        elif self.runtime.exact_states and arenas.persisted_bytes < arenas.slot_bytes:
            # Trap 11: the windows of the decoder layers are not kept; only YoCo truncation replays them.
            problem = Error("unsupported", "a stored prefix needs YoCo prefill truncation (DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE)")
        else:
            try:
                self._range(command.offset, command.length)
            except RegionError as bad:
                problem = Error("invalid_argument", str(bad))
        if problem is not None:
            self.frame.kv_failed.append(KvFailed(command.id, problem))
            return
        assert live is not None
        live.imported = command

    def _export(self, command: ExportBlocks) -> None:
        """The blocks stay pinned while another thread copies them, also if the request is released meanwhile."""
        try:
            ids, length, write = self._plan_export(command)
        except (RegionError, handoff.BadHandoff) as bad:
            self.frame.kv_failed.append(KvFailed(command.id, Error("invalid_argument", str(bad))))
            return
        except KeyError:
            self.frame.kv_failed.append(KvFailed(command.id, Error("not_found", "no KV of this request is here")))
            return
        manager, client = self.engine.block_manager, self.clients
        manager.pin_blocks(ids)

        def done(result: Any) -> None:
            manager.unpin_blocks(ids)
            if client != self.clients:
                return  # nobody is there who asked
            if isinstance(result, Exception):
                self.frame.kv_failed.append(KvFailed(command.id, Error("io", f"the copy failed: {result}")))
            else:
                self.frame.kv_ready.append(KvReady(command.id, command.first_block, command.count, command.offset, length))

        self.copies.run(write, done)

    def _plan_export(self, command: ExportBlocks) -> tuple[list[int], int, Callable[[], None]]:
        """All blocks of a held request: the hand-off. Fewer, from block 0, that end at a kept boundary: the prefix. Gives
        the blocks, the length, and what writes them."""
        arenas = self.runtime.arenas
        mark = arenas.mark()
        held = self.held.get(command.id)
        if held is not None and (command.first_block, command.count) == (0, len(held.ids)):
            size = handoff.size(len(held.ids), arenas)
            out = self._range(command.offset, min(size, command.capacity))
            if len(out) != size:
                raise handoff.BadHandoff(f"a hand-off of {len(held.ids)} blocks has {size} bytes, not {len(out)}")

            def write_handoff() -> None:
                with arenas.beside(mark):
                    handoff.write(out, held.tokens, held.ids, held.state, arenas)

            return held.ids, size, write_handoff
        live = self.by_id.get(command.id)
        keys = live.keys if live is not None else self.kept_keys.get(command.id)
        if keys is None:
            raise KeyError
        entry = self.prefixes.find(keys, command.count) if 0 < command.count <= len(keys) else None
        if command.first_block != 0 or entry is None or len(entry.ids) != command.count:
            raise RegionError("no state is kept at the end of these blocks")
        size = command.count * arenas.block_bytes + arenas.persisted_bytes
        if size > command.capacity:
            raise RegionError(f"{size} bytes do not fit into {command.capacity}")
        out = self._range(command.offset, size)
        cut = command.count * arenas.block_bytes

        def write_prefix() -> None:
            with arenas.beside(mark):
                arenas.read_blocks(entry.ids, out[:cut])
                arenas.state_bytes(entry.state, out[cut:])

        return entry.ids, size, write_prefix

    def _release(self, request: int) -> None:
        held = self.held.pop(request, None)
        if held is not None:
            self.engine.block_manager.unpin_blocks(held.ids)

    # ------------------------------------------------------------ admission

    def _ask_store(self, live: Live) -> bool:
        """True when the KV node is asked: the request waits apart, and others pass it."""
        if self.store is None or live.asked or not live.keys or live.plan.grammar or live.imported is not None:
            return False
        keys = live.keys[: self._most_blocks(live)]
        entry = self.prefixes.find(keys, len(keys))
        if not keys or (entry is not None and len(entry.ids) == len(keys)):
            return False
        live.asked = self.clock()
        self.asking[live.add.id] = live
        store, namespace, tokens = self.store, live.add.kv_namespace, len(live.add.prompt)
        self.stores.run(lambda: store.load(namespace, keys, tokens), lambda result: self._answered(live, result))
        return True

    def _answered(self, live: Live, result: Any) -> None:
        if self.asking.get(live.add.id) is not live:
            return  # aborted, or it was too late
        if isinstance(result, Loaded):
            live.loaded = result
        self._queue_again(live)

    def _queue_again(self, live: Live) -> None:
        """Where it stood: in order of arrival."""
        del self.asking[live.add.id]
        at = next((i for i, other in enumerate(self.queue) if other.added > live.added), len(self.queue))
        self.queue.insert(at, live)

    def _late(self, now: int) -> None:
        for live in [x for x in self.asking.values() if now - x.asked >= self.options.kv_wait_ns]:
            self.counters.late_loads += 1
            self._queue_again(live)

    def _most_blocks(self, live: Live) -> int:
        """A hit leaves at least one token (trap 16) and the tokens that YoCo replays."""
        return max(0, len(live.add.prompt) - max(1, self.runtime.keep_tokens)) // BLOCK

    def _admit(self) -> None:
        while self.queue:
            live = self.queue.popleft()
            if self._ask_store(live):
                continue
            done = self._admit_decode(live) if live.decode is not None else self._admit_prompt(live)
            if not done:
                self.queue.appendleft(live)
                if self.engine.get_num_unfinished_requests() or not self.prefixes.evict():
                    return  # room comes when something ends; only an idle engine must make it
                self.counters.evicted_for_room += 1

    def _multi_modal(self, live: Live) -> dict[str, Any] | None:
        # Always a fresh dict (the engine changes it), and never None beside others: a batch that mixes text without it and
        # images fails inside the model (trap 12). A decode-only engine has no processor and takes none.
        if getattr(self.engine, "multi_modal_processor", None) is None:
            return None
        return {"image_bytes": list(live.plan.images.get("image_bytes", [])),
                "image_sizes": list(live.plan.images.get("image_sizes", []))}

    def _new_seq(self, live: Live, prompt: list[int], **how: Any) -> Any:
        try:
            seq = self.engine.add_request("nereid", live.name, dict(live.plan.params), self.runtime.tokens(prompt),
                                          self._multi_modal(live), **how)
        except (ValueError, TypeError, AssertionError) as bad:  # of this request alone: its peers go on
            self._end(live, EndReason.FAILED, Error("internal", f"DeepInfer refused the request: {bad}"))
            return None
        if seq is None:  # a token that the engine does not know; plan() looked, so its vocabulary is another one
            self._end(live, EndReason.FAILED, Error("invalid_argument", "DeepInfer refused a token of the prompt", "prompt"))
        elif live.plan.images:  # each place has become as many tokens as its image takes
            more = seq.get_len() - live.prompt_tokens
            live.prompt_tokens += more
            self.uncached += more
        return seq

    def _admit_prompt(self, live: Live) -> bool:
        length = len(live.add.prompt)
        most = self._most_blocks(live)
        hit = 0
        if live.keys and not live.plan.grammar:  # enqueue=False would compile a grammar on this thread
            hit = self._try_hit(live, most)
            if hit < 0:
                return False
            if live.name not in self.by_name and live.add.id not in self.by_id:
                return True  # it ended
        if hit == 0:
            seq = self._new_seq(live, live.add.prompt, chunk_checkpoints=self._checkpoints(live, most, 0))
            if seq is None:
                return True
            live.seq = seq
            self.by_name[live.name] = live
        self.counters.hit_tokens += hit
        self.counters.miss_tokens += length - hit
        return True

    def _checkpoints(self, live: Live, most: int, hit: int) -> list[int] | None:
        """Where prefill is cut so that a state can be kept: it costs a scheduling attempt, which is cheap alone only."""
        if (not live.keys or live.plan.grammar or not self.runtime.chunked_prefill or self.runtime.data_parallel > 1
                or most * BLOCK <= hit or live.keys[most - 1] in self.prefixes
                or len(live.add.prompt) - most * BLOCK <= self.runtime.arenas.ring_slack):
            return None
        return [most * BLOCK]

    def _try_hit(self, live: Live, most: int) -> int:
        """Tokens restored; 0 = none are known, -1 = there is no room now."""
        entry = self.prefixes.find(live.keys, most)
        imported = live.imported if live.imported is not None and len(live.imported.keys) <= most else None
        blocks = max(len(entry.ids) if entry else 0, len(imported.keys) if imported else 0,
                     live.loaded.blocks if live.loaded is not None else 0)
        if blocks == 0:
            if live.imported is not None:
                self._import_failed(live, Error("invalid_argument", "the blocks leave too few tokens to compute"))
            return 0
        began = self.clock()
        hit = blocks * BLOCK
        local = entry is not None and len(entry.ids) == blocks
        imports = not local and imported is not None and len(imported.keys) == blocks
        try:
            data = self._range(imported.offset, imported.length) if imports else memoryview(live.loaded.data if live.loaded else b"")
        except RegionError as bad:  # another region was mapped since
            self._import_failed(live, Error("invalid_argument", str(bad)))
            return self._try_hit(live, most)
        seq = self._new_seq(live, live.add.prompt, enqueue=False, chunk_checkpoints=self._checkpoints(live, most, hit))
        if seq is None:
            return 0
        scheduler, arenas = self.engine.scheduler, self.runtime.arenas
        if not (self.runtime.peek.adopt(scheduler, seq, entry.ids) if local else scheduler.try_allocate_seq(seq)):
            return -1
        live.seq, live.owned = seq, True
        if local:
            arenas.load_state(seq.state_id, hit, entry.state, self.runtime.exact_states)
            if live.imported is not None:
                self._import_done(live)
        else:
            if imports:
                self._import_done(live)
            else:
                self.counters.loaded_tokens += hit
            cut = blocks * arenas.block_bytes
            ids, state = self.runtime.peek.block_table(seq)[:blocks], arenas.state_from(data[cut:])
            arenas.write_blocks(ids, data[:cut])
            arenas.load_state(seq.state_id, hit, state, False)
            self.engine.block_manager.pin_blocks(ids)
            if not self.prefixes.put(live.keys[blocks - 1], ids, state):
                self.engine.block_manager.unpin_blocks(ids)
        live.loaded = None
        live.restore_ns = self.clock() - began
        live.cached = hit
        self._computed(live, hit)
        seq.num_cached_tokens = hit
        seq.cached_hit_tokens = hit
        scheduler.add_sequence(seq)
        processor = getattr(self.engine, "multi_modal_processor", None)
        if processor is not None:
            processor.add(live.name, seq.multi_modal_data, hit)
        self.by_name[live.name] = live
        return hit

    def _import_done(self, live: Live) -> None:
        c = live.imported
        assert c is not None
        self.frame.kv_ready.append(KvReady(live.add.id, c.first_block, len(c.keys), c.offset, c.length))

    def _import_failed(self, live: Live, error: Error) -> None:
        self.counters.failed_imports += 1
        self.frame.kv_failed.append(KvFailed(live.add.id, error))
        live.imported = None

    def _admit_decode(self, live: Live) -> bool:
        """A prefilled request enters a decode-only engine: its own blocks and state, without clones (facts, 6.3)."""
        decode = live.decode
        assert decode is not None
        prompt, arenas, scheduler = live.add.prompt, self.runtime.arenas, self.engine.scheduler
        try:
            data = self._range(decode.offset, decode.length)
            payload = handoff.read(data, len(prompt), arenas)
        except (RegionError, handoff.BadHandoff) as bad:
            self._end(live, EndReason.FAILED, Error("corrupt", str(bad)))
            return True
        if scheduler.get_sum_prompt_len_running()[0] + self.runtime.peek.prompted(scheduler) >= self.runtime.info.max_running:
            return False
        seq = self._new_seq(live, [*prompt, decode.first_token], enqueue=False)
        if seq is None:
            return True
        if not scheduler.try_allocate_seq(seq):
            return False
        live.seq, live.owned, live.cached = seq, True, len(prompt)
        self._computed(live, len(prompt))
        began = self.clock()
        arenas.write_blocks(self.runtime.peek.block_table(seq)[: payload.blocks], payload.block_bytes)
        arenas.load_state(seq.state_id, len(prompt), arenas.state_from(payload.state_bytes), True)
        live.restore_ns = self.clock() - began
        seq.num_cached_tokens = len(prompt)
        if self.runtime.nextn:
            seq.last_next_n_token = [self.runtime.info.vocab_size - 1] * self.runtime.nextn  # a prefill engine has no drafts
        self.runtime.peek.add_prompted(scheduler, seq)
        self.by_name[live.name] = live
        self._start(live)
        return True

    # ------------------------------------------------------------ what the engine calls (hooks.py)

    def prompts_scheduled(self, seqs: list[Any]) -> None:
        for seq in seqs:
            live = self.by_name.get(seq.request_id)
            if live is not None and not live.started:
                self._start(live)

    def _start(self, live: Live) -> None:
        live.started = self.clock()
        self.frame.started.append(Started(live.add.id, live.cached))

    def prompts_computed(self, seqs: list[Any]) -> None:
        """A chunk of each has its KV. `num_cached_tokens` still has the value before it (facts, section 6.1)."""
        for seq in seqs:
            live = self.by_name.get(seq.request_id)
            if live is None:
                continue
            end = seq.get_len() - seq.chunked_rest_len
            self._computed(live, min(end, live.prompt_tokens))
            blocks = end // BLOCK
            if 0 < blocks <= len(live.keys) and end - blocks * BLOCK <= self.runtime.arenas.ring_slack:
                self._keep(live, seq, blocks)

    def _keep(self, live: Live, seq: Any, blocks: int) -> None:
        key = live.keys[blocks - 1]
        if key in self.prefixes:
            return
        ids = self.runtime.peek.block_table(seq)[:blocks]
        manager = self.engine.block_manager
        manager.pin_blocks(ids)
        state = self.runtime.arenas.copy_state(seq.state_id, blocks * BLOCK, self.runtime.exact_states)
        if live.cached < blocks * BLOCK:
            self._save(live, ids, state)
        if not self.prefixes.put(key, ids, state):
            manager.unpin_blocks(ids)

    def _save(self, live: Live, ids: list[int], state: Any) -> None:
        """To the KV node, on its thread; the blocks stay pinned until it is done."""
        arenas, manager, store = self.runtime.arenas, self.engine.block_manager, self.store
        if store is None or (self.runtime.exact_states and arenas.persisted_bytes < arenas.slot_bytes):
            return  # trap 11
        if self.saving + len(ids) > self._total_blocks * self.options.save_share:
            self.counters.skipped_saves += 1
            return
        manager.pin_blocks(ids)
        self.saving += len(ids)
        namespace, keys, mark = live.add.kv_namespace, live.keys[: len(ids)], arenas.mark()

        def save() -> int:
            first = store.missing_from(namespace, keys)
            if first is None:
                return 0
            data = bytearray((len(ids) - first) * arenas.block_bytes + arenas.persisted_bytes)
            blocks, rest = memoryview(data)[: -arenas.persisted_bytes], memoryview(data)[-arenas.persisted_bytes :]
            with arenas.beside(mark):
                if first < len(ids):
                    arenas.read_blocks(ids[first:], blocks)
                arenas.state_bytes(state, rest)
            store.save(namespace, keys, first, blocks, rest)
            return (len(ids) - first) * BLOCK

        def done(result: Any) -> None:
            manager.unpin_blocks(ids)
            self.saving -= len(ids)
            if isinstance(result, Exception):
                raise result  # NodeStore answers for its node; this is a defect
            self.counters.saved_tokens += result

        self.stores.run(save, done)

    def may_free(self, seq: Any) -> bool:
        live = self.by_name.get(seq.request_id)
        return live is None or live.seq is not seq or not live.freed

    def take_prefilled(self) -> None:
        """A PROMPT engine leaves what it has prefilled in `running`, for us to send and to free."""
        scheduler, manager = self.engine.scheduler, self.engine.block_manager
        for seq in scheduler.running:
            live = self.by_name.get(seq.request_id)
            if live is not None and seq.status in (self.runtime.status.RUNNING, self.runtime.status.WAITING):
                ids = self.runtime.peek.block_table(seq)
                tokens = live.prompt_tokens
                ids = ids[: -(-tokens // BLOCK)]
                manager.pin_blocks(ids)
                state = self.runtime.arenas.copy_state(seq.state_id, tokens, True)
                self.held[live.add.id] = Held(ids, state, tokens, self.clock() + self.options.hold_lease_ns)
                live.prefilled = True
            scheduler.free_seq(seq)
            if live is not None:
                live.freed = True
        scheduler.running = []

    # ------------------------------------------------------------ a step

    def has_work(self) -> bool:
        # The engine gives the blocks of an ended request back in a later step: it is stepped until it has nothing left.
        return (len(self.by_id) > len(self.asking) or self._in_flight or not self.frame.empty() or self.copies.ready()
                or self.stores.ready() or self.engine.get_num_unfinished_requests() > 0)

    def waits(self) -> bool:
        """Something comes from another thread, or ends by the clock: a step is due now and then."""
        return bool(self.held or self.asking or self.copies.pending or self.stores.pending)

    def step(self) -> StepFrame:
        """One turn of the loop. With several ranks every rank must call it, also idle: it holds collectives."""
        began = self.clock()
        self.copies.collect()
        self.stores.collect()
        self._expire(began)
        self._late(began)
        self._admit()
        self._relieve()
        if self.engine.has_unfinished_requests():
            self._vote()
            if self.experts is not None:
                self.experts.before_step(self.engine.generate_step)
            outputs = self.engine.step()
            self._in_flight = True
            self._steps += 1
        elif self._in_flight or self.runtime.data_parallel > 1:
            outputs = self.engine.flush_inflight_reqs()
            self._in_flight = False
        else:
            outputs = ()
        if len(outputs):
            self._take(outputs)
        frame, self.frame = self.frame, _new_frame()
        frame.step = self._steps
        frame.load = self.report.read(self, self.clock() - began)
        return frame

    def _vote(self) -> None:
        """Trap 15: an engine that has decoded before and is idle makes a prompt wait for the next voting point. With one
        rank the next step may be made one; with more the vote is a collective."""
        scheduler = self.engine.scheduler
        if self.runtime.engine_type == "NORMAL" and self.runtime.data_parallel == 1 \
                and scheduler.get_sum_prompt_len_running()[0] == 0 and scheduler.get_sum_prompt_len_waiting()[0] > 0:
            scheduler.decode_step = 0
            self.counters.voted += 1

    def _expire(self, now: int) -> None:
        for request in [r for r, h in self.held.items() if h.expires <= now]:
            self.counters.expired_leases += 1
            self._release(request)

    def _relieve(self) -> None:
        """Kept prefixes give way before the engine would preempt, which kills requests, or refuse prefill."""
        manager = self.engine.block_manager
        while len(self.prefixes) and manager.get_num_free_blocks() < self._total_blocks * self.options.reserve:
            self.prefixes.evict()
            self.counters.evicted_for_room += 1

    def _take(self, outputs: Any) -> None:
        # Pointers into the engine's pool die with the next step (trap 5): everything is copied here. One output is one
        # token (trap 6). Most are packed beside Python (Rows); the loop is over the others.
        tokens, drafts = self.frame.tokens, self.frame.drafts
        assert isinstance(tokens, PackedTokens) and isinstance(drafts, PackedDrafts)
        at, count, pack = 0, len(outputs), self.rows.pack
        while (after := pack(outputs, at, tokens.data, drafts.data)) < count:
            tokens.count += after - at
            name, token, reason, logprob, drafted, accepted = self.runtime.peek.output(int(outputs[after]))
            at = after + 1
            live = self.by_name.get(name)
            if live is None:
                self.counters.dropped_outputs += 1
                continue
            self._take_one(live, int(outputs[after]), token, reason, logprob)
            if drafted > 1 and (not reason or reason in _TRUE_ENDS):
                drafts.add(live.request, drafted - 1, accepted - 1)
        tokens.count += after - at

    def _take_one(self, live: Live, pointer: int, token: int, reason: str, logprob: float) -> None:
        """A request's first token, its last, or one with alternatives."""
        tokens, output = self.frame.tokens, self.runtime.output
        assert isinstance(tokens, PackedTokens)
        if reason and reason not in _TRUE_ENDS:
            self.counters.dropped_outputs += 1
            self._end(live, EndReason.FAILED, _error_of(reason, live))
            return
        if live.outputs == 0:
            live.first = self.clock()
            if not live.add.top_logprobs and not live.prefilled:
                live.packed = True
                self.rows.add(live.name, live.request, live.wants_logprob, live.add.stop_ids)
            if live.add.prompt_logprobs:
                self.frame.prompt_logprobs.append(PromptLogprobs(live.request, list(output.get_prompt_logprobs(pointer))))
        live.outputs += 1
        if live.add.top_logprobs:
            top = list(zip(output.get_top_token_ids(pointer), output.get_top_logprobs(pointer)))
            tokens.add_top(live.request, token, logprob, top[: live.add.top_logprobs])
        else:
            tokens.add(live.request, token, logprob if live.wants_logprob else 0.0)
        if reason:
            self._end(live, _TRUE_ENDS[reason])
        elif token in live.stop_ids:
            # LLMEngine knows no stop ids (trap 10); what the same step still has of this request is dropped.
            self._release(live.request)
            if not live.prefilled:
                self._leave_engine(live)
            self._end(live, EndReason.STOP)
        elif live.prefilled:
            self._end(live, EndReason.PREFILLED)

    # ------------------------------------------------------------ the end

    def _end(self, live: Live, reason: EndReason, error: Error | None = None) -> None:
        """Exactly once for each request: it is forgotten here."""
        now = self.clock()
        self._unpack(live)
        started = live.started or now
        first = live.first or now
        self.frame.finished.append(Finished(
            live.add.id, reason, live.prompt_tokens, live.cached, live.outputs, started - live.added, live.restore_ns,
            max(0, first - started), max(0, now - first), error))
        self._forget(live)

    def _unpack(self, live: Live) -> None:
        if live.packed:
            live.packed = False
            live.outputs += self.rows.remove(live.name)

    def _forget(self, live: Live) -> None:
        self._unpack(live)
        self.by_id.pop(live.add.id, None)
        self.asking.pop(live.add.id, None)
        if live.counted:
            self.uncached -= live.prompt_tokens - live.computed
            live.counted = False
        if live.keys:
            self.kept_keys[live.add.id] = live.keys
            if len(self.kept_keys) > _KEPT_KEYS:
                self.kept_keys.popitem(last=False)
        self.by_name.pop(live.name, None)
        if live.seq is None and live in self.queue:
            self.queue.remove(live)


def _error_of(reason: str, live: Live) -> Error:
    if reason == "prompt_length_exceeded":
        return Error("context_length", "the prompt does not fit into this engine", "prompt")
    if reason == "insufficient_system_resource":
        return Error("overloaded", "the engine ran out of KV blocks and stopped this request")
    if reason == "ve_error" or (reason == "abort" and live.plan.images):
        return Error("invalid_argument", "an image could not be decoded", "messages")
    if live.plan.grammar and "xgrammar" in reason:
        if live.outputs == 0:
            return Error("invalid_argument", "xgrammar could not compile the grammar, or not in time")
        return Error("internal", "the grammar's matcher failed in the middle of the answer")
    return Error("internal", f"DeepInfer ended the request: {reason}")
