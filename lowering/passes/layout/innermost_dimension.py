"""The innermost dimension of temporaries: the one along which most of what their kernels move runs, whatever the order of the shape.

A buffer that kernels of ours write, and that only kernels and matrix products read, may lie in any order. Contiguous in the order of its
shape, it can fit neither its writer nor its readers: what is reduced from a channels-last image is written along channels, and rows that
are gathered from it are read along them, though its shape has them in front of the points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from precast.lowering.analysis.dependencies import nbytes_hint
from precast.lowering.analysis.effects import reads, writes
from precast.lowering.analysis.traits import Traits
from precast.lowering.costs.sectors import Moved, moved_by
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Gemm, Kernel, Program, Size, Step, View
from precast.lowering.ir.sizes import hint
from precast.lowering.passes.layout.channels_last import accesses, in_memory_order
from precast.lowering.passes.layout.relayout import Move, moved

VECTOR = 16
"""Bytes of which the rows of a product's operand have to be a multiple, so that libraries read them in vectors."""


def innermost_dimensions(program: Program, traits: Traits) -> Program:
    """The program with another dimension of a temporary innermost wherever that saves moving as much as the buffer holds."""
    steps = list(program.steps)
    buffers = {b.name: b for b in program.buffers}
    users: dict[str, list[int]] = {}
    for position, step in enumerate(steps):
        for name in {*reads(step), *writes(step)}:
            users.setdefault(name, []).append(position)
    costs: dict[int, Moved] = {}

    def cost(position: int) -> Moved:
        step = steps[position]
        if position not in costs:
            costs[position] = moved_by(step, buffers, traits.sector) if isinstance(step, Kernel) else Moved()
        return costs[position]

    for buffer in program.buffers:
        at = users.get(buffer.name, [])
        own = [steps[n] for n in at]
        order = _order(buffer) if own and all(_allows(s, buffer) for s in own) else None
        if order is None or not any(buffer.name in writes(s) for s in own):
            continue
        now = sum((cost(n) for n in at), Moved())
        if now.nbytes - now.least < nbytes_hint(buffer):
            continue
        found = _laid_out(replace(program, steps=tuple(own)), buffers, buffer, order, now.nbytes, traits)
        if found is None:
            continue
        buffers[buffer.name], new = found
        for n, step in zip(at, new, strict=True):
            steps[n] = step
            costs.pop(n, None)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers.values()))


def _allows(step: Step, buffer: Buffer) -> bool:
    """Whether the step takes the buffer in any layout: a kernel, or a product of floats that has it as an operand."""
    if isinstance(step, Kernel):
        return True
    others = [v.buffer for v in (step.bias, step.residual) if v is not None] if isinstance(step, Gemm) else []
    return isinstance(step, Gemm) and buffer.dtype.is_float and buffer.name not in (*writes(step), *others)


def _order(buffer: Buffer) -> tuple[int, ...] | None:
    """The buffer's dimensions from the outermost to the innermost; None where it is not dense, or where nothing can change."""
    dims = [d for d, n in enumerate(buffer.size) if n != 1]
    if len(dims) < 2:
        return None
    order = tuple(range(len(buffer.size)))
    if buffer.stride == ix.contiguous_strides(buffer.size):
        return order
    order = tuple(sorted(order, key=lambda d: (buffer.size[d] != 1, -hint(buffer.stride[d]))))
    return order if _strides(buffer, order, only=dims) == tuple(buffer.stride[d] for d in dims) else None


def _strides(buffer: Buffer, order: Sequence[int], only: Sequence[int] | None = None) -> tuple[Size, ...]:
    """Strides of the dimensions (or of `only` some) where they lie in this order."""
    found = dict(zip(order, ix.contiguous_strides(tuple(buffer.size[d] for d in order)), strict=True))
    return tuple(found[d] for d in (range(len(order)) if only is None else only))


def _laid_out(
    users: Program, known: Mapping[str, Buffer], buffer: Buffer, order: tuple[int, ...], now: int, traits: Traits
) -> tuple[Buffer, tuple[Step, ...]] | None:
    """The buffer in the order that moves least, and the steps of the program `users` for it, if that saves a pass over it."""
    best = now - nbytes_hint(buffer) + 1
    found: tuple[Buffer, tuple[Step, ...]] | None = None
    for new_order in _others(buffer, order, traits):
        stride = _strides(buffer, new_order)
        move = Move(buffer.name, tuple(buffer.size[d] for d in order), tuple(stride[d] for d in order), buffer.name)
        new = moved(users, move)
        if new is None or any(not _as_simple(*pair, buffer) for pair in zip(users.steps, new.steps, strict=True)):
            continue
        laid = replace(buffer, stride=stride)
        cost = sum(moved_by(s, {**known, buffer.name: laid}, traits.sector).nbytes for s in new.steps if isinstance(s, Kernel))
        if cost < best:
            best, found = cost, (laid, tuple(_in_order(s, buffer.name) for s in new.steps))
    return found


def _others(buffer: Buffer, order: tuple[int, ...], traits: Traits) -> Iterator[tuple[int, ...]]:
    """The orders with another dimension innermost that fills sectors, the others as they are."""
    inner = next(d for d in reversed(order) if buffer.size[d] != 1)
    for d in order:
        if d != inner and hint(buffer.size[d]) * buffer.dtype.itemsize >= traits.sector:
            yield (*(o for o in order if o != d), d)


def _as_simple(old: Step, new: Step, buffer: Buffer) -> bool:
    """Whether a kernel's positions take no divisions that they did not take, and a product's operands are still rows of whole vectors."""
    if isinstance(old, Kernel) and isinstance(new, Kernel):
        divided = [sum(ix.has_division(index) for _, index, _ in accesses(k)) for k in (old, new)]
        return divided[1] <= divided[0]
    assert isinstance(old, Gemm) and isinstance(new, Gemm)
    pairs = ((old.a, new.a), (old.b, new.b))
    return all(_is_operand(before, after, buffer) for before, after in pairs if before.buffer == buffer.name)


def _is_operand(before: View, after: View, buffer: Buffer) -> bool:
    whole = [isinstance(p, int) and p * buffer.dtype.itemsize % VECTOR == 0 for p in (_pitch(before), _pitch(after))]
    return _pitch(after) is not None and (whole[1] or not whole[0])


def _pitch(view: View) -> Size | None:
    """Elements between the rows, or columns, of a matrix; None where neither lies in line."""
    rows, columns = view.stride[-2:]
    return rows if columns == 1 else columns if rows == 1 else None


def _in_order(step: Step, name: str) -> Step:
    """A kernel that writes the buffer with its axes in the order of memory."""
    return in_memory_order(step) if isinstance(step, Kernel) and name in writes(step) else step
