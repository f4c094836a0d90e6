"""Width and height from the first bytes of an image: LLMEngine wants both beside the bytes. Pure; never raises."""

from __future__ import annotations

import struct


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        if marker in (0xD9, 0xDA):
            return None
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def image_size(data: bytes) -> tuple[int, int] | None:
    """(width, height), or None when the format is unknown or the bytes end early."""
    size: tuple[int, int] | None = None
    if len(data) < 30 and not data.startswith(b"GIF8"):
        return None
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        size = struct.unpack_from(">II", data, 16)
    elif data.startswith((b"GIF87a", b"GIF89a")) and len(data) >= 10:
        size = struct.unpack_from("<HH", data, 6)
    elif data.startswith(b"\xff\xd8"):
        size = _jpeg(data)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        size = _webp(data)
    if size is None or size[0] == 0 or size[1] == 0:
        return None
    return size
