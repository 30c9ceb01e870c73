"""Which remotes a store has, nearest first: `--remote`, else PRECAST_REMOTE, else `precast.toml` or `pyproject.toml`, else none.

A remote is a URL, whose query may say more: `?mode=ro`, `?trust=any`, `?budget=500ms`; what else stands there is for the endpoint. In a
file it is such a URL, or a table with `url` and these names.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.tiers.owner import LONGEST_LINE, why_not_believed

Mode = Literal["ro", "rw"]
BUDGET = 2.0
"""Seconds for which a call that misses waits for a remote."""
log = logging.getLogger("precast.store")
ENVIRONMENT = "PRECAST_REMOTE"
FILES = ("precast.toml", "pyproject.toml")
LONGEST_BUDGET = 600.0
_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0}
_TIME = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(ms|s|m|)")
_OURS = ("mode", "trust", "budget")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class Setting:
    """One remote as it was asked for. `url`: for the endpoint, without our own part of its query; `where`: which setting says so."""

    url: str
    mode: Mode = "rw"
    trust: str = "signed"
    budget: float = BUDGET
    where: str = ""


def chosen(flag: Sequence[str] | None = None, where: str = "--remote", start: Path | None = None) -> tuple[Setting, ...]:
    """The remotes by precedence. `flag`: what the command line or a call names; an empty list is none, whatever else says. Raises
    StoreError, naming the place.
    """
    if flag is not None:
        return _distinct([from_url(text, where) for text in flag])
    named = os.environ.get(ENVIRONMENT)
    if named is not None:
        return _distinct([from_url(text, ENVIRONMENT) for text in named.split()])
    return from_files(start)


def from_url(text: str, where: str) -> Setting:
    """A remote by its URL, or the path of a folder that machines share. Raises StoreError."""
    return _setting({"url": text}, where)


def from_files(start: Path | None = None) -> tuple[Setting, ...]:
    """The remotes that the nearest file names, upward from `start` or the working directory; the search ends at the home or at the root of
    a repository. Raises StoreError.
    """
    try:
        folder = (start or Path.cwd()).resolve()
    except OSError:
        return ()  # the working directory was removed
    home = Path(os.path.expanduser("~"))
    for place in (folder, *folder.parents):
        for name in FILES:
            found = _in_file(place / name)
            if found is not None:
                return found
        if place == home or (place / ".git").exists():
            return ()
    return ()


def _in_file(path: Path) -> tuple[Setting, ...] | None:
    """None where the file is not there or says nothing of remotes."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read, so that it is not known which remotes it names: {error.strerror}") from error
    if path.name == "pyproject.toml" and b"remotes" not in data:
        return None  # parsing a large file takes longer than a put
    if reason := why_not_believed(path):
        log.warning("%s is ignored: %s; what it names would be loaded and run. %s names remotes all the same", path, reason, ENVIRONMENT)
        return None
    if len(data) > LARGEST_FILE or max(map(len, data.split(b"\n"))) > LONGEST_LINE:
        limits = f"more than {LARGEST_FILE >> 10} KiB, or than {LONGEST_LINE} bytes in a line"
        raise StoreError(f"{path} has {limits}: the remotes in it are not read; name them by {ENVIRONMENT} or in a precast.toml beside it")
    import tomllib

    where = f"{path}" if path.name != "pyproject.toml" else f"{path} [tool.precast]"
    try:
        content = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # neither UTF-8 nor TOML, or a number of too many digits
        raise StoreError(f"{path} is no TOML: {error}") from error
    table = content
    for name in ("tool", "precast") if path.name == "pyproject.toml" else ():
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise StoreError(f"{where}: expected a table")
    if "remotes" not in table:
        return None
    if not isinstance(table["remotes"], list):
        raise StoreError(f'{where}: remotes is a list, for example [{{url = "s3://bucket/precast", mode = "ro"}}]')
    tables = [item if isinstance(item, dict) else {"url": item} for item in table["remotes"]]
    return _distinct([_setting(item, f"{where} remotes[{i}]") for i, item in enumerate(tables)])


def _setting(table: Mapping[str, Any], where: str) -> Setting:
    if unknown := sorted(table.keys() - {"url", *_OURS}):
        raise StoreError(f"{where}: {unknown[0]!r} is unknown; known: url, {', '.join(_OURS)}")
    text = table.get("url")
    if not isinstance(text, str) or not text.strip():
        raise StoreError(f"{where}: a remote is named by its URL, for example s3://bucket/precast")
    if not text.isprintable() or text != text.strip():
        raise StoreError(f"{where}: {text!r} has spaces or unprintable characters around or in it")
    url, ours = _split(text, where)
    said = {**ours, **{name: table[name] for name in _OURS if name in table}}
    mode, trust, budget = said.get("mode", "rw"), said.get("trust", "signed"), said.get("budget", BUDGET)
    if mode != "ro" and mode != "rw":
        raise StoreError(f"{where}: mode={mode!r}: use ro (nothing is written there) or rw")
    return Setting(url, "ro" if mode == "ro" else "rw", _trust(trust, where), _seconds(budget, where), where)


def _trust(text: Any, where: str) -> str:
    from precast.artifact_store.trust.judge import parse_demand

    if not isinstance(text, str):
        raise StoreError(f"{where}: trust={text!r}: use signed, any, or by:<name or id of a key>")
    return str(parse_demand(text, f"{where}: trust"))


def _split(text: str, where: str) -> tuple[str, dict[str, str]]:
    """The URL without our own part of its query, and that part."""
    if not _SCHEME.match(text):
        path, _, query = text.partition("?")
        folder = os.path.abspath(os.path.expanduser(path))
        text = f"shared://{quote(folder)}{'?' + query if query else ''}"
    base, _, query = text.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        urlsplit(base)
    except ValueError as error:
        raise StoreError(f"{where}: {_without_secrets(text)} is no URL: {error}") from error
    ours = {key: value for key, value in pairs if key in _OURS}
    rest = urlencode([(key, value) for key, value in pairs if key not in _OURS])
    return (f"{base}?{rest}" if rest else base), ours


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise StoreError(f"{where}: budget={value!r}: how long a call that misses may wait, for example 2s, 500ms or 0")
        seconds = float(found[1]) * _UNITS[found[2]]
    if not 0 <= seconds <= LONGEST_BUDGET:
        raise StoreError(f"{where}: budget={value!r}: between 0 and {LONGEST_BUDGET:.0f} seconds")
    return seconds


def _distinct(settings: list[Setting]) -> tuple[Setting, ...]:
    """Raises StoreError where one is named twice."""
    seen: set[str] = set()
    for setting in settings:
        if setting.url in seen:
            raise StoreError(f"{setting.where}: {_without_secrets(setting.url)} is named twice")
        seen.add(setting.url)
    return tuple(settings)


def _without_secrets(url: str) -> str:
    """A URL that can be shown: without a password, and without its query."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "what was given"
    return f"{parts.scheme}://{host}{parts.path}"


__all__ = ["ENVIRONMENT", "FILES", "Setting", "chosen", "from_files", "from_url"]
