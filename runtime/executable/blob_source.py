"""Where what an artifact executes comes from: the store, or this process (for what could not be stored)."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from precast.artifact_store import Manifest
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.trust.trusted import LOCAL, Trusted, admit, admit_manifest


class BlobSource(Protocol):
    """Says which manifests may be executed, and has the blobs that they name."""

    def trust(self, manifest: Manifest, /) -> Trusted[Manifest]:
        """The manifest, whose bytecode and blobs may be executed. Raises Untrusted."""

    def trusted_file(self, name: Trusted[str], /) -> Trusted[Path] | None:
        """A file with exactly the bytes whose digest is given, checked; None where there is none."""


class MemoryBlobs:
    """Blobs of an artifact that lives in this process only. Shared objects need a file: it is written to a private folder."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs = dict(blobs)
        self._folder: Path | None = None

    def trust(self, manifest: Manifest, /) -> Trusted[Manifest]:
        return admit_manifest(manifest, LOCAL)

    def trusted_file(self, name: Trusted[str], /) -> Trusted[Path] | None:
        data = self._blobs.get(name.content)
        if data is None or digest(data) != name.content:
            return None
        return admit(self._file(name.content, data), name.content, name.origin, LOCAL, holds=True)

    def _file(self, digest_: str, data: bytes) -> Path:
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
