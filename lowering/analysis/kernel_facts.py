"""What fusion needs to know of a program's kernels: who writes and reads each buffer, how it is stored, where each load stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import sympy

from precast.lowering.analysis.dependencies import nbytes_hint
from precast.lowering.analysis.effects import index_expr, reads, remembered, store_roots, writes
from precast.lowering.ir.nodes import Alu, Axis, Const, Kernel, Load, Program, Reduce, Scan, Store, Value, operands, walk
from precast.lowering.ir.scalars import TRANSCENDENTAL, Op
from precast.lowering.ir.sizes import hint
from precast.lowering.ir.substitution import Definition, strides_of

COSTS = {Op.DIV: 3, Op.SQRT: 3, Op.RSQRT: 3, Op.FLOORDIV: 3, Op.TRUNCDIV: 3, Op.MOD: 3, Op.REM: 3}


@dataclass
class KernelFacts:
    """The program's buffers seen from fusion. `defined` holds buffers whose loads can be replaced by the stored value."""

    program: Program
    writer: dict[str, int] = field(default_factory=dict)
    users: dict[str, set[int]] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)  # outputs, inputs, and buffers with several writers
    defined: dict[str, Definition] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)  # of the buffers in `defined`, about
    sizes: dict[str, int] = field(default_factory=dict)  # elements of every buffer, about
    reducing: set[str] = field(default_factory=set)
    stored: dict[int, frozenset[str]] = field(default_factory=dict)  # by kernel
    places: dict[int, list[tuple[Load, tuple[Axis, ...]]]] = field(default_factory=dict)
    gather_cost: int = 0  # of a load whose neighbours lie apart, in units of `cost_of`

    def needed_outside(self, name: str, members: frozenset[int]) -> bool:
        """Whether the buffer must exist in memory when these steps become one."""
        return name in self.outside or not self.users.get(name, set()) <= members


def facts_of(program: Program, gather_cost: int = 0) -> KernelFacts:
    """One walk over the program."""
    facts = KernelFacts(program, gather_cost=gather_cost)
    facts.outside = {i for i in program.inputs if isinstance(i, str)} | set(program.persistent) | {c.buffer for c in program.constants}
    facts.outside |= {o.view.buffer for o in program.outputs if o.view is not None}
    facts.sizes = {b.name: nbytes_hint(b) // b.dtype.itemsize for b in program.buffers}
    for position, step in enumerate(program.steps):
        for name in reads(step):
            facts.users.setdefault(name, set()).add(position)
        for name in writes(step):
            if name in facts.writer or name in program.inputs or name in program.persistent:
                facts.outside.add(name)  # written twice, or an input: its loads depend on when they happen
            facts.writer[name] = position
    written_twice = facts.outside - {o.view.buffer for o in program.outputs if o.view is not None}
    again = _written_again(program)
    for position, step in enumerate(program.steps):
        if not isinstance(step, Kernel):
            continue
        facts.places[position] = _load_sites(step)
        facts.stored[position] = frozenset(s.buffer for s in step.stores)
        for store in step.stores:
            if store.buffer in written_twice or store.buffer in again:
                continue
            definition = _definition(step, store)
            if definition is not None:
                facts.defined[store.buffer] = definition
                facts.elements[store.buffer] = points(definition.axes)
                if any(isinstance(v, Reduce | Scan) for v in walk(store.value)):
                    facts.reducing.add(store.buffer)
    return facts


def _written_again(program: Program) -> set[str]:
    seen: set[str] = {i for i in program.inputs if isinstance(i, str)}
    again: set[str] = set()
    for step in program.steps:
        for name in writes(step):
            (again if name in seen else seen).add(name)
        if isinstance(step, Kernel):
            names = [s.buffer for s in step.stores]
            again.update(n for n in names if names.count(n) > 1)
    return again


def _definition(kernel: Kernel, store: Store) -> Definition | None:
    if store.mode != "set" or store.gathers or store.mask is not None:
        return None
    axes = kernel.axes if store.axes is None else store.axes
    if strides_of(store.index, axes) is None:
        return None
    return Definition(store.buffer, axes, store.index, store.value)


@remembered
def _load_sites(kernel: Kernel) -> list[tuple[Load, tuple[Axis, ...]]]:
    """Each load with the reduction axes that enclose it (once per distinct enclosure)."""
    found: list[tuple[Load, tuple[Axis, ...]]] = []
    seen: set[tuple[Value, tuple[Axis, ...]]] = set()
    stack: list[tuple[Value, tuple[Axis, ...]]] = [(r, ()) for s in kernel.stores for r in store_roots(s)]
    while stack:
        key = stack.pop()
        if key in seen:
            continue
        seen.add(key)
        value, binders = key
        if isinstance(value, Load):
            found.append((value, binders))
        inner = (*binders, *(a for a in value.axes if a not in binders)) if isinstance(value, Reduce) else binders
        stack.extend((o, inner) for o in operands(value))
    return found


def points(axes: tuple[Axis, ...]) -> int:
    """About how many points the axes span."""
    total = 1
    for a in axes:
        total *= hint(a.extent)
    return total


@lru_cache(1 << 12)
def cost_of(*values: Value) -> int:
    """Arithmetic per evaluation: 1 for a simple operation, 3 for a division or root, 8 for a transcendental; tests of positions (masks)
    and divisions by a number, which are products, cost little.
    """
    total = 0
    of_data: set[Value] = set()
    for v in walk(*values):  # operands first
        if isinstance(v, Load) or any(o in of_data for o in operands(v)):
            of_data.add(v)
        if isinstance(v, Alu) and v in of_data:
            by_number = v.op is Op.DIV and isinstance(v.args[1], Const)
            total += 8 if v.op in TRANSCENDENTAL else 1 if by_number else COSTS.get(v.op, 1)
    return total


def gathers_along(store: Store, axes: tuple[Axis, ...]) -> int:
    """Loads of a stored value at positions that are found anew for each element along its consecutive axis."""
    pairs = strides_of(store.index, axes)
    inner = next((axis.symbol for axis, step in reversed(pairs or ()) if step == 1), None)
    if inner is None:
        return 0
    along: set[Value] = set()
    found = 0
    for v in walk(store.value):
        expr = index_expr(v)
        if (expr is not None and inner in expr.free_symbols) or any(o in along for o in operands(v)):
            along.add(v)
        found += isinstance(v, Load) and any(g.value in along for g in v.gathers)
    return found


@remembered
def reduction_levels(kernel: Kernel) -> frozenset[frozenset[sympy.Symbol]]:
    """For each outermost reduction, the kernel axes that it depends on."""
    own = {a.symbol for a in kernel.axes}
    free: dict[Value, frozenset[sympy.Symbol]] = {}
    inside: set[Value] = set()
    found: list[Value] = []
    for value in walk(*(r for s in kernel.stores for r in store_roots(s))):
        expr = index_expr(value)
        symbols: set[sympy.Symbol] = set(expr.free_symbols & own) if expr is not None else set()
        for o in operands(value):
            symbols |= free[o]
        free[value] = frozenset(symbols)
        if isinstance(value, Reduce):
            found.append(value)
            inside.update(v for v in walk(value.value) if isinstance(v, Reduce))
    return frozenset(free[v] for v in found if v not in inside)
