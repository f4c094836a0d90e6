"""The methods of LLMEngine that the agent overrides, and the check that this DeepInfer still has them as we know them.

`served(LLMEngine)` is the class that is started. Until `agent` is set (the engine calls hooks while it starts) the
overrides do what LLMEngine does.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nereid_deepinfer.agent import Agent

SUPPORTED_VERSIONS = ("0.1.0",)

# name -> parameters after self, as 0.1.0 has them. A hook that is gone or called otherwise is a refusal by name.
CALLED_BY_ENGINE = {
    "init_pd_split": (),
    "finalize_seq": ("seq",),
    "post_schedule": ("scheduler_outputs",),
    "pe_do_save_kvcache": ("scheduled", "finished"),
    "send_processed_prompts": (),
}
CALLED_BY_AGENT = {
    "add_request": ("user_id", "request_id", "sampling_params", "prompt_token_ids", "multi_modal_data", "arrival_time",
                    "extra", "enqueue", "chunk_checkpoints"),
    "abort_request": ("request_id",),
    "has_unfinished_requests": (),
    "get_num_unfinished_requests": (),
    "step": (),
    "flush_inflight_reqs": (),
    "close": (),
}


class Unsupported(Exception):
    """This DeepInfer is not one that the agent was written for; says what differs."""


def check(engine_class: type, version: str) -> None:
    """Unsupported names the version, or each method whose signature is another one."""
    if version not in SUPPORTED_VERSIONS:
        raise Unsupported(f"DeepInfer {version} is not known here; this agent was written for {', '.join(SUPPORTED_VERSIONS)}")
    wrong = []
    for name, expected in {**CALLED_BY_ENGINE, **CALLED_BY_AGENT}.items():
        method = getattr(engine_class, name, None)
        if method is None:
            wrong.append(f"{name} is gone")
            continue
        found = tuple(inspect.signature(method).parameters)[1:]
        if found != expected:
            wrong.append(f"{name}({', '.join(found)}) was {name}({', '.join(expected)})")
    if wrong:
        raise Unsupported(f"DeepInfer {version} differs from what the agent knows: " + "; ".join(wrong))


class Hooks:
    """Mixed in before LLMEngine (or the fake of the tests)."""

    agent: Agent | None = None

    def post_schedule(self, scheduler_outputs: Any) -> None:
        if self.agent is not None and scheduler_outputs.prompt_run:
            self.agent.prompts_scheduled(scheduler_outputs.scheduled_seqs)

    def pe_do_save_kvcache(self, scheduled: list[Any], finished: list[Any]) -> None:
        if self.agent is not None:
            self.agent.prompts_computed(scheduled)

    def finalize_seq(self, seq: Any) -> None:
        if self.agent is None or self.agent.may_free(seq):
            super().finalize_seq(seq)  # type: ignore[misc]

    def send_processed_prompts(self) -> None:
        if self.agent is not None:
            self.agent.take_prefilled()


def served(engine_class: type) -> type:
    return type("ServedEngine", (Hooks, engine_class), {})
