"""Which releases of torch precast is written for, and what it makes of others."""

from __future__ import annotations

import re

SUPPORTED_TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""Major and minor versions, oldest first."""
RANGE = f"{SUPPORTED_TORCH[0]} to {SUPPORTED_TORCH[-1]}"
NEWEST = SUPPORTED_TORCH[-1]
"""What a torch that is newer than all of these is taken for."""


def minor_of(version: str) -> str:
    """Major and minor version: "2.13" of "2.13.0+cpu", "2.16" of "2.16.0a0+git1234567"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def written_for(version: str) -> str:
    """The supported release whose adapters and patches the torch of this version gets: its own, the newest for a newer one, else empty."""
    minor = minor_of(version)
    if minor in SUPPORTED_TORCH:
        return minor
    return NEWEST if _number(minor) > _number(NEWEST) else ""


def is_before(version: str, release: str) -> bool:
    """Whether the torch of this version belongs to a release before "2.15": a candidate of that counts as it."""
    return _number(version) < _number(release)


def _number(minor: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", minor)
    return tuple(map(int, found.groups())) if found else ()


def why_unsupported(version: str) -> str:
    """Why precast does nothing with the torch of this version ("2.10.0+cpu"), as a sentence; empty where it works, or may work."""
    if written_for(version):
        return ""
    return f"this is torch {version}, and precast supports torch {RANGE}: nothing is compiled or loaded"


def why_unknown(version: str) -> str:
    """What is to be said of a torch that is newer than all that precast was tested with, as a sentence; empty for one that was."""
    if minor_of(version) in SUPPORTED_TORCH or not written_for(version):
        return ""
    return (
        f"this is torch {version}, and precast was tested with torch {RANGE}: it works as far as what it relies on holds, "
        "and what does not runs eagerly; `precast doctor --probe` lists it"
    )


__all__ = ["NEWEST", "RANGE", "SUPPORTED_TORCH", "is_before", "minor_of", "why_unknown", "why_unsupported", "written_for"]
