"""Parts of one result that are computed over the same loops become one kernel: the pieces of a `stack`, or of a concatenation of equals.

Each part is a kernel of its own until here, since it stores into a window of the result. What several of them read is then read once, and
they cost one launch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from precast.lowering.analysis.effects import reads, store_roots, writes
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Kernel, Program, Reduce, Scan, Step, Store, walk
from precast.lowering.ir.substitution import Rewriter
from precast.lowering.ir.sympy_calls import expand

MOST_PARTS = 8
"""Parts of one kernel: each holds registers for its own operands."""


@dataclass
class _Open:
    """Parts found so far, by position, with what they read; the next may join them as long as nothing in between is in the way."""

    members: list[int]
    reads: set[str]


def join_parts(program: Program) -> Program:
    """The program with such kernels merged at the position of the last of them. Its steps must be in order."""
    waiting: dict[str, _Open] = {}
    done: list[list[int]] = []

    def close(name: str) -> None:
        done.append(waiting.pop(name).members)

    for position, step in enumerate(program.steps):
        target = _part_of(step)
        joins = target is not None and target in waiting and _fit(program, waiting[target], step)
        touched = {*reads(step), *writes(step)}
        for name in [n for n, parts in waiting.items() if (n in touched and not (joins and n == target)) or parts.reads & {*writes(step)}]:
            close(name)
        if target is None:
            continue
        if joins:
            waiting[target].members.append(position)
            waiting[target].reads |= {*reads(step)}
        else:
            waiting[target] = _Open([position], {*reads(step)})
    for name in list(waiting):
        close(name)
    merged = {members[-1]: _merged([program.steps[m] for m in members]) for members in done if len(members) > 1}
    gone = {m for members in done if len(members) > 1 for m in members[:-1]}
    return replace(program, steps=tuple(merged.get(n, step) for n, step in enumerate(program.steps) if n not in gone))


def _part_of(step: Step) -> str | None:
    """The buffer into which a pointwise kernel stores, where that is all that it does."""
    if not isinstance(step, Kernel) or len(step.stores) != 1:
        return None
    (store,) = step.stores
    plain = store.mode == "set" and store.axes is None and store.mask is None and not store.gathers
    if not plain or store.buffer in reads(step) or any(isinstance(v, Reduce | Scan) for v in walk(*store_roots(store))):
        return None
    return store.buffer


def _fit(program: Program, parts: _Open, step: Step) -> bool:
    """Whether the step runs over the axes of the parts, and stores none of their elements."""
    if len(parts.members) >= MOST_PARTS:
        return False
    others = [program.steps[m] for m in parts.members]
    return isinstance(step, Kernel) and all(isinstance(o, Kernel) and _apart(o, step) for o in others)


def _apart(a: Kernel, b: Kernel) -> bool:
    if [x.extent for x in a.axes] != [x.extent for x in b.axes] or not all(isinstance(x.extent, int) for x in a.axes):
        return False
    one = ix.coefficients(a.stores[0].index, tuple(x.symbol for x in a.axes))
    two = ix.coefficients(b.stores[0].index, tuple(x.symbol for x in b.axes))
    if one is None or two is None or one[1] != two[1] or not all(isinstance(c, int) for c in one[1]):
        return False
    distance = expand(sympy.sympify(one[0]) - sympy.sympify(two[0]))
    return bool(distance.is_Integer) and not _reaches(int(distance), _steps(a.axes, one[1]))


def _steps(axes: tuple[Axis, ...], strides: tuple[object, ...]) -> list[tuple[int, int]]:
    """Strides, largest first, and how often each may be taken in either direction."""
    return sorted(((int(str(c)), int(str(x.extent)) - 1) for x, c in zip(axes, strides, strict=True) if x.extent != 1), reverse=True)


def _reaches(distance: int, steps: list[tuple[int, int]]) -> bool:
    """Whether so many elements lie between two that the loops visit (or may: where strides are negative, say)."""
    if not steps:
        return distance == 0
    stride, most = steps[0]
    room = sum(abs(s) * n for s, n in steps[1:])
    if stride <= 0:
        return True
    low, high = -((room - distance) // stride), (distance + room) // stride
    return any(_reaches(distance - n * stride, steps[1:]) for n in range(max(low, -most), min(high, most) + 1))


def _merged(members: list[Step]) -> Kernel:
    kernels = [m for m in members if isinstance(m, Kernel)]
    axes = kernels[-1].axes
    rewriter = Rewriter(axes, {})
    stores: list[Store] = []
    for kernel in kernels:
        env = rewriter.env(tuple((old.symbol, new.symbol) for old, new in zip(kernel.axes, axes, strict=True)))
        stores.append(rewriter.store(kernel.stores[0], env, None))
    return Kernel(kernels[0].name, axes, tuple(stores), tuple(dict.fromkeys(o for k in kernels for o in k.origins)))
