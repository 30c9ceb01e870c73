"""The scheduler: an unscheduled `Program` becomes a fused, laid out and planned one, by the flat list of named passes of its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from precast.lowering.ir import Program
from precast.lowering.scheduling import Pass, Scheduling
from precast.lowering.verify import verify
from precast.target_registry import family_of, load


def passes(target: str, options: Mapping[str, Any]) -> list[tuple[str, Pass]]:
    """The passes for `target` ("cpu:x86-64-v3", "cuda:sm_90") in order, by name."""
    scheduling: Scheduling = load(family_of(target).lowering)
    return scheduling.passes(options)


def schedule(
    program: Program,
    target: str,
    options: Mapping[str, Any] | None = None,
    *,
    check: bool = False,
    trace: Callable[[str, Program], None] | None = None,
) -> Program:
    """The scheduled program. With `check` each pass's result is verified; `trace` sees the program after each pass."""
    for name, run in passes(target, options or {}):
        program = run(program)
        if check:
            verify(program, name)
        if trace is not None:
            trace(name, program)
    return program
