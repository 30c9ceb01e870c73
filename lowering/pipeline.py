"""The scheduler: an unscheduled `Program` becomes a fused and laid out one, by the flat list of named passes of its target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from precast.lowering.ir.nodes import Program
from precast.lowering.options import DEFAULTS, LoweringOptions
from precast.lowering.passes.memory.memory_plan import plan_memory
from precast.lowering.targets.scheduling import Pass, Scheduling
from precast.lowering.verify.verify import verify
from precast.target_registry import family_of, load

_NONE: Mapping[str, Pass] = {}


def scheduling_of(target: str) -> Scheduling:
    """What the target's family brings to the scheduler."""
    found: Scheduling = load(family_of(target).lowering)
    return found


def schedule(
    program: Program,
    target: str,
    options: LoweringOptions = DEFAULTS,
    bound: Collection[str] | None = None,
    *,
    instead: Mapping[str, Pass] = _NONE,
    check: bool = False,
    trace: Callable[[str, Program], None] | None = None,
) -> Program:
    """The scheduled program for `target` ("cpu:x86-64-v3", "cuda:sm_90"); its memory is planned later, when libraries are chosen.

    `bound` names the inputs that are weights (None: every input). `instead`: passes that take the place of those of these names. With
    `check` each pass's result is verified; `trace` sees the program after each pass.
    """
    for name, run in scheduling_of(target).passes(target, options, bound):
        program = instead.get(name, run)(program)
        if check:
            verify(program, name)
        if trace is not None:
            trace(name, program)
    return program


def planned(program: Program, target: str) -> Program:
    """A scheduled program with places in the workspace for all of its temporaries, as where no library brings memory of its own."""
    return plan_memory(program, alignment=scheduling_of(target).alignment)
