"""The store: manifests and blobs under one folder (or URL), safe against crashes, damage and other writers.

Reading never raises for what is on disk: what is absent, foreign, damaged or unreadable is a miss, logged with its reason under
`precast.store` (`PRECAST_LOGS=store`), and what is damaged is moved to `quarantine/`. Writing raises StoreError (`put`) or logs
and returns None (`try_put`).
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from precast.artifact_store.entries import Entries
from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import DamagedRecord, ForeignRecord, FutureFormat, StoreError, Untrusted
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.format.msgpack import Data, digest
from precast.artifact_store.format.origin import PROCESS
from precast.artifact_store.local import leases, usage
from precast.artifact_store.named_records import NamedRecords
from precast.artifact_store.place import default_root
from precast.artifact_store.tiers.disk_errors import advice, cure
from precast.artifact_store.tiers.folder import Folder
from precast.artifact_store.tiers.tier import Stamp, Tier
from precast.artifact_store.trust.trusted import LOCAL, Policy, Trusted, admit, admit_manifest

if TYPE_CHECKING:
    from precast.artifact_store.remote.behind.remotes import Remotes
    from precast.artifact_store.remote.settings import Setting
    from precast.artifact_store.trust.signatures import Judge, Signature, Signer

log = logging.getLogger("precast.store")
_opening = threading.Lock()
NOWHERE = Path(os.devnull)
"""The root of a store that cannot be opened because its folder cannot be told."""


def import_what_writing_needs() -> None:
    """Import now what a hit does not need and a put does: for threads that are to import nothing."""
    for name in ("signature_files", "trust.judge", "trust.keyring", "local.size_limit"):
        importlib.import_module(f"precast.artifact_store.{name}")


class Store:
    """Manifests and blobs. Safe to use from several threads and processes at once.

    `root`: the local folder, for what never leaves this machine (leases, the index, counts of use) and for tools that look after the
    folder itself. What a remote tier could serve is read and written through the tier.
    """

    def __init__(
        self,
        root: Path,
        *,
        readonly: bool = False,
        problem: str = "",
        tier: Tier | None = None,
        policy: Policy = LOCAL,
        remote: Sequence[Setting] | None = None,
    ) -> None:
        self.root = root
        self.readonly = readonly
        self.problem = problem
        self._policy = policy
        self._entries = Entries(tier or Folder(root), readonly=readonly, problem=problem)
        self._records = NamedRecords(self._entries, policy)
        self._verified: dict[str, Stamp] = {}
        self._own: set[str] = set()  # checksums of the manifests that this process made and put
        self._remote = remote
        self._remotes: Remotes | None = None
        self._remotes_known = False
        self._wholes: dict[str, set[str]] = {}  # a part's key -> those of the programs that it is a part of
        self.made: set[str] = set()
        """Ids of the artifacts that this process made and put through this object."""

    # -- opening

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        readonly: bool = False,
        *,
        strict: bool = False,
        trust: str | None = None,
        remote: Sequence[Setting] | None = None,
    ) -> Store:
        """The store at `path` (a folder or file:// URL; default PRECAST_STORE, then the platform's cache folder). Made on first write.

        Where it cannot be used (a file in the way, a newer layout), `strict` raises StoreError; otherwise the reason is logged and the
        result is an empty, read-only store whose `problem` holds the reason: a broken cache must not break the user's call.

        `trust`: whose signatures what is stored needs before it executes ("any", "signed", "by:<key>"; default PRECAST_TRUST_POLICY, else
        digests alone are compared). `remote`: the remotes behind it, nearest first; None for those that PRECAST_REMOTE or a file names.
        """
        policy = LOCAL
        try:
            if wanted := trust or os.environ.get(layout.TRUST_POLICY, ""):
                from precast.artifact_store.trust.judge import judge_for  # only where signatures count

                policy = Policy(LOCAL.kinds, judge_for(wanted, "store's trust policy" if trust else layout.TRUST_POLICY))
            root = default_root(path)
            problem = Folder(root).problem()
        except StoreError as error:
            root, problem = NOWHERE, str(error)
        if problem and strict:
            raise StoreError(problem)
        if problem:
            log.warning("%s; going on without a store", problem)
        return cls(root, readonly=readonly or bool(problem), problem=problem, policy=policy, remote=remote)

    def __getstate__(self) -> dict[str, object]:
        """For another process, which connects to remotes by itself."""
        return {**self.__dict__, "_remotes": None, "_remotes_known": False}

    def __repr__(self) -> str:
        return f"<Store {self.root}{' (read-only)' if self.readonly else ''}>"

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return "a store that cannot be opened" if self.root == NOWHERE else self._entries.tier.place

    def exists(self) -> bool:
        """Whether anything was ever stored: a store is made on the first write."""
        return self.root.is_dir()

    # -- behind it

    @property
    def remotes(self) -> Remotes | None:
        """Where what is not here may be, and where what is put here goes, too; None where there is nothing. Looked at on a miss and on a
        put, and never on a hit. What is wrong with their settings is logged once, unless they were given when the store was opened.
        """
        if not self._remotes_known:
            from precast.artifact_store.remote.behind.open import remotes_behind  # not on the way of a hit

            with _opening:
                if not self._remotes_known:
                    self._remotes = remotes_behind(self, self._remote, self._entries, self._records)
                    self._remotes_known = True
        return self._remotes

    def relate(self, program_key: str, part: str) -> None:
        """A program has a part, which is a program of its own: who fetches the whole from a remote fetches the part at the same time."""
        self._wholes.setdefault(part, set()).add(program_key)

    # -- reading

    def programs(self) -> list[str]:
        """Program keys that have at least one artifact."""
        names = (name.split("/")[1] for name in self._entries.names(layout.PROGRAMS) if name.endswith(layout.MANIFEST_SUFFIX))
        return sorted({name for name in names if layout.is_label(name)})

    def program_keys(self) -> list[str]:
        """Program keys that have a folder, with artifacts or without: one listing, however many artifacts there are."""
        return [name for name in self._entries.listed(layout.PROGRAMS) if layout.is_label(name)]

    def variants(self, program_key: str) -> list[Manifest]:
        """Every readable artifact of a program, ordered by id."""
        found = (self._manifest(name) for name in self.manifest_names(program_key))
        return [manifest for manifest in found if manifest is not None]

    def manifest_names(self, program_key: str) -> list[str]:
        """Names of a program's manifest files, ordered by id, unread."""
        folder = layout.program_folder(program_key)
        files = self._entries.listed(folder)
        ids = (file.removesuffix(layout.MANIFEST_SUFFIX) for file in files if file.endswith(layout.MANIFEST_SUFFIX))
        return [f"{folder}/{id_}{layout.MANIFEST_SUFFIX}" for id_ in ids if layout.is_digest(id_)]  # what else lies there `verify` names

    def changed(self, program_key: str) -> int | None:
        """When an artifact of a program was last added or removed, in nanoseconds since 1970; 0 where there is none, None where that
        cannot be said.
        """
        if self.problem:
            return None
        try:
            stamp = self._entries.tier.stamp(layout.program_folder(program_key))
        except OSError:
            return None
        return 0 if stamp is None else stamp.modified

    def made_at(self, manifest: Manifest) -> float:
        """When an artifact was stored, in seconds since 1970. Raises OSError."""
        name = layout.manifest_name(manifest.program_key, manifest.artifact_id)
        stamp = self._entries.tier.stamp(name)
        if stamp is None:
            raise FileNotFoundError(errno.ENOENT, "it is not in the store any more", name)
        return stamp.modified / 1e9

    def manifests(self) -> Iterator[Manifest]:
        """Every readable artifact of every program."""
        for program_key in self.programs():
            yield from self.variants(program_key)

    def get(self, artifact_id: str, program_key: str | None = None) -> Manifest | None:
        """The artifact with this id. Given `program_key`, reads one file; otherwise looks through all programs."""
        for key in [program_key] if program_key is not None else self.programs():
            manifest = self._manifest(layout.manifest_name(key, artifact_id))
            if manifest is not None:
                return manifest
        return None

    def path(self, name: str) -> Path:
        """Where the local folder keeps the file with this store name."""
        return self.root / name

    def blob(self, digest_: str) -> bytes | None:
        """The bytes with this digest, checked; None (logged, and quarantined where damaged) otherwise."""
        name = layout.blob_name(digest_)
        data = self._entries.read(name)
        if data is None:
            self._entries.miss(name, "blob is not in the store")
            return None
        if digest(data) != digest_:
            self._entries.quarantine(name, f"content does not match its digest ({len(data)} bytes)")
            return None
        self._entries.is_good(name)
        return data

    def blob_path(self, digest_: str) -> Path | None:
        """A file with these bytes, to map or to measure; checked once per process for as long as the file stays the same."""
        name = layout.blob_name(digest_)
        try:
            stamp = self._entries.tier.stamp(name)
        except OSError:
            stamp = None
        if stamp is None or self._verified.get(digest_) != stamp:
            if self.blob(digest_) is None or stamp is None:
                return None
            self._verified[digest_] = stamp
        return self._entries.tier.file(name)

    def complete(self, manifest: Manifest) -> bool:
        """Whether every blob of an artifact is here and right: what "compiled already" must mean, since blobs may have been damaged."""
        return all(self.blob_path(blob) is not None for blob in manifest.blobs)

    # -- what may execute

    def trust(self, manifest: Manifest) -> Trusted[Manifest]:
        """An artifact whose guards, bytecode and blobs may be executed. Raises Untrusted."""
        asks = self._policy.asks(manifest.origin)
        if asks and manifest.checksum in self._own:
            return admit_manifest(manifest, LOCAL)  # the very bytes that this process made, and put here
        return admit_manifest(manifest, self._policy, self.signatures(manifest) if asks else ())

    def serves(self, manifest: Manifest) -> bool:
        """Whether an artifact is trusted here, and complete: what "compiled already" must mean for whoever would compile it."""
        try:
            self.trust(manifest)
        except Untrusted as error:
            self._entries.miss(manifest.origin.name, str(error))
            return False
        return self.complete(manifest)

    def trusted_variants(self, program_key: str) -> list[Trusted[Manifest]]:
        """The artifacts of a program that are trusted, ordered by id; the others are misses, logged."""
        found = []
        for manifest in self.variants(program_key):
            try:
                found.append(self.trust(manifest))
            except Untrusted as error:
                self._entries.miss(manifest.origin.name, str(error))
        return found

    def trusted_record(self, kind: str, name: str) -> Trusted[dict[str, Data]] | None:
        """A named record whose blobs may be executed, or None. Raises Untrusted."""
        return self._records.trusted(kind, name)

    def trusted_file(self, name: Trusted[str]) -> Trusted[Path] | None:
        """The file of the blob with the digest that stands in a trusted manifest or record; None where it is missing or damaged."""
        path = self.blob_path(name.content)
        return admit(path, name.content, name.origin, self._policy, holds=True) if path is not None else None

    def trusted_bytes(self, name: Trusted[str]) -> Trusted[bytes] | None:
        """The bytes of such a blob, read anew."""
        data = self.blob(name.content)
        return admit(data, name.content, name.origin, self._policy, holds=True) if data is not None else None

    # -- who signed it

    @property
    def judge(self) -> Judge | None:
        """Who decides by signatures what may execute; None where digests alone are compared."""
        return self._policy.judge

    def signatures(self, manifest: Manifest) -> tuple[Signature, ...]:
        """Signatures of exactly this build of an artifact; whether they hold, and whose they are, a judge says."""
        from precast.artifact_store import signature_files

        return signature_files.kept(self._entries, layout.manifest_name(manifest.program_key, manifest.artifact_id), manifest.checksum)

    def has_signatures(self, program_key: str, artifact_id: str) -> bool:
        """Whether something lies beside an artifact that should be signatures."""
        try:
            return self._entries.tier.stamp(layout.signature_name(layout.manifest_name(program_key, artifact_id))) is not None
        except OSError:
            return False

    def sign(self, manifest: Manifest, signer: Signer) -> tuple[Signature, ...]:
        """Put a signature beside an artifact; all that are there now. Raises StoreError."""
        from precast.artifact_store import signature_files
        from precast.artifact_store.trust.signatures import manifest_statement

        file = layout.manifest_name(manifest.program_key, manifest.artifact_id)
        given = [signer.sign(manifest_statement(manifest.program_key, manifest.artifact_id, manifest.checksum))]
        what = f"the signature of artifact {manifest.artifact_id[:12]}"
        self._entries.write(lambda tier: signature_files.keep(self._entries, tier, file, manifest.checksum, given), what)
        return self.signatures(manifest)

    def records(self) -> list[tuple[str, str]]:
        """Kind and name of every named record."""
        return [(kind, name) for kind in layout.RECORD_KINDS for name in self.record_names(kind)]

    def record_file(self, kind: str, name: str) -> tuple[bytes, dict[str, Data], str] | None:
        """A named record as it lies there: its file's bytes, what they say, the checksum of that; None where there is none."""
        return self._records.file(kind, name)

    def record_checksum(self, kind: str, name: str) -> str:
        """The checksum of a named record, which its signatures cover; empty where there is none."""
        return self._records.checksum(kind, name)

    def record_signatures(self, kind: str, name: str) -> tuple[Signature, ...]:
        """Signatures of a named record as it is now."""
        return self._records.signatures(kind, name, self._records.checksum(kind, name))

    def sign_record(self, kind: str, name: str, signer: Signer) -> tuple[Signature, ...]:
        """Put a signature beside a named record; all that are there now. Raises StoreError."""
        return self._records.sign(kind, name, signer)

    # -- what is in the way

    def why_absent(self, blob: str) -> str:
        """Why a blob cannot be had, in a word or two; empty where it is there. Its content is not looked at."""
        try:
            return "" if self._entries.tier.stamp(layout.blob_name(blob)) is not None else "MISSING"
        except OSError as error:
            return f"cannot be read ({error.strerror})"

    def quarantined(self) -> int:
        """How many damaged entries were set aside and are still kept."""
        return len(self._entries.names(layout.QUARANTINE))

    def set_aside_of(self, program_key: str) -> int:
        """How many damaged manifests of a program were set aside and are still kept."""
        prefix = f"{layout.QUARANTINE}/{layout.program_folder(program_key).replace('/', '~')}~"
        return sum(name.startswith(prefix) for name in self._entries.names(layout.QUARANTINE))

    def why_unread(self, program_key: str) -> str:
        """Why what is stored of a program cannot be read, as a sentence's end; empty where nothing is in the way."""
        if self.problem:
            return self.problem
        blobs = (layout.blob_name(blob) for manifest in self.variants(program_key) for blob in manifest.blobs)
        folders = (layout.OBJECTS, layout.PROGRAMS, layout.program_folder(program_key))
        for name in (*folders, *self.manifest_names(program_key), *blobs):
            try:
                self._entries.tier.check_readable(name)
            except OSError as error:
                return f"store {self.place}: {name} cannot be read ({error.strerror}); {advice(error)}"
        return ""

    # -- writing

    def put(self, manifest: Manifest, blobs: Mapping[str, bytes], signatures: tuple[Signature, ...] = ()) -> str:
        """Store an artifact: blobs first, then the manifest in one rename, all synced. Returns its id.

        `signatures`: those that came with it. What this process made is signed where PRECAST_SIGNING_KEY has a key, and nothing else is.
        Raises StoreError when the store cannot be written (nothing half-visible is left), ValueError for blobs that do not match.
        """
        for name, size in manifest.blobs.items():
            if name not in blobs or len(blobs[name]) != size or digest(blobs[name]) != name:
                raise ValueError(
                    f"artifact {manifest.artifact_id[:12]} needs blob {name[:12]}… of {size} bytes, and what was given does not match"
                )

        from precast.artifact_store import signature_files
        from precast.artifact_store.trust.signatures import manifest_statement

        file = layout.manifest_name(manifest.program_key, manifest.artifact_id)
        given = signatures
        if manifest.origin.kind == PROCESS:
            given += signature_files.signed_here(manifest_statement(manifest.program_key, manifest.artifact_id, manifest.checksum))
            self._own.add(manifest.checksum)

        def put(tier: Tier) -> None:
            for name in manifest.blobs:
                tier.put_new(layout.blob_name(name), blobs[name])
            signature_files.keep(self._entries, tier, file, manifest.checksum, given)
            tier.put(file, manifest.to_bytes())
            for name in manifest.blobs:  # a prune that looked before the manifest was there may have taken one: it is needed now
                if tier.stamp(layout.blob_name(name)) is None:
                    tier.put_new(layout.blob_name(name), blobs[name])

        self._entries.write(put, f"artifact {manifest.artifact_id[:12]}")
        if manifest.origin.kind == PROCESS:  # what came from elsewhere does not go on by itself
            self.made.add(manifest.artifact_id)
            if self.remotes is not None:
                self.remotes.put(manifest.program_key, manifest.artifact_id, self._wholes.get(manifest.program_key, ()))
        self._hold_size()
        log.info("put: %s: artifact %s for %s", manifest.program_name, manifest.artifact_id[:12], manifest.target)
        return manifest.artifact_id

    def put_blob(self, digest_: str, data: bytes) -> None:
        """Keep one blob before the artifact that names it (`put_manifest`): what a transfer that was killed leaves is found by the next
        one, or pruned. Raises StoreError, and ValueError for content that does not match.
        """
        if digest(data) != digest_:
            raise ValueError(f"blob {digest_[:12]}…: the content of {len(data)} bytes does not match")
        self._entries.write(lambda tier: tier.put_new(layout.blob_name(digest_), data), f"blob {digest_[:12]}…")

    def put_manifest(self, manifest: Manifest, signatures: tuple[Signature, ...] = ()) -> str:
        """Make an artifact visible whose blobs were put one by one, with the signatures that came with it. Returns its id.

        Raises StoreError, also where a blob is missing.
        """
        if missing := [blob for blob in manifest.blobs if self.blob_path(blob) is None]:
            raise StoreError(
                f"artifact {manifest.artifact_id[:12]}: blob {missing[0][:12]}… is not in the store at {self.place}; move it again"
            )
        from precast.artifact_store import signature_files

        file = layout.manifest_name(manifest.program_key, manifest.artifact_id)

        def put(tier: Tier) -> None:
            signature_files.keep(self._entries, tier, file, manifest.checksum, signatures)
            tier.put(file, manifest.to_bytes())

        self._entries.write(put, f"artifact {manifest.artifact_id[:12]}")
        if taken := [blob for blob in manifest.blobs if self.why_absent(blob)]:  # by a prune that looked before the manifest was there
            self.remove(manifest.artifact_id, manifest.program_key)
            raise StoreError(f"artifact {manifest.artifact_id[:12]}: blob {taken[0][:12]}… was pruned meanwhile; move it again")
        self._hold_size()
        log.info("moved here: %s: artifact %s for %s", manifest.program_name, manifest.artifact_id[:12], manifest.target)
        return manifest.artifact_id

    def put_signatures(self, manifest: Manifest, signatures: tuple[Signature, ...]) -> None:
        """Put further signatures of this build of an artifact beside it. Raises StoreError."""
        from precast.artifact_store import signature_files

        file = layout.manifest_name(manifest.program_key, manifest.artifact_id)
        what = f"signatures of artifact {manifest.artifact_id[:12]}"
        self._entries.write(lambda tier: signature_files.keep(self._entries, tier, file, manifest.checksum, signatures), what)

    def _hold_size(self) -> None:
        """Where the store's size has a limit, a thread evicts what goes beyond it. What is wrong with the limit is logged."""
        from precast.artifact_store.local.size_limit import size_limit  # not on the way of a hit

        try:
            limit = size_limit()
        except StoreError as error:
            log.warning("%s; the store at %s is not held to a size", error, self.root)
            return
        if limit is not None and not self.readonly:
            importlib.import_module("precast.artifact_store.maintenance.cap").after_put(self, limit)  # above this module, and seldom wanted

    def check_writable(self) -> None:
        """Raises StoreError where an artifact could not be put now; for whoever is about to work long for one."""
        self._entries.check_allowed()
        try:
            self._entries.prepare()
            for folder in (layout.OBJECTS, layout.PROGRAMS):
                self._entries.tier.check_writable(folder)
        except OSError as error:
            raise StoreError(f"{self._entries.unwritten(error)}; {advice(error)}") from error

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
        self._entries.check_allowed()
        for key in [program_key] if program_key is not None else self.programs():
            name = layout.manifest_name(key, artifact_id)
            if self._entries.tier.stamp(name) is not None:
                try:
                    self._entries.tier.remove(name)
                    self._entries.tier.remove(layout.signature_name(name))
                except OSError as error:
                    why = f"{error.strerror or error}; {cure(error, self.root)}"
                    raise StoreError(f"cannot remove {name} from {self.place}: {why}") from error
                return True
        return False

    # -- working together

    def is_leased(self, name: str) -> bool:
        """Whether somebody on this machine holds this lease, or held it when it died."""
        return (self.root / layout.LEASES / name).exists()

    def lease(self, name: str, timeout: float = 600.0, program_key: str = "") -> AbstractContextManager[leases.Lease]:
        """`with store.lease(artifact_id):` one process at a time compiles this; look with `get` once inside, it may be there now.

        Waits at most `timeout` seconds, takes over from a dead holder, and goes on unheld where leases cannot work (see `leases`).
        `program_key`: whose artifacts are fetched while another machine is waited for; without it, only this machine's processes are.
        """
        if not layout.is_label(name):
            raise ValueError(f"lease name {name!r} cannot be a file name")
        if self.readonly:
            return nullcontext(leases.Lease(self.root, False, 0.0))
        return leases.hold(self._watch(name, program_key), timeout)

    def watch(self, name: str, program_key: str = "") -> leases.Watch | None:
        """For whoever does other things between one attempt to take the lease `name` and the next. None where nobody keeps leases."""
        if not layout.is_label(name):
            raise ValueError(f"lease name {name!r} cannot be a file name")
        try:
            self._entries.check_allowed()
            self._entries.prepare()
        except (OSError, StoreError) as error:
            log.info("lease %s: %s; compiling without it", name, error)
            return None
        return self._watch(name, program_key)

    def _watch(self, name: str, program_key: str) -> leases.Watch:
        path = self.root / layout.LEASES / name
        fleet = self.remotes if program_key else None
        if fleet is None:
            return leases.Watch(path)
        from precast.artifact_store.remote.fleet_watch import FleetWatch  # where there is a remote, and on a miss only

        return FleetWatch(path, fleet, program_key)

    def used(self, artifact_id: str) -> None:
        """Record one use, in a few microseconds and without a database; for `prune --unused-for`. Call once per process and artifact.

        Where PRECAST_USES_DIR names a folder it is noted there, for stores that cannot be written and copies (`precast uses`).
        """
        if elsewhere := os.environ.get(usage.ELSEWHERE):
            usage.note_elsewhere(elsewhere, artifact_id)
        elif not self.readonly:
            usage.note(self.root, artifact_id)
        if self._remotes is not None:  # which a hit does not open
            self._remotes.used(artifact_id)

    # -- small named records

    def record(self, kind: str, name: str) -> dict[str, Data] | None:
        """A small named record ("tuning": measured choices; "native": the dispatcher built for a Python), or None."""
        return self._records.get(kind, name)

    def fetch_record(self, kind: str, name: str) -> dict[str, Data] | None:
        """`record`, and where it is not here what the store's remotes have, within their budgets."""
        found = self._records.get(kind, name)
        if found is None and self.remotes is not None and self.remotes.record(kind, name):
            found = self._records.get(kind, name)
        return found

    def record_names(self, kind: str) -> list[str]:
        """Names of the records of one kind."""
        return self._records.names(kind)

    def put_record(
        self,
        kind: str,
        name: str,
        record: Mapping[str, Data],
        blobs: Mapping[str, bytes] | None = None,
        signatures: tuple[Signature, ...] | None = None,
    ) -> None:
        """Keep a named record; blobs that it needs must be named in its "blobs" field (a list of digests), so that prune spares them.

        `signatures`: those that came with it; None for a record that this process made, which is signed where a key is configured.
        Raises StoreError and ValueError.
        """
        self._records.put(kind, name, record, blobs or {}, signatures)
        if signatures is None and self.remotes is not None:
            self.remotes.put_record(kind, name)

    # -- inside

    def _manifest(self, name: str) -> Manifest | None:
        if self._entries.is_bad(name):
            return None
        data = self._entries.read(name)
        if data is None:
            return None
        program_key, file = name.split("/")[1:]
        expected = file.removesuffix(layout.MANIFEST_SUFFIX)
        try:
            manifest = Manifest.from_bytes(data, name, expect_id=expected, origin=self._entries.origin(name))
            if manifest.program_key != program_key:
                raise DamagedRecord(f"{name}: belongs to program {manifest.program_key}")
        except FutureFormat as error:
            self._entries.miss(name, str(error))
            return None
        except (DamagedRecord, ForeignRecord) as error:
            self._entries.quarantine(name, str(error))
            return None
        return manifest
