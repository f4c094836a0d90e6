"""The shared region through which KV bytes travel: a file that the client made and owns, opened by path (MapRegion)."""

from __future__ import annotations

import mmap
import os
import stat


class RegionError(Exception):
    pass


class Region:
    def __init__(self, path: str, size: int) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as bad:
            raise RegionError(f"{path}: {bad.strerror}") from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise RegionError(f"{path} is no file")
            if size < 1 or found.st_size < size:
                raise RegionError(f"{path} has {found.st_size} bytes, not {size}")
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._view = memoryview(self._map)

    def range(self, offset: int, length: int) -> memoryview:
        if length < 1 or offset + length > len(self._view):
            raise RegionError(f"{length} bytes at {offset} are outside the region of {len(self._view)}")
        return self._view[offset : offset + length]
