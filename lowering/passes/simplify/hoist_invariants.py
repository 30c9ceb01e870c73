"""Loop-invariant code motion: costly values (roots, quotients) that do not vary with the outer axes are computed by a kernel of their own.

Where the axes that such a value varies with are outermost, the loop nest computes it once per outer point anyway. In a channels-last image
they are innermost, and it would be computed again for every pixel. A kernel whose values would raise the peak of memory beyond the bound
keeps them.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import sympy

from precast.lowering.analysis.dependencies import nbytes_hint
from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.analysis.headroom import Headroom
from precast.lowering.analysis.kernel_facts import cost_of, points
from precast.lowering.analysis.rewrite_values import replace_values
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import (
    Axis,
    Buffer,
    Const,
    Index,
    Kernel,
    Load,
    Program,
    Reduce,
    Scan,
    Step,
    Store,
    Value,
    operands,
    walk,
)
from precast.lowering.ir.substitution import Rewriter, shared_axis

MIN_COST = 3
MIN_REPEATS = 8


def hoist_invariants(program: Program, growth: float) -> Program:
    """The program with such values moved out of each kernel; equal values share one kernel. `growth`: the share of the peak of memory
    that this may add to it.
    """
    room = Headroom(program, growth)
    steps: list[Step] = []
    buffers = list(program.buffers)
    names = {b.name for b in buffers}
    for position, step in enumerate(program.steps):
        if isinstance(step, Kernel):
            before, changed, fresh = _hoist(step, names)
            if room.fits(position, sum(map(nbytes_hint, fresh))):
                step = changed
                steps.extend(before)
                buffers.extend(fresh)
                names.update(b.name for b in fresh)
        steps.append(step)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers))


def _hoist(kernel: Kernel, taken: set[str]) -> tuple[list[Kernel], Kernel, list[Buffer]]:
    """`taken`: names of the program's buffers. Several kernels may write pieces of one buffer: its name does not tell them apart."""
    wanted = _invariants(kernel)
    target = kernel.stores[0].buffer
    prefix = next(p for k in itertools.count() if f"{(p := f'{target}_{k}' if k else target)}_part0" not in taken)
    before: list[Kernel] = []
    buffers: list[Buffer] = []
    loads: dict[Value, Load] = {}
    for number, (value, axes) in enumerate(wanted.items()):
        name = f"{prefix}_part{number}"
        size = tuple(a.extent for a in axes)
        stride = ix.contiguous_strides(size)
        buffers.append(Buffer(name, value.dtype.compute, size, stride))
        symbols = ix.symbols(len(axes))
        own = tuple(shared_axis(s, n) for s, n in zip(symbols, size, strict=True))
        rewriter = Rewriter(own, {})
        moved = rewriter.rewrite(value, rewriter.env(tuple((a.symbol, s) for a, s in zip(axes, symbols, strict=True))))
        place = ix.affine(0, tuple(zip(stride, symbols, strict=True)))
        before.append(Kernel(f"{kernel.name}_part{number}", own, (Store(name, place, moved),), kernel.origins))
        index = ix.affine(0, tuple((s, a.symbol) for s, a in zip(stride, axes, strict=True)))
        loads[value] = Load(name, index, value.dtype.compute)
    if not loads:
        return [], kernel, []
    return before, replace_values(kernel, loads), buffers


def _invariants(kernel: Kernel) -> dict[Value, tuple[Axis, ...]]:
    """The largest costly values that vary with the innermost axis but not with the outer ones, and the axes that they vary with."""
    if len(kernel.axes) < 2:
        return {}
    own = {a.symbol for a in kernel.axes}
    free: dict[Value, frozenset[sympy.Symbol]] = {}
    blocked: dict[Value, bool] = {}
    users: dict[Value, list[Value]] = {}
    roots = [r for s in kernel.stores for r in store_roots(s)]
    order = list(walk(*roots))
    for value in order:
        expr = index_expr(value)
        symbols = set(expr.free_symbols) if expr is not None else set()
        for o in operands(value):
            symbols |= free[o]
            users.setdefault(o, []).append(value)
        free[value] = frozenset(symbols)
        blocked[value] = isinstance(value, Reduce | Scan) or (isinstance(value, Load) and bool(value.gathers or value.mask is not None))
        blocked[value] |= any(blocked[o] for o in operands(value))

    def fits(value: Value) -> bool:
        axes = tuple(a for a in kernel.axes if a.symbol in free[value])
        inner = bool(axes) and axes[-1] is kernel.axes[-1] and free[value] <= own
        return inner and not blocked[value] and points(kernel.axes) >= MIN_REPEATS * points(axes)

    found: dict[Value, tuple[Axis, ...]] = {}
    for value in order:
        if isinstance(value, Load | Const | Index) or not fits(value) or cost_of(value) < MIN_COST:
            continue
        if value in roots or not all(fits(u) for u in users[value]):
            found[value] = tuple(a for a in kernel.axes if a.symbol in free[value])
    return found
