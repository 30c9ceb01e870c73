"""In-place concatenation: where concatenated images grow layer by layer (DenseNet), each is the front of one buffer, and each part is
written once.

It applies to channels-last images, where the front of a concatenation is its first channels. A part that a kernel computes is computed
into its place; one that a library computes is copied there by the first kernel that reads it, or by a copy kernel. So is one that is made
long before the others (a U-Net's), where the whole concatenation would be in memory from then on and raise the peak beyond the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from precast.lowering.analysis.buffers import without_unused_buffers
from precast.lowering.analysis.effects import reads, store_roots, writes
from precast.lowering.analysis.headroom import alive_bytes, most_alive
from precast.lowering.analysis.rewrite_values import replace_values
from precast.lowering.build import scalar_exprs as v
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Buffer, Index, Kernel, Load, Program, Reduce, Scan, Size, Step, Store, Value, walk
from precast.lowering.ir.scalars import Op
from precast.lowering.passes.layout.channels_last import dimensions, extents_in
from precast.lowering.passes.layout.relayout import Move, moved

NEAR = 8
"""Steps between a part and the concatenation that are not worth a question about memory."""


@dataclass(frozen=True)
class Part:
    """Channels `start` to `start + channels` of a concatenation are those of `buffer`; `kernel` copies them."""

    start: int
    channels: int
    buffer: str
    kernel: Kernel


def share_joins(program: Program, growth: float) -> Program:
    """The program with concatenations that begin with the same parts in one buffer. `growth`: the share of the peak of memory that this
    may add to it.
    """
    joins = _joins(program)
    most = most_alive(program, growth) if joins else 0
    done: set[str] = set()
    for name in sorted(joins, key=lambda n: -len(joins[n])):
        group = [n for n in joins if n not in done and _front(joins[n], joins[name])]
        if name not in done and len(joins[name]) > 1:
            done |= {name, *group}
            program = _shared(program, name, [n for n in group if n != name], joins, most)
    return program


def _joins(program: Program) -> dict[str, list[Part]]:
    """The concatenations: buffers written only by copies of whole images, each with its parts in order."""
    makers: dict[str, list[Step]] = {}
    for step in program.steps:
        for name in writes(step):
            makers.setdefault(name, []).append(step)
    buffers = {b.name: b for b in program.buffers}
    fixed = {i for i in program.inputs if isinstance(i, str)} | {o.view.buffer for o in program.outputs if o.view is not None}
    found: dict[str, list[Part]] = {}
    for name, steps in makers.items():
        if name in fixed or len(steps) < 2 or not _is_last(buffers[name]):
            continue
        parts = [_part(s, buffers[name], buffers) for s in steps]
        known = sorted((p for p in parts if p is not None), key=lambda p: p.start)
        ends = [0, *(p.start + p.channels for p in known)]
        once = all(len(makers.get(p.buffer, ())) == 1 for p in known)
        if len(known) == len(steps) and once and [p.start for p in known] == ends[:-1] and ends[-1] == buffers[name].size[1]:
            found[name] = known
    return found


def _is_last(buffer: Buffer) -> bool:
    size = buffer.size
    return len(size) == 4 and all(isinstance(n, int) for n in size) and buffer.stride == _stride(size, size[1])


def _stride(size: tuple[Size, ...], pitch: Size) -> tuple[Size, ...]:
    """Strides of a channels-last image whose pixels are `pitch` elements apart."""
    _, _, h, w = size
    return (ix.numel((h, w, pitch)), 1, ix.numel((w, pitch)), pitch)


def _part(step: Step, join: Buffer, buffers: dict[str, Buffer]) -> Part | None:
    """The part that the step copies into the concatenation."""
    if not isinstance(step, Kernel) or len(step.stores) != 1:
        return None
    (store,) = step.stores
    load = store.value
    plain = store.mode == "set" and not store.gathers and store.mask is None and store.axes is None
    if not plain or not isinstance(load, Load) or load.gathers or load.mask is not None:
        return None
    source = buffers[load.buffer]
    if not _is_last(source) or source.dtype is not join.dtype:
        return None
    extents = extents_in(step)
    to, of = dimensions(join, store.index, None, extents), dimensions(source, load.index, None, extents)
    if to is None or of is None:
        return None
    n, c, h, w = ix.symbols(4)
    start = to[c] - of[c]
    whole = all(of[d] in {a.symbol for a in step.axes} or source.size[k] == 1 for k, d in enumerate((n, c, h, w)))
    covers = ix.numel(a.extent for a in step.axes) == ix.numel(source.size)
    if not start.is_Integer or not whole or not covers or any(to[d] != of[d] for d in (n, h, w)):
        return None
    channels = source.size[1]
    assert isinstance(channels, int)
    return Part(int(start), channels, source.name, step)


def _front(short: list[Part], long: list[Part]) -> bool:
    return [(p.start, p.buffer) for p in short] == [(p.start, p.buffer) for p in long[: len(short)]]


def _shared(program: Program, name: str, fronts: list[str], joins: dict[str, list[Part]], most: int) -> Program:
    """The program with the concatenations `fronts` placed in the front of `name`, each part copied once, as early as any of them had it."""
    join = program.buffer(name)
    position = {id(s): n for n, s in enumerate(program.steps)}
    first: dict[int, int] = {}
    for number, part in enumerate(joins[name]):
        first[id(part.kernel)] = min(position[id(joins[n][number].kernel)] for n in (name, *fronts) if number < len(joins[n]))
    dropped = {id(p.kernel) for n in fronts for p in joins[n]}
    placed = sorted((first.get(id(s), n) - 0.5 * (id(s) in first), n) for n, s in enumerate(program.steps) if id(s) not in dropped)
    new: Program | None = replace(program, steps=tuple(program.steps[n] for _, n in placed))
    for front in fronts:
        new = None if new is None else moved(new, _move(program.buffer(front), join, 0))
    if new is None:
        return program
    for part in joins[name]:
        new = _made_in_place(new, part, join, most)
    return without_unused_buffers(new)


def _move(source: Buffer, target: Buffer, start: int) -> Move:
    n, c, h, w = source.size
    stride = _stride(source.size, target.size[1])
    return Move(source.name, (n, h, w, c), (stride[0], stride[2], stride[3], 1), target.name, start)


def _made_in_place(program: Program, part: Part, join: Buffer, most: int) -> Program:
    """The program whose kernel computes the part into its place; or else whose first reader of the part copies it there. `most`: the bytes
    that may be alive at once.
    """
    makers = [s for s in program.steps if part.buffer in writes(s)]
    at = next(n for n, s in enumerate(program.steps) if isinstance(s, Kernel) and _copies(s, part, join))
    if all(isinstance(s, Kernel) for s in makers):
        rest = replace(program, steps=tuple(s for n, s in enumerate(program.steps) if n != at))
        new = moved(rest, _move(program.buffer(part.buffer), join, part.start))
        return program if new is None or _raises_peak(program, new, join, most) else new
    return _copied_by_reader(program, part, join, at)


def _raises_peak(before: Program, after: Program, join: Buffer, most: int) -> bool:
    """Whether the concatenation is there so much earlier that more bytes than `most` are alive."""
    begins = [next(n for n, s in enumerate(p.steps) if join.name in writes(s)) for p in (before, after)]
    return begins[1] + NEAR < begins[0] and max(alive_bytes(after)) > most


def _copies(kernel: Kernel, part: Part, join: Buffer) -> bool:
    store = kernel.stores[0]
    return len(kernel.stores) == 1 and store.buffer == join.name and isinstance(store.value, Load) and store.value.buffer == part.buffer


def _copied_by_reader(program: Program, part: Part, join: Buffer, at: int) -> Program:
    """The program without the copy at position `at`: the next reader of the concatenation reads the part from its source, and stores it."""
    following = next((n for n in range(at + 1, len(program.steps)) if join.name in reads(program.steps[n])), None)
    reader = None if following is None else program.steps[following]
    new = _with_copy(reader, part, program.buffer(part.buffer), join) if isinstance(reader, Kernel) else None
    if new is None or following is None:
        return program
    if not any(join.name in reads(s) for s in program.steps[following + 1 :]):
        new = replace(new, stores=new.stores[:-1])  # the part is not read there any more
    return replace(program, steps=tuple(new if n == following else s for n, s in enumerate(program.steps) if n != at))


def _with_copy(kernel: Kernel, part: Part, source: Buffer, join: Buffer) -> Kernel | None:
    """The pointwise kernel, which reads the concatenation up to the end of the part, with the part read from `source` and stored in
    place.
    """
    values = list(walk(*(r for s in kernel.stores for r in store_roots(s))))
    own = [x for x in values if isinstance(x, Load) and x.buffer == join.name]
    whole = all(s.axes is None and s.mode == "set" for s in kernel.stores) and not any(isinstance(x, Reduce | Scan) for x in values)
    if not part.start or len(own) != 1 or not whole or own[0].mask is not None or own[0].gathers:
        return None
    where = dimensions(join, own[0].index, None, extents_in(kernel))
    end = part.start + part.channels
    symbols = ix.symbols(4)
    if where is None or ix.numel(a.extent for a in kernel.axes) != ix.numel((join.size[0], end, *join.size[2:])):
        return None
    extent: dict[sympy.Expr, Size] = {a.symbol: a.extent for a in kernel.axes}
    channel = where[symbols[1]]
    plain = all(extent.get(where[d], 1) == n for d, n in zip(symbols, (join.size[0], end, *join.size[2:]), strict=True))
    if not plain or not channel.is_Symbol:
        return None
    inside: Value = v.ge(Index(channel), Index(sympy.Integer(part.start)))
    stride = _stride(source.size, source.size[1])
    place = ix.affine(0, tuple(zip(stride, (where[d] - (part.start if d is symbols[1] else 0) for d in symbols), strict=True)))
    taken = Load(source.name, ix.expand(place), own[0].dtype, (), inside)
    before = Load(join.name, own[0].index, own[0].dtype, (), v.lt(Index(channel), Index(sympy.Integer(part.start))))
    chosen = (
        Alu(Op.WHERE, (inside, taken, before), taken.dtype.compute) if part.start else Load(source.name, ix.expand(place), own[0].dtype)
    )
    new = replace_values(kernel, {own[0]: chosen})
    return replace(new, stores=(*new.stores, Store(join.name, own[0].index, taken, mask=inside if part.start else None)))
