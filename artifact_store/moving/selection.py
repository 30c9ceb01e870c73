"""Which artifacts are to be moved: every condition that is given must hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from precast.artifact_store.moving.place import Holding


@dataclass(frozen=True)
class Build:
    """What a build file asks for: program keys, each with the test that says whether an artifact for a target serves one of its targets."""

    programs: tuple[tuple[str, Callable[[str], bool]], ...]

    def accepts(self, program_key: str, target: str) -> bool:
        """Of the programs themselves, and of what continues them after a graph break, whose keys begin with theirs."""
        return any(_belongs(program_key, key) and serves(target) for key, serves in self.programs)


@dataclass(frozen=True)
class Selection:
    """`programs`: parts of a program's name or key, any of which counts; `targets`: patterns, `*` matches anything; ages in seconds."""

    programs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    newer_than: float | None = None
    older_than: float | None = None
    build: Build | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()

    def keys(self) -> Collection[str]:
        """Program keys that can be asked for where a place lists nothing; none where none are known."""
        return self.programs if self.build is None else [key for key, _ in self.build.programs]

    def accepts(self, holding: Holding, now: float | None = None) -> bool:
        """Whether an artifact is to be moved. One whose place does not say when it was made is no older and no newer than anything."""
        age = (time.time() if now is None else now) - holding.made
        dated = holding.made > 0
        return (
            (not self.programs or any(part in holding.program_key or part in holding.program_name for part in self.programs))
            and (not self.targets or any(fnmatchcase(holding.target, pattern) for pattern in self.targets))
            and (self.newer_than is None or (dated and age <= self.newer_than))
            and (self.older_than is None or (dated and age >= self.older_than))
            and (self.build is None or self.build.accepts(holding.program_key, holding.target))
        )

    def accepts_part(self, holding: Holding) -> bool:
        """Whether an artifact of a program that a chosen one runs in between goes with it: by its target."""
        whole = replace(self, programs=(), build=None)
        return whole.accepts(holding) and (self.build is None or any(serves(holding.target) for _, serves in self.build.programs))


def _belongs(program_key: str, root: str) -> bool:
    return program_key == root or program_key.startswith(f"{root}.")
