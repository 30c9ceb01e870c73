"""Recorded calls: what calls of production look like (shapes, dtypes, strides, devices, scalars; never a tensor's content), as lines of
JSON that `precast build` takes for its signatures. Processes append to one file, or each to its own in one folder; who reads leaves out
what stands there twice.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.artifact_store.statistics.sheets import machine_name
from precast.artifact_store.tiers.folder import read_file

log = logging.getLogger("precast.store")

VERSION = 1
LIMIT = 16 << 20
"""Bytes of one file, past which nothing more is recorded in it."""
Data = Any
"""A value in JSON: scalars as they are, all else `{kind: content}`; `runtime/counting/signatures.py` makes it of values, and back."""


@dataclass(frozen=True)
class RecordedCall:
    """One kind of call. `program`: the program's name for people; `entry`: `module:qualname` of what was called; `hit`: whether an artifact
    served it; `grad`, `inference`: torch's modes during the call; `args`, `kwargs`: its arguments as data.
    """

    program: str
    entry: str
    key: str
    hit: bool
    grad: bool
    inference: bool
    args: tuple[Data, ...]
    kwargs: dict[str, Data]
    time: float = 0.0

    @property
    def identity(self) -> str:
        """The same for calls that are built alike."""
        return json.dumps([self.program, self.entry, self.grad, self.inference, self.args, self.kwargs], sort_keys=True)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Arguments that no build can make: "cache: transformers:DynamicCache"."""
        named = [*((f"argument {i}", value) for i, value in enumerate(self.args, 1)), *self.kwargs.items()]
        return tuple(f"{name}: {kind}" for name, value in named for kind in _unknown(value))

    def __str__(self) -> str:
        return ", ".join([*map(shown, self.args), *(f"{name}={shown(value)}" for name, value in self.kwargs.items())])

    def to_line(self) -> bytes:
        """As it stands in a file."""
        record = {**vars(self), "args": list(self.args), "v": VERSION}
        return json.dumps(record, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def _unknown(value: Data) -> Iterator[str]:
    if isinstance(value, dict):
        for kind, content in value.items():
            if kind == "unknown":
                yield str(content)
            elif isinstance(content, list):
                yield from (found for item in content for found in _unknown(item))
    elif isinstance(value, list):
        yield from (found for item in value for found in _unknown(item))


def shown(value: Data) -> str:
    """A recorded argument for people: "float32[8, 4]", "[float32[2], 3]", "'same'"."""
    if not isinstance(value, dict):
        return repr(value)
    if len(value) != 1:
        return "<unknown>"
    kind: str
    content: Any
    ((kind, content),) = value.items()
    if kind == "tensor":
        dtype, shape, _, device, *_ = content
        return f"{dtype}{list(shape)}{'' if device == 'cpu' else f' on {device}'}"
    if kind == "float" and isinstance(content, str):
        return repr(float.fromhex(content))
    if kind in ("list", "tuple", "size"):
        brackets = "[]" if kind == "list" else "()"
        return brackets[0] + ", ".join(map(shown, content)) + brackets[1]
    if kind == "dict":
        return "{" + ", ".join(f"{shown(key)}: {shown(item)}" for key, item in content) + "}"
    return f"<{content}>" if kind == "unknown" else str(content)


def file_for(path: str) -> Path:
    """The file that this process appends to: `path`, or in the folder `path` (or where it ends in /) one of its own."""
    place = Path(os.path.abspath(os.path.expanduser(path)))
    return place / f"{machine_name()}-{os.getpid()}.jsonl" if path.endswith("/") or place.is_dir() else place


def append(path: Path, call: RecordedCall) -> bool:
    """Append one call; False where the file is full. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(descriptor).st_size > LIMIT:
            return False
        os.write(descriptor, b"\n" + call.to_line())  # begins a line: what a killed process left of one takes no other with it
        return True
    finally:
        os.close(descriptor)


def read(paths: Iterable[Path]) -> list[RecordedCall]:
    """The calls in these files, and in the `.jsonl` files of folders among them, each kind once: as a miss where any process missed it.

    Raises OSError. Lines that are no calls (torn by a crash, of a newer precast) are left out, which is logged.
    """
    found: dict[str, RecordedCall] = {}
    for path in paths:
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            for call in _calls(file):
                known = found.get(call.identity)
                if known is None or (known.hit and not call.hit):
                    found[call.identity] = call
    return list(found.values())


def _calls(path: Path) -> Iterator[RecordedCall]:
    bad = 0
    for line in read_file(path)[: 2 * LIMIT].splitlines():
        if not line:
            continue
        try:
            yield _call(json.loads(line))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            bad += 1
    if bad:
        log.warning("%s: %d lines are no recorded calls (torn by a crash, or of a newer precast), and left out", path, bad)


def _call(record: Any) -> RecordedCall:
    program, entry, key = texts = [record[name] for name in ("program", "entry", "key")]
    hit, grad, inference = flags = [record[name] for name in ("hit", "grad", "inference")]
    right = record["v"] == VERSION and isinstance(record["args"], list) and isinstance(record["kwargs"], dict)
    if not right or not all(isinstance(text, str) for text in texts) or not all(isinstance(flag, bool) for flag in flags):
        raise ValueError("no recorded call")
    moment = float(record.get("time", 0.0))
    return RecordedCall(program, entry, key, hit, grad, inference, tuple(record["args"]), record["kwargs"], moment)


def now() -> float:
    """The time that is recorded, to the second."""
    return float(int(time.time()))


__all__ = ["LIMIT", "Data", "RecordedCall", "append", "file_for", "now", "read", "shown"]
