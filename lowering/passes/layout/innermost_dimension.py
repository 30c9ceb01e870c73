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
from precast.lowering.analysis.sectors import Moved, moved_by
from precast.lowering.analysis.traits import Traits
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Gemm, Kernel, Program, Size, Step, View
from precast.lowering.ir.sizes import hint
from precast.lowering.passes.layout.channels_last import accesses, in_memory_order
from precast.lowering.passes.layout.relayout import Move, moved

VECTOR = 16
"""Bytes of which the rows of a product's operand have to be a multiple, so that libraries read them in vectors."""


def innermost_dimensions(program: Program, traits: Traits) -> Program:
    """The program with another dimension of a temporary innermost wherever that saves moving as much as the buffer holds."""
    for buffer in program.buffers:
        users = [s for s in program.steps if buffer.name in (*reads(s), *writes(s))]
        kernels = [s for s in users if isinstance(s, Kernel)]
        if not all(_allows(s, buffer.name) for s in users) or not any(buffer.name in writes(s) for s in kernels):
            continue
        order = _order(buffer)
        buffers = {b.name: b for b in program.buffers}
        now = _moved_by(kernels, buffers, traits)
        if order is not None and now.nbytes - now.least >= nbytes_hint(buffer):
            program = _laid_out(program, buffer, order, users, now.nbytes, traits)
    return program


def _allows(step: Step, name: str) -> bool:
    """Whether the step takes the buffer in any layout."""
    if isinstance(step, Kernel):
        return True
    others = [v.buffer for v in (step.bias, step.residual) if v is not None] if isinstance(step, Gemm) else []
    return isinstance(step, Gemm) and name not in (*writes(step), *others)


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


def _laid_out(program: Program, buffer: Buffer, order: tuple[int, ...], users: list[Step], now: int, traits: Traits) -> Program:
    """The program with the buffer in the order that moves least, if that saves a pass over it."""
    best = now - nbytes_hint(buffer) + 1
    found: tuple[Buffer, Program] | None = None
    for new_order in _others(buffer, order, traits):
        stride = _strides(buffer, new_order)
        move = Move(buffer.name, tuple(buffer.size[d] for d in order), tuple(stride[d] for d in order), buffer.name)
        new = moved(replace(program, steps=tuple(users)), move)
        if new is None or any(not _as_simple(*pair, buffer) for pair in zip(users, new.steps, strict=True)):
            continue
        laid = replace(buffer, stride=stride)
        buffers = {b.name: b for b in program.buffers} | {buffer.name: laid}
        cost = _moved_by([s for s in new.steps if isinstance(s, Kernel)], buffers, traits).nbytes
        if cost < best:
            best, found = cost, (laid, new)
    if found is None:
        return program
    instead = {id(old): new for old, new in zip(users, found[1].steps, strict=True)}
    steps = tuple(_in_order(instead[id(s)], buffer.name) if id(s) in instead else s for s in program.steps)
    return replace(program, steps=steps, buffers=tuple(found[0] if b is buffer else b for b in program.buffers))


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


def _moved_by(kernels: Sequence[Kernel], buffers: Mapping[str, Buffer], traits: Traits) -> Moved:
    return sum((moved_by(k, buffers, traits.sector) for k in kernels), Moved())


def _in_order(step: Step, name: str) -> Step:
    """A kernel that writes the buffer with its axes in the order of memory."""
    return in_memory_order(step) if isinstance(step, Kernel) and name in writes(step) else step
