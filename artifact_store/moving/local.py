"""A local store as a place that artifacts are moved from and to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import RecordError, StoreError
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.format.msgpack import pack
from precast.artifact_store.moving.place import Holding, Moved, Parcel, ReadBlob, RecordName
from precast.artifact_store.store import Store
from precast.artifact_store.trust.signatures import Signature


class LocalPlace:
    """Artifacts are listed by their manifests, and delivered blob by blob, the manifest last: a killed transfer leaves blobs that the next
    one finds.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def where(self) -> str:
        return self.store.place

    def holdings(self, keys: Collection[str] | None = None) -> Iterable[Holding]:
        """Those of all programs: a listing of a folder costs little, and what resumes a program has a key of its own."""
        return (self._holding(manifest) for manifest in self.store.manifests())

    def _holding(self, manifest: Manifest) -> Holding:
        try:
            made = self.store.made_at(manifest)
        except OSError:
            made = 0.0  # removed meanwhile: whoever wants it will say so
        return holding_of(manifest, made)

    def records(self) -> Iterator[RecordName]:
        for kind in layout.RECORD_KINDS:
            for name in self.store.record_names(kind):
                yield RecordName(kind, name)

    def parcel(self, holding: Holding) -> Parcel:
        manifest = self.store.get(holding.artifact_id, holding.program_key)
        if manifest is None:
            raise StoreError(f"artifact {holding.artifact_id[:12]} cannot be read in {self.where} any more: `precast verify` says why")
        return Parcel(manifest.to_bytes(), (), manifest.blobs, manifest=manifest)

    def record(self, name: RecordName) -> Parcel | None:
        content = self.store.record(*name)
        if content is None:
            return None
        blobs = {}
        for blob in content.get("blobs", ()):
            path = self.store.blob_path(blob)
            if path is None:
                return None  # said by the store: such a record serves nobody
            blobs[blob] = path.stat().st_size
        return Parcel(pack(content, "/".join(name)), (), blobs, record=name)

    def blob(self, digest: str, size: int) -> bytes:
        data = self.store.blob(digest)
        if data is None:
            raise StoreError(f"blob {digest[:12]}… is missing or damaged in {self.where}: `precast verify` names what needs it")
        return data

    def deliver(self, parcel: Parcel, read: ReadBlob, told: Callable[[int], None]) -> Moved:
        moved, brought = Moved(), {}
        for digest, size in parcel.blobs.items():
            if self.store.blob_path(digest) is None:
                brought[digest] = read(digest)
                self.store.put_blob(digest, brought[digest])
                moved = moved.plus(Moved(sent=size))
            else:
                moved = moved.plus(Moved(spared=size))
            told(size)
        if parcel.manifest is not None:
            self.store.put_manifest(parcel.manifest)
        elif parcel.record is not None:
            self._put_record(parcel.record, parcel.content)
        return moved.plus(Moved(sent=len(parcel.content)))

    def _put_record(self, name: RecordName, content: bytes) -> None:
        self.store.put_record(*name, record_content(content, "/".join(name)))

    def sign(self, holding: Holding, signatures: tuple[Signature, ...]) -> None:
        raise StoreError(f"signatures cannot be added in {self.where}")

    def finish(self) -> Moved:
        return Moved()

    def close(self) -> None:
        pass


def holding_of(manifest: Manifest, made: float, signers: frozenset[str] = frozenset()) -> Holding:
    """How a place lists this artifact."""
    blobs = manifest.blobs
    size = len(manifest.to_bytes()) + sum(blobs.values())
    head = (manifest.program_key, manifest.program_name, manifest.artifact_id, manifest.target)
    return Holding(*head, made, size, manifest.checksum, blobs, signers)


def record_content(content: bytes, where: str) -> dict[str, object]:
    """The map of a named record. Raises StoreError for anything else."""
    from precast.artifact_store.format.msgpack import unpack

    try:
        record = unpack(content, where)
    except RecordError as error:
        raise StoreError(str(error)) from error
    if type(record) is not dict or not all(layout.is_digest(blob) for blob in record.get("blobs", ())):
        raise StoreError(f"{where}: expected a map whose 'blobs' are digests")
    return record
