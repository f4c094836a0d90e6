"""Names of KV blocks: docs/formats/block-key.md, whose vectors tests/deepinfer/test_kv.py repeats."""

from __future__ import annotations

import hashlib
import hmac
import struct

from nereid_deepinfer.wire import KvLayout


def _string(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<I", len(data)) + data


def layout_fingerprint(layout: KvLayout) -> bytes:
    parts = [b"nereid-kv-layout\x01", _string(layout.family),
             struct.pack("<IQQI", layout.block_tokens, layout.block_bytes, layout.state_bytes, layout.replay_tokens),
             _string(layout.detail), struct.pack("<I", len(layout.slices))]
    for s in layout.slices:
        parts.append(struct.pack("<IQQ", s.layer, s.offset, s.length) + _string(s.role))
    return hashlib.sha256(b"".join(parts)).digest()


def namespace(model_digest: bytes, fingerprint: bytes, salt: str, determinism: bool) -> bytes:
    return hashlib.sha256(b"nereid-kv-ns\x01" + model_digest + fingerprint + _string(salt)
                          + (b"\x01" if determinism else b"\x00")).digest()


def block_chain(ns: bytes, tokens: list[int], block_tokens: int, adapter: str = "") -> list[bytes]:
    """Keys of the whole blocks of a text prompt, the first block first."""
    tail = struct.pack("<I", 0) + _string(adapter)
    head = struct.pack("<I", block_tokens)
    parent = hmac.digest(ns, b"root", "sha256")[:16]
    out = []
    for start in range(0, len(tokens) // block_tokens * block_tokens, block_tokens):
        body = struct.pack(f"<{block_tokens}i", *tokens[start : start + block_tokens])
        parent = hmac.digest(ns, parent + head + body + tail, "sha256")[:16]
        out.append(parent)
    return out
