"""Where stored bytes were read: what a trust policy decides by, and what messages name."""

from __future__ import annotations

from dataclasses import dataclass

FOLDER = "folder"
"""A tier that is a folder of this machine."""
PROCESS = "process"
"""No tier: this process made the content itself."""
UNKNOWN = "unknown"
"""Bytes that somebody handed over without saying where they are from."""


@dataclass(frozen=True)
class Origin:
    """`kind`: of tier (FOLDER, or a remote tier's own word), PROCESS or UNKNOWN; `place`: the tier as people know it; `name`: of the
    manifest or record in it.
    """

    kind: str
    place: str = ""
    name: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.place, self.name))) or f"{self.kind} content"


MADE_HERE = Origin(PROCESS, "this process")
