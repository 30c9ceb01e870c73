"""Adding up old sheets, so that what is counted for a year stays small: by the hour for two weeks, then by the day, and no more after 400.

A file of a day is added up when two days have passed, since nobody appends to it then. The new `folded.jsonl` names the files that are in
it in its first line, appears by a rename, and only then are they removed: a reader at any moment, and one after a crash at any moment,
counts each of them once.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from precast.artifact_store.local.leases import Watch
from precast.artifact_store.statistics.series import Series
from precast.artifact_store.statistics.sheets import FOLDED, Sheet, day_of, day_of_file, files, folded_names, read_sheets
from precast.artifact_store.tiers.owner import create

log = logging.getLogger("precast.store")

HOUR, DAY = 3600, 86400
HOURLY = 14 * DAY
KEPT = 400 * DAY
SETTLED = 2 * DAY
"""Seconds after which nobody appends to the file of a day any more."""
MOST_SERIES = 20_000
"""Different series in one sheet; of further ones reasons and details are left out."""


def fold(folder: Path, root: Path | None = None, now: float | None = None) -> int:
    """Add up what is old enough; how many files were. Another process at the same work makes it 0. `root`: as for `sheets.append`.

    Raises OSError where the folder cannot be written; nothing is lost then.
    """
    now = time.time() if now is None else now
    limit = day_of(now - SETTLED)
    old = [name for name in files(folder) if 0 < len(day_of_file(name)) and day_of_file(name) <= limit]
    if not old:
        return 0
    lease = Watch(folder / "folding.lease").look()
    if lease is None:
        return 0
    try:
        done = folded_names(folder)
        fresh = [name for name in old if name not in done]
        sheets = [sheet for name in (FOLDED, *fresh) for sheet in read_sheets(folder / name)]
        _write(folder, root, old, added_up(sheets, now))
        for name in old:
            (folder / name).unlink(missing_ok=True)
    finally:
        lease.release()
    log.info("statistics: %s: added up %d files", folder, len(old))
    return len(old)


def added_up(sheets: Iterable[Sheet], now: float) -> list[Sheet]:
    """One sheet for each hour, or day, and store; sheets that are too old are left out."""
    sums: dict[tuple[int, int, str], dict[Series, float]] = defaultdict(dict)
    names: dict[tuple[int, int, str], dict[str, str]] = defaultdict(dict)
    processes: dict[tuple[int, int, str], int] = defaultdict(int)
    seen: set[tuple[str, int, str]] = set()
    for sheet in sorted(sheets, key=lambda sheet: sheet.end):
        if sheet.end < now - KEPT:
            continue
        span = HOUR if sheet.end >= now - HOURLY else DAY
        key = (int(sheet.end // span * span), span, sheet.store)
        names[key] |= sheet.names
        process = (sheet.machine, sheet.process, sheet.store)
        if not sheet.process or process not in seen:  # it counts where it is seen first
            processes[key] += sheet.processes
            seen.add(process)
        total = sums[key]
        for series, value in sheet.sums.items():
            kept = series if series in total or len(total) < MOST_SERIES else series._replace(reason="", detail="")
            total[kept] = total.get(kept, 0) + value
    return [
        Sheet(begin, begin + span - 1, "", store, sums[key], names[key], processes[key])
        for key in sorted(sums)
        for begin, span, store in (key,)
    ]


def _write(folder: Path, root: Path | None, old: list[str], sheets: list[Sheet]) -> None:
    aside = folder / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
    flags = os.O_WRONLY
    descriptor = create(root, str(aside), flags, 0o600) if root is not None else os.open(aside, flags | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(json.dumps({"folded": old}).encode() + b"\n")
            file.writelines(sheet.to_line() for sheet in sheets)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, folder / FOLDED)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


__all__ = ["DAY", "HOUR", "added_up", "fold"]
