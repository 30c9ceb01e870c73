"""What a tier is: a place where bytes live under the names of `layout`. The store reads and writes content through it alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol


class Stamp(NamedTuple):
    """What changes whenever the content under a name does. `modified`: when it did, in nanoseconds since 1970."""

    identity: int
    size: int
    modified: int


class Tier(Protocol):
    """Verbs over named bytes. Each raises OSError for what goes wrong; what is not there is None or empty: absent and broken differ.

    A name appears whole or not at all, so that no reader sees half of it.
    """

    @property
    def kind(self) -> str:
        """What sort of place it is, by which a trust policy decides (`origin.FOLDER`, or a word of its own)."""

    @property
    def place(self) -> str:
        """The tier as people know it: a folder or a URL."""

    def get(self, name: str) -> bytes | None:
        """The bytes under this name."""

    def put(self, name: str, data: bytes) -> None:
        """Keep `data` under this name, in place of what was there."""

    def put_new(self, name: str, data: bytes) -> None:
        """Keep content-addressed `data`. What is there already and sound may stay; its stamp is renewed, so that pruning spares it."""

    def names(self, prefix: str) -> list[str]:
        """Names of everything under the folder `prefix`, sorted; folders that cannot be listed are left out."""

    def listed(self, folder: str) -> list[str]:
        """Last parts of the names directly in `folder`, sorted."""

    def remove(self, name: str) -> None:
        """Take a name out, if it is there."""

    def stamp(self, name: str) -> Stamp | None:
        """The stamp of a name, or of a folder: that changes when a name is put into it or removed from it."""

    def file(self, name: str) -> Path | None:
        """A local file with the bytes under this name, to map or to load; it need not have been read."""

    def set_aside(self, name: str) -> None:
        """Take a damaged entry out of the way, keeping it where people can look at it."""

    def check_readable(self, name: str) -> None:
        """Raises OSError where a name, or a folder, is there and cannot be read."""

    def check_writable(self, folder: str) -> None:
        """Raises OSError where nothing can be put into `folder`, which is made where it is missing."""

    def problem(self) -> str:
        """Why the tier cannot be used, as a sentence; empty where it can, also where nothing was ever put into it."""

    def prepare(self) -> None:
        """Make what a tier needs before its first content."""
