"""A remote tier, or an image in a registry, as a place that artifacts are moved from and to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from precast.artifact_store.format import layout as store_layout
from precast.artifact_store.format.errors import StoreError, Untrusted
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.moving.keyed_locks import KeyedLocks
from precast.artifact_store.moving.place import Holding, Moved, Parcel, RecordName, Refused, Unlistable
from precast.artifact_store.remote import layout
from precast.artifact_store.remote.endpoint import EndpointError, Unsupported
from precast.artifact_store.remote.oci.image_endpoint import ImageEndpoint
from precast.artifact_store.remote.program_index import Entry, ProgramIndex
from precast.artifact_store.remote.remote import Remote


class RemotePlace:
    """`guesses`: records that may be there, for an endpoint that lists nothing; `repair`: nothing that is there counts as whole, and what
    is delivered is sent again.
    """

    def __init__(self, remote: Remote, guesses: Collection[RecordName] = (), *, repair: bool = False) -> None:
        self.remote = remote
        self._repair = repair
        self._guesses = tuple(guesses)
        self._entries: dict[tuple[str, str], Entry] = {}
        self._locks = KeyedLocks()

    @property
    def where(self) -> str:
        return self.remote.place

    # -- what is there

    def holdings(self) -> Iterable[Holding]:
        with self._said():
            try:
                keys = sorted(self.remote.program_keys())
            except Unsupported as error:
                raise Unlistable(
                    f"{self.where} lists nothing: name the programs, by --build FILE or by --program with the whole key that `precast "
                    "ls` shows"
                ) from error
            return self._of(keys)

    def holdings_of(self, keys: Collection[str]) -> Iterable[Holding]:
        """Parts of programs are asked for, too, and parts of those."""
        found: list[Holding] = []
        asked: set[str] = set()
        wanted = {key for key in keys if store_layout.is_label(key)}
        with self._said():
            while wanted:
                asked |= wanted
                more = self._of(sorted(wanted))
                found += more
                wanted = {part for holding in more for part in holding.parts} - asked
        return found

    def _of(self, keys: list[str]) -> list[Holding]:
        indexes = self.remote.workers.run([partial(self.remote.index, key) for key in keys])
        return [self._holding(index, entry) for index in indexes if index is not None for entry in index.entries]

    def _holding(self, index: ProgramIndex, entry: Entry) -> Holding:
        self._entries[index.program_key, entry.artifact_id] = entry
        blobs = {blob.raw: blob.size for blob in entry.blobs}
        return Holding(
            index.program_key,
            index.program_name,
            entry.artifact_id,
            entry.target,
            entry.made,
            entry.manifest.size + sum(blobs.values()),
            entry.checksum,
            blobs,
            frozenset(signature.key for signature in entry.signatures),
            index.related,
        )

    def records(self) -> Iterable[RecordName]:
        with self._said():
            try:
                names = [listed.name.removeprefix(layout.RECORDS).split("/") for listed in self.remote.endpoint.names(layout.RECORDS)]
            except Unsupported:
                return self._guesses
        good = (name for name in names if len(name) == 2 and name[0] in store_layout.RECORD_KINDS and store_layout.is_label(name[1]))
        return [RecordName(*name) for name in good]

    def whole(self, holding: Holding) -> bool:
        return not self._repair

    def accepts(self, holding: Holding) -> bool:
        return not self.remote.refusal(holding.program_key, self._entries[holding.name])

    # -- from there

    def parcel(self, name: Holding | RecordName) -> Parcel | None:
        with self._said():
            if isinstance(name, RecordName):
                record = self.remote.record(*name)
                if record is None:
                    return None
                sizes = {blob: len(data) for blob, data in record.blobs.items()}
                return Parcel(record.file, record.signatures, sizes, record.blobs.__getitem__)
            entry = self._entries[name.name]
            if refusal := self.remote.refusal(name.program_key, entry):
                raise Refused(f"{self.where}: {refusal}")  # in the same words for all artifacts that are refused for the same reason
            found = self.remote.fetch(name.program_key, entry, has=lambda blob: True)
        items = {blob.raw: blob for blob in entry.blobs}

        def read(digest: str) -> bytes:
            with self._said():
                return self.remote.content(items[digest])

        return Parcel(found.manifest, found.signatures, found.manifest.blobs, read)

    # -- to there

    def deliver(self, name: Holding | RecordName, parcel: Parcel, told: Callable[[int], None]) -> Moved:
        read = _Telling(parcel, told)
        with self._said():
            if isinstance(parcel.document, Manifest):
                with self._locks(parcel.document.program_key):  # its index object is written once for each artifact
                    receipt = self.remote.publish(parcel.document, read, parcel.signatures, repair=self._repair)
            else:
                assert isinstance(name, RecordName)
                receipt = self.remote.put_record(*name, parcel.document, read, parcel.signatures)
        read.rest()
        return Moved(receipt.sent, receipt.spared)

    def sign(self, parcel: Parcel) -> None:
        assert isinstance(parcel.document, Manifest)
        with self._said():
            self.remote.publish(parcel.document, parcel.read, parcel.signatures)

    def finish(self) -> Moved:
        if not isinstance(self.remote.endpoint, ImageEndpoint):
            return Moved()
        with self._said():
            return Moved(sent=self.remote.endpoint.finish())

    def close(self) -> None:
        self.remote.endpoint.close()

    @contextmanager
    def _said(self) -> Iterator[None]:
        """What a remote raises, as the errors of a place."""
        try:
            yield
        except Untrusted as error:
            raise Refused(str(error)) from error
        except EndpointError as error:
            again = " (the same command goes on where this one stopped)" if error.again else ""
            raise StoreError(f"{error}{again}") from error


class _Telling:
    """Reads a parcel's blobs, and tells of each once."""

    def __init__(self, parcel: Parcel, told: Callable[[int], None]) -> None:
        self._parcel, self._told = parcel, told
        self._left = dict(parcel.blobs)
        self._lock = threading.Lock()

    def __call__(self, digest: str) -> bytes:
        data = self._parcel.read(digest)
        with self._lock:
            size = self._left.pop(digest, 0)
        self._told(size)
        return data

    def rest(self) -> None:
        """Of those that nobody read, since they were there."""
        self._told(sum(self._left.values()))
