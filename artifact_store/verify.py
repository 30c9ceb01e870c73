"""Verification: read everything, believe nothing, and with `repair` make the store sound again by setting bad entries aside."""

from __future__ import annotations

import os
import secrets
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from precast.artifact_store import layout
from precast.artifact_store.collect import files, leftovers, referenced
from precast.artifact_store.errors import FutureFormat, RecordError, StoreError
from precast.artifact_store.index import open_index
from precast.artifact_store.manifest import Manifest
from precast.artifact_store.serial import digest
from precast.artifact_store.store import Store, parse_record
from precast.artifact_store.tiers import TEMPORARY_PREFIX
from precast.artifact_store.unreadable import unreadable


@dataclass(frozen=True)
class Problem:
    """One finding. `kind`: "damaged", "foreign", "incomplete", "leftover", "permissions", "unreadable" or "format". `repaired`: if it was.

    What cannot be read may be sound, and is left alone.
    """

    name: str
    kind: str
    detail: str
    repaired: bool

    @property
    def repair(self) -> str:
        """What a repair does about it: only "repaired" leaves nothing to make anew."""
        return {"leftover": "removed", "permissions": "repaired", "format": "repaired"}.get(self.kind, "set aside")


@dataclass
class Verified:
    """What was looked at and found. `newer` counts manifests of a later precast: sound as far as this one can tell, and left alone."""

    manifests: int = 0
    blobs: int = 0
    bytes: int = 0
    newer: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return all(problem.repaired for problem in self.problems)

    @property
    def set_aside(self) -> int:
        """How many artifacts are not served any more."""
        return sum(problem.repaired and problem.repair == "set aside" and problem.name.startswith("programs/") for problem in self.problems)


def verify(store: Store, *, repair: bool = False) -> Verified:
    """Check every manifest, record and blob of `store`. Raises StoreError where it cannot be read at all, or not written with `repair`."""
    if store.problem or (repair and store.readonly):
        raise StoreError(store.problem or f"the store at {store.root} was opened read-only; it cannot be repaired")
    report = Verified()
    if not store.root.exists():
        return report
    _check_frame(store, report, repair)
    for name, reason in unreadable(store).items():
        report.problems.append(_unreadable(name, reason))
    good_blobs = _check_blobs(store, report, repair)
    _check_manifests(store, report, repair, good_blobs)
    _check_records(store, report, repair, good_blobs)
    _check_leftovers(store, report, repair)
    if repair:
        with open_index(store, rebuild=any(problem.kind != "unreadable" for problem in report.problems)) as index:
            index.entries(store)
    return report


def _unreadable(name: str, reason: str) -> Problem:
    return Problem(
        name, "unreadable", f"cannot be read ({reason}): it may be sound; make it readable for this user, or mend the disk", False
    )


def _told(report: Verified, name: str, error: OSError) -> None:
    """Notes a file that cannot be read, once."""
    if not any(problem.name == name for problem in report.problems):
        report.problems.append(_unreadable(name, error.strerror or str(error)))


def _hides_blobs(report: Verified) -> bool:
    """Whether blobs may be there that were not seen."""
    return any(problem.kind == "unreadable" and problem.name.startswith("objects") for problem in report.problems)


def _check_frame(store: Store, report: Verified, repair: bool) -> None:
    format_file = store.path(layout.FORMAT_FILE)
    if not format_file.exists() and any((store.root / folder).exists() for folder in layout.SHARED_FOLDERS):
        if repair:
            format_file.write_text(f"{layout.LAYOUT_VERSION}\n", "ascii")
        report.problems.append(Problem(layout.FORMAT_FILE, "format", "the format file is missing", repair))
    mode = stat.S_IMODE(store.root.stat().st_mode)
    if mode & 0o022:
        detail = f"mode {mode:o}: others may write here, and what is stored is executed: chmod 700 {store.root}"
        if repair:
            store.root.chmod(0o700)
        report.problems.append(Problem(".", "permissions", detail, repair))


def _check_blobs(store: Store, report: Verified, repair: bool) -> set[str]:
    good: set[str] = set()
    for path in files(store.root / "objects"):
        if path.name.startswith(TEMPORARY_PREFIX):
            continue
        name = path.relative_to(store.root).as_posix()
        report.blobs += 1
        try:
            data = path.read_bytes()
        except OSError as error:
            _told(report, name, error)
            continue
        report.bytes += len(data)
        if not layout.is_digest(path.name) or name != layout.blob_name(path.name):
            report.problems.append(Problem(name, "foreign", "not a blob's name", repair and _set_aside(store, path)))
        elif digest(data) != path.name:
            detail = f"content ({len(data)} bytes) does not match its digest"
            report.problems.append(Problem(name, "damaged", detail, repair and _set_aside(store, path)))
        else:
            good.add(path.name)
    return good


def _check_manifests(store: Store, report: Verified, repair: bool, good_blobs: set[str]) -> None:
    for path in files(store.root / "programs"):
        if path.name.startswith(TEMPORARY_PREFIX):
            continue
        name = path.relative_to(store.root).as_posix()
        report.manifests += 1
        try:
            data = path.read_bytes()
            report.bytes += len(data)
            manifest = Manifest.from_bytes(data, name, expect_id=path.name.removesuffix(layout.MANIFEST_SUFFIX))
            manifest.check()
            if name != layout.manifest_name(manifest.program_key, manifest.artifact_id):
                raise RecordError(f"{name}: does not lie where its program and id say")
        except FutureFormat:
            report.newer += 1
            continue
        except OSError as error:
            _told(report, name, error)
            continue
        except RecordError as error:
            report.problems.append(Problem(name, "damaged", str(error), repair and _set_aside(store, path)))
            continue
        missing = [] if _hides_blobs(report) else [blob for blob in manifest.blobs if blob not in good_blobs]
        if missing:
            detail = f"lacks {len(missing)} of {len(manifest.blobs)} blobs (first: {missing[0][:12]}…): it cannot be loaded"
            report.problems.append(Problem(name, "incomplete", detail, repair and _set_aside(store, path)))


def _check_records(store: Store, report: Verified, repair: bool, good_blobs: set[str]) -> None:
    for kind in layout.RECORD_KINDS:
        for path in files(store.root / kind):
            if path.name.startswith(TEMPORARY_PREFIX):
                continue
            name = path.relative_to(store.root).as_posix()
            try:
                record = parse_record(path.read_bytes(), name)
            except OSError as error:
                _told(report, name, error)
                continue
            except RecordError as error:
                report.problems.append(Problem(name, "damaged", str(error), repair and _set_aside(store, path)))
                continue
            if not _hides_blobs(report) and any(blob not in good_blobs for blob in record.get("blobs", ())):
                report.problems.append(Problem(name, "incomplete", "a blob that it names is missing", repair and _set_aside(store, path)))


def _check_leftovers(store: Store, report: Verified, repair: bool) -> None:
    """Killed writers' files and blobs nobody needs: harmless, so they are problems only with their age; prune removes them too."""
    needed = None if report.newer else referenced(store)
    for path, reason in list(leftovers(store, needed, time.time())):
        if repair:
            path.unlink(missing_ok=True)
        report.problems.append(Problem(path.relative_to(store.root).as_posix(), "leftover", reason, repair))


def _set_aside(store: Store, path: Path) -> bool:
    """Move a bad file to quarantine/; False where that fails."""
    folder = store.path("quarantine")
    name = path.relative_to(store.root).as_posix().replace("/", "~")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.replace(path, folder / f"{name}.{secrets.token_hex(4)}")
    except OSError:
        return False
    return True
