"""Prefixes in the KV node of this machine (nereid cache serve), through libnereid_kv: what other engine processes computed,
and what must outlive this one. All calls on one Background thread; a node that is gone, slow or another one is a miss.

An object per block, and a state object at the boundary that a hit may use (docs/formats/deepinfer-kv.md).
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

BLOCK = 128
_STORED_STATE = 3  # ReplayPolicy of kv/namespace.h
_HISTORY, _STATE = 0, 1
_MOST_NAMESPACES = 1000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_MISSES = (-5, -6, -7)  # gone, corrupt, no space: of one object, the node is well


@dataclass
class Loaded:
    blocks: int
    data: bytearray  # the blocks, and the state at their end


class KvStore(Protocol):
    def load(self, namespace: bytes, keys: list[bytes], tokens: int) -> Loaded | None:
        """The longest prefix of at most len(keys) blocks that has a state, of a prompt of so many tokens."""

    def missing_from(self, namespace: bytes, keys: list[bytes]) -> int | None:
        """How many of the first blocks are there; None: all of them and the state."""

    def save(self, namespace: bytes, keys: list[bytes], first: int, blocks: memoryview, state: memoryview) -> None:
        """Blocks first, first + 1, ... and the state at the end of the last key."""


class NodeStore:
    def __init__(self, socket: str, block_bytes: int, state_bytes: int, keep_tokens: int, log: Callable[[str], None],
                 secret: bytes = b"", library: str = "", ttl_s: int = 0) -> None:
        self._socket, self._block_bytes, self._state_bytes = socket, block_bytes, state_bytes
        self._keep, self._log, self._secret, self._library, self._ttl = keep_tokens, log, secret, library or None, ttl_s
        self._client: Any = None
        self._numbers: dict[bytes, int] = {}
        self._pause, self._again = _FIRST_PAUSE, 0.0
        import nereid_kv

        self._kv = nereid_kv
        try:
            self._connect()  # an installation without the library is an ImportError now, not at the first prompt
        except nereid_kv.KvError as bad:
            self._failed(bad)

    # ------------------------------------------------------------ the connection

    def _open(self, namespace: bytes) -> int | None:
        """The namespace's number; None while the node is not there."""
        if self._client is None or len(self._numbers) >= _MOST_NAMESPACES:
            if time.monotonic() < self._again:
                return None
            self._connect()
        if namespace not in self._numbers:
            capability = hmac.digest(self._secret, b"nereid-kv-cap\x01" + namespace, hashlib.sha256) if self._secret else bytes(32)
            self._numbers[namespace] = self._client.open(self._kv.Namespace(
                digest=namespace, block_tokens=BLOCK, history_bytes=self._block_bytes, state_bytes=self._state_bytes,
                keep_tokens=self._keep, replay=_STORED_STATE, capability=capability))
        return self._numbers[namespace]

    def _connect(self) -> None:
        self._drop()
        staging = 2 * max(self._block_bytes, self._state_bytes) + (1 << 20)
        self._client = self._kv.Client(self._socket, name="deepinfer", staging_bytes=staging, timeout=2.0, library=self._library)
        self._pause = _FIRST_PAUSE

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None
        self._numbers = {}

    def _failed(self, bad: Any) -> None:
        if bad.status in _MISSES:
            return
        self._log(f"KV node {self._socket}: {bad}; prompts are computed without it, next try in {self._pause:.1f} s")
        self._again = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._drop()

    # ------------------------------------------------------------ KvStore

    def load(self, namespace: bytes, keys: list[bytes], tokens: int) -> Loaded | None:
        try:
            number = self._open(namespace)
            return None if number is None else self._load(number, keys, tokens)
        except self._kv.KvError as bad:
            self._failed(bad)
            return None

    def _load(self, number: int, keys: list[bytes], tokens: int) -> Loaded | None:
        found = self._client.lookup(number, keys, prompt_tokens=tokens)
        count = min(found.usable_blocks, len(keys))
        if count == 0 or not found.state:
            return None
        wanted = [self._kv.Object(key, at, _HISTORY) for at, key in enumerate(keys[:count])]
        wanted.append(self._kv.Object(keys[count - 1], count - 1, _STATE))
        data = bytearray(count * self._block_bytes + self._state_bytes)
        view = memoryview(data)
        with self._client.get(number, wanted, wait=1.0) as got:
            if any(status != self._kv.ObjectStatus.OK for status in got.status):
                return None  # a lookup is an estimate
            for at in range(count + 1):
                got.copy_into(at, view[at * self._block_bytes : at * self._block_bytes
                                       + (self._block_bytes if at < count else self._state_bytes)])
        return Loaded(count, data)

    def missing_from(self, namespace: bytes, keys: list[bytes]) -> int | None:
        try:
            number = self._open(namespace)
            if number is None:
                return None
            # The prompt that may use exactly this boundary.
            found = self._client.lookup(number, keys, prompt_tokens=len(keys) * BLOCK + self._keep)
        except self._kv.KvError as bad:
            self._failed(bad)
            return None
        return None if found.usable_blocks == len(keys) and found.state else min(found.blocks, len(keys))

    def save(self, namespace: bytes, keys: list[bytes], first: int, blocks: memoryview, state: memoryview) -> None:
        try:
            number = self._open(namespace)
            if number is None:
                return
            for at in range(first, len(keys)):
                begin = (at - first) * self._block_bytes
                self._client.put(number, self._kv.Object(keys[at], at, _HISTORY), blocks[begin : begin + self._block_bytes],
                                 ttl_s=self._ttl)
            self._client.put(number, self._kv.Object(keys[-1], len(keys) - 1, _STATE), state, ttl_s=self._ttl)
        except self._kv.KvError as bad:
            self._failed(bad)
