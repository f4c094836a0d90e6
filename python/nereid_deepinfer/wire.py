"""engine-wire v1 in Python: the codec of docs/formats/engine-wire.md, and the values that travel in it.

The names and the order of members are those of src/model/engine_wire_fields.h; tests/deepinfer/wire_vectors.txt holds
bytes that the C++ side made, one message of each kind, and both sides are tested against it.

A decoder never trusts a count: it is refused when the rest of the payload could not hold that many, before anything is
allocated. Times are nanoseconds. Pure: no I/O.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from nereid_deepinfer.crc32c import crc32c

MAGIC = 0x3157454E
VERSION = 1
HEADER_BYTES = 16
MAX_PAYLOAD = 64 << 20
_HEADER = struct.Struct("<IHHII")
_HEAD = struct.Struct("<IHHI")


class WireError(Exception):
    """Bytes that are no message; says what is wrong. A stream cannot be resumed after it."""


class PayloadTooLarge(Exception):
    pass


# ---------------------------------------------------------------- values


class AddMode(IntEnum):
    UNIFIED = 0
    PREFILL_ONLY = 1
    EMBED = 2
    SCORE = 3


class GrammarKind(IntEnum):
    NONE = 0
    GBNF = 1
    JSON_SCHEMA = 2
    REGEX = 4
    LARK = 8
    EBNF = 16


class Replay(IntEnum):
    EXACT = 0
    BOUNDED = 1


class EndReason(IntEnum):
    STOP = 0
    LENGTH = 1
    ABORTED = 2
    FAILED = 3
    PREFILLED = 4


class Role:
    UNIFIED = 1
    PREFILL = 2
    DECODE = 4
    ENCODE = 8


@dataclass(slots=True)
class Error:
    code: str  # a name of base/result.h: invalid_argument, unsupported, overloaded, ...
    message: str = ""
    param: str = ""


@dataclass(slots=True)
class Hello:
    version_min: int = VERSION
    version_max: int = VERSION
    client: str = ""


@dataclass(slots=True)
class KvSlice:
    layer: int
    offset: int
    length: int
    role: str


@dataclass(slots=True)
class KvLayout:
    family: str = ""
    block_tokens: int = 0
    block_bytes: int = 0
    state_bytes: int = 0
    replay_tokens: int = 0
    detail: str = ""
    slices: list[KvSlice] = field(default_factory=list)


@dataclass(slots=True)
class EngineInfo:
    engine: str = ""
    engine_version: str = ""
    model_id: str = ""
    model_digest: bytes = bytes(32)
    vocab_size: int = 0
    context_tokens: int = 0
    eos_ids: list[int] = field(default_factory=list)
    layout: KvLayout = field(default_factory=KvLayout)
    roles: int = Role.UNIFIED
    grammars: int = 0
    logprobs: bool = False
    max_top_logprobs: int = 0
    penalties: bool = False
    logit_bias: bool = False
    seeds: bool = False
    embeddings: bool = False
    embedding_width: int = 0
    images: bool = False
    adapters: bool = False
    speculation: bool = False
    deterministic: bool = False
    replay: Replay = Replay.BOUNDED
    max_running: int = 0
    max_queued: int = 0
    kv_capacity_tokens: int = 0
    data_parallel_rank: int = 0
    data_parallel_size: int = 1


@dataclass(slots=True)
class Welcome:
    version: int = VERSION
    info: EngineInfo = field(default_factory=EngineInfo)


@dataclass(slots=True)
class Refuse:
    error: Error


@dataclass(slots=True)
class Ping:
    nonce: int = 0


@dataclass(slots=True)
class Pong:
    nonce: int = 0


@dataclass(slots=True)
class SamplingParams:
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: list[tuple[int, float]] = field(default_factory=list)


@dataclass(slots=True)
class ImageRef:
    position: int
    digest: bytes


@dataclass(slots=True)
class AddRequest:
    id: int
    mode: AddMode = AddMode.UNIFIED
    prompt: list[int] = field(default_factory=list)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 0
    stop_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    grammar_kind: GrammarKind = GrammarKind.NONE
    grammar: str = ""
    grammar_trigger: list[int] = field(default_factory=list)
    kv_namespace: bytes = bytes(32)
    images: list[ImageRef] = field(default_factory=list)
    image_bytes: list[bytes] = field(default_factory=list)
    adapter: str = ""
    priority: int = 0
    generated: int = 0
    sample_position: int = 0


@dataclass(slots=True)
class AbortRequest:
    id: int


@dataclass(slots=True)
class ImportPrefix:
    id: int
    first_block: int = 0
    keys: list[bytes] = field(default_factory=list)
    offset: int = 0
    length: int = 0


@dataclass(slots=True)
class ExportBlocks:
    id: int
    first_block: int = 0
    count: int = 0
    offset: int = 0
    capacity: int = 0


@dataclass(slots=True)
class AdmitDecode:
    request: AddRequest
    first_token: int = 0
    offset: int = 0
    length: int = 0


@dataclass(slots=True)
class Pin:
    id: int
    lease: int = 0


@dataclass(slots=True)
class Release:
    id: int


@dataclass(slots=True)
class Drain:
    pass


@dataclass(slots=True)
class MapRegion:
    path: str = ""
    size: int = 0


@dataclass(slots=True)
class Started:
    id: int
    cached_tokens: int = 0


@dataclass(slots=True)
class TokenOut:
    id: int
    token: int
    logprob: float = 0.0
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass(slots=True)
class Embedding:
    id: int
    values: list[float] = field(default_factory=list)


@dataclass(slots=True)
class PromptLogprobs:
    id: int
    logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True)
class KvReady:
    id: int
    first_block: int = 0
    count: int = 0
    offset: int = 0
    length: int = 0


@dataclass(slots=True)
class KvFailed:
    id: int
    error: Error


@dataclass(slots=True)
class DraftCount:
    id: int
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Finished:
    id: int
    reason: EndReason = EndReason.STOP
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_time: int = 0
    restore_time: int = 0
    prefill_time: int = 0
    decode_time: int = 0
    error: Error | None = None


@dataclass(slots=True)
class Load:
    running: int = 0
    waiting: int = 0
    waiting_uncached_tokens: int = 0
    kv_used_tokens: int = 0
    kv_total_tokens: int = 0
    prefix_store_bytes: int = 0
    prefix_hit_tokens: int = 0
    prefix_miss_tokens: int = 0
    preempted: int = 0
    last_step: int = 0
    predicted_step: int = 0


@dataclass(slots=True)
class StepFrame:
    step: int = 0
    started: list[Started] = field(default_factory=list)
    tokens: list[TokenOut] | PackedTokens = field(default_factory=list)
    embeddings: list[Embedding] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    kv_ready: list[KvReady] = field(default_factory=list)
    kv_failed: list[KvFailed] = field(default_factory=list)
    drafts: list[DraftCount] | PackedDrafts = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    load: Load = field(default_factory=Load)

    def empty(self) -> bool:
        return not (self.started or self.tokens or self.embeddings or self.prompt_logprobs or self.kv_ready
                    or self.kv_failed or self.drafts or self.finished)


Command = AddRequest | AbortRequest | ImportPrefix | ExportBlocks | AdmitDecode | Pin | Release | Drain | MapRegion
Message = Hello | Welcome | Refuse | Ping | Pong | Command | StepFrame


# ---------------------------------------------------------------- how a value is written and read


class _Reader:
    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.end = data, 0, len(data)

    def take(self, count: int) -> int:
        """Moves over `count` bytes and returns where they start."""
        at = self.at
        if count > self.end - at:
            raise WireError(f"the payload ends {count - (self.end - at)} bytes early")
        self.at = at + count
        return at

    def count(self, smallest: int) -> int:
        at = self.take(4)
        number: int = _U32.unpack_from(self.data, at)[0]
        if number * smallest > self.end - self.at:
            raise WireError(f"a list of {number} does not fit into the payload")
        return number


@dataclass(frozen=True)
class _Codec:
    write: Callable[[bytearray, Any], None]
    read: Callable[[_Reader], Any]
    smallest: int  # bytes of the smallest value


_U32 = struct.Struct("<I")


def _scalar(layout: str, check: Callable[[Any], Any] | None = None) -> _Codec:
    packer = struct.Struct("<" + layout)

    def read(reader: _Reader) -> Any:
        value = packer.unpack_from(reader.data, reader.take(packer.size))[0]
        return value if check is None else check(value)

    return _Codec(lambda out, value: out.extend(packer.pack(value)), read, packer.size)


def _bool_of(value: int) -> bool:
    if value > 1:
        raise WireError(f"a bool is {value}")
    return value == 1


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise WireError("an f64 is not finite")
    return value


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise WireError("an f32 is not a number")
    return value


u8, u16, u32, u64, i32, i64 = (_scalar(c) for c in "BHIQiq")
f32, f64 = _scalar("f", _not_nan), _scalar("d", _finite)
boolean = _scalar("B", _bool_of)


def enum_of(kind: type[IntEnum]) -> _Codec:
    values = {int(v): v for v in kind}

    def check(value: int) -> IntEnum:
        found = values.get(value)
        if found is None:
            raise WireError(f"{value} is no {kind.__name__}")
        return found

    return _scalar("B", check)


def fixed(size: int) -> _Codec:
    def write(out: bytearray, value: bytes) -> None:
        if len(value) != size:
            raise ValueError(f"{len(value)} bytes where {size} belong")
        out.extend(value)

    def read(reader: _Reader) -> bytes:
        at = reader.take(size)
        return reader.data[at : at + size]

    return _Codec(write, read, size)


def _write_blob(out: bytearray, value: bytes) -> None:
    out.extend(_U32.pack(len(value)))
    out.extend(value)


def _read_blob(reader: _Reader) -> bytes:
    size = reader.count(1)
    at = reader.take(size)
    return reader.data[at : at + size]


blob = _Codec(_write_blob, _read_blob, 4)
# Strings are UTF-8 where people read them; a byte that is none must not end a connection, nor be lost.
string = _Codec(lambda out, v: _write_blob(out, v.encode("utf-8", "surrogateescape")),
                lambda r: _read_blob(r).decode("utf-8", "surrogateescape"), 4)


def list_of(item: _Codec) -> _Codec:
    def write(out: bytearray, values: list[Any]) -> None:
        out.extend(_U32.pack(len(values)))
        for value in values:
            item.write(out, value)

    def read(reader: _Reader) -> list[Any]:
        return [item.read(reader) for _ in range(reader.count(item.smallest))]

    return _Codec(write, read, 4)


def numbers(layout: str, check: Callable[[Any], Any] | None = None) -> _Codec:
    """A list of scalars, packed at once."""
    size = struct.calcsize("<" + layout)

    def write(out: bytearray, values: list[Any]) -> None:
        out.extend(struct.pack(f"<I{len(values)}{layout}", len(values), *values))

    def read(reader: _Reader) -> list[Any]:
        count = reader.count(size)
        values = struct.unpack_from(f"<{count}{layout}", reader.data, reader.take(count * size))
        return list(values) if check is None else [check(v) for v in values]

    return _Codec(write, read, 4)


def optional(item: _Codec) -> _Codec:
    def write(out: bytearray, value: Any) -> None:
        out.append(0 if value is None else 1)
        if value is not None:
            item.write(out, value)

    return _Codec(write, lambda r: item.read(r) if boolean.read(r) else None, 1)


def pair_of(a: _Codec, b: _Codec) -> _Codec:
    def write(out: bytearray, value: tuple[Any, Any]) -> None:
        a.write(out, value[0])
        b.write(out, value[1])

    return _Codec(write, lambda r: (a.read(r), b.read(r)), a.smallest + b.smallest)


def struct_of(kind: type, **members: _Codec) -> _Codec:
    if list(members) != list(kind.__dataclass_fields__):  # type: ignore[attr-defined]
        raise AssertionError(f"{kind.__name__}: the list of members is out of date")
    items = list(members.items())

    def write(out: bytearray, value: Any) -> None:
        for name, codec in items:
            codec.write(out, getattr(value, name))

    codecs = list(members.values())
    return _Codec(write, lambda r: kind(*[c.read(r) for c in codecs]), sum(c.smallest for c in codecs))


error = struct_of(Error, code=string, message=string, param=string)
token_ids = numbers("i")
token_weights = list_of(pair_of(i32, f32))
digest, key = fixed(32), fixed(16)

kv_slice = struct_of(KvSlice, layer=u32, offset=u64, length=u64, role=string)
kv_layout = struct_of(KvLayout, family=string, block_tokens=u32, block_bytes=u64, state_bytes=u64, replay_tokens=u32,
                      detail=string, slices=list_of(kv_slice))
engine_info = struct_of(
    EngineInfo, engine=string, engine_version=string, model_id=string, model_digest=digest, vocab_size=u32,
    context_tokens=u32, eos_ids=token_ids, layout=kv_layout, roles=u8, grammars=u8, logprobs=boolean,
    max_top_logprobs=u32, penalties=boolean, logit_bias=boolean, seeds=boolean, embeddings=boolean, embedding_width=u32,
    images=boolean, adapters=boolean, speculation=boolean, deterministic=boolean, replay=enum_of(Replay),
    max_running=u32, max_queued=u32, kv_capacity_tokens=u32, data_parallel_rank=u32, data_parallel_size=u32)
sampling = struct_of(
    SamplingParams, temperature=optional(f64), top_p=optional(f64), top_k=optional(i32), min_p=optional(f64),
    frequency_penalty=optional(f64), presence_penalty=optional(f64), repetition_penalty=optional(f64),
    seed=optional(u64), logit_bias=token_weights)
_add_request = struct_of(
    AddRequest, id=u64, mode=enum_of(AddMode), prompt=token_ids, sampling=sampling, max_tokens=u32, stop_ids=token_ids,
    ignore_eos=boolean, logprobs=boolean, top_logprobs=u32, prompt_logprobs=boolean, grammar_kind=enum_of(GrammarKind),
    grammar=string, grammar_trigger=token_ids, kv_namespace=digest,
    images=list_of(struct_of(ImageRef, position=u32, digest=digest)), image_bytes=list_of(blob), adapter=string,
    priority=u32, generated=u32, sample_position=u64)


def _read_add_request(reader: _Reader) -> AddRequest:
    value: AddRequest = _add_request.read(reader)
    if any(a.position > b.position for a, b in zip(value.images, value.images[1:])):
        raise WireError("images are not sorted by position")
    return value


add_request = _Codec(_add_request.write, _read_add_request, _add_request.smallest)
finished = struct_of(
    Finished, id=u64, reason=enum_of(EndReason), prompt_tokens=u32, cached_tokens=u32, output_tokens=u32, queue_time=i64,
    restore_time=i64, prefill_time=i64, decode_time=i64, error=optional(error))
load = struct_of(
    Load, running=u32, waiting=u32, waiting_uncached_tokens=u32, kv_used_tokens=u32, kv_total_tokens=u32,
    prefix_store_bytes=u64, prefix_hit_tokens=u64, prefix_miss_tokens=u64, preempted=u64, last_step=i64,
    predicted_step=i64)

_TOKEN, _TOP, _DRAFT = struct.Struct("<QifI"), struct.Struct("<if"), struct.Struct("<QII")


class _Packed:
    """A list of a step in the bytes of the wire already: what the agent fills, instead of an object for each member."""

    __slots__ = ("count", "data")

    def __init__(self) -> None:
        self.count = 0
        self.data = bytearray()

    def __len__(self) -> int:
        return self.count


class PackedTokens(_Packed):
    def add(self, request: int, token: int, logprob: float) -> None:
        self.count += 1
        self.data += _TOKEN.pack(request, token, logprob, 0)

    def add_top(self, request: int, token: int, logprob: float, top: list[tuple[int, float]]) -> None:
        self.count += 1
        self.data += _TOKEN.pack(request, token, logprob, len(top))
        for entry in top:
            self.data += _TOP.pack(*entry)


class PackedDrafts(_Packed):
    def __len__(self) -> int:  # nereid_peek appends too
        return len(self.data) // _DRAFT.size

    def add(self, request: int, drafted: int, accepted: int) -> None:
        self.data += _DRAFT.pack(request, drafted, accepted)


def _or_packed(codec: _Codec) -> _Codec:
    def write(out: bytearray, values: Any) -> None:
        if isinstance(values, _Packed):
            out.extend(_U32.pack(len(values)))
            out.extend(values.data)
        else:
            codec.write(out, values)

    return _Codec(write, codec.read, codec.smallest)


token_outs = _or_packed(list_of(struct_of(TokenOut, id=u64, token=i32, logprob=f32, top=token_weights)))
draft_counts = _or_packed(list_of(struct_of(DraftCount, id=u64, drafted=u32, accepted=u32)))
step_frame = struct_of(
    StepFrame, step=u64, started=list_of(struct_of(Started, id=u64, cached_tokens=u32)), tokens=token_outs,
    embeddings=list_of(struct_of(Embedding, id=u64, values=numbers("f", _not_nan))),
    prompt_logprobs=list_of(struct_of(PromptLogprobs, id=u64, logprobs=numbers("f", _not_nan))),
    kv_ready=list_of(struct_of(KvReady, id=u64, first_block=u32, count=u32, offset=u64, length=u64)),
    kv_failed=list_of(struct_of(KvFailed, id=u64, error=error)),
    drafts=draft_counts, finished=list_of(finished), load=load)

TYPES: dict[int, tuple[type, _Codec]] = {
    1: (Hello, struct_of(Hello, version_min=u16, version_max=u16, client=string)),
    2: (Welcome, struct_of(Welcome, version=u16, info=engine_info)),
    3: (Refuse, struct_of(Refuse, error=error)),
    4: (Ping, struct_of(Ping, nonce=u64)),
    5: (Pong, struct_of(Pong, nonce=u64)),
    16: (AddRequest, add_request),
    17: (AbortRequest, struct_of(AbortRequest, id=u64)),
    18: (ImportPrefix, struct_of(ImportPrefix, id=u64, first_block=u32, keys=list_of(key), offset=u64, length=u64)),
    19: (ExportBlocks, struct_of(ExportBlocks, id=u64, first_block=u32, count=u32, offset=u64, capacity=u64)),
    20: (AdmitDecode, struct_of(AdmitDecode, request=add_request, first_token=i32, offset=u64, length=u64)),
    21: (Pin, struct_of(Pin, id=u64, lease=i64)),
    22: (Release, struct_of(Release, id=u64)),
    23: (Drain, struct_of(Drain)),
    24: (MapRegion, struct_of(MapRegion, path=string, size=u64)),
    64: (StepFrame, step_frame),
}
_BY_KIND = {kind: (number, codec) for number, (kind, codec) in TYPES.items()}


def encode(message: Message) -> bytes:
    """One message. PayloadTooLarge beyond 64 MiB: the caller answers too_large."""
    number, codec = _BY_KIND[type(message)]
    payload = bytearray()
    codec.write(payload, message)
    if len(payload) > MAX_PAYLOAD:
        raise PayloadTooLarge(f"a payload of {len(payload)} bytes; {MAX_PAYLOAD} are allowed")
    head = _HEAD.pack(MAGIC, number, 0, len(payload))
    return b"".join((head, _U32.pack(crc32c(head, payload)), payload))


class Decoder:
    """Takes bytes in any chunking and yields messages. After an error it gives that error for ever."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._failed: WireError | None = None

    def feed(self, data: bytes) -> None:
        if self._failed is None:
            self._buffer += data

    def next(self) -> Message | None:
        """A message, or None when more bytes are needed. WireError: the connection must be closed."""
        if self._failed is not None:
            raise self._failed
        try:
            return self._take()
        except WireError as failed:
            self._failed = failed
            self._buffer.clear()
            raise

    def _take(self) -> Message | None:
        if len(self._buffer) < HEADER_BYTES:
            return None
        magic, number, flags, length, checksum = _HEADER.unpack_from(self._buffer)
        if magic != MAGIC:
            raise WireError(f"magic {magic:08x} is not engine-wire's")
        if number not in TYPES:
            raise WireError(f"type {number} is unknown")
        if flags != 0:
            raise WireError(f"flags {flags:04x} are set")
        if length > MAX_PAYLOAD:
            raise WireError(f"a payload of {length} bytes; {MAX_PAYLOAD} are allowed")
        if len(self._buffer) < HEADER_BYTES + length:
            return None
        payload = bytes(memoryview(self._buffer)[HEADER_BYTES : HEADER_BYTES + length])
        if crc32c(bytes(self._buffer[:12]), payload) != checksum:
            raise WireError("the checksum does not match")
        del self._buffer[: HEADER_BYTES + length]
        reader = _Reader(payload)
        message: Message = TYPES[number][1].read(reader)
        if reader.at != reader.end:
            raise WireError(f"{reader.end - reader.at} bytes are left after the last member")
        return message
