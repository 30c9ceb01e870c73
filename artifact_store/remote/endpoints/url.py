"""The URL of an endpoint: its parts, its options after `?`, how it is shown without secrets, and which names may be asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from precast.artifact_store.remote.endpoint import Garbled

NAME = re.compile(r"[A-Za-z0-9_+\-][A-Za-z0-9_.+\-]*(/[A-Za-z0-9_+\-][A-Za-z0-9_.+\-]*)*")
"""A name: segments that begin with no dot, so that nothing leads out of a folder and nothing is hidden in it."""
PREFIX = re.compile(rf"({NAME.pattern})?/?")


@dataclass(frozen=True)
class EndpointURL:
    """A URL, taken apart. `text` is for people: it has neither user nor password, and of the options only what may be shown."""

    scheme: str
    host: str
    port: int | None
    path: str
    options: dict[str, str]
    text: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """Host and port as they stand in the URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def only(self, *allowed: str) -> None:
        """Raises ValueError where an option is none of these: a misspelt one would be a setting that has no effect."""
        for name in self.options:
            if name not in allowed:
                known = ", ".join(sorted(allowed)) or "none"
                raise ValueError(f"{self.text}: {self.scheme}:// has no option `{name}`; its options are {known}")

    def flag(self, name: str) -> bool:
        """An option that is on or off."""
        value = self.options.get(name, "0").lower()
        if value not in ("0", "1", "true", "false", ""):
            raise ValueError(f"{self.text}: `{name}` is 1 or 0, not {value!r}")
        return value in ("1", "true", "")


def parse(text: str) -> EndpointURL:
    """Take a URL apart. Raises ValueError, with the right form, for what is none."""
    if text != text.strip() or any(ord(each) < 33 for each in text):
        raise ValueError(f"the URL {text!r} contains a space or a line end: write it without, a space within a path as %20")
    parts = urlsplit(text)
    if not parts.scheme or "://" not in text:
        raise ValueError(
            f"{text!r} is no URL: write for example s3://bucket/prefix, https://cache.example.com/precast or shared:///mnt/precast"
        )
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"the port in {_shown(parts.scheme, parts.netloc, parts.path)} is no number from 1 to 65535") from error
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in options:
            raise ValueError(f"{_shown(parts.scheme, parts.netloc, parts.path)}: the option `{name}` is given twice")
        options[name] = value
    return EndpointURL(
        scheme=parts.scheme.lower(),
        host=parts.hostname or "",
        port=port,
        path=unquote(parts.path),
        options=options,
        text=_shown(parts.scheme, parts.netloc, parts.path),
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )


def _shown(scheme: str, netloc: str, path: str) -> str:
    return f"{scheme.lower()}://{netloc.rpartition('@')[2]}{path}".rstrip("/") or scheme


def checked(name: str) -> str:
    """The name, if it is one. Raises Garbled else: names come from what remotes say, too."""
    if len(name) > 512 or not NAME.fullmatch(name):
        raise Garbled(f"{name[:100]!r} is no name that an endpoint has: letters, digits and `_+-.` in segments that begin with no dot")
    return name


def checked_prefix(prefix: str) -> str:
    """A beginning of names; it may be empty or end with a slash."""
    if len(prefix) > 512 or not PREFIX.fullmatch(prefix):
        raise Garbled(f"{prefix[:100]!r} is no beginning of a name that an endpoint has")
    return prefix
