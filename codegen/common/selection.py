"""Library selection, in stages: between scheduling and writing code each library step gets an implementation, then memory is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from precast.codegen.common.library_steps import LibraryCall, Pack, RunStep
from precast.lowering.ir.nodes import Extern, Program


@dataclass(frozen=True)
class Selection:
    """A scheduled program on its way to code. `steps` and `prepare` are what runs for the program's steps of these names, `packs` the
    copies of weights that are made once per binding; `decided`: who computes the product that writes this buffer, where an earlier stage
    has settled it.
    """

    program: Program
    steps: tuple[RunStep, ...] = ()
    prepare: tuple[RunStep, ...] = ()
    packs: tuple[Pack, ...] = ()
    decided: Mapping[str, str] = field(default_factory=dict)


Stage = Callable[[Selection], Selection]
Stages = Sequence[tuple[str, Stage]]
"""In order, by name."""


def run_stages(program: Program, stages: Stages) -> Selection:
    """What the stages make of a scheduled program."""
    selection = Selection(program)
    for _, stage in stages:
        selection = stage(selection)
    return selection


def library_owned(steps: Sequence[RunStep], writes_in_place: Callable[[LibraryCall], bool]) -> set[str]:
    """Buffers that lie in memory of a library's own: the workspace needs no room for them."""
    owned: set[str] = set()
    for step in steps:
        if isinstance(step, Extern):
            owned |= set(step.outs)
        elif isinstance(step, LibraryCall) and not writes_in_place(step):
            owned.add(step.out)
    return owned
