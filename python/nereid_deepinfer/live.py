"""What the agent knows of a request, of what it holds after one, its options and its counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nereid_deepinfer.sampling import Plan
from nereid_deepinfer.store import Loaded
from nereid_deepinfer.wire import AddRequest, AdmitDecode, ImportPrefix


@dataclass
class Options:
    max_queued: int = 512  # beyond the running ones
    prefix_share: float = 0.3  # of all blocks, at most, pinned for prefixes; 0 = none are kept
    prefix_entries: int = 64
    reserve: float = 0.15  # of all blocks: prefixes give way below it (NORMAL refuses prefill above 90 % use)
    hold_lease_ns: int = 30_000_000_000
    kv_wait_ns: int = 500_000_000  # for the KV node's answer; then the prompt is computed
    save_share: float = 0.2  # of all blocks, at most, pinned while they go to the KV node


@dataclass(slots=True, eq=False)
class Live:
    add: AddRequest
    name: str
    plan: Plan
    added: int
    stop_ids: frozenset[int]
    request: int
    wants_logprob: bool
    packed: bool = False  # in Agent.rows: its tokens need no second look; from the second one on
    keys: list[bytes] = field(default_factory=list)
    imported: ImportPrefix | None = None
    loaded: Loaded | None = None  # from the KV node
    asked: int = 0  # when the KV node was asked; 0 = not
    decode: AdmitDecode | None = None
    seq: Any = None
    owned: bool = False  # we gave it blocks before the scheduler scheduled it (trap 13)
    freed: bool = False  # scheduler.free_seq was called by us; it must not be called again (trap 14)
    started: int = 0
    first: int = 0
    cached: int = 0
    prompt_tokens: int = 0  # with what an image stands for, from when the engine has it
    computed: int = 0  # of them, with KV
    outputs: int = 0  # without those that Agent.rows counts
    restore_ns: int = 0
    prefilled: bool = False  # held, its last frame is being made
    counted: bool = False  # in Agent.uncached


@dataclass(slots=True)
class Held:
    ids: list[int]
    state: Any
    tokens: int
    expires: int


@dataclass(slots=True)
class Counters:
    dropped_outputs: int = 0  # of requests that are gone, and bogus ones
    freed_by_agent: int = 0
    expired_leases: int = 0
    voted: int = 0  # decode_step was set to 0 for a prompt on an idle engine
    evicted_for_room: int = 0
    failed_imports: int = 0
    loaded_tokens: int = 0  # restored from the KV node
    saved_tokens: int = 0
    late_loads: int = 0  # the KV node's answer came too late
    skipped_saves: int = 0
    hit_tokens: int = 0
    miss_tokens: int = 0
