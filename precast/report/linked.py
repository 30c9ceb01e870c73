"""Which system libraries a shared object of the store needs at run time: the names in its ELF dynamic section."""

from __future__ import annotations

import struct

_SECTION = struct.Struct("<4xI16xQQI4x8xQ")
"""Type, offset, size, link (for the dynamic section: the section of its texts), size of an entry."""
_DYNAMIC, _NEEDED = 6, 1


def needed(library: bytes) -> list[str]:
    """Names as the linker wrote them ("libc.so.6"). Empty for what is no 64-bit little-endian ELF file, or a damaged one."""
    try:
        if library[:6] != b"\x7fELF\x02\x01":
            return []
        (begin,), (size, count) = struct.unpack_from("<Q", library, 0x28), struct.unpack_from("<HH", library, 0x3A)
        sections = [_SECTION.unpack_from(library, begin + number * size) for number in range(count)]
        for kind, offset, length, link, _ in sections:
            if kind == _DYNAMIC:
                texts = sections[link][1]
                entries = struct.iter_unpack("<qQ", library[offset : offset + length - length % 16])
                return [_text(library, texts + value) for tag, value in entries if tag == _NEEDED]
    except (struct.error, IndexError, ValueError, OverflowError):
        return []
    return []


def _text(library: bytes, offset: int) -> str:
    return library[offset : library.index(b"\0", offset)].decode("utf-8", "replace")
