"""The bytes of a bundle: what comes first decides about what follows, nothing in it is a path, and one content has one form.

    16 bytes    b"precast-bundle\\n" and the format's number, 1
     8 bytes    size of the index, little-endian
    …           the index: msgpack, compressed (zstandard)
    then for each blob, in the index's order:
     8 bytes    size of what follows, little-endian
    …           the blob, compressed
    32 bytes    SHA-256 of everything before

The index is `[artifacts, records, blobs]`: artifacts are `[manifest, signatures]`, by program key and id; records `[kind, name, file's
bytes, signatures]`, by kind and name; blobs `[SHA-256, size]`, by digest: exactly those that the artifacts and records name. It is
canonical msgpack: another form of the same index is refused. So whoever reads can judge all signatures before the first blob, needs no
more memory than the largest blob, and knows what each piece has to be before it is expanded.

Why not tar: an archive of files has names, links, owners, times, sparse and extended headers, each of which would have to be refused in
reading and normalised in writing, and no index in front. A registry takes the same pieces by digest, so that it needs no tar either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import RecordError, StoreError
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.format.msgpack import Data, digest, pack, unpack
from precast.artifact_store.format.origin import Origin
from precast.artifact_store.named_records import Record, parse
from precast.artifact_store.remote.compress import compress, expand, expand_within
from precast.artifact_store.remote.endpoint import Garbled
from precast.artifact_store.trust.signature_file import from_data, to_data
from precast.artifact_store.trust.signatures import Signature, manifest_statement, record_statement

MAGIC = b"precast-bundle\n"
FORMAT = 1
KIND = "bundle"
"""The kind of origin of what stands in one."""
MAX_INDEX = 256 << 20
MAX_BLOB = 1 << 30
_NUMBER, _DIGEST = 8, 32
_PIECE = 1 << 20


class BundleError(StoreError):
    """A bundle that cannot be read or written. The message says which, why and what to do."""


@dataclass(frozen=True)
class BundledArtifact:
    """One artifact: its manifest, whose checksum held, and signatures of it."""

    manifest: Manifest
    signatures: tuple[Signature, ...] = ()

    def statement(self) -> bytes:
        """What its signatures have to cover."""
        return manifest_statement(self.manifest.program_key, self.manifest.artifact_id, self.manifest.checksum)


@dataclass(frozen=True)
class BundledRecord:
    """One named record: its file's bytes, what they say, the checksum of that, and signatures of it."""

    kind: str
    name: str
    file: bytes
    record: Record
    checksum: str
    signatures: tuple[Signature, ...] = ()

    def statement(self) -> bytes:
        """What its signatures have to cover."""
        return record_statement(self.kind, self.name, self.checksum)


@dataclass(frozen=True)
class Index:
    """What a bundle holds. `blobs`: digest -> size, in the order of the file."""

    artifacts: tuple[BundledArtifact, ...]
    records: tuple[BundledRecord, ...]
    blobs: dict[str, int]

    def to_bytes(self) -> bytes:
        """Canonical msgpack."""
        artifacts = [[one.manifest.to_bytes(), to_data(one.signatures)] for one in sorted(self.artifacts, key=_artifact_key)]
        records = [[one.kind, one.name, one.file, to_data(one.signatures)] for one in sorted(self.records, key=_record_key)]
        return pack([artifacts, records, [[blob, self.blobs[blob]] for blob in sorted(self.blobs)]], "bundle")


def _artifact_key(one: BundledArtifact) -> tuple[str, str]:
    return one.manifest.program_key, one.manifest.artifact_id


def _record_key(one: BundledRecord) -> tuple[str, str]:
    return one.kind, one.name


# -- writing


def write(index: Index, blob: Callable[[str], bytes], file: BinaryIO) -> int:
    """Write a bundle; `blob` gives one by its digest. Its size in bytes. Raises OSError, and BundleError for a blob that is another."""
    state, size = hashlib.sha256(), 0

    def add(*pieces: bytes) -> None:
        nonlocal size
        for piece in pieces:
            state.update(piece)
            file.write(piece)
            size += len(piece)

    content = index.to_bytes()
    packed = compress(content)
    if len(content) > MAX_INDEX:
        raise BundleError(f"an index of {len(content)} bytes is more than a bundle may have ({MAX_INDEX}): export fewer programs into one")
    add(MAGIC, bytes([FORMAT]), len(packed).to_bytes(_NUMBER, "little"), packed)
    for name in sorted(index.blobs):
        data = blob(name)
        if digest(data) != name or len(data) != index.blobs[name] or len(data) > MAX_BLOB:
            raise BundleError(f"blob {name[:12]}… is not what the index says, or larger than {MAX_BLOB} bytes")
        packed = compress(data)
        add(len(packed).to_bytes(_NUMBER, "little"), packed)
    file.write(state.digest())
    return size + _DIGEST


# -- reading


class Reader:
    """A bundle, from its beginning to its end. `where`: what messages call it."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file, self._where = file, where
        self._state = hashlib.sha256()
        try:
            self.index = self._index()
        except (RecordError, Garbled) as error:
            raise BundleError(f"{error}; export it again") from error

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Each blob in order, compared with its digest; at the end the whole bundle is. Raises BundleError and OSError."""
        for name, size in self.index.blobs.items():
            packed = self._taken(self._number(size + (size >> 7) + 1024, f"blob {name[:12]}"), f"blob {name[:12]}")
            try:
                data = expand(packed, size, f"{self._where}: blob {name[:12]}")
            except Garbled as error:
                raise BundleError(str(error)) from error
            if digest(data) != name:
                raise BundleError(f"{self._where}: blob {name[:12]}… does not match its digest; export it again")
            yield name, data
        expected = self._state.digest()
        if self._file.read(_DIGEST + 1) != expected:
            raise BundleError(f"{self._where}: does not match its checksum, or goes on behind it; export it again")

    def _index(self) -> Index:
        magic = self._taken(len(MAGIC) + 1, "its beginning")
        if magic[:-1] != MAGIC:
            raise BundleError(f"{self._where}: is no bundle of precast (`precast export FILE` writes one)")
        if magic[-1] > FORMAT:
            raise BundleError(
                f"{self._where}: format {magic[-1]}, and this precast reads up to {FORMAT}: a newer precast wrote it; upgrade"
            )
        if magic[-1] != FORMAT:
            raise BundleError(f"{self._where}: there is no format {magic[-1]}")
        packed = self._taken(self._number(MAX_INDEX, "index"), "index")
        content = expand_within(packed, MAX_INDEX, f"{self._where}: index")
        return parse_index(content, self._where)

    def _number(self, limit: int, what: str) -> int:
        number = int.from_bytes(self._taken(_NUMBER, what), "little")
        if number > limit:
            raise BundleError(f"{self._where}: {what} says that it takes {number} bytes, and at most {limit} can be; export it again")
        return number

    def _taken(self, size: int, what: str) -> bytes:
        pieces, missing = [], size
        while missing:  # in pieces: memory is taken for what is there, and not for what was promised
            piece = self._file.read(min(missing, _PIECE))
            if not piece:
                raise BundleError(f"{self._where}: ends within {what}: it was cut off; export or copy it again")
            pieces.append(piece)
            missing -= len(piece)
        data = b"".join(pieces)
        self._state.update(data)
        return data


def checked(file: BinaryIO, where: str) -> None:
    """Compares the whole file with the checksum at its end, and goes back to its beginning. Raises BundleError and OSError."""
    state, held = hashlib.sha256(), b""
    file.seek(0)
    while piece := file.read(_PIECE):
        held += piece
        state.update(held[:-_DIGEST])
        held = held[-_DIGEST:]
    file.seek(0)
    if file.read(len(MAGIC)) != MAGIC:
        raise BundleError(f"{where}: is no bundle of precast (`precast export FILE` writes one)")
    if held != state.digest():
        raise BundleError(f"{where}: does not match its checksum: it was changed, damaged or cut off; export or copy it again")
    file.seek(0)


def parse_index(content: bytes, where: str) -> Index:
    """The index in these bytes. Raises BundleError and RecordError for anything that `Index.to_bytes` would not have written."""
    data = unpack(content, f"{where}: index")
    if type(data) is not tuple or len(data) != 3 or any(type(part) is not tuple for part in data):
        raise BundleError(f"{where}: its index is malformed")
    artifacts = tuple(_artifact(item, where) for item in data[0])
    records = tuple(_record(item, where) for item in data[1])
    blobs = _blobs(data[2], where)
    index = Index(artifacts, records, blobs)
    _check_sizes(index, where)
    if index.to_bytes() != content:
        raise BundleError(f"{where}: its index is not in the one order and form that it has, or names something twice")
    return index


def _artifact(item: Data, where: str) -> BundledArtifact:
    if type(item) is not tuple or len(item) != 2 or type(item[0]) is not bytes:
        raise BundleError(f"{where}: its index has an entry that is no artifact")
    manifest = Manifest.from_bytes(item[0], f"{where}: manifest", origin=Origin(KIND, where, "manifest"))
    if not layout.is_label(manifest.program_key):
        raise BundleError(f"{where}: {manifest.program_key[:80]!r} is no program key")
    return BundledArtifact(manifest, from_data(item[1], f"{where}: artifact {manifest.artifact_id[:12]}"))


def _record(item: Data, where: str) -> BundledRecord:
    if type(item) is not tuple or len(item) != 4 or [type(part) for part in item[:3]] != [str, str, bytes]:
        raise BundleError(f"{where}: its index has an entry that is no record")
    kind, name, file = item[:3]
    if kind not in layout.RECORD_KINDS or not layout.is_label(name):
        raise BundleError(f"{where}: there is no record {kind[:80]!r}/{name[:80]!r}")
    record, checksum = parse(file, f"{where}: {kind}/{name}")
    return BundledRecord(kind, name, file, record, checksum, from_data(item[3], f"{where}: {kind}/{name}"))


def _blobs(data: Iterable[Data], where: str) -> dict[str, int]:
    blobs = {}
    for item in data:
        if type(item) is not tuple or len(item) != 2 or not layout.is_digest(item[0]) or type(item[1]) is not int:
            raise BundleError(f"{where}: its index has an entry that is no blob")
        if not 0 <= item[1] <= MAX_BLOB:
            raise BundleError(f"{where}: blob {item[0][:12]}… of {item[1]} bytes: at most {MAX_BLOB} can be")
        blobs[item[0]] = item[1]
    return blobs


def _check_sizes(index: Index, where: str) -> None:
    """The blobs are exactly those that are named, each of the size that manifests give it."""
    sized = [item for one in index.artifacts for item in one.manifest.blobs.items()]
    named = {blob for blob, _ in sized} | {blob for one in index.records for blob in one.record.get("blobs", ())}
    if named != set(index.blobs) or any(index.blobs[blob] != size for blob, size in sized):
        raise BundleError(f"{where}: its blobs are not those that its artifacts and records name")
