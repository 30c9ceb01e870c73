"""How large a store may become by itself: `PRECAST_STORE_MAX_SIZE`, else `max_size` in `precast.toml` or `pyproject.toml`, else as it will.

Looked at when something was put, never on a hit.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.tiers.owner import LONGEST_LINE, why_not_believed

log = logging.getLogger("precast.store")
ENVIRONMENT = "PRECAST_STORE_MAX_SIZE"
FILES = ("precast.toml", "pyproject.toml")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([kmgt]?)(i?)b?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def size_limit(start: Path | None = None) -> int | None:
    """Bytes; None where no limit was asked for. Raises StoreError, naming the place, for what is no size."""
    named = os.environ.get(ENVIRONMENT, "")
    if named.strip() == "0":
        return None
    if named:
        return parse(named, ENVIRONMENT)
    try:
        folder = (start or Path.cwd()).resolve()
    except OSError:
        return None  # the working directory was removed
    home = Path(os.path.expanduser("~"))
    for place in (folder, *folder.parents):
        for name in FILES:
            found = _in_file(place / name)
            if found is not None:
                return parse(found, f"{place / name}: max_size")
        if place == home or (place / ".git").exists():
            break
    return None


def parse(value: Any, where: str) -> int:
    """Bytes in "500M", "2GiB" or 1048576. Raises StoreError."""
    if type(value) is int and value > 0:
        return value
    match = _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None or not float(match[1]):
        raise StoreError(f"{where}: {value!r} is not a size; write for instance 500M, 20GiB or 1048576 (bytes)")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2]])


def _in_file(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read, so that it is not known how large the store may become: {error.strerror}") from error
    if b"max_size" not in data:
        return None
    if reason := why_not_believed(path):
        log.warning("%s is ignored: %s; its max_size would remove artifacts", path, reason)
        return None
    if max(map(len, data.split(b"\n"))) > LONGEST_LINE:
        raise StoreError(f"{path} has a line of more than {LONGEST_LINE} bytes, and is not read: give the size as {ENVIRONMENT}")
    import tomllib

    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # neither UTF-8 nor TOML, or a number of too many digits
        raise StoreError(f"{path} is no TOML: {error}") from error
    for name in ("tool", "precast") if path.name == "pyproject.toml" else ():
        table = table.get(name, {}) if isinstance(table, dict) else {}
    return table.get("max_size") if isinstance(table, dict) else None
