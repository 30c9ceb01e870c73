"""The manifest: one artifact's record, data only.

A manifest file is a msgpack array `[magic, format, checksum, head, guards, body, info]`. The last four are msgpack documents of
their own, packed as byte strings, so that a loader decodes only what it needs: `head` to see whether an artifact can run here,
`guards` to check them, `body` to load it, `info` only to show it.

* head: what decides the code, and nothing else (no paths, hosts, times, device indices); `artifact_id = sha256(head)`.
  It holds the guard hash, and so it covers `guards`.
* body: program name, frames, graphs, blob sizes: what the compile produced.
* info: precast's version, evidence, provenance: for people.
* checksum: SHA-256 over the four, so that truncation and flipped bits are found before anything is believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import DamagedRecord, ForeignRecord, FutureFormat
from precast.artifact_store.format.guards import Guard, Predicate, canonical_order, guard_hash
from precast.artifact_store.format.msgpack import Data, digest, pack, unpack
from precast.artifact_store.format.origin import MADE_HERE, UNKNOWN, Origin
from precast.artifact_store.format.packed_guards import GuardRow, count_guards, hash_of_packed, pack_guards, unpack_guards

FORMAT = 1
MAGIC = "precast-manifest"


@dataclass(frozen=True)
class Versions:
    """What the compiled code depends on. `python` is the minor version where bytecode is stored, else None."""

    lowering: str
    torch: str
    python: str | None
    compiler: str


@dataclass(frozen=True)
class GraphRecord:
    """One compiled graph: blob digests by role ("library", "kernel_source", "host_source", …) and its input/output spec."""

    blobs: Mapping[str, str]
    io: Mapping[str, Data]

    @property
    def library(self) -> str:
        return self.blobs["library"]

    @property
    def kernel_source(self) -> str:
        return self.blobs["kernel_source"]

    @property
    def host_source(self) -> str:
        return self.blobs["host_source"]


def guard_rows(guards: Iterable[Guard]) -> tuple[GuardRow, ...]:
    """Guards as plain rows, in the order given."""
    return tuple((guard.path, str(guard.predicate), guard.constant) for guard in guards)


class Manifest:
    """An artifact's record. Immutable; sections decode on first use. Make one with `Manifest.make`, read one with `from_bytes`.

    `origin`: where it was read, which is no part of it.
    """

    def __init__(
        self, head: bytes, guards: bytes, body: bytes, info: bytes, format: int = FORMAT, origin: Origin = MADE_HERE, checksum: bytes = b""
    ) -> None:
        self.format = format
        self.origin = origin
        self._sections = (head, guards, body, info)
        self._known_checksum = checksum  # where it was compared already

    @staticmethod
    def make(
        *,
        program_key: str,
        program_name: str,
        target: str,
        versions: Versions,
        options: Mapping[str, Data],
        guards: Iterable[Guard],
        graphs: Mapping[str, GraphRecord],
        blobs: Mapping[str, int],
        frames: Iterable[Mapping[str, Data]] = (),
        waived: Iterable[str] = (),
        digests: Mapping[str, str] | None = None,
        evidence: Mapping[str, Data] | None = None,
        provenance: Mapping[str, Data] | None = None,
        precast_version: str = "",
    ) -> Manifest:
        """A new manifest. `blobs` is digest -> size of every blob that the artifact needs; `digests` is inlined code -> its digest.

        Raises TypeError or ValueError, naming the field, for what is not plain data or breaks the schema.
        """
        ordered = canonical_order(guards)
        guard_bytes = pack_guards(guard_rows(ordered))
        head = {
            "format": FORMAT,
            "program_key": program_key,
            "target": target,
            "versions": asdict(versions),
            "options": options,
            "guard_hash": guard_hash(ordered),
            "waived": sorted(waived),
            "digests": digests or {},
        }
        body = {
            "program_name": program_name,
            "frames": list(frames),
            "graphs": _graph_data(graphs),
            "blobs": blobs,
        }
        info = {"precast": precast_version, "evidence": evidence or {}, "provenance": provenance or {}}
        made = Manifest(pack(head, "head"), guard_bytes, pack(body, "body"), pack(info, "info"))
        try:
            made.check()
        except DamagedRecord as error:
            raise ValueError(f"cannot make this manifest: {error}") from error
        return made

    def completed(
        self,
        *,
        graphs: Mapping[str, GraphRecord],
        blobs: Mapping[str, int],
        evidence: Mapping[str, Data],
        provenance: Mapping[str, Data],
    ) -> Manifest:
        """This artifact with what its compilation produced. Its head and its guards, thousands of them, stay the bytes that they are.

        Raises TypeError or ValueError, naming the field, for what is not plain data or breaks the schema.
        """
        head, guards, _, _ = self._sections
        body = {**self._body, "graphs": _graph_data(graphs), "blobs": blobs}
        info = {**self._info, "evidence": evidence, "provenance": provenance}
        made = Manifest(head, guards, pack(body, "body"), pack(info, "info"))
        try:
            made._check_results()
        except DamagedRecord as error:
            raise ValueError(f"cannot complete this manifest: {error}") from error
        return made

    def with_evidence(self, more: Mapping[str, Data]) -> Manifest:
        """This artifact with more evidence, made by this process: its id stays, and what may execute stays the bytes that it is.

        Raises TypeError or ValueError for what is not plain data.
        """
        head, guards, body, _ = self._sections
        info = {**self._info, "evidence": {**self.evidence, **more}}
        return Manifest(head, guards, body, pack(info, "info"))

    # -- identity

    @cached_property
    def artifact_id(self) -> str:
        return digest(self._sections[0])

    @property
    def id(self) -> str:
        return self.artifact_id

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over all sections: unlike the id, it covers what executes."""
        return (self._known_checksum or _checksum(self._sections)).hex()

    def __repr__(self) -> str:
        return f"<Manifest {self.artifact_id[:12]} {self.program_name!r} for {self.target}>"

    # -- head

    @cached_property
    def _head(self) -> dict[str, Data]:
        return _section(self._sections[0], "head", _HEAD)

    @property
    def program_key(self) -> str:
        return str(self._head["program_key"])

    @property
    def target(self) -> str:
        return str(self._head["target"])

    @cached_property
    def versions(self) -> Versions:
        return Versions(**self._head["versions"])

    @property
    def options(self) -> dict[str, Data]:
        return dict(self._head["options"])

    @property
    def guard_hash(self) -> str:
        return str(self._head["guard_hash"])

    @property
    def waived(self) -> tuple[str, ...]:
        """Guards that the user chose to drop, in words."""
        return tuple(self._head["waived"])

    @property
    def digests(self) -> dict[str, str]:
        """Inlined code -> digest of that code; an edit to any of it makes this artifact miss."""
        return dict(self._head["digests"])

    # -- guards

    @cached_property
    def guard_rows(self) -> tuple[GuardRow, ...]:
        """The guards as `(path, predicate, constant)` tuples: thousands per model, so no objects are built for them."""
        return unpack_guards(self._sections[1])

    @property
    def guard_count(self) -> int:
        """How many there are, without reading them."""
        return len(self.__dict__["guard_rows"]) if "guard_rows" in self.__dict__ else count_guards(self._sections[1])

    @cached_property
    def guards(self) -> tuple[Guard, ...]:
        """The guards as objects, for showing and explaining."""
        return tuple(Guard(path, Predicate(predicate), constant) for path, predicate, constant in self.guard_rows)

    # -- body

    @cached_property
    def _body(self) -> dict[str, Data]:
        return _section(self._sections[2], "body", _BODY)

    @property
    def program_name(self) -> str:
        return str(self._body["program_name"])

    @property
    def frames(self) -> tuple[dict[str, Data], ...]:
        return tuple(self._body["frames"])

    @cached_property
    def graphs(self) -> dict[str, GraphRecord]:
        return {name: GraphRecord(graph["blobs"], graph["io"]) for name, graph in self._body["graphs"].items()}

    @property
    def blobs(self) -> dict[str, int]:
        """Digest -> size in bytes, of every blob that the artifact needs."""
        return dict(self._body["blobs"])

    # -- info

    @cached_property
    def _info(self) -> dict[str, Data]:
        return _section(self._sections[3], "info", _INFO)

    @property
    def precast_version(self) -> str:
        return str(self._info["precast"])

    @property
    def evidence(self) -> dict[str, Data]:
        return dict(self._info["evidence"])

    @property
    def provenance(self) -> dict[str, Data]:
        return dict(self._info["provenance"])

    # -- bytes

    def to_bytes(self) -> bytes:
        return pack([MAGIC, self.format, _checksum(self._sections), *self._sections], "manifest")

    @staticmethod
    def from_bytes(data: bytes, where: str = "manifest", expect_id: str | None = None, origin: Origin | None = None) -> Manifest:
        """The manifest in `data`. Checks the checksum and, where given, the id; raises a RecordError that says what is wrong.

        `origin`: where the bytes were read. Without it nothing of the manifest is trusted enough to execute.
        """
        outer = _envelope(data, where)
        if len(outer) != 7 or any(type(part) is not bytes for part in outer[2:]):
            raise DamagedRecord(f"{where}: the manifest's envelope is malformed")
        sections = outer[3:]
        if _checksum(sections) != outer[2]:
            raise DamagedRecord(f"{where}: checksum mismatch (truncated or changed on disk)")
        manifest = Manifest(*sections, format=outer[1], origin=origin or Origin(UNKNOWN, "", where), checksum=outer[2])
        if expect_id is not None and manifest.artifact_id != expect_id:
            raise DamagedRecord(f"{where}: holds artifact {manifest.artifact_id[:12]}…, not {expect_id[:12]}…")
        return manifest

    def check(self) -> None:
        """Full schema check of every section (loading checks lazily). Raises DamagedRecord."""
        if not layout.is_label(self.program_key):
            raise DamagedRecord(f"head: program_key {self.program_key!r} cannot be a folder name")
        for path, _, _ in self.guard_rows:
            if type(path) is not tuple:
                raise DamagedRecord(f"guards: {path!r} is no path")
        if self.guard_hash != hash_of_packed(self._sections[1], self.guard_rows):
            raise DamagedRecord("head: guard_hash is not the hash of the guards")
        _ = self.versions
        self._check_results()

    def _check_results(self) -> None:
        """The sections that hold what a compilation produced."""
        for name, graph in self.graphs.items():
            for role, blob in graph.blobs.items():
                if blob not in self._body["blobs"]:
                    raise DamagedRecord(f"body: graph {name!r} names blob {role} = {blob!r} which is not in the artifact's blob list")
        _ = self.precast_version, self.evidence, self.provenance


def _graph_data(graphs: Mapping[str, GraphRecord]) -> dict[str, Data]:
    return {name: {"blobs": graph.blobs, "io": graph.io} for name, graph in graphs.items()}


# -- the schema: field -> check; both a missing and an unknown field is an error


def _text(value: Data) -> bool:
    return type(value) is str


def _optional_text(value: Data) -> bool:
    return value is None or type(value) is str


def _mapping(value: Data) -> bool:
    return type(value) is dict


def _texts(value: Data) -> bool:
    return type(value) is tuple and all(type(item) is str for item in value)


def _text_map(value: Data) -> bool:
    return type(value) is dict and all(type(item) is str for item in value.values())


def _versions(value: Data) -> bool:
    return type(value) is dict and not _mismatch(value, {"lowering": _text, "torch": _text, "python": _optional_text, "compiler": _text})


def _frames(value: Data) -> bool:
    return type(value) is tuple and all(type(item) is dict for item in value)


def _graphs(value: Data) -> bool:
    return type(value) is dict and all(
        type(item) is dict and not _mismatch(item, {"blobs": _text_map, "io": _mapping}) for item in value.values()
    )


def _sizes(value: Data) -> bool:
    return type(value) is dict and all(layout.is_digest(key) and type(size) is int and size >= 0 for key, size in value.items())


_HEAD: dict[str, Any] = {
    "format": lambda value: type(value) is int,
    "program_key": _text,
    "target": _text,
    "versions": _versions,
    "options": _mapping,
    "guard_hash": layout.is_digest,
    "waived": _texts,
    "digests": _text_map,
}
_BODY: dict[str, Any] = {"program_name": _text, "frames": _frames, "graphs": _graphs, "blobs": _sizes}
_INFO: dict[str, Any] = {"precast": _text, "evidence": _mapping, "provenance": _mapping}


def _mismatch(record: dict[str, Data], schema: dict[str, Any]) -> str:
    """What is wrong with `record` under `schema`, or an empty string."""
    if missing := sorted(schema.keys() - record.keys()):
        return f"field {missing[0]!r} is missing"
    if unknown := sorted(record.keys() - schema.keys()):
        return f"unknown field {unknown[0]!r}"
    wrong = [name for name, accepts in schema.items() if not accepts(record[name])]
    return f"field {wrong[0]!r} has an unexpected value of type {type(record[wrong[0]]).__name__}" if wrong else ""


def _section(data: bytes, name: str, schema: dict[str, Any]) -> dict[str, Data]:
    record = unpack(data, name)
    if type(record) is not dict:
        raise DamagedRecord(f"{name}: expected a map, found {type(record).__name__}")
    if problem := _mismatch(record, schema):
        raise DamagedRecord(f"{name}: {problem}")
    return record


def _envelope(data: bytes, where: str) -> tuple[Data, ...]:
    if not data[:48].find(MAGIC.encode()) >= 0:
        reason = "empty" if not data else "no precast manifest"
        raise ForeignRecord(f"{where}: {reason}")
    outer = unpack(data, where)
    if type(outer) is not tuple or len(outer) < 2 or outer[0] != MAGIC:
        raise ForeignRecord(f"{where}: no precast manifest")
    if type(outer[1]) is not int or not 1 <= outer[1]:
        raise DamagedRecord(f"{where}: format {outer[1]!r} is not a version number")
    if outer[1] > FORMAT:
        raise FutureFormat(f"{where}: manifest format {outer[1]}, and this precast reads up to {FORMAT}; a newer precast wrote it")
    return outer


def _checksum(sections: Iterable[bytes]) -> bytes:
    state = hashlib.sha256()
    for section in sections:
        state.update(len(section).to_bytes(8, "little"))
        state.update(section)
    return state.digest()
