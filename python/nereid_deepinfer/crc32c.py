"""CRC-32C (Castagnoli), as engine-wire wants it: of b"123456789" it is e3069283.

A rank does it in nereid_peek (`use`). Elsewhere, where numpy is, large payloads are done there: the CRC is linear, so rows of a fixed length are looked up and
XORed column by column, and the rows' remainders are then joined. Without numpy (the tests' own Python) it is a byte
loop. All give the same numbers (tests/deepinfer/test_wire.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import numpy as np
except ImportError:  # the agent's tests run without it
    np = None  # type: ignore[assignment]

_POLYNOMIAL = 0x82F63B78
ROW = 512  # bytes; the lookup has ROW x 256 entries of 4 bytes, half a MiB: it stays in the cache
_NUMPY_FROM = 192  # below this the byte loop is quicker


def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _byte_table()


def _advance(state: int, data: bytes | memoryview) -> int:
    table = _TABLE
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state


class _Rows:
    """Lookups for rows of ROW bytes: the remainder of each byte at each place, and of a state moved over a row."""

    def __init__(self) -> None:
        table = np.array(_TABLE, dtype=np.uint32)
        place = np.empty((ROW, 256), dtype=np.uint32)
        place[ROW - 1] = table
        for at in range(ROW - 2, -1, -1):  # one more zero byte after it
            later = place[at + 1]
            place[at] = table[later & 0xFF] ^ (later >> 8)
        self.flat = place.ravel()
        self.base = (np.arange(ROW, dtype=np.intp) * 256)[None, :]
        # A state in front of a row acts as if XORed into the row's first four bytes.
        self.first = [place[k].tolist() for k in range(4)]

    def advance(self, state: int, data: memoryview) -> int:
        rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, ROW)
        first = self.first
        for start in range(0, len(rows), 2048):  # bounded memory: 8 MiB of indices at a time
            part = rows[start : start + 2048]
            remainders = np.bitwise_xor.reduce(self.flat[self.base + part], axis=1).tolist()
            for remainder in remainders:
                state = (remainder ^ first[0][state & 0xFF] ^ first[1][state >> 8 & 0xFF]
                         ^ first[2][state >> 16 & 0xFF] ^ first[3][state >> 24])
        return state


_rows: _Rows | None = None
_native: Callable[[int, Any], int] | None = None


def use(native: Callable[[int, Any], int]) -> None:
    """`native` does what `extend` says, from now on."""
    global _native
    _native = native


def extend(state: int, data: bytes | bytearray | memoryview) -> int:
    """`state` is the register (start with 0xFFFFFFFF); the CRC is the register inverted."""
    global _rows
    if _native is not None:
        return _native(state, data)
    view = memoryview(data)
    if np is None or len(view) < _NUMPY_FROM:
        return _advance(state, view)
    if _rows is None:
        _rows = _Rows()
    whole = len(view) // ROW * ROW
    if whole:
        state = _rows.advance(state, view[:whole])
    rest = view[whole:]
    if len(rest) < _NUMPY_FROM:
        return _advance(state, rest)
    # The rest goes through the same lookup: zero bytes in front of a message change nothing while the state is zero,
    # so the state is folded into its first four bytes.
    padded = bytearray(ROW)
    padded[ROW - len(rest) :] = rest
    at = ROW - len(rest)
    for k in range(4):
        padded[at + k] ^= state >> 8 * k & 0xFF
    return _rows.advance(0, memoryview(padded))


def crc32c(*parts: bytes | bytearray | memoryview) -> int:
    state = 0xFFFFFFFF
    for part in parts:
        state = extend(state, part)
    return state ^ 0xFFFFFFFF
