"""Whether bytes are a whole shared object, told by its header, and whether a folder is one that shared objects can be loaded from.

A compiler that says that all went well may have left half a file.
"""

from __future__ import annotations

import os
import struct

_HEADER = struct.Struct("<40xQ10xHH2x")
"""Of a 64-bit ELF file: where the table of sections begins, and the size and the number of its entries. That table ends the file."""


def is_whole(data: bytes) -> bool:
    """Whether `data` is an ELF file with nothing missing at its end."""
    if len(data) < _HEADER.size or not data.startswith(b"\x7fELF"):
        return False
    start, size, count = _HEADER.unpack_from(data)
    end: int = start + size * count
    return len(data) >= end


def mounted_noexec(folder: str | os.PathLike[str]) -> bool:
    """Whether no shared object can be loaded from the folder, for how its filesystem is mounted. False where it is not there."""
    try:
        return hasattr(os, "ST_NOEXEC") and bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


__all__ = ["is_whole", "mounted_noexec"]
