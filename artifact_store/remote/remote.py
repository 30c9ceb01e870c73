"""One remote tier: verbs on artifacts and named records over an endpoint.

What comes in is compared with its digests, its sizes and the tier's trust policy before anybody else sees it. What goes out goes in an
order in which nothing half sent is ever visible: objects first, the index object or the record that names them last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from precast.artifact_store.format.errors import DamagedRecord, RecordError, Untrusted
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.format.origin import Origin
from precast.artifact_store.named_records import parse
from precast.artifact_store.remote import layout
from precast.artifact_store.remote.compress import expand
from precast.artifact_store.remote.endpoint import Denied, Endpoint, Garbled
from precast.artifact_store.remote.index_update import change, parsed, to_be_changed
from precast.artifact_store.remote.program_index import Entry, ProgramIndex, StoredObject, packed_object
from precast.artifact_store.remote.remote_record import RemoteRecord
from precast.artifact_store.remote.settings import BUDGET, Mode
from precast.artifact_store.remote.workers import Workers
from precast.artifact_store.trust.signatures import Judge, Signature

log = logging.getLogger("precast.store")


class Lost(Garbled):
    """The index names an object that is not there, or not as it was put there."""


@dataclass(frozen=True)
class Fetched:
    """An artifact as it came: checked, and accepted by the tier's policy. `blobs`: those that the caller did not have, by digest."""

    manifest: Manifest
    blobs: Mapping[str, bytes]
    signatures: tuple[Signature, ...]
    received: int


@dataclass(frozen=True)
class FetchedRecord:
    """A named record as it came: checked and accepted. `file`: as the local store keeps it."""

    file: bytes
    blobs: Mapping[str, bytes]
    signatures: tuple[Signature, ...]
    received: int


@dataclass
class Receipt:
    """What was sent: bytes, and objects. `present`: objects that were there, of `spared` bytes; `known`: the remote had all of it; `found`:
    digests of what was there and not sent.
    """

    sent: int = 0
    objects: int = 0
    present: int = 0
    spared: int = 0
    known: bool = False
    found: set[str] = field(default_factory=set, repr=False)


@dataclass(frozen=True, eq=False)
class Remote:
    """One tier. `mode`: "ro" where nothing is ever written; `budget`: seconds for which a call waits for it; `trust`: the policy in words.

    Verbs raise EndpointError for what the endpoint does or sends; Untrusted where the policy refuses; StoreError without zstandard.
    Safe to use from several threads.
    """

    endpoint: Endpoint
    judge: Judge
    mode: Mode = "rw"
    budget: float = BUDGET
    trust: str = "signed"
    workers: Workers = field(default_factory=Workers, repr=False)

    @property
    def place(self) -> str:
        """As people know it, without credentials."""
        return self.endpoint.url

    @property
    def writable(self) -> bool:
        return self.mode == "rw"

    @property
    def trouble(self) -> str:
        """Why its circuit breaker lets nothing through at the moment, in words; empty where it does, or where there is none."""
        state = getattr(self.endpoint, "state", None)
        return "" if state is None or state.name == "closed" else str(state)

    # -- what is there

    def index(self, program_key: str) -> ProgramIndex | None:
        """What it has of a program: one request. None where it has nothing."""
        found = self.endpoint.get(layout.program_name(program_key), layout.MAX_INDEX)
        return None if found is None else parsed(found, program_key, self.place)

    def program_keys(self) -> Iterator[str]:
        """Keys of all programs. Raises Unsupported where the endpoint lists nothing."""
        for listed in self.endpoint.names(layout.PROGRAMS):
            if (key := layout.key_of(listed.name)) is not None:
                yield key

    def refusal(self, program_key: str, entry: Entry) -> str:
        """Why the trust policy refuses an artifact, as a sentence; empty where it does not."""
        return self.judge.refusal(entry.statement(program_key), entry.signatures)

    def fetch(self, program_key: str, entry: Entry, has: Callable[[str], bool] = lambda blob: False) -> Fetched:
        """An artifact that the index names: manifest and blobs at once. `has`: whether the caller has a blob, which is then left out."""
        if refusal := self.refusal(program_key, entry):
            raise Untrusted(f"{self.place}: artifact {entry.artifact_id[:12]}: {refusal}")
        wanted = [blob for blob in entry.blobs if not has(blob.raw)]
        packed = self.workers.run([partial(self._packed, item) for item in (entry.manifest, *wanted)])
        manifest = self._manifest(program_key, entry, self._expanded(entry.manifest, packed[0]))
        blobs = {item.raw: self._expanded(item, data) for item, data in zip(wanted, packed[1:], strict=True)}
        return Fetched(manifest, blobs, entry.signatures, sum(map(len, packed)))

    def content(self, item: StoredObject) -> bytes:
        """The content of one object that an index or a record names, checked; which bytes an artifact may have, its manifest says."""
        return self._expanded(item, self._packed(item))

    def record(self, kind: str, name: str, has: Callable[[str], bool] = lambda blob: False) -> FetchedRecord | None:
        """A named record with its blobs; None where there is none."""
        found = self.endpoint.get(layout.record_name(kind, name), layout.MAX_INDEX)
        if found is None:
            return None
        record = self._record(found, kind, name)
        if refusal := self.judge.refusal(record.statement(kind, name), record.signatures):
            raise Untrusted(f"{self.place}: record {kind}/{name}: {refusal}")
        wanted = [blob for blob in record.blobs if not has(blob.raw)]
        packed = self.workers.run([partial(self._packed, item) for item in wanted])
        blobs = {item.raw: self._expanded(item, data) for item, data in zip(wanted, packed, strict=True)}
        return FetchedRecord(record.file, blobs, record.signatures, len(found) + sum(map(len, packed)))

    # -- putting

    def publish(
        self,
        manifest: Manifest,
        blob: Callable[[str], bytes],
        signatures: Sequence[Signature] = (),
        *,
        repair: bool = False,
    ) -> Receipt:
        """Send an artifact: objects that are not there, then its entry in the index. `blob`: gives one by its digest, and is asked only for
        those that are sent.

        Of two different builds of one artifact the first stays, where the policy accepts it. `repair`: what is there was found to be
        incomplete, and is replaced.
        """
        self._check_writable()
        key, receipt = manifest.program_key, Receipt()
        there, index = to_be_changed(self.endpoint, key)
        repair = repair or (there is not None and not index.entries)  # where the index was damaged, objects may be as well
        found = index.entry(manifest.artifact_id)
        if found is not None and not repair and self._stays(key, found, manifest, signatures):
            receipt.known, receipt.spared = True, found.size
            return receipt
        data = manifest.to_bytes()
        contents: dict[str, Callable[[], bytes]] = {digest(data): lambda: data}
        contents |= {name: partial(blob, name) for name in manifest.blobs}
        named = {} if repair else index.stored()
        stored = self._send(contents, named, receipt, anew=repair)
        entry = Entry.of(manifest, stored[digest(data)], (stored[name] for name in sorted(manifest.blobs)), signatures, time.time())
        done = False

        def with_it(index: ProgramIndex) -> ProgramIndex | None:
            nonlocal done
            there = index.entry(manifest.artifact_id)
            if there is not None and (done or not repair) and self._stays(key, there, manifest, signatures):
                return None
            done = True
            best = entry if there is None or there.checksum != entry.checksum else replace(entry, signatures=_both(entry, there))
            return replace(index.with_entry(best), program_name=manifest.program_name[: layout.MAX_TEXT])

        change(self.endpoint, key, with_it)
        if receipt.found:  # a prune may have taken them before they were named
            self._send({name: contents[name] for name in receipt.found}, {}, again := Receipt())
            receipt.sent += again.sent
        return receipt

    def put_record(
        self, kind: str, name: str, file: bytes, blob: Callable[[str], bytes], signatures: Sequence[Signature] = (), *, anew: bool = False
    ) -> Receipt:
        """Send a named record, `file` as the local store keeps it, and its blobs before it. One that is there and that the policy accepts
        stays, unless `anew`.
        """
        self._check_writable()
        receipt, where = Receipt(), layout.record_name(kind, name)
        record, checksum = parse(file, where)
        found = self.endpoint.get(where, layout.MAX_INDEX)
        if found is not None and self._record_stays(found, kind, name, checksum, anew):
            receipt.known = True
            return receipt
        contents: dict[str, Callable[[], bytes]] = {item: partial(blob, item) for item in record.get("blobs", ())}
        stored = self._send(contents, {}, receipt)
        data = RemoteRecord(file, checksum, tuple(stored[item] for item in sorted(contents)), tuple(signatures)).to_bytes()
        self.endpoint.put(where, data)
        receipt.sent += len(data)
        return receipt

    def relate(self, program_key: str, parts: Iterable[str]) -> None:
        """Name further parts of a program in its index, so that who fetches it fetches them at the same time."""
        self._check_writable()
        keys = frozenset(parts) - {program_key}

        def with_them(index: ProgramIndex) -> ProgramIndex | None:
            return None if keys <= set(index.related) or len(index.related) >= layout.MAX_RELATED else index.with_related(keys)

        change(self.endpoint, program_key, with_them)

    def withdraw(self, program_key: str, artifact_ids: Iterable[str]) -> None:
        """Take artifacts out of the index; the objects that nothing names any more are pruned by others."""
        self._check_writable()
        gone = frozenset(artifact_ids)

        def without(index: ProgramIndex) -> ProgramIndex | None:
            return index.without(gone) if any(entry.artifact_id in gone for entry in index.entries) else None

        change(self.endpoint, program_key, without)

    # -- inside

    def _check_writable(self) -> None:
        if not self.writable:
            raise Denied(f"{self.place}: it is used read-only here (mode=ro); nothing is written there")

    def _stays(self, key: str, there: Entry, manifest: Manifest, signatures: Sequence[Signature]) -> bool:
        """Whether what is there of an artifact is as good as what was to be sent."""
        if there.checksum == manifest.checksum:
            return set(signatures) <= set(there.signatures)
        return not self.refusal(key, there)

    def _record_stays(self, found: bytes, kind: str, name: str, checksum: str, anew: bool) -> bool:
        try:
            there = self._record(found, kind, name)
        except Garbled as error:
            log.warning("%s; it is written anew", error)
            return False
        accepted = not self.judge.refusal(there.statement(kind, name), there.signatures)
        return accepted and (there.checksum == checksum or not anew)

    def _send(
        self, contents: Mapping[str, Callable[[], bytes]], named: Mapping[str, StoredObject], receipt: Receipt, anew: bool = False
    ) -> dict[str, StoredObject]:
        """Sees to it that each content is there, and says as what. `named`: those that the index says are there; `anew`: whatever is there
        is sent again.
        """

        def send(name: str) -> tuple[StoredObject, int]:
            if name in named:
                return named[name], 0
            item, packed = packed_object(contents[name]())
            if item.raw != name:
                raise Lost(f"{name[:12]}… is damaged in the local store, so it is not sent to {self.place}: `precast verify --repair`")
            where = layout.object_name(item.stored)
            if not anew and self.endpoint.has(where):
                return item, 0
            self.endpoint.put(where, packed)
            return item, len(packed)

        sent = self.workers.run([partial(send, name) for name in contents])
        receipt.sent += sum(size for _, size in sent)
        receipt.objects += sum(size > 0 for _, size in sent)
        receipt.found |= {name for name, (_, size) in zip(contents, sent, strict=True) if size == 0}
        receipt.present += sum(size == 0 for _, size in sent)
        receipt.spared += sum(item.packed for item, size in sent if size == 0)
        return dict(zip(contents, (item for item, _ in sent), strict=True))

    def _packed(self, item: StoredObject) -> bytes:
        """An object as it lies there."""
        data = self.endpoint.get(layout.object_name(item.stored), item.packed)
        if data is None:
            raise Lost(f"{self.place}: object {item.stored[:12]}… is not there, though it is named")
        if len(data) != item.packed or digest(data) != item.stored:
            raise Lost(f"{self.place}: object {item.stored[:12]}… is not what its name says ({len(data)} of {item.packed} bytes)")
        return data

    def _expanded(self, item: StoredObject, packed: bytes) -> bytes:
        content = expand(packed, item.size, f"{self.place}: object {item.stored[:12]}…")
        if digest(content) != item.raw:
            raise Garbled(f"{self.place}: object {item.stored[:12]}… holds other content than the index says")
        return content

    def _manifest(self, program_key: str, entry: Entry, data: bytes) -> Manifest:
        name = f"{layout.program_name(program_key)}#{entry.artifact_id}"
        try:
            manifest = Manifest.from_bytes(data, name, expect_id=entry.artifact_id, origin=Origin(self.endpoint.kind, self.place, name))
            said = (program_key, entry.target, entry.versions, entry.checksum)
            if (manifest.program_key, manifest.target, manifest.versions, manifest.checksum) != said:
                raise DamagedRecord(f"{name}: the manifest is of another program, target, version or checksum than the index says")
            if {blob.raw: blob.size for blob in entry.blobs} != manifest.blobs:
                raise DamagedRecord(f"{name}: the index names other blobs than the manifest")
        except RecordError as error:
            raise Garbled(f"{self.place}: {error}") from error
        return manifest

    def _record(self, data: bytes, kind: str, name: str) -> RemoteRecord:
        try:
            return RemoteRecord.from_bytes(data, layout.record_name(kind, name))
        except RecordError as error:
            raise Garbled(f"{self.place}: {error}") from error


def _both(one: Entry, other: Entry) -> tuple[Signature, ...]:
    """The signatures of two entries of one manifest, each once."""
    return tuple(dict.fromkeys((*one.signatures, *other.signatures)))[: layout.MAX_SIGNATURES]


__all__ = ["Fetched", "FetchedRecord", "Lost", "Receipt", "Remote"]
