"""The keyring: which public keys this user trusts, and what is revoked: a small text file that people and configuration tools write.

    precast-ed25519 <base64> <name>         this key is trusted, and called so
    revoked-key <key id> <name>             nothing that it signed counts any more
    revoked-artifact <sha-256> <name>       an artifact's id, or its manifest's checksum, is refused whoever signed it

Empty lines and what follows a `#` mean nothing. A line that cannot be read makes the whole keyring unusable: nothing is accepted by half a
keyring, since what is missing may be a revocation. There are two: the system's, which administrators write, and the user's. A revocation in
either counts against both.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.trust.keys import ALGORITHM, KeyProblem, PublicKey, check_name, is_key_id, parse_public

log = logging.getLogger("precast.store")

ENVIRONMENT = "PRECAST_TRUST"
FILE = "trust"
LARGEST = 4 << 20
_KEY, _ARTIFACT = "revoked-key", "revoked-artifact"


@dataclass(frozen=True)
class Keyring:
    """`keys`: those that are trusted, by id; `revoked_keys`, `revoked_artifacts`: what is not any more -> what it was called."""

    keys: dict[str, PublicKey]
    revoked_keys: dict[str, str]
    revoked_artifacts: dict[str, str]

    def with_more(self, other: Keyring) -> Keyring:
        """Both in one. A revocation in either counts."""
        revoked = {**other.revoked_keys, **self.revoked_keys}
        keys = {id_: key for id_, key in {**other.keys, **self.keys}.items() if id_ not in revoked}
        return Keyring(keys, revoked, {**other.revoked_artifacts, **self.revoked_artifacts})

    def named(self, who: str) -> frozenset[str]:
        """Ids of the trusted keys that this is the name of, or the id."""
        return frozenset(key.id for key in self.keys.values() if who in (key.name, key.id))

    def lines(self) -> list[str]:
        """Its file's lines, sorted within each kind."""
        keys = sorted(key.line() for key in self.keys.values())
        revoked = [f"{_KEY} {id_} {name}" for id_, name in sorted(self.revoked_keys.items())]
        return keys + revoked + [f"{_ARTIFACT} {id_} {name}" for id_, name in sorted(self.revoked_artifacts.items())]


EMPTY = Keyring({}, {}, {})


def parse(text: str, where: str) -> Keyring:
    """The keyring in a file's text. Raises KeyProblem for anything that is not such a line."""
    keys: dict[str, PublicKey] = {}
    revoked: dict[str, dict[str, str]] = {_KEY: {}, _ARTIFACT: {}}
    for number, line in enumerate(text.split("\n"), 1):
        words, at = line.partition("#")[0].split(), f"{where}, line {number}"
        if not words:
            continue
        if words[0] == ALGORITHM:
            key = parse_public(" ".join(words), at)
            keys[key.id] = key
        elif words[0] in revoked and len(words) in (2, 3):
            if not (is_key_id(words[1]) if words[0] == _KEY else layout.is_digest(words[1])):
                raise KeyProblem(f"{at}: {words[1][:80]!r} is not {'the id of a key' if words[0] == _KEY else 'a SHA-256 in hex'}")
            revoked[words[0]][words[1]] = check_name(words[2], at) if len(words) == 3 else "unnamed"
        else:
            kinds = f"`{ALGORITHM} <base64> <name>`, `{_KEY} <key id> <name>` or `{_ARTIFACT} <sha-256> <name>`"
            raise KeyProblem(f"{at}: expected {kinds}; nothing is trusted by a keyring that cannot be read whole")
    return Keyring(keys, revoked[_KEY], revoked[_ARTIFACT]).with_more(EMPTY)


def user_file() -> Path:
    """The user's keyring: PRECAST_TRUST, else `trust` in the platform's configuration folder."""
    if chosen := os.environ.get(ENVIRONMENT):
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    from platformdirs import user_config_path

    return user_config_path("precast", appauthor=False) / FILE


def system_file() -> Path:
    """The keyring of this machine, which administrators write and precast only reads."""
    from platformdirs import site_config_path

    return site_config_path("precast", appauthor=False) / FILE


def read(path: Path) -> Keyring:
    """The keyring in a file; empty where there is none. Raises KeyProblem where it cannot be read: a revocation may be in it."""
    try:
        with open(path, "rb") as file:
            data, mode = file.read(LARGEST + 1), os.fstat(file.fileno()).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return EMPTY
    except OSError as error:
        if isinstance(error, PermissionError) and _is_of_another_user(path):
            log.info("keyring %s: it is another user's, and not read (HOME=%s)", path, os.environ.get("HOME", ""))
            return EMPTY
        raise KeyProblem(f"keyring {path}: cannot be read ({error.strerror}): make it readable for this user") from error
    if mode & stat.S_IWOTH:
        raise KeyProblem(f"keyring {path}: everybody may write it, and so say whom to trust: chmod o-w {path}")
    if len(data) > LARGEST:
        raise KeyProblem(f"keyring {path}: larger than {LARGEST >> 20} MiB, which no keyring is")
    try:
        return parse(data.decode("utf-8"), f"keyring {path}")
    except UnicodeDecodeError as error:
        raise KeyProblem(f"keyring {path}: it is no UTF-8 text ({error.reason} at byte {error.start})") from error


def _is_of_another_user(path: Path) -> bool:
    """Whether it lies in a folder that is another user's and closed to this one, as where a service was started with root's HOME."""
    for folder in path.parents:
        with contextlib.suppress(PermissionError):
            return folder.exists() and folder.stat().st_uid != os.geteuid() and not os.access(folder, os.X_OK, effective_ids=True)
    return False


class Files:
    """What the system's and the user's keyring files say together, read again when one of them changes: also in a server that runs."""

    def __init__(self, paths: Iterable[Path] | None = None) -> None:
        self._paths = None if paths is None else tuple(paths)
        self._seen: tuple[object, ...] | None = None
        self._keyring = EMPTY

    def __call__(self) -> Keyring:
        """Raises KeyProblem."""
        paths = self._paths if self._paths is not None else (user_file(), system_file())
        seen = tuple((path, _stamp(path)) for path in paths)
        if seen != self._seen:
            whole = EMPTY
            for path in paths:
                whole = whole.with_more(read(path))
            self._keyring, self._seen = whole, seen
        return self._keyring


def _stamp(path: Path) -> tuple[int, int, int] | str:
    try:
        seen = os.stat(path)
    except OSError as error:
        return error.strerror or str(error)
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def change(path: Path, edit: Callable[[Keyring], Keyring]) -> Keyring:
    """Let `edit` make a new keyring of the one in a file, which nobody else changes meanwhile; comments go. Raises KeyProblem."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(path.parent):
            changed = edit(read(path))
            aside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
            try:
                descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with open(descriptor, "w") as file:
                    file.write("".join(f"{line}\n" for line in changed.lines()))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(aside, path)
            finally:
                aside.unlink(missing_ok=True)
    except OSError as error:
        raise KeyProblem(f"keyring {path}: cannot be written ({error.strerror})") from error
    return changed


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def add(keyring: Keyring, key: PublicKey, *, again: bool = False) -> Keyring:
    """With this key trusted. `again`: also where it was revoked. Raises KeyProblem."""
    if key.id in keyring.revoked_keys and not again:
        raise KeyProblem(f"key {key.id} ({keyring.revoked_keys[key.id]}) was revoked; `precast trust add --again` trusts it all the same")
    if taken := [other for other in keyring.keys.values() if other.name == key.name and other.id != key.id]:
        raise KeyProblem(
            f"another key is called {key.name!r} here ({taken[0].id}): give this one another name (`--name`), or remove that one first"
        )
    revoked = {id_: name for id_, name in keyring.revoked_keys.items() if id_ != key.id}
    return replace(keyring, keys={**keyring.keys, key.id: key}, revoked_keys=revoked)


def revoke_key(keyring: Keyring, who: str, known: Keyring = EMPTY) -> Keyring:
    """Without the key of this name or id, and with its revocation. `known`: where else a name may stand. Raises KeyProblem."""
    whole = keyring.with_more(known)
    ids = whole.named(who) or (frozenset({who}) if is_key_id(who) else frozenset())
    if not ids:
        gone = [id_ for id_, name in whole.revoked_keys.items() if name == who]
        said = f"key {who!r} is revoked already ({gone[0]})" if gone else f"no key {who!r} is trusted here; `precast trust ls` shows all"
        raise KeyProblem(said)
    revoked = {id_: whole.keys[id_].name if id_ in whole.keys else keyring.revoked_keys.get(id_, "unnamed") for id_ in ids}
    return replace(
        keyring,
        keys={id_: key for id_, key in keyring.keys.items() if id_ not in ids},
        revoked_keys={**keyring.revoked_keys, **revoked},
    )


def revoke_artifact(keyring: Keyring, digest: str, name: str = "unnamed") -> Keyring:
    """With this artifact refused: its id (whatever was compiled for it), or its manifest's checksum. Raises KeyProblem."""
    if not layout.is_digest(digest):
        raise KeyProblem(
            f"{digest[:80]!r} is not an artifact's whole id, nor a manifest's checksum: 64 hex digits, as `precast ls` shows them"
        )
    return replace(keyring, revoked_artifacts={**keyring.revoked_artifacts, digest: check_name(name)})
