"""What a step that runs touches: the buffers that it reads and writes, the random generator."""

from __future__ import annotations

from precast.codegen.common.library_steps import LibraryCall, RunStep, views_of
from precast.lowering.analysis import effects
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Extern, Kernel, Load, View, walk


def step_reads(step: RunStep) -> list[str]:
    """Buffers that a step reads."""
    match step:
        case Kernel(stores=stores):
            roots = [v for s in stores for v in store_roots(s)]
            return [n.buffer for n in walk(*roots) if isinstance(n, Load)] + [s.buffer for s in stores if s.mode != "set"]
        case Extern():
            return [v.buffer for v in argument_views((step.args, tuple(v for _, v in step.kwargs)))]
        case LibraryCall():
            return [v.buffer for v in views_of(step)]


def step_writes(step: RunStep) -> list[str]:
    """Buffers that a step writes."""
    match step:
        case Kernel(stores=stores):
            return list(dict.fromkeys(s.buffer for s in stores))
        case Extern(outs=outs, mutates=mutates):
            return [*outs, *mutates]
        case _:
            return [step.out]


def argument_views(arg: object) -> list[View]:
    """The views among an argument of a call."""
    if isinstance(arg, View):
        return [arg]
    if isinstance(arg, tuple | list):
        return [v for a in arg for v in argument_views(a)]
    return []


def may_draw(step: RunStep) -> bool:
    """Whether it calls an operator that may draw random numbers."""
    return isinstance(step, Extern) and effects.may_draw(step.op)
