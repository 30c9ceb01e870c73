"""A local store as a place that artifacts are moved from and to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import RecordError, StoreError, Untrusted
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.moving.keyed_locks import KeyedLocks
from precast.artifact_store.moving.place import Holding, Moved, Parcel, RecordName
from precast.artifact_store.named_records import pack_record, parse
from precast.artifact_store.store import Store
from precast.artifact_store.trust.keys import PrivateKey
from precast.artifact_store.trust.signatures import Signature, manifest_statement, record_statement


class LocalPlace:
    """Artifacts are listed by their manifests, and delivered blob by blob, the manifest last: a killed transfer leaves blobs that the next
    one finds. `signer`: signs what leaves here, beside those who signed it before.
    """

    def __init__(self, store: Store, signer: PrivateKey | None = None) -> None:
        self.store = store
        self._signer = signer
        self._locks = KeyedLocks()

    @property
    def where(self) -> str:
        return self.store.place

    def holdings(self) -> Iterable[Holding]:
        return (self._holding(manifest) for manifest in self.store.manifests())

    def holdings_of(self, keys: Collection[str]) -> Iterable[Holding]:
        return (self._holding(manifest) for key in sorted(keys) for manifest in self.store.variants(key))

    def _holding(self, manifest: Manifest) -> Holding:
        try:
            made = self.store.made_at(manifest)
        except OSError:
            made = 0.0  # removed meanwhile: whoever wants it will say so
        size = len(manifest.to_bytes()) + sum(manifest.blobs.values())
        head = (manifest.program_key, manifest.program_name, manifest.artifact_id, manifest.target)
        signers = frozenset(signature.key for signature in self.store.signatures(manifest))
        signers |= {self._signer.public.id} if self._signer is not None else set()
        return Holding(*head, made, size, manifest.checksum, manifest.blobs, signers)

    def records(self) -> Iterator[RecordName]:
        for kind in layout.RECORD_KINDS:
            for name in self.store.record_names(kind):
                yield RecordName(kind, name)

    def whole(self, holding: Holding) -> bool:
        return not any(map(self.store.why_absent, holding.blobs))

    def accepts(self, holding: Holding) -> bool:
        manifest = self.store.get(holding.artifact_id, holding.program_key)
        try:
            return manifest is not None and self.store.trust(manifest) is not None
        except Untrusted:
            return False

    # -- from here

    def parcel(self, name: Holding | RecordName) -> Parcel | None:
        if isinstance(name, RecordName):
            return self._record(name)
        manifest = self.store.get(name.artifact_id, name.program_key)
        if manifest is None:
            raise StoreError(f"artifact {name.artifact_id[:12]} cannot be read in {self.where} any more: `precast verify` says why")
        statement = manifest_statement(manifest.program_key, manifest.artifact_id, manifest.checksum)
        return Parcel(manifest, self._signed(statement, self.store.signatures(manifest)), manifest.blobs, self._blob)

    def _signed(self, statement: bytes, signatures: tuple[Signature, ...]) -> tuple[Signature, ...]:
        if self._signer is None or any(signature.key == self._signer.public.id for signature in signatures):
            return signatures
        return *signatures, self._signer.sign(statement)

    def _record(self, name: RecordName) -> Parcel | None:
        content = self.store.record(*name)
        if content is None:
            return None
        blobs = {}
        for blob in content.get("blobs", ()):
            path = self.store.blob_path(blob)
            if path is None:
                return None  # said by the store: such a record serves nobody
            blobs[blob] = path.stat().st_size
        statement = record_statement(*name, self.store.record_checksum(*name))
        signatures = self._signed(statement, self.store.record_signatures(*name))
        return Parcel(pack_record(content, "/".join(name)), signatures, blobs, self._blob)

    def _blob(self, digest: str) -> bytes:
        data = self.store.blob(digest)
        if data is None:
            raise StoreError(f"blob {digest[:12]}… is missing or damaged in {self.where}: `precast verify` names what needs it")
        return data

    # -- to here

    def deliver(self, name: Holding | RecordName, parcel: Parcel, told: Callable[[int], None]) -> Moved:
        moved = Moved()
        for digest, size in parcel.blobs.items():
            with self._locks(digest):  # another artifact may bring it at the same time
                if self.store.blob_path(digest) is None:
                    self.store.put_blob(digest, parcel.read(digest))
                    moved = moved.plus(Moved(sent=size))
                else:
                    moved = moved.plus(Moved(spared=size))
            told(size)
        if isinstance(parcel.document, Manifest):
            self.store.put_manifest(parcel.document, parcel.signatures)
            return moved.plus(Moved(sent=len(parcel.document.to_bytes())))
        assert isinstance(name, RecordName)
        try:
            content, _ = parse(parcel.document, "/".join(name))
        except RecordError as error:
            raise StoreError(str(error)) from error
        self.store.put_record(*name, content, signatures=parcel.signatures)
        return moved.plus(Moved(sent=len(parcel.document)))

    def sign(self, parcel: Parcel) -> None:
        assert isinstance(parcel.document, Manifest)
        self.store.put_signatures(parcel.document, parcel.signatures)

    def finish(self) -> Moved:
        return Moved()

    def close(self) -> None:
        pass
