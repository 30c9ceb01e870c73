"""Writing a bundle of what a store has, and taking one into a store."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from precast.artifact_store.bundle.format import BundledArtifact, BundledRecord, BundleError, Index, Reader, checked, write
from precast.artifact_store.format.errors import RecordError, Untrusted
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.format.msgpack import digest, pack
from precast.artifact_store.store import Store
from precast.artifact_store.tiers.disk_errors import cure
from precast.artifact_store.trust.signatures import Judge, Signature, Signer


@dataclass
class Exported:
    """What was written: counts, bytes of the blobs as they are, and of the file; `unsigned`: artifacts without any signature."""

    artifacts: int = 0
    records: int = 0
    blobs: int = 0
    content: int = 0
    size: int = 0
    unsigned: int = 0


def export(
    store: Store, path: Path, manifests: Iterable[Manifest], records: Iterable[tuple[str, str]], signer: Signer | None = None
) -> Exported:
    """Write a bundle of these artifacts and records (kind, name), with their signatures and that of `signer`. Appears whole or not at all.

    Raises BundleError, also where one of them is not whole.
    """
    bundled = [BundledArtifact(one, store.signatures(one)) for one in manifests]
    bundled = [BundledArtifact(one.manifest, _signed(one.statement(), one.signatures, signer)) for one in bundled]
    kept = [record for kind, name in records if (record := _record(store, kind, name, signer)) is not None]
    sizes = {blob: size for one in bundled for blob, size in one.manifest.blobs.items()}
    sizes |= {blob: _size(store, blob) for one in kept for blob in one.record.get("blobs", ()) if blob not in sizes}
    index = Index(tuple(bundled), tuple(kept), sizes)
    with _aside(path) as file:
        size = write(index, lambda blob: _blob(store, blob), file)
    unsigned = sum(not one.signatures for one in bundled)
    return Exported(len(bundled), len(kept), len(sizes), sum(sizes.values()), size, unsigned)


def _signed(statement: bytes, signatures: tuple[Signature, ...], signer: Signer | None) -> tuple[Signature, ...]:
    return signatures if signer is None else tuple({one.key: one for one in (*signatures, signer.sign(statement))}.values())


def _record(store: Store, kind: str, name: str, signer: Signer | None) -> BundledRecord | None:
    found = store.record_file(kind, name)
    if found is None:
        return None
    file, record, checksum = found
    one = BundledRecord(kind, name, file, record, checksum, store.record_signatures(kind, name))
    return BundledRecord(kind, name, file, record, checksum, _signed(one.statement(), one.signatures, signer))


def _blob(store: Store, blob: str) -> bytes:
    data = store.blob(blob)
    if data is None:
        raise BundleError(
            f"blob {blob[:12]}… is missing or damaged in {store.place}; `precast verify` says what needs it; nothing was written"
        )
    return data


def _size(store: Store, blob: str) -> int:
    return len(_blob(store, blob))


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name when it is whole. Raises BundleError where it cannot be written."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with open(aside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise BundleError(f"{path}: cannot be written ({error.strerror}); {cure(error, path)}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


# -- taking in


@dataclass
class Imported:
    """What was taken in. `there`: artifacts that the store had, byte for byte; `kept`: those of which it had another build, which stays;
    `refused`: what the policy does not let in, name -> why: then nothing was taken in.
    """

    artifacts: int = 0
    there: int = 0
    kept: int = 0
    records: int = 0
    blobs: int = 0
    content: int = 0
    refused: dict[str, str] = field(default_factory=dict)


def take_in(store: Store, path: Path, judge: Judge, progress: Callable[[int], None] = lambda size: None) -> Imported:
    """Put what is in a bundle into a store: all of it, or nothing where its checksum, its form or one signature does not hold.

    Signatures are judged before a blob is read, blobs come first and manifests last; taken in twice, or again after it was cut off, the
    result is the same. `progress` is told of bytes. Raises BundleError and StoreError.
    """
    done = Imported()
    try:
        with _opened(path) as file:
            checked(file, str(path))
            reader = Reader(file, str(path))
            done.refused = refusals(reader.index, judge)
            if done.refused:
                return done
            for one in reader.index.artifacts:
                one.manifest.check()
            for record in reader.index.records:
                _check_form(record)
            for name, data in reader.blobs():
                store.put_blob(name, data)
                done.blobs += 1
                done.content += len(data)
                progress(len(data))
    except RecordError as error:
        raise BundleError(f"{path}: {error}; export it again") from error
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror or error})") from error
    for record in reader.index.records:
        if not _has_another(store, record):
            store.put_record(record.kind, record.name, record.record, signatures=record.signatures)
            done.records += 1
    for one in reader.index.artifacts:
        _take(store, one, done)
    return done


def refusals(index: Index, judge: Judge) -> dict[str, str]:
    """What of a bundle may not come in, by name, each with the reason."""
    named: list[tuple[str, BundledArtifact | BundledRecord]] = [
        *((f"artifact {one.manifest.artifact_id[:12]}", one) for one in index.artifacts),
        *((f"{one.kind}/{one.name}", one) for one in index.records),
    ]
    found = {name: judge.refusal(one.statement(), one.signatures) for name, one in named}
    return {name: why for name, why in found.items() if why}


def _has_another(store: Store, one: BundledRecord) -> bool:
    """Whether the store has a trusted record of this name that says something else: it stays."""
    if store.record_checksum(one.kind, one.name) in ("", one.checksum):
        return False
    try:
        return store.trusted_record(one.kind, one.name) is not None
    except Untrusted:
        return False


def _check_form(one: BundledRecord) -> None:
    """Raises BundleError where the store would write a record otherwise than it was signed."""
    try:
        written = digest(pack(one.record))
    except (RecursionError, TypeError) as error:
        raise BundleError(f"record {one.kind}/{one.name} cannot be kept: {type(error).__name__}: {error}") from error
    if written != one.checksum:
        raise BundleError(f"record {one.kind}/{one.name} is not in canonical form, in which its signature was made")


def _take(store: Store, one: BundledArtifact, done: Imported) -> None:
    known = store.get(one.manifest.artifact_id, one.manifest.program_key)
    if known is not None and known.checksum != one.manifest.checksum and store.serves(known):
        done.kept += 1
        return
    same = known is not None and known.checksum == one.manifest.checksum
    store.put_manifest(one.manifest, one.signatures)
    done.there += same
    done.artifacts += not same


def _opened(path: Path) -> BinaryIO:
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC))  # a pipe would wait
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise BundleError(f"{path}: is no file; copy the bundle into one first")
    return file


__all__ = ["Exported", "Imported", "export", "refusals", "take_in"]
