"""A request in LLMEngine's terms. What is refused: `what_it_cannot_do_is_refused_by_name` in cases.py."""

from __future__ import annotations

from nereid_deepinfer.sampling import Plan, plan
from nereid_deepinfer.wire import AddMode, AddRequest, GrammarKind, Role, SamplingParams
from rig import fake_info


def params(add: AddRequest, decode: bool = False, **info: object) -> dict[str, object]:
    made = plan(add, fake_info("NORMAL", **info), decode=decode)
    assert isinstance(made, Plan), made
    return made.params


def test_what_is_set_is_passed_and_nothing_else() -> None:
    assert params(AddRequest(1, prompt=[5], max_tokens=7)) == {"max_tokens": 7, "ignore_eos": False}
    full = SamplingParams(temperature=0.0, top_p=0.5, top_k=3, seed=2**64 - 1, frequency_penalty=0.0, repetition_penalty=1.0)
    assert params(AddRequest(1, prompt=[5], max_tokens=7, sampling=full, ignore_eos=True, top_logprobs=4)) == {
        "max_tokens": 7, "ignore_eos": True, "temperature": 0.0, "top_p": 0.5, "top_k": 3, "seq_seed": 2**64 - 1, "top_logprobs": 4}
    assert "top_k" not in params(AddRequest(1, prompt=[5], max_tokens=7, sampling=SamplingParams(top_k=-1)))


def test_lengths_on_both_sides_of_a_hand_off() -> None:
    """Prefill must not end by length at the token that it samples; decode has one less to say."""
    prefill = AddRequest(1, prompt=[5], max_tokens=1, mode=AddMode.PREFILL_ONLY)
    assert params(prefill, roles=Role.PREFILL)["max_tokens"] == 2
    assert params(AddRequest(1, prompt=[5], max_tokens=9), decode=True, roles=Role.DECODE)["max_tokens"] == 8
    assert params(AddRequest(1, prompt=[5], max_tokens=2**32 - 1))["max_tokens"] == 2**31 - 1


def test_the_same_seed_on_both_sides() -> None:
    """Sampling is keyed by seed and position (facts/deepinfer.md, section 4.1)."""
    add = AddRequest(1, prompt=[5], max_tokens=9, sampling=SamplingParams(seed=77))
    assert params(add)["seq_seed"] == params(add, decode=True)["seq_seed"] == 77


def test_grammars_in_the_terms_of_so_args() -> None:
    for kind, name in ((GrammarKind.JSON_SCHEMA, "json"), (GrammarKind.REGEX, "regex"), (GrammarKind.EBNF, "ebnf")):
        made = params(AddRequest(1, prompt=[5], max_tokens=7, grammar_kind=kind, grammar="{}"))
        assert made["so_args"] == {"schema_type": name, "schema": "{}"}
    made = params(AddRequest(1, prompt=[5], max_tokens=7, grammar_kind=GrammarKind.REGEX, grammar="a", grammar_trigger=[128822]))
    assert made["so_args"] == {"schema_type": "regex", "schema": "a", "trigger_token_ids": [128822]}
