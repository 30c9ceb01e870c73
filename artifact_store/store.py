"""The store: manifests and blobs under one folder (or URL), safe against crashes, damage and other writers.

Reading never raises for what is on disk: what is absent, foreign, damaged or unreadable is a miss, logged with its reason under
`precast.store` (`PRECAST_LOGS=store`), and what is damaged is moved to `quarantine/`. Writing raises StoreError (`put`) or logs
and returns None (`try_put`).
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import DamagedRecord, ForeignRecord, FutureFormat, RecordError, StoreError
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.format.msgpack import Data, digest, pack, unpack
from precast.artifact_store.local import leases, usage
from precast.artifact_store.place import folder_of
from precast.artifact_store.tiers.folder import Folder, read_file
from precast.artifact_store.tiers.owner import owner, user_name

log = logging.getLogger("precast.store")
ENVIRONMENT = "PRECAST_STORE"


def default_root(path: str | os.PathLike[str] | None = None) -> Path:
    """The store's folder: the argument, else PRECAST_STORE, else the platform's cache folder. Absolute, so that chdir does not move it.

    A path object and bytes are taken as they are; what a text may hold is in `place`. Raises StoreError.
    """
    if path is None and not os.environ.get(ENVIRONMENT):
        from platformdirs import user_cache_path  # only needed where nothing else says

        return user_cache_path("precast", appauthor=False) / f"store-{layout.LAYOUT_VERSION}"
    if isinstance(path, str):
        return folder_of(path)
    if path is None:
        try:
            return folder_of(os.environ[ENVIRONMENT])
        except StoreError as error:
            raise StoreError(f"{ENVIRONMENT}: {error}") from error
    chosen = os.fsdecode(path)
    if not chosen or "\0" in chosen:
        return folder_of(chosen)
    try:
        return Path(os.path.abspath(chosen))
    except FileNotFoundError as error:
        raise StoreError(f"store {chosen!r}: the current folder was removed; give an absolute path") from error


class Store:
    """Manifests and blobs. Safe to use from several threads and processes at once."""

    def __init__(self, root: Path, *, readonly: bool = False, problem: str = "") -> None:
        self.root = root
        self.readonly = readonly
        self.problem = problem
        self._folder = Folder(root)
        self._known_bad: set[str] = set()
        self._verified: dict[str, tuple[int, int, int]] = {}
        self.made: set[str] = set()
        """Ids of the artifacts that were put through this object."""

    # -- opening

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, readonly: bool = False, *, strict: bool = False) -> Store:
        """The store at `path` (a folder or file:// URL; default PRECAST_STORE, then the platform's cache folder). Made on first write.

        Where it cannot be used (a file in the way, a newer layout), `strict` raises StoreError; otherwise the reason is logged and the
        result is an empty, read-only store whose `problem` holds the reason: a broken cache must not break the user's call.
        """
        try:
            root = default_root(path)
            problem = _unusable(root)
        except StoreError as error:
            root, problem = Path(os.devnull), str(error)
        if problem and strict:
            raise StoreError(problem)
        if problem:
            log.warning("%s; going on without a store", problem)
        return cls(root, readonly=readonly or bool(problem), problem=problem)

    def __repr__(self) -> str:
        return f"<Store {self.root}{' (read-only)' if self.readonly else ''}>"

    # -- reading

    def programs(self) -> list[str]:
        """Program keys that have at least one artifact."""
        names = (name.split("/")[1] for name in self._names("programs") if name.endswith(layout.MANIFEST_SUFFIX))
        return sorted({name for name in names if layout.is_label(name)})

    def variants(self, program_key: str) -> list[Manifest]:
        """Every readable artifact of a program, ordered by id."""
        found = (self._manifest(name) for name in self.manifest_names(program_key))
        return [manifest for manifest in found if manifest is not None]

    def manifest_names(self, program_key: str) -> list[str]:
        """Names of a program's manifest files, ordered by id, unread."""
        folder = f"programs/{program_key}"
        try:
            files = sorted(os.listdir(f"{self.root}/{folder}")) if not self.problem else []
        except FileNotFoundError:
            return []
        except OSError as error:
            self._miss(folder, f"cannot list the folder ({error.strerror})")
            return []
        ids = (file.removesuffix(layout.MANIFEST_SUFFIX) for file in files if file.endswith(layout.MANIFEST_SUFFIX))
        return [f"{folder}/{id_}{layout.MANIFEST_SUFFIX}" for id_ in ids if layout.is_digest(id_)]  # what else lies there `verify` names

    def manifests(self) -> Iterator[Manifest]:
        """Every readable artifact of every program."""
        for program_key in self.programs():
            yield from self.variants(program_key)

    def get(self, artifact_id: str, program_key: str | None = None) -> Manifest | None:
        """The artifact with this id; with `program_key` in one file read, without by looking through all programs."""
        for key in [program_key] if program_key is not None else self.programs():
            manifest = self._manifest(layout.manifest_name(key, artifact_id))
            if manifest is not None:
                return manifest
        return None

    def path(self, name: str) -> Path:
        """Where the file with this store name lies."""
        return self._folder.path(name)

    def blob(self, digest_: str) -> bytes | None:
        """The bytes with this digest, checked; None (logged, and quarantined where damaged) otherwise."""
        name = layout.blob_name(digest_)
        data = self._read(name)
        if data is None:
            self._miss(name, "blob is not in the store")
            return None
        if digest(data) != digest_:
            self._quarantine(name, f"content does not match its digest ({len(data)} bytes)")
            return None
        self._known_bad.discard(name)
        return data

    def blob_path(self, digest_: str) -> Path | None:
        """A file with these bytes, for mmap or dlopen; checked once per process for as long as the file stays the same."""
        path = self._folder.path(layout.blob_name(digest_))
        try:
            seen = path.stat()
        except OSError:
            seen = None
        stamp = (seen.st_ino, seen.st_size, seen.st_mtime_ns) if seen is not None else None
        if stamp is not None and self._verified.get(digest_) == stamp:
            return path
        if self.blob(digest_) is None or stamp is None:
            return None
        self._verified[digest_] = stamp
        return path

    def complete(self, manifest: Manifest) -> bool:
        """Whether every blob of an artifact is here and right: what "compiled already" must mean, since blobs may have been damaged."""
        return all(self.blob_path(blob) is not None for blob in manifest.blobs)

    def why_unread(self, program_key: str) -> str:
        """Why what is stored of a program cannot be read, as a sentence's end; empty where nothing is in the way."""
        if self.problem:
            return self.problem
        blobs = (layout.blob_name(blob) for manifest in self.variants(program_key) for blob in manifest.blobs)
        for name in ("objects", "programs", f"programs/{program_key}", *self.manifest_names(program_key), *blobs):
            try:
                os.close(os.open(self._folder.path(name), os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                continue
            except OSError as error:
                return f"store {self.root}: {name} cannot be read ({error.strerror}); {advice(error)}"
        return ""

    # -- writing

    def put(self, manifest: Manifest, blobs: Mapping[str, bytes]) -> str:
        """Store an artifact: blobs first, then the manifest in one rename, all synced. Returns its id.

        Raises StoreError when the store cannot be written (nothing half-visible is left), ValueError for blobs that do not match.
        """
        for name, size in manifest.blobs.items():
            if name not in blobs or len(blobs[name]) != size or digest(blobs[name]) != name:
                raise ValueError(
                    f"artifact {manifest.artifact_id[:12]} needs blob {name[:12]}… of {size} bytes, and what was given does not match"
                )
        self._writable()
        try:
            self._prepare()
            for name in manifest.blobs:
                self._folder.put_new(layout.blob_name(name), blobs[name])
            self._folder.put(layout.manifest_name(manifest.program_key, manifest.artifact_id), manifest.to_bytes())
            for name in manifest.blobs:  # a prune that looked before the manifest was there may have taken one: it is needed now
                if not self._folder.path(layout.blob_name(name)).exists():
                    self._folder.put_new(layout.blob_name(name), blobs[name])
        except OSError as error:
            raise StoreError(f"{self._unwritten(error)} (artifact {manifest.artifact_id[:12]} not stored)") from error
        self.made.add(manifest.artifact_id)
        log.info("put: %s: artifact %s for %s", manifest.program_name, manifest.artifact_id[:12], manifest.target)
        return manifest.artifact_id

    def check_writable(self) -> None:
        """Raises StoreError where an artifact could not be put now; for whoever is about to work long for one."""
        self._writable()
        try:
            self._prepare()
            for folder in ("objects", "programs"):
                self._folder.probe(folder)
        except OSError as error:
            raise StoreError(f"{self._unwritten(error)}; {advice(error)}") from error

    def try_put(self, manifest: Manifest, blobs: Mapping[str, bytes]) -> str:
        """`put`, except that a store that cannot be written is logged and its reason returned ("" where all went well): for the user's call
        path.
        """
        try:
            self.put(manifest, blobs)
        except StoreError as error:
            log.warning("%s", error)
            return str(error)
        return ""

    def remove(self, artifact_id: str, program_key: str | None = None) -> bool:
        """Take an artifact out; its blobs go with the next prune when nothing else needs them. False when it was not there."""
        self._writable()
        for key in [program_key] if program_key is not None else self.programs():
            name = layout.manifest_name(key, artifact_id)
            if self._folder.path(name).exists():
                try:
                    self._folder.remove(name)
                except OSError as error:
                    why = f"{error.strerror or error}; {cure(error, self.root)}"
                    raise StoreError(f"cannot remove {name} from {self.root}: {why}") from error
                return True
        return False

    # -- working together

    def lease(self, name: str, timeout: float = 600.0) -> AbstractContextManager[leases.Lease]:
        """`with store.lease(artifact_id):` one process at a time compiles this; look with `get` once inside, it may be there now.

        Waits at most `timeout` seconds, takes over from a dead holder, and goes on unheld where leases cannot work (see `leases`).
        """
        if not layout.is_label(name):
            raise ValueError(f"lease name {name!r} cannot be a file name")
        if self.readonly:
            return nullcontext(leases.Lease(self.root, False, 0.0))
        return leases.acquire(self.root / "leases", name, timeout)

    def watch(self, name: str) -> leases.Watch | None:
        """For whoever does other things between one attempt to take the lease `name` and the next. None where nobody keeps leases."""
        if not layout.is_label(name):
            raise ValueError(f"lease name {name!r} cannot be a file name")
        try:
            self._writable()
            self._prepare()
        except (OSError, StoreError) as error:
            log.info("lease %s: %s; compiling without it", name, error)
            return None
        return leases.Watch(self.root / "leases" / name)

    def used(self, artifact_id: str) -> None:
        """Record one use, in a few microseconds and without a database; for `prune --unused-for`. Call once per process and artifact."""
        if not self.readonly:
            usage.note(self.root, artifact_id)

    # -- small named records

    def record(self, kind: str, name: str) -> dict[str, Data] | None:
        """A small named record ("tuning": measured choices; "native": the dispatcher built for a Python), or None."""
        file = layout.record_name(kind, name)
        data = self._read(file)
        if data is None:
            return None
        try:
            return parse_record(data, file)
        except RecordError as error:
            self._quarantine(file, str(error))
            return None

    def record_names(self, kind: str) -> list[str]:
        """Names of the records of one kind."""
        files = (Path(name).name for name in self._names(kind) if name.endswith(layout.MANIFEST_SUFFIX))
        names = (file.removesuffix(layout.MANIFEST_SUFFIX) for file in files)
        return [name for name in names if layout.is_label(name)]

    def put_record(self, kind: str, name: str, record: Mapping[str, Data], blobs: Mapping[str, bytes] | None = None) -> None:
        """Keep a named record; blobs that it needs must be named in its "blobs" field (a list of digests), so that prune spares them."""
        content = pack(dict(record), f"{kind}/{name}")
        named = set(record.get("blobs", ()))
        if not all(layout.is_digest(blob) for blob in named):
            raise ValueError(f"{kind}/{name}: 'blobs' must be a list of digests")
        for blob_digest, data in (blobs or {}).items():
            if blob_digest not in named or digest(data) != blob_digest:
                raise ValueError(f"{kind}/{name}: blob {blob_digest[:12]}… is not named in the record's 'blobs', or does not match")
        self._writable()
        try:
            self._prepare()
            for blob_digest, data in (blobs or {}).items():
                self._folder.put_new(layout.blob_name(blob_digest), data)
            self._folder.put(layout.record_name(kind, name), pack([_RECORD_MAGIC, digest(content), content]))
        except OSError as error:
            raise StoreError(f"{self._unwritten(error)} ({kind}/{name} not stored)") from error

    # -- inside

    def _manifest(self, name: str) -> Manifest | None:
        if name in self._known_bad:
            return None
        data = self._read(name)
        if data is None:
            return None
        program_key, file = name.split("/")[1:]
        try:
            manifest = Manifest.from_bytes(data, name, expect_id=file.removesuffix(layout.MANIFEST_SUFFIX))
            if manifest.program_key != program_key:
                raise DamagedRecord(f"{name}: belongs to program {manifest.program_key}")
        except FutureFormat as error:
            self._miss(name, str(error))
            return None
        except (DamagedRecord, ForeignRecord) as error:
            self._quarantine(name, str(error))
            return None
        return manifest

    def _read(self, name: str) -> bytes | None:
        if self.problem:
            return None
        try:
            return self._folder.get(name)
        except OSError as error:
            self._miss(name, f"cannot be read ({error.strerror or error})")
            return None

    def _names(self, prefix: str) -> list[str]:
        return [] if self.problem else self._folder.names(prefix)

    def _miss(self, name: str, reason: str) -> None:
        log.info("%s: miss: %s: %s", self.root, name, reason)

    def _quarantine(self, name: str, reason: str) -> None:
        """Move a bad entry out of the way, or where the store cannot be written remember it as bad for this process."""
        if name in self._known_bad:
            return  # said before
        self._known_bad.add(name)
        done = self._set_aside(name)
        log.warning("%s: miss: %s; %s", self.root, reason if reason.startswith(name) else f"{name}: {reason}", done)

    def _set_aside(self, name: str) -> str:
        """Move the file to quarantine/ where that is possible, and say what came of it."""
        if self.readonly:
            return "ignored: the store is opened read-only"
        try:
            self._folder.make_folder(self.root / "quarantine")
            place = self.root / "quarantine" / f"{name.replace('/', '~')}.{secrets.token_hex(4)}"
            os.replace(self._folder.path(name), place)
            with suppress(OSError):
                os.utime(place)  # its time there is when it came there
        except OSError as error:
            return f"ignored in this process: it cannot be moved to quarantine/ ({error.strerror or error})"
        self._known_bad.discard(name)
        return "moved to quarantine/"

    def _unwritten(self, error: OSError) -> str:
        at = f" ({error.filename})" if error.filename and isinstance(error, _IN_THE_WAY) else ""
        return f"cannot write to the store at {self.root}: {error.strerror or error}{at}"

    def _writable(self) -> None:
        if self.problem:
            raise StoreError(self.problem)
        if self.readonly:
            raise StoreError(f"the store at {self.root} was opened read-only")

    def _prepare(self) -> None:
        """Make the store's own files on first write. The format file comes first: a folder without it is not yet a store."""
        if problem := _unusable(self.root):  # the folder may be another one than when it was opened
            raise StoreError(problem)
        if (self.root / layout.FORMAT_FILE).exists():
            return
        self._folder.make_folder(self.root)
        self._folder.put(layout.FORMAT_FILE, f"{layout.LAYOUT_VERSION}\n".encode())
        self._folder.put("CACHEDIR.TAG", layout.CACHEDIR_TAG)
        for folder in layout.LOCAL_FOLDERS:
            self._folder.make_folder(self.root / folder)


_RECORD_MAGIC = "precast-record-1"
_IN_THE_WAY = (FileExistsError, NotADirectoryError, IsADirectoryError)


def parse_record(data: bytes, where: str) -> dict[str, Data]:
    """The map in a named record's file; raises DamagedRecord."""
    outer = unpack(data, where)
    if type(outer) is not tuple or [type(part) for part in outer] != [str, str, bytes] or outer[0] != _RECORD_MAGIC:
        raise DamagedRecord(f"{where}: not a precast record")
    if digest(outer[2]) != outer[1]:
        raise DamagedRecord(f"{where}: checksum mismatch")
    record = unpack(outer[2], where)
    if type(record) is not dict or not all(layout.is_digest(blob) for blob in record.get("blobs", ())):
        raise DamagedRecord(f"{where}: expected a map whose 'blobs' are digests")
    return record


def _unusable(root: Path) -> str:
    """Why the folder cannot be used as a store, as a sentence; empty when it can (also when it does not exist yet)."""
    elsewhere = _elsewhere()
    try:
        text = read_file(root / layout.FORMAT_FILE).decode("ascii").strip()
    except FileNotFoundError:
        return ""
    except NotADirectoryError:
        return f"store {root}: a file is in the way; {elsewhere}"
    except (OSError, UnicodeDecodeError) as error:
        return f"store {root}: its format file cannot be read ({getattr(error, 'strerror', None) or error}); {advice(error)}"
    if text == str(layout.LAYOUT_VERSION):
        return ""
    if text.isdigit():
        return f"store {root}: layout version {text}, and this precast uses {layout.LAYOUT_VERSION}; upgrade precast, or {elsewhere}"
    return f"store {root}: its format file says {text[:40]!r}, which is not a precast store; {elsewhere}"


def _elsewhere() -> str:
    return f"choose another folder with --store or {ENVIRONMENT}"


def advice(error: OSError | UnicodeDecodeError) -> str:
    """What to do about what the disk refused, as the rest of a sentence."""
    if isinstance(error, _IN_THE_WAY):
        return f"move what is in the way, or {_elsewhere()}"
    return f"{cure(error)}, or {_elsewhere()}"


def cure(error: OSError | UnicodeDecodeError, root: Path | None = None) -> str:
    """The same where another folder is no answer. `root`: the store that it is about, which may be another user's."""
    whose = owner(root) if root is not None and getattr(error, "errno", None) in (errno.EACCES, errno.EPERM) else None
    if whose is not None and whose != os.geteuid():
        return f"the store belongs to {user_name(whose)}, and this is {user_name(os.geteuid())}: do this as that user"
    return _CURES.get(getattr(error, "errno", None) or 0, "check the permissions")


_CURES = {
    errno.ENOSPC: "make room (`precast prune`)",
    errno.EDQUOT: "the quota is used up: make room (`precast prune`)",
    errno.EROFS: "it is mounted read-only here: do this where it can be written",
    errno.EIO: "mend the disk",
}
