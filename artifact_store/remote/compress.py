"""What lies on a remote is compressed by zstandard, and expanded only as far as a size that was promised before.

The level is measured (`benchmarks/remote/compression.py`). A frame states its content's size; one that states another than was promised, or
whose window is larger than `MAX_WINDOW`, is refused before memory is taken for it.
"""

from __future__ import annotations

import threading
from typing import Any

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.remote.endpoint import Garbled

LEVEL = 9
MAX_WINDOW = 1 << 23
"""Bytes: what the format asks every decoder to support."""
WHAT_TO_INSTALL = "remote tiers need zstandard: pip install 'precast[remote]'"


class _PerThread(threading.local):
    """Contexts are not to be shared between threads, and dear to make."""

    compressor: Any = None
    decompressor: Any = None


_here = _PerThread()


def compress(data: bytes) -> bytes:
    """One frame that states the size of its content and ends with its checksum, since an index has no digest elsewhere. Raises StoreError
    where zstandard is not installed.
    """
    if _here.compressor is None:
        _here.compressor = _module().ZstdCompressor(level=LEVEL, write_content_size=True, write_checksum=True)
    packed: bytes = _here.compressor.compress(data)
    return packed


def expand(packed: bytes, size: int, what: str) -> bytes:
    """The content of a frame, which has to be of `size` bytes. Raises Garbled, and StoreError where zstandard is not installed."""
    return _expand(packed, size, size, what)


def expand_within(packed: bytes, limit: int, what: str) -> bytes:
    """The content of a frame, at most `limit` bytes. Raises Garbled, and StoreError where zstandard is not installed."""
    return _expand(packed, None, limit, what)


def _expand(packed: bytes, size: int | None, limit: int, what: str) -> bytes:
    module = _module()
    if _here.decompressor is None:
        _here.decompressor = module.ZstdDecompressor(max_window_size=MAX_WINDOW)
    try:
        frame = module.get_frame_parameters(packed)
        if frame.content_size > limit or (size is not None and frame.content_size != size):
            raise Garbled(
                f"{what}: says that it holds {frame.content_size} bytes, and {'at most ' if size is None else ''}{limit} were to come"
            )
        if not frame.has_checksum:
            raise Garbled(f"{what}: compressed without a checksum, which is not accepted")
        if frame.window_size > MAX_WINDOW or frame.dict_id:
            raise Garbled(f"{what}: compressed with a window of {frame.window_size} bytes or a dictionary, which is not accepted")
        content: bytes = _here.decompressor.decompress(packed, max_output_size=limit, allow_extra_data=False)
    except module.ZstdError as error:
        raise Garbled(f"{what}: is not compressed as it should be ({error})") from error
    if len(content) != frame.content_size:
        raise Garbled(f"{what}: holds {len(content)} bytes, and {frame.content_size} were to come")
    return content


def _module() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise StoreError(WHAT_TO_INSTALL) from error
    return zstandard


__all__ = ["LEVEL", "MAX_WINDOW", "compress", "expand", "expand_within"]
