"""The cases: each runs on the fake (`./dev test`) and on the real LLMEngine (`./dev test --deepinfer`), against the same agent.

A case takes a Rig and leaves the engine empty; `TYPES` says for which engines it is. "trap N" is section 2 of the facts about
DeepInfer, in docs/ops/deepinfer.md.
"""

from __future__ import annotations

import random
from typing import Any

import cases_kv  # noqa: F401  (its cases are among CASES)
from case import CASES, UNTRACED, case, expected
from nereid_deepinfer import keys, wire
from nereid_deepinfer.live import Options
from nereid_deepinfer.background import Background
from nereid_deepinfer.wire import AbortRequest, EndReason, SamplingParams
from rig import BLOCK, EOS, DictStore, Rig

__all__ = ["CASES", "UNTRACED"]

# ---------------------------------------------------------------- answers


@case("NORMAL")
def three_prompts_end_by_length_and_eos(rig: Rig) -> None:
    rig.script.say(2, [100, 101, EOS])
    rig.add(1, 300, 4)
    rig.add(2, 5, 50)
    rig.add(3, 129, 1)
    rig.run()
    assert rig.told[1].tokens == expected(rig, 1, 4) and rig.told[1].reason == EndReason.LENGTH
    assert rig.told[2].tokens == [100, 101, EOS] and rig.told[2].reason == EndReason.STOP
    assert len(rig.told[3].tokens) == 1 and rig.told[3].reason == EndReason.LENGTH
    end = rig.told[1].end
    assert (end.prompt_tokens, end.cached_tokens, end.output_tokens) == (300, 0, 4)
    assert rig.told[1].started == [0]
    assert end.queue_time > 0 and end.decode_time > 0


@case("NORMAL")
def one_output_is_one_token_trap_6(rig: Rig) -> None:
    """A decode step with accepted drafts says several tokens of one request; none is lost or doubled."""
    rig.script.accept = 3
    rig.add(1, 120, 14)
    rig.run()
    assert rig.told[1].tokens == expected(rig, 1, 14)
    assert any(sum(1 for t in f.tokens if t.id == 1) == 4 for f in rig.frames)
    drafts = [d for f in rig.frames for d in f.drafts]
    assert drafts and all(d.drafted == 5 and d.accepted <= 3 for d in drafts)


@case("NORMAL")
def stop_id_cuts_the_step_trap_10(rig: Rig) -> None:
    """LLMEngine knows no stop ids: the agent cuts, aborts, and drops what the same step still had."""
    rig.script.accept = 3
    rig.script.say(1, [50, 51, 777, 52, 53, 54])
    rig.add(1, 20, 500, stop_ids=[777])
    rig.add(2, 20, 12)
    rig.run()
    assert rig.told[1].tokens == [50, 51, 777] and rig.told[1].reason == EndReason.STOP
    assert rig.told[1].end.output_tokens == 3
    assert rig.told[2].tokens == expected(rig, 2, 12)


@case("NORMAL")
def ignore_eos_goes_on(rig: Rig) -> None:
    rig.script.say(1, [100, EOS, 101])
    rig.add(1, 10, 3, ignore_eos=True)
    rig.run()
    assert rig.told[1].tokens == [100, EOS, 101] and rig.told[1].reason == EndReason.LENGTH


@case("NORMAL")
def logprobs_when_asked(rig: Rig) -> None:
    rig.add(1, 10, 2, logprobs=True)
    rig.add(2, 10, 2)
    rig.run()
    assert rig.told[1].logprobs == [-0.5, -0.5] and rig.told[2].logprobs == [0, 0]


@case("NORMAL")
def several_answers_of_one_prompt(rig: Rig) -> None:
    """n > 1 is n requests: the second finds the prefix of the first, once that is computed."""
    prompt = rig.prompt(700)
    rig.add(1, prompt, 3)
    while not rig.told.get(1) or not rig.told[1].tokens:
        rig.step()
    rig.add(2, prompt, 3)
    rig.add(3, prompt, 3)
    rig.run()
    hit = (700 - 140) // BLOCK * BLOCK
    assert [rig.told[i].end.cached_tokens for i in (1, 2, 3)] == [0, hit, hit]
    assert [len(rig.told[i].tokens) for i in (1, 2, 3)] == [3, 3, 3]


# ---------------------------------------------------------------- refusals


@case("NORMAL")
def what_it_cannot_do_is_refused_by_name(rig: Rig) -> None:
    def bias(**values: Any) -> dict[str, Any]:
        return {"sampling": SamplingParams(**values)}

    asks: list[tuple[dict[str, Any], str, str]] = [
        (bias(frequency_penalty=0.5), "unsupported", "frequency_penalty"),
        (bias(presence_penalty=-1.0), "unsupported", "presence_penalty"),
        (bias(repetition_penalty=1.2), "unsupported", "repetition_penalty"),
        (bias(min_p=0.1), "unsupported", "min_p"),
        (bias(logit_bias=[(5, 1.0)]), "unsupported", "logit_bias"),
        (bias(top_p=0.0), "invalid_argument", "top_p"),
        ({"grammar_kind": wire.GrammarKind.LARK, "grammar": "start: /a/"}, "unsupported", ""),
        ({"grammar_kind": wire.GrammarKind.GBNF, "grammar": "root ::= 'a'"}, "unsupported", ""),
        ({"grammar_kind": wire.GrammarKind.JSON_SCHEMA, "grammar": '{"not": {}}'}, "invalid_argument", ""),
        ({"grammar_kind": wire.GrammarKind.JSON_SCHEMA, "grammar": "{"}, "invalid_argument", ""),
        ({"grammar_kind": wire.GrammarKind.REGEX, "grammar": "a" * 70_000}, "invalid_argument", ""),
        ({"grammar_kind": wire.GrammarKind.JSON_SCHEMA, "grammar": "[" * 60_000}, "invalid_argument", ""),
        ({"prompt": []}, "invalid_argument", "prompt"),
        ({"prompt": [1 << 20]}, "invalid_argument", "prompt"),
        ({"prompt": [-1]}, "invalid_argument", "prompt"),
        ({"prompt": rig.prompt(2048)}, "context_length", "prompt"),
        ({"max_tokens": 0}, "invalid_argument", "max_tokens"),
        ({"mode": wire.AddMode.EMBED}, "unsupported", ""),
        ({"mode": wire.AddMode.SCORE}, "unsupported", ""),
        ({"mode": wire.AddMode.PREFILL_ONLY}, "unsupported", ""),
        ({"adapter": "lora"}, "unsupported", "model"),
        ({"top_logprobs": 21}, "invalid_argument", "top_logprobs"),
        ({"images": [wire.ImageRef(0, bytes(32))]}, "unsupported", "messages"),
        ({"prompt_logprobs": True}, "unsupported", "prompt_logprobs"),
    ]
    for at, (how, code, param) in enumerate(asks):
        rig.add(100 + at, **how)
        rig.step()
        end = rig.told[100 + at].end
        assert end.reason == EndReason.FAILED and end.error is not None, how
        assert (end.error.code, end.error.param) == (code, param), (how, end.error)
    rig.add(1, sampling=SamplingParams(frequency_penalty=0.0, repetition_penalty=1.0, top_k=0, seed=7))
    rig.run()
    assert rig.told[1].reason == EndReason.LENGTH


@case("NORMAL")
def id_added_twice_ends_once(rig: Rig) -> None:
    rig.add(1, 10, 50)
    rig.step(3)
    rig.add(1, 10, 50)
    rig.run()
    error = rig.told[1].end.error
    assert error is not None and error.code == "conflict"


@case("NORMAL")
def draining_refuses(rig: Rig) -> None:
    rig.add(1, 10, 5)
    rig.agent.submit(wire.Drain())
    rig.add(2, 10, 5)
    rig.run()
    assert rig.told[1].reason == EndReason.LENGTH
    error = rig.told[2].end.error
    assert error is not None and error.code == "overloaded"
    rig.agent.draining = False


# ---------------------------------------------------------------- aborts


@case("NORMAL", "PROMPT")
def abort_of_waiting_drops_the_bogus_token_trap_7(rig: Rig) -> None:
    rig.add(1, 20, 5)
    rig.agent._admit()  # it is in the engine's queue
    rig.agent.submit(AbortRequest(1))
    rig.run()
    assert rig.told[1].tokens == [] and rig.told[1].reason == EndReason.ABORTED
    assert rig.agent.counters.dropped_outputs == 1


@case("NORMAL")
def abort_of_running_gets_its_end_trap_8(rig: Rig) -> None:
    rig.add(1, 100, 500)
    rig.step(4)
    said = len(rig.told[1].tokens)
    assert said > 0
    rig.agent.submit(AbortRequest(1))
    rig.run()
    assert rig.told[1].reason == EndReason.ABORTED and rig.told[1].end.output_tokens == said == len(rig.told[1].tokens)


@case("NORMAL", "PROMPT")
def abort_of_half_prefilled_frees_once_traps_13_14(rig: Rig) -> None:
    rig.add(1, 1500, 5)
    rig.step()  # up to the checkpoint
    live = rig.agent.by_id[1]
    assert live.seq.chunked_rest_len > 0
    rig.agent.submit(AbortRequest(1))
    rig.run()
    assert rig.told[1].reason == EndReason.ABORTED
    assert rig.agent.counters.freed_by_agent == 1 and live.freed


@case("NORMAL")
def abort_of_a_hit_that_waits_frees_once_trap_13(rig: Rig) -> None:
    prompt = rig.prompt(500)
    rig.add(1, prompt, 2)
    rig.run()
    rig.add(2, prompt, 2)
    rig.agent._admit()  # it owns blocks and waits
    assert rig.agent.by_id[2].owned
    rig.agent.submit(AbortRequest(2))
    rig.run()
    assert rig.told[2].reason == EndReason.ABORTED and rig.agent.counters.freed_by_agent == 1


@case("NORMAL")
def abort_twice_and_of_nobody(rig: Rig) -> None:
    rig.add(1, 10, 50)
    rig.step(3)
    for request in (1, 1, 99):
        rig.agent.submit(AbortRequest(request))
    rig.run()
    assert rig.told[1].reason == EndReason.ABORTED and 99 not in rig.told


@case("NORMAL", "PROMPT")
def abort_storm_leaves_nothing(rig: Rig) -> None:
    """Requests of all lengths, aborted at random points: each ends once, every block and slot comes back."""
    _storm(rig, 300)


@case("NORMAL")
def abort_storm_of_10000_leaves_nothing(rig: Rig) -> None:
    _storm(rig, 10_000)


def _storm(rig: Rig, total: int) -> None:
    rng = random.Random(11)
    alive: list[int] = []
    made = 0
    while made < total or rig.agent.has_work():
        for _ in range(rng.randrange(5)):
            if made < total and len(rig.agent.by_id) < 40:
                rig.add(made, rng.choice([3, 40, 127, 128, 129, 300, 700, 1500]), rng.randrange(1, 20),
                        stop_ids=[rng.randrange(100, 900)])
                alive.append(made)
                made += 1
        rig.script.accept = rng.randrange(6)
        while alive and rng.random() < (0.7 if rig.runtime.engine_type == "PROMPT" else 0.3):  # mostly of young ones: the others have ended
            rig.agent.submit(AbortRequest(alive.pop(rng.randrange(max(0, len(alive) - 40), len(alive)))))
        rig.step()
        for request in list(rig.agent.held):
            rig.agent.submit(wire.Release(request))
        rig.frames.clear()
    rig.run()
    assert len(rig.told) == total and all(len(t.ends) == 1 for t in rig.told.values())
    reasons = [t.reason for t in rig.told.values()]
    done = EndReason.PREFILLED if rig.runtime.engine_type == "PROMPT" else EndReason.LENGTH
    assert min(reasons.count(done), reasons.count(EndReason.ABORTED)) > total / 50


@case("NORMAL")
def client_gone_takes_everything(rig: Rig) -> None:
    for i in range(20):
        rig.add(i, 100 + 60 * i, 50)
    rig.step(5)
    rig.agent.drop_client()
    rig.run()


# ---------------------------------------------------------------- grammars


# How long a grammar compiles is the machine's: these are not traced.


@case("NORMAL", traced=False)
def abort_while_a_grammar_compiles_trap_9(rig: Rig) -> None:
    rig.add(1, 20, 5, grammar_kind=wire.GrammarKind.REGEX, grammar="a+")
    rig.agent._admit()  # it compiles, and is in none of the scheduler's queues
    assert rig.agent.by_id[1].seq is not None
    assert rig.engine.scheduler.get_sum_prompt_len_waiting()[0] == 0 and rig.engine.get_num_unfinished_requests() == 1
    rig.agent.submit(AbortRequest(1))
    rig.run()
    assert rig.told[1].tokens == [] and rig.told[1].reason == EndReason.ABORTED


@case("NORMAL", traced=False)
def grammar_that_does_not_compile(rig: Rig) -> None:
    rig.add(1, 20, 5, grammar_kind=wire.GrammarKind.REGEX, grammar="(")
    rig.run()
    error = rig.told[1].end.error
    assert rig.told[1].tokens == [] and error is not None and error.code == "invalid_argument"
    assert error.param == ""


@case("NORMAL", traced=False)
def grammar_holds_the_answer(rig: Rig) -> None:
    rig.script.say(1, [50, 60, 70, EOS])
    rig.script.say(2, [50, 51, 52, EOS])
    rig.add(1, 20, 9, grammar_kind=wire.GrammarKind.REGEX, grammar="a+")
    rig.add(2, 20, 9)
    rig.run()
    assert rig.told[1].tokens == [97, 97, 97, EOS] and rig.told[1].reason == EndReason.STOP
    assert rig.told[2].tokens == [50, 51, 52, EOS]


@case("NORMAL", traced=False)
def grammar_begins_after_its_trigger(rig: Rig) -> None:
    """What a gateway asks for after reasoning: free until </think>, held from there on."""
    rig.script.say(1, [50, 7, 7, 8, 60, 70, EOS])
    rig.add(1, 20, 9, grammar_kind=wire.GrammarKind.REGEX, grammar="a+", grammar_trigger=[7, 8])
    rig.run()
    assert rig.told[1].tokens == [50, 7, 7, 8, 97, 97, EOS]


@case("NORMAL", traced=False)
def grammars_of_all_kinds_in_one_batch(rig: Rig) -> None:
    kinds = [(wire.GrammarKind.REGEX, "a+"), (wire.GrammarKind.EBNF, 'root ::= "a" root | "a"'),
             (wire.GrammarKind.JSON_SCHEMA, '{"const": 7}')]
    for at, (kind, grammar) in enumerate(kinds):
        rig.script.say(at, [60, EOS, EOS])
        rig.add(at, 200, 6, grammar_kind=kind, grammar=grammar)
    rig.add(9, 200, 6)
    rig.run()
    assert rig.told[0].tokens == [97, EOS] and rig.told[1].tokens == [97, EOS] and rig.told[2].tokens == [55, EOS]
    assert rig.told[9].tokens == expected(rig, 9, 6)


# ---------------------------------------------------------------- traps of the interface itself


@case("NORMAL")
def block_table_is_read_beside_the_bindings_trap_1(rig: Rig) -> None:
    rig.add(1, 300, 9)
    rig.step()
    seq = rig.agent.by_id[1].seq
    assert not hasattr(seq, "block_table")
    table = rig.runtime.peek.block_table(seq)
    assert len(table) in (3, 4) and len(set(table)) == len(table) and 0 not in table


@case("NORMAL")
def engine_itself_finds_no_prefix_trap_2(rig: Rig) -> None:
    rig.renew(Options(prefix_share=0.0))
    prompt = rig.prompt(600, first=77)
    for request in (1, 2):
        rig.trace.clear()
        rig.add(request, prompt, 2)
        rig.run()
        assert sum(q for prompt_run, rows in rig.trace if prompt_run for _, q in rows) == 600
        assert rig.told[request].end.cached_tokens == 0


@case("NORMAL", "PROMPT")
def calls_come_between_steps_trap_3(rig: Rig) -> None:
    """step() releases the GIL with the queues in its hands: nothing of the engine is called inside it, nor from another
    thread; not even while a thread copies KV."""
    import threading

    engine, here, inside = rig.engine, threading.get_ident(), []
    rig.renew(copies=Background(lambda: None))

    def watch(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            assert threading.get_ident() == here and not inside, name
            return original(*args, **kwargs)

        setattr(owner, name, watched)

    def step() -> Any:
        inside.append(1)
        try:
            return step_of_engine()
        finally:
            inside.pop()

    step_of_engine = engine.step
    for name in ("add_request", "abort_request", "has_unfinished_requests", "flush_inflight_reqs"):
        watch(engine, name)
    engine.step = step
    try:
        with rig.region(4 << 20) as region:
            for i in range(12):
                rig.add(i, 200 + 60 * i, 6)
                rig.step()
                rig.agent.submit(wire.ExportBlocks(i, 0, 1, 0, len(region)))
                rig.agent.submit(AbortRequest(i - 3))
                for request in list(rig.agent.held):
                    rig.agent.submit(wire.Release(request))
            rig.run()
            rig.settle()
    finally:
        rig.agent.copies.close()
        for name in ("add_request", "abort_request", "has_unfinished_requests", "flush_inflight_reqs", "step"):
            delattr(engine, name)


@case("NORMAL")
def pointers_are_read_before_the_next_step_trap_5(rig: Rig) -> None:
    """They die with it (the fake raises then): all that a frame says was copied in its step."""
    rig.add(1, 20, 6, top_logprobs=3, logprobs=True)
    rig.run()
    tokens = expected(rig, 1, 6)
    assert rig.told[1].tokens == tokens
    assert rig.told[1].top == [[(t, -0.5), (t + 1, -1.5), (t + 2, -2.5)] for t in tokens]


@case("NORMAL")
def prefix_is_not_stored_without_truncation_trap_11(rig: Rig) -> None:
    """With YoCo off a restored prefix would lack the decoder layers' windows: neither taken in nor given out."""
    store = DictStore()
    rig.renew(store=store)
    rig.runtime.exact_states = True
    try:
        prompt = rig.prompt(600, first=3)
        size = 3 * rig.runtime.arenas.block_bytes + rig.runtime.arenas.persisted_bytes
        with rig.region(size):
            rig.add(1, prompt, 2)
            rig.agent.submit(wire.ImportPrefix(1, 0, keys.block_chain(bytes(32), prompt, BLOCK)[:3], 0, size))
            rig.run()
        assert [f.error.code for f in rig.kv_failed] == ["unsupported"] and rig.told[1].end.cached_tokens == 0
        assert not store.kept
    finally:
        rig.runtime.exact_states = False


class StubProcessor:
    """Of the multimodal worker: what LLMEngine calls. An image's bytes arrive with the next fetch."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.pending, self.added = scheduler, [], []

    def overwrite_prompt(self, prompt: Any, data: dict[str, Any]) -> Any:
        """An image takes five tokens, four of them beyond its place."""
        more = [129281] * (4 * len(data["image_sizes"]))
        if isinstance(prompt, list) or not more:
            return prompt + more if more else prompt
        return __import__("numpy").concatenate([prompt, more]).astype(prompt.dtype)

    def add(self, request: str, data: dict[str, Any], cached: int = 0) -> None:
        assert data is not None, "a request without a dict of its own, beside those with one"
        self.added.append((request, data, cached))
        self.pending.append(request)

    def fetch(self) -> None:
        for request in self.pending:
            self.scheduler.set_schedulable(request)
        self.pending = []

    def fetch_to_abort_requests(self) -> list[str]:
        return []

    def abort(self, requests: list[str]) -> None: ...


PNG = b"\x89PNG\r\n\x1a\n" + bytes(8) + (640).to_bytes(4, "big") + (480).to_bytes(4, "big") + bytes(16)


@case("NORMAL", "PROMPT", traced=False)
def text_and_images_never_mix_without_a_dict_trap_12(rig: Rig) -> None:
    """A batch with None beside images fails inside the model: each request gets a dict of its own, text an empty one. A hit
    tells the processor how much of the prompt is there."""
    rig.engine.multi_modal_processor = processor = StubProcessor(rig.engine.scheduler)
    rig.runtime.info.images = True
    try:
        image = {"images": [wire.ImageRef(2, bytes(32))], "image_bytes": [PNG]}
        rig.add(1, rig.prompt(600), 2)
        rig.add(2, rig.prompt(600), 2, **image)
        rig.run()
        for request in list(rig.agent.held):
            rig.agent.submit(wire.Release(request))
        rig.add(3, rig.prompt(600), 2)
        rig.run()
        data = {name.rsplit(":", 1)[1]: (d, cached) for name, d, cached in processor.added}
        assert data["1"] == ({"image_bytes": [], "image_sizes": []}, 0)
        assert data["2"] == ({"image_bytes": [PNG], "image_sizes": [(640, 480)]}, 0)
        assert data["3"][1] == 384 == rig.told[3].end.cached_tokens
        assert len({id(d) for _, d, _ in processor.added}) == 3
        rig.add(4, 30, 2, images=image["images"], image_bytes=[b"BM no image"])
        rig.runtime.image_token = 7
        rig.add(5, [5, 6, 8], 2, **image)  # no place for it: the engine would leave it out
        rig.add(6, [5, 7, 7], 2, **image)
        rig.add(7, [5, 7, 8], 2, **image)
        rig.run()
        for request in (4, 5, 6):
            error = rig.told[request].end.error
            assert error is not None and error.code == "invalid_argument" and error.param == "messages", request
        assert rig.told[7].reason in (EndReason.LENGTH, EndReason.PREFILLED)
        assert rig.told[7].end.prompt_tokens == 3 + 4 and rig.agent.uncached == 0
        processor.overwrite_prompt = None  # type: ignore[method-assign]  (whatever LLMEngine raises is of that request)
        rig.add(8, [5, 7, 8], 2, **image)
        rig.add(9, [5, 6, 8], 2)
        rig.run()
        ends = [rig.told[request].end for request in (8, 9)]
        assert all(e.reason == EndReason.FAILED for e in ends)
    finally:
        rig.engine.multi_modal_processor, rig.runtime.info.images, rig.runtime.image_token = None, False, -1


# ---------------------------------------------------------------- room


@case("NORMAL")
def idle_engine_prefills_at_once_trap_15(rig: Rig) -> None:
    rig.add(1, 10, 3)
    rig.run()
    rig.engine.scheduler.decode_step = 1
    rig.add(2, 10, 1)
    steps = 0
    while not rig.told.get(2) or not rig.told[2].tokens:
        rig.step()
        steps += 1
    assert steps == 1 and rig.agent.counters.voted > 0


@case("NORMAL")
def hit_leaves_a_token_and_the_kept_ones_trap_16(rig: Rig) -> None:
    """A hit as long as the prompt raises inside schedule(), at every call; one beyond floor128(L - keep) reads windows that
    nobody filled. Neither can happen."""
    for length in (128, 256, 257, 267, 268, 269, 384, 395, 396, 397):
        prompt = rig.prompt(length, first=9)
        for request in (length * 10, length * 10 + 1):
            rig.add(request, prompt, 2)
            rig.run()
            most = max(0, length - rig.runtime.keep_tokens) // BLOCK * BLOCK
            assert rig.told[request].end.cached_tokens <= most < length
    assert rig.told[3970 + 1].end.cached_tokens == 256


@case("NORMAL")
def out_of_blocks_is_an_error_not_a_token(rig: Rig) -> None:
    """DeepInfer stops the longest outputs when decode runs out of blocks; kept prefixes go first."""
    for i in range(12):
        rig.add(i, 100 + 50 * i, 1500)
    rig.run()
    reasons = [rig.told[i].reason for i in range(12)]
    assert EndReason.FAILED in reasons and EndReason.LENGTH in reasons
    for i in range(12):
        end = rig.told[i].end
        assert end.output_tokens == len(rig.told[i].tokens)
        if end.reason == EndReason.FAILED:
            assert end.error is not None and end.error.code == "overloaded"
    assert rig.frames[-1].load.preempted > 0
    assert rig.agent.counters.evicted_for_room > 0 and len(rig.agent.prefixes) == 0


@case("NORMAL")
def load_counts_what_is_to_compute(rig: Rig) -> None:
    prompt = rig.prompt(500)
    rig.add(1, prompt, 2)
    rig.run()
    rig.add(2, prompt, 300)
    rig.add(3, rig.prompt(1000, first=9), 300)
    assert rig.agent.report.read(rig.agent, 0).waiting_uncached_tokens == 1500
    rig.agent._admit()
    load = rig.agent.report.read(rig.agent, 0)
    hit = (500 - 140) // BLOCK * BLOCK
    assert (load.waiting_uncached_tokens, load.waiting, load.running) == (1500 - hit, 2, 0)
    while len(rig.told.get(3, rig.told[1]).tokens) == 0 or 3 not in rig.told:
        rig.step()
    load = rig.frames[-1].load
    assert load.waiting_uncached_tokens == 0 and load.running == 2 and load.waiting == 0
    assert 0 < load.kv_used_tokens < load.kv_total_tokens and load.prefix_hit_tokens == hit
    for request in (2, 3):
        rig.agent.submit(AbortRequest(request))
