"""Whose a store is. All of it belongs to one user, and what others make in it, root included, is that user's or is not made."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat

from precast.artifact_store.format import layout


def owner(root: str | os.PathLike[str]) -> int | None:
    """The user that the store belongs to: whose its format file is, else its folder. None where neither can be looked at."""
    for path in (f"{os.fspath(root)}/{layout.FORMAT_FILE}", root):
        with contextlib.suppress(OSError):
            return os.stat(path).st_uid
    return None


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


LONGEST_LINE = 8192
"""Bytes of a line of settings: the time to read one of TOML may grow with its square, and 250 KB of `a.b.a.b` take minutes."""


def why_not_believed(path: str | os.PathLike[str]) -> str:
    """Why somebody else may have written settings that were found and not named, in /tmp say; empty where they are ours, or root's."""
    try:
        seen = os.stat(path)
    except OSError as error:
        return error.strerror or str(error)
    if seen.st_uid not in (0, os.geteuid()):
        return f"it belongs to {user_name(seen.st_uid)}, and this is {user_name(os.geteuid())}"
    return "everybody may write it (chmod o-w)" if seen.st_mode & stat.S_IWOTH else ""


def create(root: str | os.PathLike[str], path: str, flags: int, mode: int) -> int:
    """A descriptor of the new file at `path` within the store, which belongs to the store's user. Raises OSError.

    PermissionError where it would be this process's own: neither its user nor a root that can give it away.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    whose = owner(root)
    try:
        if whose is not None and os.fstat(descriptor).st_uid != whose:
            os.fchown(descriptor, whose, -1)
    except OSError as error:
        os.close(descriptor)
        os.unlink(path)
        raise _not_ours(path, whose) from error
    return descriptor


def make_folder(root: str | os.PathLike[str], path: str | os.PathLike[str]) -> bool:
    """Make the folder `path`, within the store, for the store's user; whether it was missing. Raises OSError as `create` does."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return False
    whose = owner(root)
    try:
        if whose is not None and os.stat(path).st_uid != whose:
            os.chown(path, whose, -1, follow_symlinks=False)
    except OSError as error:
        os.rmdir(path)
        raise _not_ours(os.fspath(path), whose) from error
    return True


def give(root: str | os.PathLike[str], made: int | str | os.PathLike[str]) -> None:
    """A file (its descriptor) or a folder that root has just made in another user's store becomes that user's."""
    if os.geteuid() != 0:
        return
    whose = owner(root)
    if whose:
        with contextlib.suppress(OSError):  # a file system that decides itself whose a file is
            os.chown(made, whose, -1)


def _not_ours(path: str, whose: int | None) -> PermissionError:
    name = "another user" if whose is None else user_name(whose)
    return PermissionError(errno.EPERM, f"the store belongs to {name}, and this is {user_name(os.geteuid())}", path)


__all__ = ["LONGEST_LINE", "create", "give", "make_folder", "owner", "user_name", "why_not_believed"]
