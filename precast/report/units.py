"""Sizes and durations as people write them, both ways."""

from __future__ import annotations

import re
import time

_SIZE_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_TIME_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0, "y": 365 * 86400.0}


def parse_size(text: str) -> int:
    """Bytes in "500M", "2GiB", "1.5 GB" or "1048576". Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if match is None or match[2] not in _SIZE_UNITS:
        raise ValueError(f"{text!r} is not a size; write for instance 500M, 2GiB or 1048576 (bytes)")
    return int(float(match[1]) * _SIZE_UNITS[match[2]])


def parse_duration(text: str) -> float:
    """Seconds in "30d", "12h", "2w" or "90s". Raises ValueError; also without a unit, since who writes 30 means days."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdwy]?)", text.strip().lower())
    if match is None or not match[2]:
        raise ValueError(f"{text!r} {'is not a duration' if match is None else 'has no unit'}; write for instance 30d, 12h, 2w or 90s")
    return float(match[1]) * _TIME_UNITS[match[2]]


def human_size(size: int) -> str:
    """Bytes as text: "1.2 MB" (decimal units)."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def human_seconds(seconds: float) -> str:
    """A length of time as text: "2.3 s", "4.1 min", "3.0 h"."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s"


def human_age(moment: float | None, now: float | None = None) -> str:
    """How long ago a unix time was: "3 h ago"; "in 2 d" where clocks differ; "never" for None."""
    if moment is None:
        return "never"
    seconds = (time.time() if now is None else now) - moment
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= length:
            return f"{seconds / length:.0f} {unit} ago" if seconds > 0 else f"in {-seconds / length:.0f} {unit}"
    return "just now"


def human_moment(moment: float) -> str:
    """A unix time in this machine's zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
