"""Reads facts about a kernel from its cubin (an ELF file)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_CODE = ".text."
_SIZED, _REGISTERS = 4, 0x2F
"""Codes of records in `.nv.info`: of those that have an explicit size, and of the one with (symbol, number of registers)."""


def registers(image: bytes) -> int | None:
    """Registers that each thread of the image's one kernel takes; None where the image is text or does not say."""
    if image[:4] != b"\x7fELF":
        return None
    return next(_register_counts(dict(_sections(image)).get(".nv.info", b"")), None)


def entry(image: bytes) -> str:
    """The name of the image's one kernel; empty where it has none."""
    return next((name.removeprefix(_CODE) for name, _ in _sections(image) if name.startswith(_CODE)), "")


def _sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the sections of a 64-bit ELF image."""
    (start,) = struct.unpack_from("<Q", image, 40)
    width, count, names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQ", image, start + number * width) for number in range(count)]
    for header in headers:
        label = headers[names][4] + header[0]
        yield image[label : image.index(b"\0", label)].decode(), image[header[4] : header[4] + header[5]]


def _register_counts(info: bytes) -> Iterator[int]:
    """The numbers of registers among the records."""
    place = 0
    while place + 4 <= len(info):
        form, what, size = struct.unpack_from("<BBH", info, place)
        if form == _SIZED and what == _REGISTERS:
            yield int(struct.unpack_from("<II", info, place + 4)[1])
        place += 4 + (size if form == _SIZED else 0)
