"""What a build file asks for, as a choice of stored artifacts: the keys of its programs, computed without compiling anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from precast.artifact_store import Store
from precast.artifact_store.moving.selection import Build
from precast.building.build_file import BuildFile, Loaded, ProgramSpec
from precast.building.update_job import job_of
from precast.runtime.targets.ladder import resolve, runs


def chosen_programs(plan: BuildFile, store: Store, load: Callable[[ProgramSpec], Loaded], *, any_target: bool = False) -> Build:
    """Every program of the file for each of its targets. `load` calls a program's factory; what it raises is not caught.

    An artifact counts where a machine of the target runs it: an older CPU level on the target's ladder does, too. `any_target`: targets
    are chosen otherwise, and the file's do not matter.
    """
    found: list[tuple[str, Callable[[str], bool]]] = []
    for program in plan.programs:
        job = job_of(load(program), store)
        for target in program.targets:
            fits = _every if any_target else partial(runs, resolve(target))
            found += [(key, fits) for key in job.keys(target)]
    return Build(tuple(found))


def _every(target: str) -> bool:
    return True


__all__ = ["chosen_programs"]
