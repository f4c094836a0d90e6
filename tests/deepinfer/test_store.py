"""NodeStore against a stand-in for nereid_kv: what a node does wrong is a miss, and is not asked again at once."""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

import pytest

BLOCK_BYTES, STATE_BYTES = 8, 4


class KvError(RuntimeError):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Status(enum.IntEnum):
    OK = 0
    MISS = 1


class FakeNode:
    """The module, its Client and what the node holds."""

    def __init__(self) -> None:
        self.held: dict[tuple[bytes, int], bytes] = {}
        self.fails: int | None = None
        self.connects = 0
        self.opened: list[Any] = []
        self.lies = False  # lookups promise what gets do not give

    def module(self) -> types.ModuleType:
        node = self
        made = types.ModuleType("nereid_kv")

        class Got:
            def __init__(self, objects: list[Any]) -> None:
                self.parts = [None if node.lies else node.held.get((o.key, o.kind)) for o in objects]
                self.status = [Status.MISS if p is None else Status.OK for p in self.parts]

            def __enter__(self) -> Got:
                return self

            def __exit__(self, *_: Any) -> None: ...

            def copy_into(self, i: int, buffer: memoryview) -> None:
                buffer[:] = self.parts[i]  # type: ignore[assignment]

        class Client:
            def __init__(self, *_: Any, **__: Any) -> None:
                node.connects += 1
                self.check()

            def check(self) -> None:
                if node.fails is not None:
                    raise KvError(node.fails, "no")

            def close(self) -> None: ...

            def open(self, namespace: Any) -> int:
                self.check()
                node.opened.append(namespace)
                return len(node.opened)

            def lookup(self, _: int, keys: list[bytes], prompt_tokens: int) -> Any:
                self.check()
                there = 0
                while there < len(keys) and (keys[there], 0) in node.held:
                    there += 1
                usable = min(there, max(0, prompt_tokens - 140) // 128)
                return types.SimpleNamespace(blocks=there, usable_blocks=usable, state=usable > 0 and (keys[usable - 1], 1) in node.held)

            def get(self, _: int, objects: list[Any], wait: float) -> Got:
                self.check()
                return Got(objects)

            def put(self, _: int, obj: Any, data: Any, ttl_s: int) -> None:
                self.check()
                node.held[obj.key, obj.kind] = bytes(data)

        made.KvError, made.Client, made.ObjectStatus = KvError, Client, Status  # type: ignore[attr-defined]
        made.Object = lambda key, block, kind: types.SimpleNamespace(key=key, block=block, kind=kind)  # type: ignore[attr-defined]
        made.Namespace = lambda **values: types.SimpleNamespace(**values)  # type: ignore[attr-defined]
        return made


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    made = FakeNode()
    monkeypatch.setitem(sys.modules, "nereid_kv", made.module())
    return made


def store_of(log: list[str], secret: bytes = b"") -> Any:
    from nereid_deepinfer.store import NodeStore

    return NodeStore("/nowhere", BLOCK_BYTES, STATE_BYTES, 140, log.append, secret)


NAMESPACE, KEYS = bytes(range(32)), [bytes([i]) * 16 for i in range(4)]


def save(store: Any, count: int, first: int = 0) -> None:
    blocks = b"".join(bytes([i]) * BLOCK_BYTES for i in range(first, count))
    store.save(NAMESPACE, KEYS[:count], first, memoryview(blocks), memoryview(b"ssss"))


def test_round_trip_and_what_is_missing(node: FakeNode) -> None:
    store = store_of([])
    assert store.load(NAMESPACE, KEYS, 1000) is None and store.missing_from(NAMESPACE, KEYS[:3]) == 0
    save(store, 3)
    assert store.missing_from(NAMESPACE, KEYS[:3]) is None and store.missing_from(NAMESPACE, KEYS) == 3
    loaded = store.load(NAMESPACE, KEYS[:3], 3 * 128 + 140)
    assert loaded.blocks == 3 and bytes(loaded.data) == bytes(8) + b"\x01" * 8 + b"\x02" * 8 + b"ssss"
    assert store.load(NAMESPACE, KEYS[:3], 3 * 128 + 139) is None, "two blocks fit, and have no state"
    assert node.connects == 1 and len(node.opened) == 1
    assert (node.opened[0].keep_tokens, node.opened[0].replay, node.opened[0].capability) == (140, 3, bytes(32))


def test_capability_is_the_gateways(node: FakeNode) -> None:
    import hashlib
    import hmac

    store_of([], b"secret of the node").load(NAMESPACE, KEYS, 1000)
    assert node.opened[0].capability == hmac.digest(b"secret of the node", b"nereid-kv-cap\x01" + NAMESPACE, hashlib.sha256)


def test_node_that_is_gone_is_asked_again_later(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    from nereid_deepinfer import store as module

    now = [1000.0]
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    log: list[str] = []
    store = store_of(log)
    save(store, 3)
    node.fails = -2
    assert store.load(NAMESPACE, KEYS, 1000) is None and len(log) == 1
    for _ in range(50):
        assert store.load(NAMESPACE, KEYS, 1000) is None and store.missing_from(NAMESPACE, KEYS) is None
        save(store, 4)
    assert node.connects == 1 and len(log) == 1
    for wait in (0.5, 1.0, 2.0, 4.0):
        now[0] += wait
        store.load(NAMESPACE, KEYS, 1000)
    assert node.connects == 5
    node.fails = None
    now[0] += 30
    assert store.load(NAMESPACE, KEYS[:3], 1000).blocks == 3


def test_lookup_is_an_estimate_and_a_miss_is_no_failure(node: FakeNode) -> None:
    log: list[str] = []
    store = store_of(log)
    save(store, 3)
    node.lies = True
    assert store.load(NAMESPACE, KEYS[:3], 1000) is None
    node.lies, node.fails = False, -5  # gone under our hands
    assert store.load(NAMESPACE, KEYS[:3], 1000) is None
    node.fails = None
    assert store.load(NAMESPACE, KEYS[:3], 1000).blocks == 3
    assert node.connects == 1 and not log


def test_node_that_is_not_there_at_the_start(node: FakeNode) -> None:
    log: list[str] = []
    node.fails = -2
    assert store_of(log).load(NAMESPACE, KEYS, 1000) is None and len(log) == 1


def test_more_namespaces_than_a_connection_keeps(node: FakeNode) -> None:
    store = store_of([])
    for i in range(2500):
        store.missing_from(i.to_bytes(32, "big"), KEYS)
    assert node.connects == 3
