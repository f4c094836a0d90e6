"""What a request asks for, in LLMEngine's terms; or why it is refused. Pure.

LLMEngine ignores what it does not know, so nothing may pass through here that it would drop silently.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from nereid_deepinfer import ebnf
from nereid_deepinfer.image_size import image_size
from nereid_deepinfer.schema import schema_fault
from nereid_deepinfer.wire import AddMode, AddRequest, EngineInfo, Error, GrammarKind, Role

INT32_MAX = 2**31 - 1
# xgrammar takes seconds beyond this (a regex of 200 000 letters: over 15 s), on a thread that DeepInfer's time-out leaves running.
MOST_GRAMMAR_BYTES = 1 << 16
_SCHEMA_TYPES = {GrammarKind.JSON_SCHEMA: "json", GrammarKind.REGEX: "regex", GrammarKind.EBNF: "ebnf"}
_ROLES = {AddMode.UNIFIED: Role.UNIFIED, AddMode.PREFILL_ONLY: Role.PREFILL}


@dataclass(slots=True)
class Plan:
    params: dict[str, Any]  # of DeepInfer's SamplingParams
    images: dict[str, list[Any]] = field(default_factory=dict)  # image_bytes, image_sizes; empty for text
    grammar: bool = False


def _refuse(message: str, param: str = "", code: str = "unsupported") -> Error:
    return Error(code, message, param)


def _sampling_fault(add: AddRequest) -> Error | None:
    s = add.sampling
    for name in ("frequency_penalty", "presence_penalty"):
        if getattr(s, name):
            return _refuse(f"DeepInfer has no {name}", name)
    if s.repetition_penalty is not None and s.repetition_penalty != 1:
        return _refuse("DeepInfer has no repetition_penalty", "repetition_penalty")
    if s.min_p:
        return _refuse("DeepInfer has no min_p", "min_p")
    if s.logit_bias:
        return _refuse("DeepInfer has no logit_bias", "logit_bias")
    if s.temperature is not None and s.temperature < 0:
        return _refuse("temperature is below 0", "temperature", "invalid_argument")
    if s.top_p is not None and not 0 < s.top_p <= 1:
        return _refuse("top_p is not in (0, 1]", "top_p", "invalid_argument")
    return None


def _grammar_fault(add: AddRequest, info: EngineInfo) -> Error | None:
    """Without a parameter: the gateway knows which of the request's the grammar is from."""
    kind = add.grammar_kind
    if kind == GrammarKind.NONE:
        return None
    if not info.grammars & int(kind):
        return _refuse(f"DeepInfer (xgrammar) takes JSON schema, regex and EBNF, not {kind.name.lower()}")
    if len(add.grammar.encode("utf-8", "surrogateescape")) > MOST_GRAMMAR_BYTES:
        return _refuse(f"the grammar is longer than {MOST_GRAMMAR_BYTES} bytes", "", "invalid_argument")
    if kind == GrammarKind.JSON_SCHEMA:
        try:
            schema = json.loads(add.grammar)
        except (ValueError, RecursionError) as bad:
            return _refuse(f"the schema is not JSON: {bad}", "", "invalid_argument")
        fault = schema_fault(schema)
        if fault is not None:
            return _refuse(fault, "", "invalid_argument")
    if kind == GrammarKind.EBNF:
        fault = ebnf.fault_of(add.grammar)
        if fault is not None:
            return _refuse(fault, "", "invalid_argument")
    if any(t < 0 for t in add.grammar_trigger):
        return _refuse("a trigger token is negative", "", "invalid_argument")
    return None


def fault_of(add: AddRequest, info: EngineInfo, *, decode: bool = False) -> Error | None:
    """Why this engine cannot do this; None when it can."""
    if not decode:
        role = _ROLES.get(add.mode)
        if role is None:
            return _refuse(f"DeepInfer does not {add.mode.name.lower()}")
        if not info.roles & role:
            return _refuse(f"this engine is not for requests of mode {add.mode.name.lower()}")
    if not add.prompt:
        return _refuse("the prompt is empty", "prompt", "invalid_argument")
    if min(add.prompt) < 0 or max(add.prompt) >= info.vocab_size:
        return _refuse(f"the prompt holds a token outside the vocabulary of {info.vocab_size}", "prompt", "invalid_argument")
    if len(add.prompt) >= info.context_tokens:
        return _refuse(f"the prompt has {len(add.prompt)} tokens; {info.context_tokens} fit with the answer", "prompt",
                       "context_length")
    if add.max_tokens < 1 and add.mode == AddMode.UNIFIED:
        return _refuse("max_tokens is 0", "max_tokens", "invalid_argument")
    if add.adapter:
        return _refuse("DeepInfer has no adapters", "model")
    if add.images and not info.images:
        return _refuse("this engine takes no images", "messages")
    if add.top_logprobs > info.max_top_logprobs:
        return _refuse(f"at most {info.max_top_logprobs} top_logprobs", "top_logprobs", "invalid_argument")
    if add.prompt_logprobs and "yoco=off" not in info.layout.detail:
        return _refuse("prompt logprobs are not computed under YoCo prefill truncation", "prompt_logprobs")
    if add.sample_position and add.sampling.seed is not None:
        return _refuse("DeepInfer cannot continue a seeded stream in the middle", "seed")
    return _sampling_fault(add) or _grammar_fault(add, info)


def plan(add: AddRequest, info: EngineInfo, *, decode: bool = False) -> Plan | Error:
    fault = fault_of(add, info, decode=decode)
    if fault is not None:
        return fault
    s = add.sampling
    # One token of a decode-only request was sampled by the prefill engine.
    wanted = add.max_tokens - 1 if decode else add.max_tokens
    if add.mode == AddMode.PREFILL_ONLY:
        wanted = max(add.max_tokens, 2)  # it must not end by length at its first token, which prefill samples
    params: dict[str, Any] = {"max_tokens": max(1, min(wanted, INT32_MAX)), "ignore_eos": add.ignore_eos}
    if s.temperature is not None:
        params["temperature"] = s.temperature
    if s.top_p is not None:
        params["top_p"] = s.top_p
    if s.top_k is not None and s.top_k > 0:
        params["top_k"] = s.top_k
    if s.seed is not None:
        params["seq_seed"] = s.seed
    if add.top_logprobs:
        params["top_logprobs"] = add.top_logprobs
    if add.prompt_logprobs:
        params["prompt_logprobs"] = True
    out = Plan(params)
    if add.grammar_kind != GrammarKind.NONE:
        params["so_args"] = {"schema_type": _SCHEMA_TYPES[add.grammar_kind], "schema": add.grammar}
        if add.grammar_trigger:
            params["so_args"]["trigger_token_ids"] = list(add.grammar_trigger)
        out.grammar = True
    if add.images:
        if len(add.image_bytes) != len(add.images):
            return _refuse("each image needs its bytes", "messages", "invalid_argument")
        sizes = [image_size(data) for data in add.image_bytes]
        if None in sizes:
            return _refuse(f"image {sizes.index(None)} is neither PNG, JPEG, GIF nor WebP", "messages", "invalid_argument")
        out.images = {"image_bytes": list(add.image_bytes), "image_sizes": sizes}
    return out
