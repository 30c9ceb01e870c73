"""Sources of a variant's blobs: the store, or this process, for artifacts that could not be stored."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
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
        self._folder: Path | None = None

    def blob_path(self, digest_: str, /) -> Path | None:
        data = self._blobs.get(digest_)
        if data is None or digest(data) != digest_:
            return None
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="precast-"))
            weakref.finalize(self, _remove, self._folder, os.getpid())  # TemporaryDirectory would warn that nobody closed it
        path = self._folder / digest_
        if not path.exists():
            aside = path.with_suffix(f".{os.getpid()}")
            aside.write_bytes(data)
            os.replace(aside, path)
        return path


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child shares its parent's folder
        shutil.rmtree(folder, ignore_errors=True)
