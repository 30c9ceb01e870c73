"""Whether bytes are a whole shared object, told by its header: a compiler that says that all went well may have left half a file."""

from __future__ import annotations

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


__all__ = ["is_whole"]
