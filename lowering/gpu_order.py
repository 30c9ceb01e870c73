"""Small kernels that need the program's inputs only run first, side by side: code generation makes one launch of such neighbours.

They fold norms into weights and lay weights out for a library, a hundred of them in an image network; each alone costs a launch.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering import index as ix
from precast.lowering.effects import reads, step_symbols, writes
from precast.lowering.ir import Kernel, Program, Step
from precast.lowering.sizes import hint, is_unbacked

MOST_POINTS = 1 << 22
"""Points of a kernel from which its launch no longer counts, and its result is better made when it is needed."""


def small_kernels_first(program: Program) -> Program:
    """The program with such kernels in front: first those that depend on inputs alone, then those that depend on them, and so on."""
    written = {w for s in program.steps for w in writes(s)}
    count: dict[str, int] = {}
    for step in program.steps:
        for name in writes(step):
            count[name] = count.get(name, 0) + 1
    level = {name: 0 for name in (*(i for i in program.inputs if isinstance(i, str)), *program.persistent) if name not in written}
    level |= {c.buffer: 0 for c in program.constants if c.buffer not in written}
    first: dict[int, list[Step]] = {}
    rest: list[Step] = []
    for step in program.steps:
        if _early(step) and all(n in level for n in reads(step)) and all(count[n] == 1 and n not in program.inputs for n in writes(step)):
            depth = 1 + max((level[n] for n in reads(step)), default=0)
            level |= {n: depth for n in writes(step)}
            first.setdefault(depth, []).append(step)
        else:
            rest.append(step)
    return replace(program, steps=(*(s for depth in sorted(first) for s in first[depth]), *rest))


def _early(step: Step) -> bool:
    if not isinstance(step, Kernel) or not all(isinstance(a.extent, int) for a in step.axes):
        return False
    if any(is_unbacked(s) for s in step_symbols(step)):
        return False  # a number that an earlier step reads
    return hint(ix.numel(a.extent for a in step.axes)) <= MOST_POINTS
