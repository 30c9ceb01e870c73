"""Canonical msgpack: the same value gives the same bytes in every process, and only plain data goes in or comes out.

Allowed: None, bool, 64-bit ints, floats, str, bytes, sequences, and maps with string keys (written in sorted order). Sequences come
back as tuples, so that guard paths are hashable as they stand. Nothing is ever unpickled, and msgpack extension types are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgpack

from precast.artifact_store.format.errors import DamagedRecord

Data = Any
"""A plain value as listed above. (A recursive alias costs more in casts at every use than it catches; `canonical` checks instead.)"""

_INT_LOW, _INT_HIGH = -(2**63), 2**64 - 1


def canonical(value: Data, where: str = "value") -> Data:
    """`value` with every map sorted and every sequence a list, ready to pack. Raises TypeError naming the place of other data."""
    kind = type(value)
    if kind is str or kind is bytes or kind is bool or kind is float or value is None:
        return value
    if kind is int:
        if _INT_LOW <= value <= _INT_HIGH:
            return value
        raise TypeError(f"{where}: the integer {value} does not fit in 64 bits; store it as a tagged string")
    if kind is list or kind is tuple:
        return [canonical(item, where) for item in value]
    if isinstance(value, Mapping):
        return _canonical_map(value, where)
    if isinstance(value, (str, bytes, bool, int, float)):  # a subclass such as StrEnum or IntEnum: store the plain value
        return canonical(_plain(value), where)
    name = f"{kind.__module__}.{kind.__qualname__}"
    raise TypeError(f"{where}: {name} is not plain data; the store keeps None, bool, int, float, str, bytes, lists and maps")


def _canonical_map(value: Mapping[str, Data], where: str) -> dict[str, Data]:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{where}: map key {key!r} is not a string")
    return {str(key): canonical(value[key], f"{where}.{key}") for key in sorted(value)}


def _plain(value: str | bytes | int | float) -> Data:
    for base in (str, bytes, int, float):
        if isinstance(value, base):
            return base.__str__(value) if base is str else base(value)  # type: ignore[arg-type]
    return value


def pack(value: Data, where: str = "value") -> bytes:
    """Canonical bytes of `value`."""
    packed: bytes = msgpack.packb(canonical(value, where), use_bin_type=True, strict_types=True)
    return packed


def unpack(data: bytes | memoryview, where: str = "record") -> Data:
    """The value in `data`; sequences as tuples. Raises DamagedRecord for anything that is not exactly one plain value."""
    try:
        return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=True, ext_hook=_refuse_extension)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise DamagedRecord(f"{where}: not valid msgpack data ({type(error).__name__}: {error})") from error


def _refuse_extension(code: int, data: bytes) -> Data:
    raise ValueError(f"msgpack extension type {code} is not allowed")


def digest(data: bytes | memoryview) -> str:
    """SHA-256 of `data` in lower-case hex: the name of a blob."""
    return hashlib.sha256(data).hexdigest()
