"""Verification: read everything, believe nothing, and with `repair` make the store sound again by setting bad entries aside."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import FutureFormat, RecordError, StoreError
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.format.text import human_days
from precast.artifact_store.maintenance.garbage import SKEW, referenced, unused
from precast.artifact_store.maintenance.index import damage, open_index
from precast.artifact_store.maintenance.scan import files, manifest_files
from precast.artifact_store.maintenance.signed import SignatureLook
from precast.artifact_store.maintenance.unreadable import unreadable
from precast.artifact_store.named_records import parse_record
from precast.artifact_store.store import Store
from precast.artifact_store.tiers.disk_errors import cure
from precast.artifact_store.tiers.folder import TEMPORARY_PREFIX, Folder, read_file
from precast.artifact_store.tiers.owner import make_folder

log = logging.getLogger("precast.store")
_REPAIRS = {
    "leftover": "removed",
    "permissions": "repaired",
    "format": "repaired",
    "index": "rebuilt",
    "clock": "dated now",
    "quarantined": "acknowledged",
}
ACKNOWLEDGED = ".known"
"""Ends the names of files in quarantine/ that somebody has been told of."""


@dataclass(frozen=True)
class Problem:
    """One finding. `kind`: "damaged", "foreign", "incomplete", "leftover", "permissions", "unreadable", "index", "format", "clock",
    "quarantined", "keyring", "untrusted" (revoked, or with a signature that does not match) or "unsigned" (as the policy asks).

    `repaired`: if it was.

    What cannot be read may be sound, and is left alone.
    """

    name: str
    kind: str
    detail: str
    repaired: bool

    @property
    def repair(self) -> str:
        """What a repair does about it: only "repaired" leaves nothing to make anew."""
        return _REPAIRS.get(self.kind, "set aside")


@dataclass
class Verified:
    """What was looked at and found. `newer` counts manifests of a later precast: sound as far as this one can tell, and left alone.

    `quarantined`: what was found damaged while it was served. What is left may be sound, and lacks it.
    `obstacle`: why the last repair that failed did.
    """

    manifests: int = 0
    blobs: int = 0
    bytes: int = 0
    newer: int = 0
    problems: list[Problem] = field(default_factory=list)
    quarantined: list[Problem] = field(default_factory=list)
    obstacle: str = ""

    @property
    def sound(self) -> bool:
        return all(problem.repaired for problem in self.problems)

    @property
    def good(self) -> bool:
        """Whether it is sound, and nothing that it had was lost to damage without anybody's knowing."""
        return self.sound and all(problem.repaired for problem in self.quarantined)

    @property
    def set_aside(self) -> int:
        """How many artifacts are not served any more."""
        gone = (problem for problem in self.problems if problem.repaired and problem.kind != "foreign")
        return sum(problem.repair == "set aside" and problem.name.startswith("programs/") for problem in gone)


def verify(store: Store, *, repair: bool = False, jobs: int = 1) -> Verified:
    """Check every manifest, record and blob of `store`. Raises StoreError where it cannot be read at all, or not written with `repair`.

    `jobs`: so many processes read a large store. They are started as `multiprocessing` does by "spawn", so the main module of a program
    that asks for more than one has to be importable without side effects.
    """
    if store.problem or (repair and store.readonly):
        raise StoreError(store.problem or f"the store at {store.root} was opened read-only; it cannot be repaired")
    if not store.root.exists():
        return Verified()
    look = _Look(store, repair)
    look.at_frame()
    for name, reason in unreadable(store).items():
        look.unread(name, reason)
    with contextlib.ExitStack() as stack:
        if jobs > 1 and len(manifest_files(store)) > _MANY:
            look.pool = stack.enter_context(ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")))
        look.at_blobs()
        look.at_manifests()
    look.at_records()
    look.at_signatures()
    look.at_leftovers()
    look.at_quarantine()
    look.at_clock()
    look.at_index()
    return look.report


class _Look:
    """One look through a store, with what it has found so far."""

    def __init__(self, store: Store, repair: bool) -> None:
        self.store, self.repair, self.report = store, repair, Verified()
        self.good_blobs: set[str] = set()
        self.pool: Executor | None = None
        self.needs: dict[str, dict[str, int]] = {}
        self.checksums: dict[str, str] = {}
        """Blobs, and checksums, of each manifest that could be read, by the manifest's name."""
        self._unread: set[str] = set()
        self._all_blobs_seen = True

    def unread(self, name: str, reason: str) -> None:
        """Notes a file or folder that cannot be read, once."""
        if name not in self._unread:
            self._unread.add(name)
            self._all_blobs_seen &= not name.startswith("objects")
            advice = "it may be sound; make it readable for this user, or mend the disk"
            self._note(name, "unreadable", f"cannot be read ({reason}): {advice}", False)

    def at_frame(self) -> None:
        root, format_file = self.store.root, self.store.path(layout.FORMAT_FILE)
        if not format_file.exists() and any((root / folder).exists() for folder in layout.SHARED_FOLDERS):
            text = f"{layout.LAYOUT_VERSION}\n".encode()
            done = self._did(lambda: Folder(root).put(layout.FORMAT_FILE, text))
            self._note(layout.FORMAT_FILE, "format", "the format file is missing", done)
        mode = stat.S_IMODE(root.stat().st_mode)
        if mode & 0o022:
            done = self._did(lambda: root.chmod(0o700))
            detail = f"mode {mode:o}: others may write here, and what is stored is executed: chmod 700 {root}"
            self._note(".", "permissions", detail, done)

    def at_blobs(self) -> None:
        for file in self._spread(_hashed, files(self.store.root / layout.OBJECTS)):
            self._at_blob(file.path, file.size, file.digest if file.error is None else file.error)

    def at_manifests(self) -> None:
        for file in self._spread(_checked, files(self.store.root / layout.PROGRAMS)):
            name = file.path.relative_to(self.store.root).as_posix()
            if isinstance(file.error, OSError):
                if not isinstance(file.error, FileNotFoundError):  # pruned in the meantime
                    self.unread(name, file.error.strerror or str(file.error))
                continue
            self.report.bytes += file.size
            if name.endswith(layout.SIGNATURE_SUFFIX):
                continue
            self.report.manifests += 1
            if file.checksum:
                self.checksums[name] = file.checksum
            if file.blobs is not None:
                self.needs[name] = file.blobs
            if isinstance(file.error, FutureFormat):
                self.report.newer += 1
            elif file.error is not None:
                self._bad(file.path, name, "foreign" if isinstance(file.error, ForeignName) else "damaged", str(file.error))
            elif (missing := self._missing(file.blobs or ())) and file.path.exists():  # and was not pruned with them
                of = f"{len(missing)} of {len(file.blobs or ())} blobs (first: {missing[0][:12]}…)"
                self._bad(file.path, name, "incomplete", f"lacks {of}: it cannot be loaded")

    def _spread(self, look: Callable[[list[Path]], list[_File]], paths: list[Path]) -> Iterator[_File]:
        """What `look` finds of each file. Over the pool where there is one, else in threads: hashing leaves Python's lock alone."""
        whole = [path for path in paths if not path.name.startswith(TEMPORARY_PREFIX)]
        slices = [whole[begin : begin + _SLICE] for begin in range(0, len(whole), _SLICE)]
        if self.pool is None and look is not _hashed:
            for part in slices:
                yield from look(part)
            return
        with contextlib.ExitStack() as stack:
            pool = self.pool or stack.enter_context(ThreadPoolExecutor(os.cpu_count() or 1, "precast-verify"))
            begun = [(part, _submitted(pool, look, part)) for part in slices]
            for part, future in begun:
                try:
                    found = look(part) if future is None else future.result()
                except BrokenExecutor as error:  # the system killed a process of it: this one does the rest
                    log.warning("verify: a process that checks files ended (%s); going on without it", error)
                    self.pool, found = None, look(part)
                yield from found

    def _at_blob(self, path: Path, size: int, found: str | OSError | RecordError) -> None:
        name = path.relative_to(self.store.root).as_posix()
        if isinstance(found, FileNotFoundError):
            return  # pruned in the meantime
        if not isinstance(found, str):
            self.unread(name, getattr(found, "strerror", None) or str(found))
            return
        self.report.blobs += 1
        self.report.bytes += size
        if not layout.is_digest(path.name) or name != layout.blob_name(path.name):
            self._bad(path, name, "foreign", "not a blob's name")
        elif found != path.name:
            self._bad(path, name, "damaged", f"content ({size} bytes) does not match its digest")
        else:
            self.good_blobs.add(path.name)

    def at_records(self) -> None:
        for kind in layout.RECORD_KINDS:
            for path, name, data in self._files(kind):
                if path.name.endswith(layout.SIGNATURE_SUFFIX):
                    continue
                try:
                    record = parse_record(data, name)
                except RecordError as error:
                    self._bad(path, name, "damaged", str(error))
                    continue
                if self._missing(record.get("blobs", ())):
                    self._bad(path, name, "incomplete", "a blob that it names is missing")

    def at_signatures(self) -> None:
        """Damaged ones, what is revoked or was changed after it was signed, and what the store's policy refuses."""
        look = SignatureLook(self.store)
        for folder in (layout.PROGRAMS, *layout.RECORD_KINDS):
            for path, name, data in self._files(folder, layout.SIGNATURE_SUFFIX):
                if reason := look.damage(name, data):
                    self._bad(path, name, "damaged", reason)
        for name, checksum in self.checksums.items():
            _, program_key, file = name.split("/")
            if found := look.at_artifact(program_key, file, checksum):
                self._refused(self.store.path(name), name, *found)
        for kind in layout.RECORD_KINDS:
            for path, name, data in self._files(kind, layout.MANIFEST_SUFFIX):
                if found := look.at_record(kind, path, data):
                    self._refused(path, name, *found)
        if look.problem:
            self._note(".", "keyring", look.problem, False)

    def _refused(self, path: Path, name: str, kind: str, reason: str) -> None:
        """What is only unsigned may be signed yet, and is not served meanwhile: it stays."""
        if kind == "untrusted":
            self._bad(path, name, kind, reason)
        else:
            self._note(name, kind, reason, False)

    def at_leftovers(self) -> None:
        """Killed writers' files and blobs nobody needs: harmless, so they are problems only with their age; prune removes them too."""
        needed, now = self._needed(), time.time()
        for file in [file for file in unused(self.store, needed) if file.due <= now]:
            done = self._did(partial(file.path.unlink, missing_ok=True))
            self._note(file.path.relative_to(self.store.root).as_posix(), "leftover", file.reason, done)

    def at_index(self) -> None:
        """With `repair` it is made anew, from the manifests and the uses that were recorded since it broke, or given back to its user."""
        reason, repaired = damage(self.store), False
        if reason and self.repair:
            with open_index(self.store, rebuild=True) as index:
                index.entries(self.store)
            repaired, reason = not index.problem, index.problem or reason
            reason += f". What was there is {index.moved}/: only its owner can remove it" if index.moved else ""
        if reason:
            self._note("index", "index", reason, repaired)

    def at_quarantine(self) -> None:
        """What processes that read it have set aside, and nothing has taken the place of. With `repair` that is acknowledged."""
        aside = files(self.store.path("quarantine"))
        needed = self._needed() if aside else None
        for path in aside:
            name = path.name.rpartition(".")[0].replace("~", "/")
            blob = name.rpartition("/")[2] if name.startswith("objects/") else ""
            if path.name.endswith(ACKNOWLEDGED) or self.store.path(name).exists() or (blob and needed is not None and blob not in needed):
                continue
            when = time.strftime(" on %Y-%m-%d %H:%M", time.localtime(moment)) if (moment := _made(path)) is not None else ""
            detail = f"damaged: set aside{when} by a process that read it; build it again, and suspect the disk if more come"
            known = self._did(partial(os.replace, path, path.with_name(f"{path.name}{ACKNOWLEDGED}")))
            self.report.quarantined.append(Problem(layout.printable(f"quarantine/{path.name}"), "quarantined", detail, known))

    def at_clock(self) -> None:
        """Artifacts from the future are never old: their age is not known."""
        now = time.time()
        for seen in manifest_files(self.store):
            if (ahead := seen.modified / 1e9 - now) > SKEW:
                detail = f"dated {human_days(ahead)} ahead of this machine's clock, so that it does not count as old"
                self._note(seen.name, "clock", detail, self._did(partial(os.utime, self.store.path(seen.name))))

    def _needed(self) -> set[str] | None:
        """Digests that something names now; None where that cannot be seen."""
        return None if self.report.newer else referenced(self.store, self.needs)

    def _files(self, folder: str, suffix: str = "") -> Iterator[tuple[Path, str, bytes]]:
        """Each whole file under `folder`, whose name ends so, that can be read: path, name and content."""
        for path in files(self.store.root / folder):
            if path.name.startswith(TEMPORARY_PREFIX) or not path.name.endswith(suffix):
                continue
            name = path.relative_to(self.store.root).as_posix()
            try:
                data = read_file(path)
            except FileNotFoundError:
                continue  # pruned in the meantime
            except OSError as error:
                self.unread(name, error.strerror or str(error))
                continue
            yield path, name, data

    def _missing(self, blobs: Iterable[str]) -> list[str]:
        """Those that are not there, or not sound; none where there may be blobs that could not be read."""
        return [blob for blob in blobs if not self._sound(blob)] if self._all_blobs_seen else []

    def _sound(self, blob: str) -> bool:
        if blob not in self.good_blobs and layout.is_digest(blob):
            with contextlib.suppress(OSError):  # not there
                if digest(read_file(self.store.path(layout.blob_name(blob)))) == blob:
                    self.good_blobs.add(blob)  # a writer has put it there since
        return blob in self.good_blobs

    def _bad(self, path: Path, name: str, kind: str, detail: str) -> None:
        self._note(name, kind, detail, self._did(partial(_set_aside, self.store, path)))

    def _did(self, repair: Callable[[], object]) -> bool:
        """Do this where a repair was asked for; whether it was done. What was in the way stands in the report."""
        if not self.repair:
            return False
        try:
            repair()
        except OSError as error:
            self.report.obstacle = f"{error.strerror or error}; {cure(error, self.store.root)}"
            return False
        return True

    def _note(self, name: str, kind: str, detail: str, repaired: bool) -> None:
        self.report.problems.append(Problem(layout.printable(name), kind, layout.printable(detail), repaired))


_SLICE = 64
"""Files that one thread or process takes at a time."""
_MANY = 2000
"""Artifacts from which on it is worth it to start processes."""


class ForeignName(RecordError):
    """The file's name is no artifact's."""


class _File(NamedTuple):
    """A file that was read: what it is, and what is wrong with it; an OSError where it could not be read."""

    path: Path
    size: int
    digest: str = ""
    blobs: dict[str, int] | None = None
    checksum: str = ""
    error: OSError | RecordError | None = None


def _hashed(paths: list[Path]) -> list[_File]:
    """Blobs, each with its digest."""
    found: list[_File] = []
    for path in paths:
        try:
            data = read_file(path)
        except OSError as error:
            found.append(_File(path, 0, error=error))
        else:
            found.append(_File(path, len(data), digest(data)))
    return found


def _checked(paths: list[Path]) -> list[_File]:
    """Manifests, each with its blobs."""
    return [_manifest(path) for path in paths]


def _manifest(path: Path) -> _File:
    program_key, artifact_id = path.parent.name, path.name.removesuffix(layout.MANIFEST_SUFFIX)
    size, blobs = 0, None
    try:
        data = read_file(path)
        size = len(data)
        if path.name.endswith(layout.SIGNATURE_SUFFIX):
            return _File(path, size)
        if not layout.is_digest(artifact_id) or not layout.is_label(program_key):
            raise ForeignName("not an artifact's name")
        name = layout.manifest_name(program_key, artifact_id)
        manifest = Manifest.from_bytes(data, name, expect_id=artifact_id)
        blobs = manifest.blobs
        manifest.check()
        if manifest.program_key != program_key or path.parent.parent.name != layout.PROGRAMS or path.name == artifact_id:
            raise RecordError(f"{name}: does not lie where its program and id say")
    except (OSError, RecordError) as error:
        return _File(path, size, blobs=blobs, error=error)
    return _File(path, size, blobs=blobs, checksum=manifest.checksum)


def _submitted(pool: Executor, look: Callable[[list[Path]], list[_File]], part: list[Path]) -> Future[list[_File]] | None:
    """None where the pool has broken meanwhile."""
    try:
        return pool.submit(look, part)
    except BrokenExecutor:
        return None


def _made(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _set_aside(store: Store, path: Path) -> None:
    """Move a bad file to quarantine/. Raises OSError."""
    folder = store.path("quarantine")
    name = path.relative_to(store.root).as_posix().replace("/", "~")
    make_folder(store.root, folder)
    place = folder / f"{name}.{secrets.token_hex(4)}{ACKNOWLEDGED}"
    os.replace(path, place)
    with contextlib.suppress(OSError):
        os.utime(place)  # its time there is when it came there
