"""ctypes over the C ABI. Names follow include/nereid_kv.h."""

from __future__ import annotations

import ctypes as c
import dataclasses
import enum
import json
import os
import pathlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any

ABI = 1


class ObjectStatus(enum.IntEnum):
    OK = 0
    MISS = 1
    EXISTS = 2
    IN_FLIGHT = 3
    NO_SPACE = 4
    TIMED_OUT = 5
    CORRUPT = 6
    EXPIRED = 7
    FOREIGN = 8
    UNKNOWN = 9
    INVALID = 10
    FAILED = 11


class KvError(RuntimeError):
    """A call failed; `status` is a nereid_kv_status (negative)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{text} ({status})")
        self.status = status


class _Key(c.Structure):
    _fields_ = [("bytes", c.c_uint8 * 16)]


class _Object(c.Structure):
    _fields_ = [("key", _Key), ("block", c.c_uint32), ("kind", c.c_uint8), ("reserved", c.c_uint8 * 3)]


class _Namespace(c.Structure):
    _fields_ = [
        ("digest", c.c_uint8 * 32), ("capability", c.c_uint8 * 32), ("tenant", c.c_uint64), ("history_bytes", c.c_uint64),
        ("state_bytes", c.c_uint64), ("block_tokens", c.c_uint32), ("keep_tokens", c.c_uint32), ("window_tokens", c.c_uint32),
        ("replay_tokens", c.c_uint32), ("checkpoint_blocks", c.c_uint32), ("replay", c.c_uint32), ("ttl_s", c.c_uint64),
    ]


class _Place(c.Structure):
    _fields_ = [("offset", c.c_uint64), ("length", c.c_uint32), ("crc", c.c_uint32), ("stamp", c.c_uint64),
                ("key_hi", c.c_uint64), ("key_lo", c.c_uint64)]


class _Piece(c.Structure):
    _fields_ = [("to", c.c_void_p), ("at", c.c_uint64), ("length", c.c_uint64), ("layer", c.c_uint32), ("reserved", c.c_uint32)]


class _Completion(c.Structure):
    _fields_ = [
        ("tag", c.c_uint64), ("op", c.c_int32), ("status", c.c_int32), ("ns", c.c_uint32), ("epoch", c.c_uint64),
        ("blocks", c.c_uint32), ("usable_blocks", c.c_uint32), ("compute_from", c.c_uint32), ("dram_blocks", c.c_uint32),
        ("state", c.c_uint32), ("lease", c.c_uint64), ("contiguous", c.c_uint32), ("count", c.c_uint32),
        ("object_status", c.POINTER(c.c_uint8)), ("places", c.POINTER(_Place)), ("place_count", c.c_uint32),
        ("reservations", c.POINTER(c.c_uint64)), ("object", c.c_uint32), ("reservation", c.c_uint64), ("first", c.c_uint64),
        ("next", c.c_uint64), ("gap", c.c_uint32), ("event_count", c.c_uint32), ("events", c.c_void_p), ("text", c.c_char_p),
    ]


@dataclasses.dataclass(frozen=True)
class Namespace:
    digest: bytes
    block_tokens: int
    history_bytes: int
    state_bytes: int = 0
    keep_tokens: int = 1
    window_tokens: int = 0
    replay_tokens: int = 0
    checkpoint_blocks: int = 0
    replay: int = 0
    tenant: int = 0
    ttl_s: int = 0
    capability: bytes = bytes(32)


@dataclasses.dataclass(frozen=True)
class Object:
    key: bytes
    block: int
    kind: int = 0


@dataclasses.dataclass(frozen=True)
class Found:
    blocks: int
    usable_blocks: int
    compute_from: int
    dram_blocks: int
    state: bool
    epoch: int


def _load(path: str | None) -> c.CDLL:
    here = pathlib.Path(__file__).parent
    for candidate in (path, os.environ.get("NEREID_KV_LIBRARY"), here / "libnereid_kv.so.1", "libnereid_kv.so.1"):
        if candidate is None or (isinstance(candidate, pathlib.Path) and not candidate.exists()):
            continue
        library = c.CDLL(str(candidate))
        if library.nereid_kv_abi() != ABI:
            raise ImportError(f"{candidate} has another ABI than {ABI}")
        pointer, u32, u64 = c.c_void_p, c.c_uint32, c.c_uint64
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "connect": (c.c_int, [c.c_char_p, c.c_char_p, u64, u32, c.POINTER(pointer)]),
            "close": (None, [pointer]),
            "error": (c.c_char_p, [pointer]),
            "fd": (c.c_int, [pointer]),
            "wait": (c.c_int, [pointer, u64, c.c_int, c.POINTER(_Completion)]),
            "submit_open": (c.c_int, [pointer, c.POINTER(_Namespace), c.POINTER(u64)]),
            "submit_lookup": (c.c_int, [pointer, u32, u32, pointer, c.c_size_t, u32, c.POINTER(u64)]),
            "submit_get": (c.c_int, [pointer, u32, pointer, c.c_size_t, u32, u32, u32, c.POINTER(u64)]),
            "submit_release": (c.c_int, [pointer, u64, c.POINTER(u64)]),
            "submit_clear": (c.c_int, [pointer, u32, c.POINTER(u64)]),
            "submit_stats": (c.c_int, [pointer, c.c_uint8, c.POINTER(u64)]),
            "view": (pointer, [pointer, c.POINTER(_Place)]),
            "valid": (c.c_int, [pointer, c.POINTER(_Place)]),
            "copy": (c.c_int, [pointer, c.POINTER(_Place), pointer, c.c_size_t, pointer, pointer]),
            "put": (c.c_int, [pointer, u32, c.POINTER(_Object), pointer, u32, u64, c.c_int, c.POINTER(c.c_uint8)]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(library, "nereid_kv_" + name)
            function.restype, function.argtypes = result, arguments
        return library
    raise ImportError("libnereid_kv.so.1 was not found; NEREID_KV_LIBRARY names it")


def _address(buffer: Any, writable: bool) -> tuple[Any, int]:
    """Something ctypes takes for a pointer, and the length; it keeps the buffer alive."""
    view = memoryview(buffer).cast("B")
    if view.readonly:
        if writable:
            raise TypeError("the destination is read-only")
        data = bytes(view)
        return c.cast(c.c_char_p(data), c.c_void_p), len(data)
    return (c.c_char * view.nbytes).from_buffer(view), view.nbytes


def _objects(objects: Sequence[Object]) -> Any:
    out = (_Object * len(objects))()
    for to, o in zip(out, objects):
        c.memmove(to.key.bytes, o.key, 16)
        to.block, to.kind = o.block, o.kind
    return out


class Got:
    """Objects under a lease, in the order asked for; released at the end of the `with`."""

    def __init__(self, client: Client, lease: int, status: list[ObjectStatus], places: list[_Place], contiguous: int) -> None:
        self._client, self.lease, self.status, self._places, self.contiguous = client, lease, status, places, contiguous

    def copy_into(self, i: int, buffer: Any) -> None:
        """The object's bytes, checked against their CRC. KvError when they have gone: a miss."""
        pointer, length = _address(buffer, True)
        if length < self._places[i].length:
            raise ValueError("the destination is shorter than the object")
        piece = _Piece(c.addressof(pointer), 0, self._places[i].length, 0, 0)
        self._client._check(self._client._lib.nereid_kv_copy(
            self._client._kv, c.byref(self._places[i]), c.byref(piece), 1, None, None))

    def read(self, i: int) -> bytes:
        out = bytearray(self._places[i].length)
        self.copy_into(i, out)
        return bytes(out)

    def release(self) -> None:
        if self.lease:
            # Nobody needs the answer, and without waiting a get is one round trip.
            if self._client._kv is not None:
                self._client._lib.nereid_kv_submit_release(self._client._kv, self.lease, None)
            self.lease = 0

    def __enter__(self) -> Got:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class Client:
    def __init__(self, socket_path: str, *, name: str = "python", staging_bytes: int = 16 << 20, timeout: float = 10.0,
                 library: str | None = None) -> None:
        self._lib = _load(library)
        self._kv: c.c_void_p | None = c.c_void_p()
        self._timeout_ms = int(timeout * 1000)
        status = self._lib.nereid_kv_connect(socket_path.encode(), name.encode(), staging_bytes, self._timeout_ms, c.byref(self._kv))
        if status != 0:
            self._kv = None
            raise KvError(status, self._lib.nereid_kv_error(None).decode())

    def close(self) -> None:
        if self._kv is not None:
            self._lib.nereid_kv_close(self._kv)
            self._kv = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check(self, status: int) -> None:
        if status != 0:
            raise KvError(status, self._lib.nereid_kv_error(self._kv).decode())

    def _call(self, op: str, *arguments: Any) -> _Completion:
        if self._kv is None:
            raise KvError(-2, "the client is closed")
        tag, out = c.c_uint64(), _Completion()
        self._check(getattr(self._lib, "nereid_kv_submit_" + op)(self._kv, *arguments, c.byref(tag)))
        self._check(self._lib.nereid_kv_wait(self._kv, tag, self._timeout_ms, c.byref(out)))
        self._check(out.status)
        return out

    def fileno(self) -> int:
        return int(self._lib.nereid_kv_fd(self._kv))

    def open(self, ns: Namespace) -> int:
        raw = _Namespace(tenant=ns.tenant, history_bytes=ns.history_bytes, state_bytes=ns.state_bytes, block_tokens=ns.block_tokens,
                         keep_tokens=ns.keep_tokens, window_tokens=ns.window_tokens, replay_tokens=ns.replay_tokens,
                         checkpoint_blocks=ns.checkpoint_blocks, replay=ns.replay, ttl_s=ns.ttl_s)
        if len(ns.digest) != 32 or len(ns.capability) != 32:
            raise ValueError("digest and capability have 32 bytes")
        c.memmove(raw.digest, ns.digest, 32)
        c.memmove(raw.capability, ns.capability, 32)
        return int(self._call("open", c.byref(raw)).ns)

    def put(self, ns: int, obj: Object, data: Any, *, ttl_s: int = 0) -> ObjectStatus:
        pointer, length = _address(data, False)
        status = c.c_uint8()
        raw = _objects([obj])
        self._check(self._lib.nereid_kv_put(self._kv, ns, raw, c.cast(pointer, c.c_void_p), length, ttl_s, self._timeout_ms,
                                            c.byref(status)))
        return ObjectStatus(status.value)

    def lookup(self, ns: int, keys: Sequence[bytes], *, first_block: int = 0, prompt_tokens: int = 0) -> Found:
        raw = (_Key * len(keys))()
        for to, key in zip(raw, keys):
            c.memmove(to.bytes, key, 16)
        a = self._call("lookup", ns, first_block, raw, len(keys), prompt_tokens)
        return Found(a.blocks, a.usable_blocks, a.compute_from, a.dram_blocks, bool(a.state), a.epoch)

    def get(self, ns: int, objects: Sequence[Object], *, lease: float = 10.0, wait: float = 0.0, join_writes: bool = False) -> Got:
        a = self._call("get", ns, _objects(objects), len(objects), int(lease * 1000), int(wait * 1000), int(join_writes))
        places = []
        for i in range(a.place_count):
            place = _Place()
            c.memmove(c.byref(place), c.byref(a.places[i]), c.sizeof(_Place))
            places.append(place)
        return Got(self, a.lease, [ObjectStatus(a.object_status[i]) for i in range(a.count)], places, a.contiguous)

    def clear(self, ns: int) -> None:
        self._call("clear", ns)

    def stats(self) -> dict[str, Any]:
        out: dict[str, Any] = json.loads(self._call("stats", 0).text)
        return out
