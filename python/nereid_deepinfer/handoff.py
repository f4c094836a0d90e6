"""A prefilled request on its way from a PROMPT to a COMPLETION engine: docs/formats/deepinfer-kv.md.

    handoff = header blocks state
    header  = magic:u32 version:u16 flags:u16 prompt_tokens:u32 blocks:u32 block_bytes:u64 state_bytes:u64 crc:u32 zero[28]

The header is checked, and every length against this engine's own; the bytes of blocks and state are not summed here (10 MB
on the engine's thread): who moves them between machines does that.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from nereid_deepinfer.crc32c import crc32c
from nereid_deepinfer.runtime import Arenas

MAGIC = 0x3148444E  # "NDH1"
_HEADER = struct.Struct("<IHHIIQQI28x")
HEADER_BYTES = 64
assert _HEADER.size == HEADER_BYTES
_SUMMED = 32
BLOCK = 128


class BadHandoff(Exception):
    pass


@dataclass
class Payload:
    blocks: int
    block_bytes: memoryview
    state_bytes: memoryview


def size(blocks: int, arenas: Arenas) -> int:
    return HEADER_BYTES + blocks * arenas.block_bytes + arenas.slot_bytes


def write(out: memoryview, tokens: int, ids: list[int], state: Any, arenas: Arenas) -> None:
    if len(out) != size(len(ids), arenas):
        raise BadHandoff(f"a hand-off of {len(ids)} blocks has {size(len(ids), arenas)} bytes, not {len(out)}")
    head = _HEADER.pack(MAGIC, 1, 0, tokens, len(ids), arenas.block_bytes, arenas.slot_bytes, 0)
    out[:HEADER_BYTES] = head[:_SUMMED] + struct.pack("<I", crc32c(head[:_SUMMED])) + bytes(HEADER_BYTES - _SUMMED - 4)
    cut = HEADER_BYTES + len(ids) * arenas.block_bytes
    arenas.read_blocks(ids, out[HEADER_BYTES:cut])
    arenas.state_bytes(state, out[cut:])


def read(data: memoryview, prompt_tokens: int, arenas: Arenas) -> Payload:
    if len(data) < HEADER_BYTES:
        raise BadHandoff("the hand-off ends within its header")
    head = bytes(data[:HEADER_BYTES])
    magic, version, flags, tokens, blocks, block_bytes, state_bytes, crc = _HEADER.unpack(head)
    if magic != MAGIC or version != 1 or flags != 0:
        raise BadHandoff("this is no hand-off of version 1")
    if crc != crc32c(head[:_SUMMED]):
        raise BadHandoff("the checksum of the hand-off's header does not match")
    if (block_bytes, state_bytes) != (arenas.block_bytes, arenas.slot_bytes):
        raise BadHandoff(f"blocks of {block_bytes} and a state of {state_bytes} bytes; this engine has {arenas.block_bytes} "
                         f"and {arenas.slot_bytes}: the two engines run with different settings")
    if tokens != prompt_tokens or blocks != -(-prompt_tokens // BLOCK):
        raise BadHandoff(f"a hand-off of {tokens} tokens in {blocks} blocks for a prompt of {prompt_tokens}")
    if len(data) != size(blocks, arenas):
        raise BadHandoff(f"{len(data)} bytes; a hand-off of {blocks} blocks has {size(blocks, arenas)}")
    cut = HEADER_BYTES + blocks * arenas.block_bytes
    return Payload(blocks, data[HEADER_BYTES:cut], data[cut:])
