"""Sheets: what one process counted in one span of time, as a line of JSON in a file that the processes of a machine share and append to.

A folder of sheets holds `<machine>.<day>.jsonl`, one file a machine and day, so that no two machines append to one file (network file
systems lose lines then), and `folded.jsonl`, in which `fold.py` adds up what is older. A line is written by one `write` to a file opened
for appending; a torn one, of a process that was killed or a disk that was full, is left out by readers.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precast.artifact_store.statistics.series import Series
from precast.artifact_store.tiers.folder import read_file
from precast.artifact_store.tiers.owner import create, make_folder

log = logging.getLogger("precast.store")

VERSION = 1
FOLDED = "folded.jsonl"
LIMIT = 16 << 20
"""Bytes of one machine's file of one day: past them nothing more is written that day, which is logged."""
LONGEST_FILE = 64 << 20
"""Bytes of a file that are read; the rest is left out, and that is logged."""
_NAME = re.compile(r"(?P<machine>[A-Za-z0-9_.-]+)\.(?P<day>\d{8})\.jsonl")


@dataclass(frozen=True)
class Sheet:
    """`begin`, `end`: the span, in unix seconds; `store`: where the store lies as that process names it; `processes`: how many it tells of,
    and `process` a number that tells them apart, 0 where it tells of several.
    """

    begin: float
    end: float
    machine: str
    store: str
    sums: Mapping[Series, float]
    names: Mapping[str, str] = field(default_factory=dict)
    processes: int = 1
    process: int = 0

    def to_line(self) -> bytes:
        """As it stands in a file."""
        sums = [[*series, round(value, 6) if isinstance(value, float) else value] for series, value in self.sums.items()]
        record = {
            "v": VERSION,
            "begin": round(self.begin, 3),
            "end": round(self.end, 3),
            "machine": self.machine,
            "store": self.store,
            "process": self.process,
            "processes": self.processes,
            "names": dict(self.names),
            "sums": sums,
        }
        return json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def machine_name() -> str:
    """This machine's name, fit for a file's."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", os.uname().nodename)[:64] or "machine"


def day_of(moment: float) -> str:
    """The day, by UTC, as it stands in file names."""
    return time.strftime("%Y%m%d", time.gmtime(moment))


def append(folder: Path, sheet: Sheet, root: Path | None = None) -> None:
    """Append a sheet to this machine's file of today. `root`: of the store that the folder is in, whose user's it then becomes.

    Raises OSError where it cannot be written.
    """
    if root is not None:
        make_folder(root, folder)
    else:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = f"{folder}/{machine_name()}.{day_of(sheet.end)}.jsonl"
    descriptor = _open(root, path)
    try:
        if os.fstat(descriptor).st_size > LIMIT:
            log.warning("statistics: %s is full (%d bytes): what this process counts is left out until tomorrow", path, LIMIT)
            return
        os.write(descriptor, b"\n" + sheet.to_line())  # begins a line: what a killed process left of one takes no other with it
    finally:
        os.close(descriptor)


def _open(root: Path | None, path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    if root is None:
        return os.open(path, flags | os.O_CREAT, 0o600)
    try:
        return create(root, path, flags, 0o600)
    except FileExistsError:  # another process was quicker
        return os.open(path, flags)


def files(folder: Path) -> list[str]:
    """Names of the files of sheets in a folder, sorted; none where it is not there. Raises OSError where it cannot be listed."""
    try:
        return sorted(name for name in os.listdir(folder) if name == FOLDED or _NAME.fullmatch(name))
    except FileNotFoundError:
        return []


def day_of_file(name: str) -> str:
    """The day that stands in a file's name; "" in that of the folded ones."""
    match = _NAME.fullmatch(name)
    return match["day"] if match is not None else ""


def read(folder: Path) -> Iterator[Sheet]:
    """All sheets of a folder. What cannot be read is logged and left out."""
    try:
        names = files(folder)
    except OSError as error:
        log.warning("statistics: %s cannot be listed (%s): what is counted there is left out", folder, error.strerror)
        return
    done = folded_names(folder)
    for name in names:
        if name not in done:
            yield from read_sheets(folder / name)


def folded_names(folder: Path) -> frozenset[str]:
    """Files that were added up already, and only wait to be removed."""
    first = _content(folder / FOLDED).partition(b"\n")[0]
    try:
        record = json.loads(first) if first else {}
    except (ValueError, RecursionError):
        return frozenset()
    names = record.get("folded", ()) if isinstance(record, dict) else ()
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def read_sheets(path: Path) -> Iterator[Sheet]:
    """The sheets in a file; lines that are none (torn, of a newer format) are counted in the log and left out."""
    bad = 0
    for line in _content(path).splitlines():
        if not line:
            continue
        try:
            record = json.loads(line)
            if isinstance(record, dict) and "folded" in record:
                continue
            yield _sheet(record)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            bad += 1
    if bad:
        log.info("statistics: %s: %d lines are no sheets (torn by a crash, or of a newer precast), and left out", path, bad)


def _content(path: Path) -> bytes:
    try:
        data = read_file(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        log.warning("statistics: %s cannot be read (%s): what is counted there is left out", path, error.strerror)
        return b""
    if len(data) > LONGEST_FILE:
        log.warning("statistics: %s has %d bytes, of which the first %d are read", path, len(data), LONGEST_FILE)
    return data[:LONGEST_FILE]


_WIDTH = len(Series._fields)


def _sheet(record: Any) -> Sheet:
    if record["v"] != VERSION:
        raise ValueError("another version")
    sums: dict[Series, float] = {}
    for row in record["sums"]:
        *texts, value = row
        if len(texts) != _WIDTH or not all(isinstance(text, str) for text in texts) or not _number(value):
            raise ValueError("no sum")
        series = Series(*texts)
        sums[series] = sums.get(series, 0) + value
    begin, end, processes = record["begin"], record["end"], record["processes"]
    if not (_number(begin) and _number(end) and type(processes) is int and isinstance(record["names"], dict)):
        raise ValueError("no sheet")
    names = {str(key): str(name) for key, name in record["names"].items()}
    return Sheet(begin, end, str(record["machine"]), str(record["store"]), sums, names, processes, int(record.get("process", 0)))


def _number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e18  # no infinity, and nothing that is none


__all__ = ["FOLDED", "LIMIT", "Sheet", "append", "day_of", "day_of_file", "files", "folded_names", "machine_name", "read", "read_sheets"]
