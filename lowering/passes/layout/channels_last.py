"""Channels-last images: convolutions, and the kernels between them, hold their 4-d temporaries with the channel innermost.

Only the strides of temporaries change; graph outputs and inputs keep theirs. An input that a convolution reads is copied once at the
border.
A buffer stays as it is when some access to it cannot be traced to coordinates, or when an extern call looks at it through a partial window.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import sympy

from precast.lowering.analysis.effects import map_views, reads, store_roots, views, writes
from precast.lowering.analysis.kernel_facts import points
from precast.lowering.analysis.rewrite_values import map_kernel
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import (
    Alu,
    Axis,
    Buffer,
    Conv,
    Kernel,
    Load,
    Program,
    Reduce,
    Size,
    Step,
    Store,
    Value,
    View,
    walk,
)
from precast.lowering.ir.scalars import Op
from precast.lowering.ir.substitution import coordinates, shared_axis
from precast.lowering.ir.sympy_calls import expand
from precast.lowering.passes.simplify.algebra import position_of

Access = tuple[str, sympy.Expr, Value | None]


def channels_last(program: Program, as_it_is: Callable[[Conv], bool] = lambda conv: False, apart: Collection[str] = frozenset()) -> Program:
    """The program with channels-last temporaries around all its two-dimensional convolutions but those whose results are `apart`. Those of
    which `as_it_is` holds read the program's inputs in any layout.
    """

    def taking(step: Step) -> bool:
        return is_image(step) and isinstance(step, Conv) and step.out not in apart

    if not any(taking(s) for s in program.steps):
        return program
    return Layout(_copied_inputs(program, lambda conv: as_it_is(conv) or conv.out in apart), taking).run()


def is_image(step: Step) -> bool:
    """Whether a step is a two-dimensional convolution. Transposed ones with groups gain nothing by the layout and do not count."""
    return isinstance(step, Conv) and len(step.x.size) == 4 and not (step.transposed and step.groups != 1)


def last_strides(size: tuple[Size, ...]) -> tuple[Size, ...]:
    n, c, h, w = size
    inner = ix.contiguous_strides((n, h, w, c))
    return (inner[0], inner[3], inner[1], inner[2])


def _copied_inputs(program: Program, as_it_is: Callable[[Conv], bool]) -> Program:
    """Inputs of convolutions that are not channels-last already get a copy that is."""
    inputs = {i for i in program.inputs if isinstance(i, str)}
    by_name = {b.name: b for b in program.buffers}
    copies: dict[str, str] = {}
    steps: list[Step] = []
    buffers = list(program.buffers)
    overwritten = {w for s in program.steps for w in writes(s)}
    for step in program.steps:
        images = isinstance(step, Conv) and is_image(step) and step.x.size[1] != 1
        if images and isinstance(step, Conv) and step.x.buffer in inputs - overwritten and not as_it_is(step):
            source = by_name[step.x.buffer]
            whole = step.x.size == source.size and step.x.stride == source.stride and step.x.offset == 0
            if whole and source.stride == ix.contiguous_strides(source.size):
                name = copies.get(source.name)
                if name is None:
                    name = copies[source.name] = f"{source.name}_last"
                    buffers.append(replace(source, name=name, stride=last_strides(source.size)))
                    steps.append(_border(source, buffers[-1]))
                step = replace(step, x=View(name, source.size, last_strides(source.size)))
        steps.append(step)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers))


def _border(source: Buffer, target: Buffer) -> Kernel:
    return into_layout(View(source.name, source.size, source.stride), target, f"{source.name}_channels_last")


def into_layout(source: View, target: Buffer, name: str) -> Kernel:
    """The kernel that copies an image into a buffer of another layout."""
    n, h, w, c = ix.symbols(4)
    place = (n, c, h, w)
    axes = tuple(shared_axis(s, source.size[d]) for s, d in zip((n, h, w, c), (0, 2, 3, 1), strict=True))
    value = Load(source.buffer, ix.affine(source.offset, tuple(zip(source.stride, place, strict=True))), target.dtype)
    return Kernel(name, axes, (Store(target.name, ix.affine(0, tuple(zip(target.stride, place, strict=True))), value),))


class Layout:
    """Which temporaries become channels-last around the convolutions of which `taking` holds, and the program in which they are."""

    def __init__(self, program: Program, taking: Callable[[Step], bool]) -> None:
        self.program = program
        self.taking = taking
        self.buffers = {b.name: b for b in program.buffers}
        self.chosen = self._choose()

    def _choose(self) -> set[str]:
        """4-d contiguous temporaries that hang together with a convolution and whose every access can be moved."""
        program = self.program
        fixed = {i for i in program.inputs if isinstance(i, str)} | {o.view.buffer for o in program.outputs if o.view is not None}
        fixed |= {c.buffer for c in program.constants} | set(program.persistent)
        able = {n for n, b in self.buffers.items() if n not in fixed and len(b.size) == 4 and b.stride == ix.contiguous_strides(b.size)}
        reached: set[str] = set()
        for step in program.steps:
            if isinstance(step, Conv) and self.taking(step):
                reached |= {step.out, *(v.buffer for v in (step.x, step.residual) if v is not None)} & able
        grown = True
        while grown:
            grown = False
            for step in program.steps:
                touched = {*reads(step), *writes(step)} & able
                if isinstance(step, Kernel) and touched & reached and not touched <= reached:
                    reached |= touched
                    grown = True
        for step in program.steps:
            reached -= self._immovable(step, reached)
        return reached

    def _immovable(self, step: Step, names: set[str]) -> set[str]:
        bad: set[str] = set()
        for view in views(step):
            if view.buffer in names and not self._whole(view):
                bad.add(view.buffer)
        if not isinstance(step, Kernel):
            # an extern call writes its result with eager's strides: those of its channels-last input are not known here
            return bad if self.taking(step) else bad | ({*writes(step), *reads(step)} & names)
        extents = extents_in(step)
        for name, index, mask in accesses(step):
            if name in names and self._moved(name, index, mask, extents) is None:
                bad.add(name)
        return bad

    def _whole(self, view: View) -> bool:
        buffer = self.buffers[view.buffer]
        return view.size == buffer.size and view.stride == buffer.stride and view.offset == 0 and view.dtype is None

    def run(self) -> Program:
        if not self.chosen:
            return self.program
        buffers = tuple(replace(b, stride=last_strides(b.size)) if b.name in self.chosen else b for b in self.program.buffers)
        return replace(self.program, buffers=buffers, steps=tuple(self._step(s) for s in self.program.steps))

    def _step(self, step: Step) -> Step:
        if not {*reads(step), *writes(step)} & self.chosen:
            return step
        if not isinstance(step, Kernel):
            return map_views(step, lambda v: replace(v, stride=last_strides(v.size)) if v.buffer in self.chosen else v)
        extents = extents_in(step)

        def rule(value: Value) -> Value:
            if isinstance(value, Load) and value.buffer in self.chosen:
                own = (*extents, *((g.symbol, g.size) for g in value.gathers))
                index = self._moved(value.buffer, value.index, value.mask, own)
                assert index is not None
                return Load(value.buffer, index, value.dtype, value.gathers, value.mask)
            return value

        def store(s: Store) -> Store:
            if s.buffer not in self.chosen:
                return s
            index = self._moved(s.buffer, s.index, s.mask, (*extents, *((g.symbol, g.size) for g in s.gathers)))
            assert index is not None
            return replace(s, index=index)

        return in_memory_order(map_kernel(step, rule, store))

    def _moved(self, name: str, index: sympy.Expr, mask: Value | None, extents: ix.Extents) -> sympy.Expr | None:
        """The element's place in the channels-last layout."""
        buffer = self.buffers[name]
        dims = ix.symbols(4)
        where = dimensions(buffer, index, mask, extents)
        if where is None:
            return None
        whole = ix.affine(0, tuple(zip(last_strides(buffer.size), (where[d] for d in dims), strict=True)))
        moved: sympy.Expr = ix.simplify(whole, extents)  # rows and columns may be one axis of the kernel
        return moved


def extents_in(kernel: Kernel) -> ix.Extents:
    """The range of every symbol that an index of the kernel may hold."""
    found = {a.symbol: a.extent for a in kernel.axes}
    for value in walk(*(r for s in kernel.stores for r in store_roots(s))):
        if isinstance(value, Reduce):
            found |= {a.symbol: a.extent for a in value.axes}
        elif isinstance(value, Load):
            found |= {g.symbol: g.size for g in value.gathers}
    return tuple(found.items())


def dimensions(buffer: Buffer, index: sympy.Expr, mask: Value | None, extents: ix.Extents) -> dict[sympy.Symbol, sympy.Expr] | None:
    """The buffer's coordinates (under their canonical symbols) of a flat index; under a mask, valid where it holds."""
    dims = ix.symbols(len(buffer.size))
    axes = tuple(shared_axis(s, n) for s, n in zip(dims, buffer.size, strict=True))
    whole = ix.affine(0, tuple(zip(buffer.stride, dims, strict=True)))
    if mask is None:
        found = coordinates(whole, axes, index, extents)
        return None if found is None else dict(found)
    inside = _proven_inside(mask, extents)
    for place in _placements(len(dims), inside, buffer):
        rest = ix.simplify(expand(index - sum((buffer.stride[d] * e for d, e in place.items()), sympy.S.Zero)), extents)
        if rest.free_symbols - {s for s, _ in extents}:
            continue
        found = coordinates(whole, axes, rest, extents)
        if found is None:
            continue
        result = dict(found)
        plain = all(result[dims[d]] == 0 for d in place) and not any(ix.has_division(e) for e in result.values())
        if plain and all(d in place or ix.in_range(result[dims[d]], buffer.size[d], extents) for d in range(len(dims))):
            return result | {dims[d]: e for d, e in place.items()}
    return None


def _proven_inside(mask: Value, extents: ix.Extents) -> list[tuple[sympy.Expr, int]]:
    """Expressions that the mask proves not to be negative, with the greatest value that they can then have."""
    nonnegative: set[sympy.Expr] = set()
    stack = [mask]
    while stack:
        value = stack.pop()
        if not isinstance(value, Alu):
            continue
        if value.op is Op.AND:
            stack.extend(value.args)
            continue
        if value.op is Op.NOT and isinstance(value.args[0], Alu) and value.args[0].op in (Op.LT, Op.LE):
            inner = value.args[0]
            value = Alu(Op.LE if inner.op is Op.LT else Op.LT, (inner.args[1], inner.args[0]), inner.dtype)
        if value.op in (Op.LT, Op.LE):
            a, b = (position_of(x) for x in value.args)
            if a is not None and b is not None:
                nonnegative.add(expand(b - a - (1 if value.op is Op.LT else 0)))
    found: list[tuple[sympy.Expr, int]] = []
    for low in sorted(nonnegative, key=str):
        if not low.free_symbols:
            continue
        bound = ix.bounds(low, extents)
        if bound is not None and isinstance(bound[1], int):
            found.append((low, bound[1]))
        constant, rest = low.as_coeff_Add()
        opposite = -rest  # `c - e >= 0` proves e <= c; the ranges may know that e is not negative
        reach = ix.bounds(expand(opposite), extents)
        if constant.is_Integer and reach is not None and isinstance(reach[0], int) and reach[0] >= 0:
            found.append((expand(opposite), int(constant)))
        for high in nonnegative:
            total = expand(low + high)
            if total.is_Integer and int(total) >= 0:
                found.append((low, int(total)))
    return found


def _placements(rank: int, inside: list[tuple[sympy.Expr, int]], buffer: Buffer) -> list[dict[int, sympy.Expr]]:
    """Ways to give dimensions an expression that is proven to be in their range, most dimensions first."""
    found: list[dict[int, sympy.Expr]] = [{}]
    for d in range(rank):
        size = buffer.size[d]
        fitting = dict.fromkeys(e for e, most in inside if isinstance(size, int) and most < size)
        found += [{**f, d: e} for f in found for e in fitting if e not in f.values()]
    return sorted(found, key=len, reverse=True)


def accesses(kernel: Kernel) -> list[Access]:
    """Where a kernel stores and loads."""
    found: list[Access] = [(s.buffer, s.index, s.mask) for s in kernel.stores]
    for value in walk(*(r for s in kernel.stores for r in store_roots(s))):
        if isinstance(value, Load):
            found.append((value.buffer, value.index, value.mask))
    return found


def in_memory_order(kernel: Kernel) -> Kernel:
    """The kernel with its axes in the memory order of its largest store."""
    main = max(kernel.stores, key=lambda s: points(kernel.axes if s.axes is None else s.axes))
    found = ix.coefficients(main.index, tuple(a.symbol for a in kernel.axes))
    if found is None:
        return kernel
    stride: dict[Axis, int] = {}
    for axis, step in zip(kernel.axes, found[1], strict=True):
        if axis.extent != 1 and not isinstance(step, int):
            return kernel
        stride[axis] = int(step) if isinstance(step, int) else 0
    order = sorted(kernel.axes, key=lambda a: -stride[a] if a.extent != 1 else -(1 << 62))
    return kernel if tuple(order) == kernel.axes else replace(kernel, axes=tuple(order))
