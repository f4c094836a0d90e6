"""What the agent needs from the world around LLMEngine, so that the same agent drives the real one and the tests' fake."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Protocol

from nereid_deepinfer.wire import EngineInfo


class Arenas(Protocol):
    """Bytes of KV blocks and of state slots. Ids are the engine's. All calls on the engine thread, between steps."""

    block_bytes: int
    slot_bytes: int  # what prefill hands to decode
    persisted_bytes: int  # what is kept with a prefix; <= slot_bytes
    ring_slack: int  # tokens that may follow a boundary before its window leaves the ring

    def read_blocks(self, ids: list[int], out: memoryview) -> None: ...
    def write_blocks(self, ids: list[int], data: memoryview) -> None: ...
    def copy_state(self, state_id: int, position: int, whole: bool) -> Any:
        """A copy that stays on the device: the whole slot, or what is kept with a prefix that ends at `position`."""

    def load_state(self, state_id: int, position: int, state: Any, whole: bool) -> None: ...
    def state_bytes(self, state: Any, out: memoryview) -> None: ...
    def mark(self) -> Any:
        """Now, on the device's queue of work: what was launched before it is done before a copy under `beside` reads."""

    def beside(self, mark: Any) -> contextlib.AbstractContextManager[Any]:
        """On another thread: its reads go on beside the engine's work."""

    def state_from(self, data: memoryview) -> Any: ...


class Rows(Protocol):
    """Requests whose tokens go to the wire without a second look."""

    def add(self, name: str, request: int, logprob: bool, stop_ids: list[int]) -> None: ...
    def remove(self, name: str) -> int: ...
    def pack(self, ptrs: Any, at: int, tokens: bytearray, drafts: bytearray) -> int: ...


class Peek(Protocol):
    """csrc/nereid_peek.cc."""

    def block_table(self, seq: Any) -> list[int]: ...
    def prompted(self, scheduler: Any) -> int: ...
    def add_prompted(self, scheduler: Any, seq: Any) -> None: ...
    def adopt(self, scheduler: Any, seq: Any, ids: list[int]) -> bool: ...
    def output(self, ptr: int) -> tuple[str, int, str, float, int, int]: ...
    def Rows(self) -> Rows: ...  # noqa: N802  (a class)


@dataclass
class Runtime:
    engine: Any  # a served(LLMEngine)
    output: Any  # RequestOutput, for get_*(ptr)
    status: Any  # SequenceStatus
    peek: Peek
    arenas: Arenas
    tokens: Any  # list[int] -> what add_request takes as prompt_token_ids
    info: EngineInfo
    engine_type: str  # NORMAL, PROMPT, COMPLETION
    data_parallel: int = 1
    nextn: int = 0
    keep_tokens: int = 1  # a hit leaves at least this many tokens
    exact_states: bool = False  # YoCo truncation is off: a state holds every layer, so a hit changes nothing
    chunked_prefill: bool = True
    image_token: int = -1  # what stands for an image in a prompt; -1 = the engine takes none
