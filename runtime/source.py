"""Where a variant's blobs come from: the store, or this process (for what could not be stored)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from precast.artifact_store.serial import digest


class BlobSource(Protocol):
    """Digest -> a file with exactly these bytes, checked; None where there is none."""

    def blob_path(self, digest_: str, /) -> Path | None: ...


class MemoryBlobs:
    """Blobs of an artifact that lives in this process only. Shared objects need a file: it is written to a private folder."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs = dict(blobs)
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def blob_path(self, digest_: str, /) -> Path | None:
        data = self._blobs.get(digest_)
        if data is None or digest(data) != digest_:
            return None
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="precast-", ignore_cleanup_errors=True)
        path = Path(self._folder.name) / digest_
        if not path.exists():
            aside = path.with_suffix(f".{os.getpid()}")
            aside.write_bytes(data)
            os.replace(aside, path)
        return path
