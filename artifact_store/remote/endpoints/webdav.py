"""What a WebDAV server answers to PROPFIND: which files are there. Read as hostile XML: no document type, no entities, bounded text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from xml.parsers import expat

from precast.artifact_store.remote.endpoint import Garbled
from precast.artifact_store.remote.endpoints.url import NAME

PROPFIND = (
    b'<?xml version="1.0" encoding="utf-8"?>\n'
    b'<propfind xmlns="DAV:"><prop><getcontentlength/><getlastmodified/><resourcetype/></prop></propfind>'
)
TEXT = 4096


class Entry(NamedTuple):
    """One file or folder, by its name below the base."""

    name: str
    size: int
    modified: float
    folder: bool


class _Reader:
    """Gathers href, getcontentlength, getlastmodified and collection of each response."""

    def __init__(self) -> None:
        self.found: list[dict[str, str]] = []
        self._text = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """A tag, with its namespace before a space."""
        self._text = ""
        if tag == "DAV: response":
            self.found.append({})
        elif tag == "DAV: collection" and self.found:
            self.found[-1]["collection"] = ""

    def end(self, tag: str) -> None:
        """The end of a tag."""
        name = tag.removeprefix("DAV: ")
        if self.found and name in ("href", "getcontentlength", "getlastmodified"):
            self.found[-1].setdefault(name, self._text.strip())
        self._text = ""

    def text(self, data: str) -> None:
        """Characters between tags."""
        if len(self._text) + len(data) > TEXT:
            raise ValueError("an element with too much text")
        self._text += data

    def doctype(self, *unused: object) -> None:
        """A document type, which no such answer has."""
        raise ValueError("a document type")


def listed(answer: bytes, base: str, where: str) -> Iterator[Entry]:
    """The entries of a PROPFIND's answer that lie below the path `base` and have names; others are passed over. Raises Garbled."""
    reader = _Reader()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = reader.doctype
    try:
        parser.Parse(answer, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise Garbled(f"{where} lists its content in a form that WebDAV does not have: {error}") from error
    for each in reader.found:
        try:
            path = unquote(urlsplit(each.get("href", "")).path)
        except ValueError:
            continue
        name = path[len(base) :].strip("/")
        if not path.startswith(base) or not NAME.fullmatch(name):
            continue
        size = each.get("getcontentlength", "0")
        if not re.fullmatch(r"[0-9]{1,18}", size):
            raise Garbled(f"{where} lists a size that is no number")
        yield Entry(name, int(size), _time(each.get("getlastmodified", ""), where), "collection" in each or path.endswith("/"))


def _time(text: str, where: str) -> float:
    if not text:
        return 0.0
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError) as error:
        raise Garbled(f"{where} lists a time that is none: {text[:40]!r}") from error
