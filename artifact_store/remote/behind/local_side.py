"""The local store as its remotes see it: what it has, and how what they bring is put into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from precast.artifact_store.entries import Entries
from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.named_records import NamedRecords, parse
from precast.artifact_store.remote.remote import Fetched, FetchedRecord
from precast.artifact_store.trust.signatures import Signature


class LocalStore(Protocol):
    """What is needed of the store."""

    @property
    def root(self) -> Path:
        """Its folder."""

    @property
    def readonly(self) -> bool:
        """Whether nothing can be put into it."""

    def get(self, artifact_id: str, program_key: str | None = None) -> Manifest | None:
        """An artifact's manifest."""

    def blob(self, digest_: str) -> bytes | None:
        """A blob, checked."""

    def signatures(self, manifest: Manifest) -> tuple[Signature, ...]:
        """Signatures of an artifact."""

    def put(self, manifest: Manifest, blobs: Mapping[str, bytes], signatures: tuple[Signature, ...] = ()) -> str:
        """Put an artifact that came from elsewhere. Raises StoreError and ValueError."""


class LocalSide:
    """`remotes.Local` over a store. Safe to use from several threads."""

    def __init__(self, store: LocalStore, entries: Entries, records: NamedRecords) -> None:
        self.root = store.root
        self._store = store
        self._entries = entries
        self._records = records

    @property
    def readonly(self) -> bool:
        return self._store.readonly

    def get(self, artifact_id: str, program_key: str | None = None) -> Manifest | None:
        return self._store.get(artifact_id, program_key)

    def blob(self, digest: str) -> bytes | None:
        return self._store.blob(digest)

    def signatures(self, manifest: Manifest) -> tuple[Signature, ...]:
        return self._store.signatures(manifest)

    def record_file(self, kind: str, name: str) -> bytes | None:
        return self._entries.read(layout.record_name(kind, name))

    def record_signatures(self, kind: str, name: str) -> tuple[Signature, ...]:
        return self._records.signatures(kind, name, self._records.checksum(kind, name))

    # -- whether it is there

    def has(self, program_key: str, artifact_id: str) -> bool:
        """A manifest is written last: where it is, the artifact is. One whose blobs were damaged since is fetched again."""
        manifest = self._store.get(artifact_id, program_key) if self._is_there(layout.manifest_name(program_key, artifact_id)) else None
        return manifest is not None and all(map(self.has_blob, manifest.blobs))

    def has_blob(self, digest: str) -> bool:
        return self._is_there(layout.blob_name(digest))

    def has_record(self, kind: str, name: str) -> bool:
        return self._is_there(layout.record_name(kind, name))

    def _is_there(self, name: str) -> bool:
        try:
            return not self._entries.problem and self._entries.tier.stamp(name) is not None
        except OSError:
            return False  # what cannot be read, `Entries` says when it is wanted

    # -- taking in

    def keep(self, fetched: Fetched) -> None:
        """Raises StoreError."""
        manifest = fetched.manifest
        blobs = dict(fetched.blobs)
        for name in manifest.blobs.keys() - blobs.keys():
            blobs[name] = self._own(name, f"artifact {manifest.artifact_id[:12]}")
        self._taken(lambda: self._store.put(manifest, blobs, fetched.signatures))

    def keep_record(self, kind: str, name: str, fetched: FetchedRecord) -> None:
        """Raises StoreError."""
        record, _ = parse(fetched.file, f"{kind}/{name}")
        blobs = dict(fetched.blobs)
        for blob in set(record.get("blobs", ())) - blobs.keys():
            blobs[blob] = self._own(blob, f"{kind}/{name}")
        self._taken(lambda: self._records.put(kind, name, record, blobs, fetched.signatures))

    def _own(self, name: str, what: str) -> bytes:
        data = self._store.blob(name)
        if data is None:
            raise StoreError(f"blob {name[:12]}… of {what} was in the local store, and is gone or damaged now; it is fetched again later")
        return data

    def _taken(self, put: Callable[[], object]) -> None:
        try:
            put()
        except ValueError as error:
            raise StoreError(f"it does not fit together: {error}") from error


__all__ = ["LocalSide"]
