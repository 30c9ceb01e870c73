"""Sums over the rows of a matrix beside a kernel that runs over the same rows: one pass over memory makes both.

The gradient of a normalised row and those of its weight and bias read the same two matrices, one along rows and the others along columns.
Here they become stores of one kernel; how its loops make both is codegen's. Only what was read from memory twice is worth it, so each
matrix that the sums read is one that the kernel reads at the same place, or stores there: then the sums take the value itself, and what
nothing else needs is not stored at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import sympy

from precast.lowering.analysis.buffers import without_unused_buffers
from precast.lowering.analysis.dependencies import dependencies
from precast.lowering.analysis.effects import loads, reads, store_roots, writes
from precast.lowering.analysis.kernel_facts import KernelFacts, cost_of, facts_of
from precast.lowering.ir.nodes import Axis, Kernel, Load, Program, Reduce, Scan, Store, Value, walk
from precast.lowering.ir.scalars import DType, ReduceOp
from precast.lowering.ir.substitution import Definition, Rewriter
from precast.lowering.ir.sympy_calls import renamed, symbols_of

FEWEST_ROWS = 256
"""Rows below which the sums stay apart: threads share the rows by blocks of some."""

MOST_AGAIN = 6
"""Operations of a stored value that the sums may compute again where loops do not make both, in units of a simple operation."""


def join_column_sums(program: Program) -> Program:
    """The program with such kernels joined. Its steps need an order afterwards."""
    position = 0
    while position < len(program.steps):
        step = program.steps[position]
        rows = _summed_rows(step) if isinstance(step, Kernel) else None
        joined = None if rows is None or not isinstance(step, Kernel) else _join(program, position, step, rows)
        program, position = (program, position + 1) if joined is None else (joined, max(position - 1, 0))
    return program


def _summed_rows(kernel: Kernel) -> tuple[Axis, ...] | None:
    """The axes of a kernel's sums, where it has no other reductions than those."""
    reduces = [v for v in _values(kernel) if isinstance(v, Reduce)]
    if not kernel.axes or not reduces or not all(map(_plain, kernel.stores)) or any(isinstance(v, Scan) for v in _values(kernel)):
        return None
    first = reduces[0].axes
    for reduce in reduces:
        single = not any(isinstance(v, Reduce) for v in walk(reduce.value))
        if reduce.op is not ReduceOp.SUM or reduce.dtype not in (DType.F32, DType.F64) or reduce.axes != first or not single:
            return None
    points = 1
    for axis in first:
        points *= int(axis.extent) if isinstance(axis.extent, int) else FEWEST_ROWS
    return first if points >= FEWEST_ROWS else None


def _plain(store: Store) -> bool:
    return store.mode == "set" and not store.gathers and store.mask is None and store.axes is None


def _values(kernel: Kernel) -> Iterable[Value]:
    return walk(*(root for s in kernel.stores for root in store_roots(s)))


def _join(program: Program, position: int, sums: Kernel, rows: tuple[Axis, ...]) -> Program | None:
    """The program with the sums in the nearest kernel that takes them."""
    facts: KernelFacts | None = None
    before: list[set[int]] = []
    extents = [a.extent for a in (*rows, *sums.axes) if a.extent != 1]
    summed, kept = {a.symbol for a in rows}, {a.symbol for a in sums.axes}
    matrices = [load for load in loads(sums) if _crosses(load, summed, kept)]
    wanted = {load.buffer for load in matrices}
    users = [n for n, s in enumerate(program.steps) if n != position and isinstance(s, Kernel) and wanted <= {*reads(s), *writes(s)}]
    for number in sorted(users, key=lambda n: abs(n - position)):
        step = program.steps[number]
        if not isinstance(step, Kernel) or [a.extent for a in step.axes if a.extent != 1] != extents:
            continue
        if facts is None:
            facts, before = facts_of(program), dependencies(program)
        found = _names(step, sums, rows, matrices, facts)
        place = None if found is None else _place(before, number, position)
        if found is None or place is None:
            continue
        joined = _joined(step, sums, *found)
        joined = _without_unread(joined, facts, frozenset({number, position}))
        steps = [joined if n == place else s for n, s in enumerate(program.steps) if n == place or n not in (number, position)]
        return without_unused_buffers(replace(program, steps=tuple(steps)))
    return None


def _names(
    kernel: Kernel, sums: Kernel, rows: tuple[Axis, ...], matrices: Sequence[Load], facts: KernelFacts
) -> tuple[dict[sympy.Symbol, sympy.Symbol], dict[str, Definition]] | None:
    """The kernel's names of the axes of the sums, and what it stores that they read, where it has all that they read."""
    if not any(map(_plain, kernel.stores)) or any(s.mode != "set" for s in kernel.stores):
        return None
    if not matrices or any(isinstance(v, Scan) for v in _values(kernel)) or set(writes(sums)) & {*reads(kernel), *writes(kernel)}:
        return None
    own = [a for a in (*rows, *sums.axes) if a.extent != 1]
    long = [a for a in kernel.axes if a.extent != 1]
    names = {a.symbol: b.symbol for a, b in zip(own, long, strict=True)}
    found: set[tuple[str, sympy.Expr]] = {(load.buffer, load.index) for load in loads(kernel) if not load.gathers}
    stored = {s.buffer: s for s in kernel.stores if s.buffer in facts.defined}
    if any(load.buffer not in stored for load in loads(sums) if load.buffer in writes(kernel)):
        return None
    read = {load.buffer for load in loads(sums)} & stored.keys()
    for name in read:  # a sum of what needs a sum of its own row has its place beside that row only
        store = stored[name]
        if store.axes is not None or any(isinstance(v, Reduce) for v in walk(store.value)) or cost_of(store.value) > MOST_AGAIN:
            return None
        found.add((name, store.index))
    if any(load.gathers or (load.buffer, renamed(load.index, names)) not in found for load in matrices):
        return None
    return names, {name: facts.defined[name] for name in read}


def _crosses(load: Load, rows: set[sympy.Symbol], columns: set[sympy.Symbol]) -> bool:
    used = symbols_of(load.index)
    return bool(used & rows and used & columns) or bool(load.gathers)


def _place(before: list[set[int]], kernel: int, sums: int) -> int | None:
    """Where both may be one step: at the last, if nothing between them needs the first, or at the first."""
    first, last = min(kernel, sums), max(kernel, sums)
    needing, needed = {first}, {last}
    for step in range(first + 1, last):
        if before[step] & needing:
            needing.add(step)
    for step in range(last, first, -1):
        if step in needed:
            needed |= {n for n in before[step] if n > first}
    if needing & needed:
        return None  # a step between them needs the one, and the other needs that
    return last if needing == {first} else first if needed == {last} else None


def _joined(kernel: Kernel, sums: Kernel, names: dict[sympy.Symbol, sympy.Symbol], definitions: dict[str, Definition]) -> Kernel:
    rewriter = Rewriter(kernel.axes, definitions)
    plain = rewriter.env(())
    items = tuple((a.symbol, names.get(a.symbol, sympy.S.Zero)) for a in sums.axes)
    kept = {names[a.symbol] for a in sums.axes if a.symbol in names}
    columns = tuple(a for a in kernel.axes if a.symbol in kept)
    stores = [rewriter.store(s, plain, s.axes) for s in kernel.stores]
    stores += [rewriter.store(s, rewriter.env(items), columns) for s in sums.stores]
    return Kernel(kernel.name, kernel.axes, tuple(stores), tuple(dict.fromkeys((*kernel.origins, *sums.origins))))


def _without_unread(kernel: Kernel, facts: KernelFacts, members: frozenset[int]) -> Kernel:
    """The kernel without stores that only its own sums read."""
    kept = tuple(s for s in kernel.stores if s.buffer not in facts.defined or facts.needed_outside(s.buffer, members))
    return replace(kernel, stores=kept)


__all__ = ["join_column_sums"]
