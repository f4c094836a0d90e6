"""Block names against the vectors of docs/formats/block-key.md; the prefix cache against a naive model; hand-off headers."""

from __future__ import annotations

import random

from nereid_deepinfer import keys, prefix, wire


def test_names_are_those_of_the_format_page() -> None:
    layout = wire.KvLayout("llama.cpp/seq-state-3", 64, 1474560, 0, 1, "f16,fa=1",
                           [wire.KvSlice(0, 0, 1024, "k"), wire.KvSlice(0, 1024, 512, "v")])
    fingerprint = keys.layout_fingerprint(layout)
    assert fingerprint.hex() == "06e8b5e8535b962371f83ef4c2a4db2ca0f831d3421d359a5e67d7df153710b7"
    ns = keys.namespace(bytes(range(32)), fingerprint, "tenant-a", True)
    assert ns.hex() == "c57af69712dd45a907878a697da4bf6e8af06da9efb2d7a38f54ce0bebd75e38"
    chain = keys.block_chain(ns, list(range(1, 151)), 64)
    assert [k.hex() for k in chain] == ["dce7cbbe89edc4f7bd05674d25995206", "b3a0bf0a2705f2bac12e4b0238ebd655"]


def test_every_setting_changes_the_fingerprint() -> None:
    base = wire.KvLayout("f", 128, 114048, 1415040, 140, "yoco=compact", [wire.KvSlice(2, 0, 22784, "kv")])
    seen = {keys.layout_fingerprint(base)}
    for name, value in [("family", "g"), ("block_tokens", 64), ("block_bytes", 194304), ("state_bytes", 1362560),
                        ("replay_tokens", 141), ("detail", "yoco=mask"), ("slices", [])]:
        changed = wire.KvLayout(**{n: getattr(base, n) for n in wire.KvLayout.__dataclass_fields__})
        setattr(changed, name, value)
        seen.add(keys.layout_fingerprint(changed))
    assert len(seen) == 8


def test_prefix_cache_is_a_lru_of_pins() -> None:
    pins: dict[int, int] = {}

    def unpin(ids: list[int]) -> None:
        for i in ids:
            pins[i] -= 1

    cache = prefix.PrefixCache(40, 8, unpin)
    rng, naive = random.Random(1), []  # naive: (key, count), oldest first
    for _ in range(5000):
        chain = [bytes([rng.randrange(4), n]) for n in range(1, 7)]
        count = rng.randrange(1, 7)
        if rng.random() < 0.5:
            ids = [rng.randrange(100) for _ in range(count)]
            for i in ids:
                pins[i] = pins.get(i, 0) + 1
            if cache.put(chain[count - 1], ids, None):
                naive.append((chain[count - 1], count))
                while sum(n for _, n in naive) > 40 or len(naive) > 8:
                    naive.pop(0)
            else:
                assert any(k == chain[count - 1] for k, _ in naive)
                unpin(ids)
        else:
            found = cache.find(chain, count)
            best = max((n for k, n in naive if n <= count and k == chain[n - 1]), default=0)
            assert (len(found.ids) if found else 0) == best
            if found:
                at = next(i for i, (k, _) in enumerate(naive) if k == found.key)
                naive.append(naive.pop(at))
        assert cache.blocks == sum(pins.values()) == sum(n for _, n in naive)
    cache.clear()
    assert not any(pins.values())
