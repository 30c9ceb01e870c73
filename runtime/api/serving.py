"""What servers do besides calling: `warm_up` before the first request, `refresh` when the store has something better."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from precast.runtime.api.compile import site_of
from precast.runtime.common.errors import public
from precast.runtime.dispatch.call_site import Site
from precast.runtime.programs.program import Program
from precast.runtime.programs.variant import Variant

_ROUNDS = 16
"""How often the programs that a round of loading has reached are looked at in turn: pieces behind graph breaks, and theirs."""


@public
@dataclass
class WarmUp:
    """What `warm_up` did. `artifacts`: ids of what is loaded now; `programs`: their number, pieces of others included; `problems`: what
    could not be loaded, as sentences; `seconds`: how long it took.
    """

    programs: int = 0
    artifacts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def warm_up(*models: Any, jobs: int | None = None) -> WarmUp:
    """Load every stored artifact of these compiled callables now, in `jobs` threads (default: one a processor, at most 8), so that no
    request waits for a file, a library or a guard table.

    What follows graph breaks is loaded as well, as far as the objects of the entry reach it. Nothing is run and nothing is compiled.
    Raises PrecastError for what neither `compile` nor `load` made.
    """
    start, done = time.perf_counter(), WarmUp()
    sites = [site_of(model) for model in models]
    seen: set[int] = set()
    with ThreadPoolExecutor(jobs or min(8, os.cpu_count() or 1), "precast-warm-up") as pool:
        for _ in range(_ROUNDS):
            programs = [program for program in _programs(sites) if id(program) not in seen]
            if not programs:
                break
            seen.update(map(id, programs))
            for problems in pool.map(Program.warm_up, programs):
                done.problems += problems
    programs = list(_programs(sites))
    done.programs = len(programs)
    done.artifacts = [variant.artifact_id for program in programs for variant in program.variants if isinstance(variant, Variant)]
    done.seconds = time.perf_counter() - start
    return done


def refresh(*models: Any) -> list[str]:
    """Look into the store now for artifacts that came since, or were made anew, and serve by them from the next call on: the ids of those.

    Better targets and static sizes come before others. Calls under way finish with what they began with.
    """
    return [artifact for program in _programs([site_of(model) for model in models]) for artifact in program.refresh()]


def _programs(sites: list[Site]) -> Iterator[Program]:
    for site in sites:
        yield from site.all_programs


__all__ = ["WarmUp", "refresh", "warm_up"]
