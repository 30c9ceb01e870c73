"""Which folder is the store's, by `--store`, PRECAST_STORE, a build file, `store=` or default. What is likely a slip is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.tiers.folder import read_file

ENVIRONMENT = layout.ENVIRONMENT

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_VARIABLE = re.compile(r"(?:^|/)(\$\{?\w+\}?)")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


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


def folder_of(text: str, base: str | os.PathLike[str] = "") -> Path:
    """The folder that `text` names, a path or a file:// URL; a relative one starts at `base`, else where the process is.

    Raises StoreError for what names no folder of this machine, and for a text that was hardly meant as it stands.
    """
    if not text.strip():
        raise _refused(text, "an empty name; name a folder" if not text else "nothing but spaces; name a folder")
    if "\0" in text:
        raise _refused(text, "no folder has a name with a null character")
    if text != text.strip():
        raise _refused(
            text, f"a space or line end around the name: write {text.strip()!r} (a folder whose name ends so: with a / behind it)"
        )
    if text.lower().startswith("file:"):
        text = _path_of_url(text)
    elif scheme := _SCHEME.match(text):
        raise _refused(
            text, f"{scheme[1]}:// is not supported: name a folder or a file:// URL, and copy a remote store into a folder first"
        )
    elif _WINDOWS.match(text):
        raise _refused(text, "a path of Windows, and this is Linux: name a folder such as /mnt/c/store")
    else:
        if variable := _VARIABLE.search(text):
            raise _refused(text, f"the variable {variable[1]} was not replaced by its value")
        text = _home(text)
    try:
        return Path(os.path.abspath(os.path.join(base, text)))
    except FileNotFoundError as error:
        raise _refused(text, "the current folder was removed; give an absolute path") from error


def _home(text: str) -> str:
    home = os.path.expanduser(text)
    if text.startswith("~") and home == text:
        user = text.partition("/")[0]
        raise _refused(text, f"there is no user {user[1:]!r} here; a folder of that name is ./{user}")
    return home


def _path_of_url(text: str) -> str:
    """The absolute path in a file: URL."""
    from urllib.parse import unquote, urlsplit  # only where there is a URL

    url = urlsplit(text)
    if url.netloc.lower() not in ("", "localhost"):
        named = url.netloc + url.path
        path = os.path.abspath(os.path.expanduser(named)) if url.netloc[0] in "~." else f"/{named}"
        raise _refused(text, f"{url.netloc!r} would be the name of a host: an absolute path follows three slashes: file://{path}")
    if url.query or url.fragment or "?" in text or "#" in text:
        raise _refused(text, "in a URL ? and # end the path: write %3F and %23, or give the path itself")
    if _ESCAPE.search(url.path):
        raise _refused(text, "in a URL % begins an escape of two digits: write %25, or give the path itself")
    path = unquote(url.path, errors="surrogateescape")
    if not path.startswith("/") or not path.strip("/"):
        raise _refused(text, "it names no folder by its absolute path: write file:///srv/store, or give the path itself")
    if "\0" in path:
        raise _refused(text, "no folder has a name with a null character")
    return path


def what_is_at(root: Path) -> Literal["store", "nothing", "empty folder", "other folder"]:
    """What lies at a folder's place. A store that lost its format file is known by its tag, or by an artifact. Raises OSError."""
    if (root / layout.FORMAT_FILE).exists() or _tagged(root):
        return "store"
    names = root.glob(f"{layout.PROGRAMS}/*/*{layout.MANIFEST_SUFFIX}")
    if any(layout.is_digest(path.name.removesuffix(layout.MANIFEST_SUFFIX)) for path in names):
        return "store"
    if not root.exists():
        return "nothing"
    return "other folder" if os.listdir(root) else "empty folder"


def _tagged(root: Path) -> bool:
    try:
        return read_file(root / layout.TAG_FILE) == layout.CACHEDIR_TAG
    except OSError:
        return False


def _refused(text: str, why: str) -> StoreError:
    return StoreError(f"store {text!r}: {why}")


__all__ = ["ENVIRONMENT", "default_root", "folder_of", "what_is_at"]
