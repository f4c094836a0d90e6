"""Prefixes kept in the engine's own memory: DeepInfer has no prefix cache (its block manager is a free list), so the agent
keeps one. An entry is a boundary of a prompt: the ids of its blocks, each pinned once, and a copy of the state at that
boundary. Least recently used entries go first, at any moment: nothing waits for an entry, a running request that adopted
its blocks holds references of its own.

Pure bookkeeping: `unpin` gives blocks back to the engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Entry:
    key: bytes  # of the last block; it names the whole chain
    ids: list[int]
    state: Any


class PrefixCache:
    def __init__(self, max_blocks: int, max_entries: int, unpin: Callable[[list[int]], None]) -> None:
        self._max_blocks, self._max_entries, self._unpin = max_blocks, max_entries, unpin
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self.blocks = 0  # pins: a block shared by two entries counts twice

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def find(self, chain: list[bytes], most: int) -> Entry | None:
        """The longest entry that is a prefix of `chain`, of at most `most` blocks."""
        for count in range(min(most, len(chain)), 0, -1):
            entry = self._entries.get(chain[count - 1])
            if entry is not None:
                self._entries.move_to_end(entry.key)
                return entry
        return None

    def put(self, key: bytes, ids: list[int], state: Any) -> bool:
        """Takes over one pin of each of `ids`. False when it cannot be kept: the caller unpins."""
        if key in self._entries or len(ids) > self._max_blocks or self._max_entries == 0:
            return False
        self._entries[key] = Entry(key, ids, state)
        self.blocks += len(ids)
        while self.blocks > self._max_blocks or len(self._entries) > self._max_entries:
            self.evict()
        return True

    def evict(self) -> bool:
        """Drops the least recently used entry; False when there is none."""
        if not self._entries:
            return False
        _, entry = self._entries.popitem(last=False)
        self.blocks -= len(entry.ids)
        self._unpin(entry.ids)
        return True

    def clear(self) -> None:
        while self.evict():
            pass
