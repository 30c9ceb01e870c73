"""A tier that is no folder: a map in memory, as a remote one would be seen by the store."""

from __future__ import annotations

import errno
import itertools
import time
from pathlib import Path

from precast.artifact_store.tiers.tier import Stamp

KIND = "memory"


class Memory:
    """`files`: what is in it. `downloads`: a folder for files that are to be mapped. `broken`: it answers nothing any more."""

    kind = KIND

    def __init__(self, downloads: Path) -> None:
        self.place = f"memory://tier{downloads}"
        self.files: dict[str, bytes] = {}
        self.aside: dict[str, bytes] = {}
        self.broken = False
        self._downloads = downloads
        self._stamps: dict[str, Stamp] = {}
        self._count = itertools.count(1)

    def _answer(self) -> None:
        if self.broken:
            raise OSError(errno.EIO, "the tier does not answer")

    def _changed(self, name: str) -> None:
        """The name was put or removed: its stamp changes, and that of every folder above."""
        now = Stamp(next(self._count), len(self.files.get(name, b"")), time.time_ns())
        parts = name.split("/")
        for length in range(1, len(parts)):
            self._stamps["/".join(parts[:length])] = now
        if name in self.files:
            self._stamps[name] = now
        else:
            self._stamps.pop(name, None)

    def get(self, name: str) -> bytes | None:
        self._answer()
        return self.files.get(name)

    def put(self, name: str, data: bytes) -> None:
        self._answer()
        self.files[name] = data
        self._changed(name)

    def put_new(self, name: str, data: bytes) -> None:
        self.put(name, data)

    def names(self, prefix: str) -> list[str]:
        return [] if self.broken else sorted(name for name in self.files if name.startswith(f"{prefix}/"))

    def listed(self, folder: str) -> list[str]:
        self._answer()
        tails = (name.removeprefix(f"{folder}/") for name in self.files if name.startswith(f"{folder}/"))
        return sorted(tail for tail in tails if "/" not in tail)

    def remove(self, name: str) -> None:
        self._answer()
        if self.files.pop(name, None) is not None:
            self._changed(name)

    def stamp(self, name: str) -> Stamp | None:
        self._answer()
        return self._stamps.get(name)

    def file(self, name: str) -> Path | None:
        self._answer()
        path = self._downloads / f"{name.rpartition('/')[2]}.{self._stamps[name].identity}"
        if not path.exists():
            path.write_bytes(self.files[name])
        return path

    def set_aside(self, name: str) -> None:
        self._answer()
        self.aside[name] = self.files[name]
        self.remove(name)

    def check_readable(self, name: str) -> None:
        self._answer()

    def check_writable(self, folder: str) -> None:
        self._answer()

    def problem(self) -> str:
        return ""

    def prepare(self) -> None:
        self._answer()
