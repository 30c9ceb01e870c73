"""Attention written out as product, scale, mask, softmax, product becomes one `Attention`.

Recognised on fused kernels, where a softmax is one value whatever ops it was written in. Only what is exactly the library's function
is taken:
no mask or a causal one. A mask that depends on data stays written out, since a row that is masked entirely is NaN there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy
import torch

from precast.lowering.analysis.buffers import without_unused_buffers
from precast.lowering.analysis.effects import reads, writes
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import (
    Alu,
    Attention,
    Axis,
    Buffer,
    Const,
    Gemm,
    Index,
    Kernel,
    Load,
    Output,
    Program,
    Reduce,
    Size,
    Step,
    Store,
    Value,
    View,
    walk,
)
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.substitution import Rewriter, coordinates, shared_axis
from precast.lowering.passes.simplify.forward_copies import copies_of, through
from precast.lowering.verify.interpret import run


@dataclass(frozen=True)
class Scores:
    """What the softmax normalises: `scale * load`, causally masked or not."""

    load: Load
    scale: float
    causal: bool


def recognise_attention(program: Program) -> Program:
    """The program with each decomposed attention as one step that reads its operands in place."""
    if sum(isinstance(s, Gemm) and len(s.a.size) == 3 for s in program.steps) < 2:
        return program
    return _Recogniser(program).run()


class _Recogniser:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers = {b.name: b for b in program.buffers}
        self.copies = copies_of(program)
        self.outputs = {o.view.buffer for o in program.outputs if o.view is not None}
        self.writer: dict[str, int] = {}
        self.users: dict[str, list[int]] = {}
        for position, step in enumerate(program.steps):
            for name in reads(step):
                self.users.setdefault(name, []).append(position)
            for name in writes(step):
                self.writer[name] = -1 if name in self.writer or name in program.inputs else position

    def run(self) -> Program:
        dropped: set[int] = set()
        changed: dict[int, Step] = {}
        for position, step in enumerate(self.program.steps):
            if isinstance(step, Gemm) and len(step.a.size) == 3:
                found = self._match(step)
                if found is not None:
                    attention, gone, at = found
                    at = position if at is None else at
                    dropped |= {*gone, position} - {at}
                    changed[at] = attention
        if not changed:
            return self.program
        steps = tuple(changed.get(p, s) for p, s in enumerate(self.program.steps) if p not in dropped or p in changed)
        program = replace(self.program, steps=steps, buffers=tuple(self.buffers.values()))
        return without_unused_buffers(_without_unread_copies(program))

    def _sole(self, name: str) -> tuple[int, Step] | None:
        """The only writer of a buffer that has one reader."""
        position = self.writer.get(name, -1)
        if position < 0 or name in self.outputs or len(self.users.get(name, ())) != 1:
            return None
        return position, self.program.steps[position]

    def _match(self, second: Gemm) -> tuple[Attention, set[int], int | None] | None:
        probabilities = self._sole(second.a.buffer)
        if probabilities is None or second.bias is not None or second.activation != "none" or second.residual is not None:
            return None
        kernel = probabilities[1]
        if not isinstance(kernel, Kernel) or len(kernel.stores) != 1 or not self._whole(second.a):
            return None
        scores = match_softmax(kernel)
        found = None if scores is None else self._sole(scores.load.buffer)
        if scores is None or found is None or not isinstance(found[1], Gemm):
            return None
        first = found[1]
        plain = first.bias is None and first.activation == "none" and first.residual is None and len(first.a.size) == 3
        same = self.buffers[first.out].size == second.a.size and scores.load.index == kernel.stores[0].index
        if not plain or not same or first.a.size[2] != second.b.size[2]:
            return None
        heads = self._heads(first.a, second.b)
        q = self._operand(first.a, heads, swap=False)
        k = self._operand(first.b, heads, swap=True)
        v = self._operand(second.b, heads, swap=False)
        out, at = self._result(second, heads)
        gone = {probabilities[0], found[0]}
        origins = (*first.origins, *kernel.origins, *second.origins)
        half = self.buffers[first.out].dtype.itemsize == 2
        return Attention(q, k, v, None, out, scores.causal, scores.scale, origins, half), gone, at

    def _whole(self, view: View) -> bool:
        buffer = self.buffers[view.buffer]
        return view.size == buffer.size and view.stride == buffer.stride and view.offset == 0 and view.dtype is None

    def _heads(self, *candidates: View) -> Size:
        """How many heads one image of the batch has, as the copies before the products tell; all in one batch where they do not."""
        for view in candidates:
            copy = self.copies.get(view.buffer)
            if copy is None:
                continue
            dims = ix.symbols(3)
            extents = tuple(zip(dims, view.size, strict=True))
            at = ix.affine(view.offset, tuple(zip(view.stride, dims, strict=True)))
            axes = tuple(shared_axis(a.symbol, a.extent) for a in copy.kernel.axes)
            where = coordinates(copy.store.index, axes, at, extents)
            if where is None:
                continue
            for atom in sorted(ix.substitute(copy.source.index, where, extents).atoms(ix.FloorDiv, ix.Modulo), key=str):
                heads = ix.plain(atom.args[1])
                if atom.args[0] == dims[0] and ix.exact_quotient(view.size[0], heads) is not None:
                    return heads
        return candidates[0].size[0]

    def _operand(self, view: View, heads: Size, *, swap: bool) -> View:
        """[batch * heads, rows, depth] as [batch, heads, rows, depth], read through the copy that made it."""
        n, rows, depth = view.size
        s0, s1, s2 = view.stride
        if swap:
            rows, depth, s1, s2 = depth, rows, s2, s1
        whole = View(view.buffer, (_images(n, heads), heads, rows, depth), (s0 * heads, s0, s1, s2), view.offset, view.dtype)
        copy = self.copies.get(view.buffer)
        return whole if copy is None else through(whole, copy)

    def _result(self, second: Gemm, heads: Size) -> tuple[str, int | None]:
        """The buffer that the result goes to, laid out so that the copy after it is not needed where that can be; that copy's position."""
        old = self.buffers[second.out]
        n, rows, depth = old.size
        size = (_images(n, heads), heads, rows, depth)
        users = self.users.get(second.out, [])
        copy = None
        if len(users) == 1 and second.out not in self.outputs:
            kernel = self.program.steps[users[0]]
            copy = next((c for c in self.copies.values() if c.kernel is kernel and c.source.buffer == second.out), None)
        if copy is not None and len(copy.kernel.stores) == 1 and copy.target not in self.outputs:
            dims = ix.symbols(4)
            extents = tuple(zip(dims, size, strict=True))
            at = ix.affine(0, tuple(zip((old.stride[0] * heads, *old.stride), dims, strict=True)))
            axes = tuple(shared_axis(a.symbol, a.extent) for a in copy.kernel.axes)
            where = coordinates(copy.source.index, axes, at, extents)
            moved = None if where is None else ix.coefficients(ix.substitute(copy.store.index, where, extents), dims)
            if moved is not None and moved[0] == 0:
                self.buffers[copy.target] = Buffer(copy.target, old.dtype, size, moved[1])
                return copy.target, users[0]
        self.buffers[second.out] = Buffer(second.out, old.dtype, size, (old.stride[0] * heads, *old.stride))
        return second.out, None


def _images(count: Size, heads: Size) -> Size:
    found = ix.exact_quotient(count, heads)
    assert found is not None
    return found


def _without_unread_copies(program: Program) -> Program:
    used = {o.view.buffer for o in program.outputs if o.view is not None} | {r for s in program.steps for r in reads(s)}
    copies = {id(c.kernel) for name, c in copies_of(program).items() if name not in used and len(c.kernel.stores) == 1}
    return replace(program, steps=tuple(s for s in program.steps if id(s) not in copies))


def match_softmax(kernel: Kernel) -> Scores | None:
    """The scores when the kernel stores their softmax along its last axis."""
    store = kernel.stores[0]
    value = store.value
    if store.mask is not None or store.gathers or store.mode != "set" or not kernel.axes:
        return None
    match value:
        case Alu(op=Op.DIV, args=(Alu(op=Op.EXP, args=(Alu(op=Op.SUB, args=(term, Reduce(op=ReduceOp.MAX) as top)),)) as power, total)):
            pass
        case _:
            return None
    if not isinstance(total, Reduce) or total.op is not ReduceOp.SUM or len(top.axes) != 1 or len(total.axes) != 1:
        return None
    last = kernel.axes[-1]
    if not all(_along(reduction, last, wanted, kernel.axes) for reduction, wanted in ((top, term), (total, power))):
        return None
    return _scores(term, kernel)


def _along(reduction: Reduce, axis: Axis, wanted: Value, axes: tuple[Axis, ...]) -> bool:
    """Whether the reduction combines `wanted` over all of the axis."""
    bound = reduction.axes[0]
    if bound.extent != axis.extent:
        return False
    nested = [v for v in walk(reduction.value) if isinstance(v, Reduce)]
    rewriter = Rewriter((*axes, bound), {})
    rewriter.bound = {(1, 0, n.axes[0].extent): n.axes[0] for n in nested}
    return rewriter.rewrite(reduction.value, rewriter.env(((bound.symbol, axis.symbol),))) is wanted


def _scores(term: Value, kernel: Kernel) -> Scores | None:
    causal = False
    if isinstance(term, Alu) and term.op in (Op.WHERE, Op.ADD):
        names = [v for v in walk(term) if isinstance(v, Load)]
        if len(names) != 1:
            return None
        found = _causal(term, names[0], kernel)
        if found is None:
            return None
        causal, term = found
    scale = 1.0
    while isinstance(term, Alu) and term.op in (Op.MUL, Op.DIV) and isinstance(term.args[1], Const):
        factor = float(term.args[1].value)
        scale = scale * factor if term.op is Op.MUL else scale / factor
        term = term.args[0]
    plain = isinstance(term, Load) and not term.gathers and term.mask is None
    return Scores(term, scale, causal) if plain and isinstance(term, Load) else None


def _causal(term: Alu, load: Load, kernel: Kernel) -> tuple[bool, Value] | None:
    """Whether the mask hides exactly the later columns, and what it masks; None for any other mask."""

    def holds(value: Value) -> bool:
        return any(v is load for v in walk(value))

    if term.op is Op.WHERE:
        condition, a, b = term.args
        if holds(condition) or holds(a) == holds(b):
            return None
        kept, hidden = (a, b) if holds(a) else (b, a)
        if not isinstance(hidden, Const) or hidden.value != float("-inf"):
            return None
        mask: Value = Alu(
            Op.WHERE, (condition, *((Const(0.0, DType.F32), Const(float("-inf"), DType.F32))[:: 1 if kept is a else -1])), DType.F32
        )
    else:
        kept, mask = term.args if holds(term.args[0]) else (term.args[1], term.args[0])
        if holds(mask):
            return None
    sizes = [a.extent for a in kernel.axes]
    if not all(isinstance(n, int) for n in sizes):
        return (True, kept) if _hides_later_columns(mask, kernel.axes) else None
    if ix.numel(sizes) > 1 << 23:
        return None
    values = _evaluated(mask, kernel.axes)
    if bool((values == 0).all()):
        return False, kept
    rows, columns = values.shape[-2:] if values.dim() > 1 else (1, values.shape[-1])
    later = torch.arange(columns) > torch.arange(rows)[:, None]
    causal = rows <= columns and bool(torch.where(later, values == float("-inf"), values == 0).all())
    return (True, kept) if causal else None


def _hides_later_columns(mask: Value, axes: tuple[Axis, ...]) -> bool:
    """Whether the mask is 0 where the column (the last axis) is not beyond the row, else -inf, on a square of unknown size: by its form."""
    if len(axes) < 2 or axes[-1].extent != axes[-2].extent or not isinstance(mask, Alu) or mask.op is not Op.WHERE:
        return False
    condition, a, b = mask.args
    if not isinstance(a, Const) or not isinstance(b, Const) or {a.value, b.value} != {0.0, float("-inf")}:
        return False
    flipped = a.value != 0.0
    while isinstance(condition, Alu) and condition.op is Op.NOT:
        condition, flipped = condition.args[0], not flipped
    if not isinstance(condition, Alu) or condition.op not in (Op.LE, Op.LT):
        return False
    left, right = condition.args
    if not isinstance(left, Index) or not isinstance(right, Index):
        return False
    margin = right.expr - left.expr - (1 if condition.op is Op.LT else 0)  # the condition holds where this is >= 0
    shown = -margin - 1 if flipped else margin
    return bool(ix.expand(shown - (axes[-2].symbol - axes[-1].symbol)) == 0)


def _evaluated(mask: Value, axes: tuple[Axis, ...]) -> torch.Tensor:
    """The mask's values over the kernel's axes; it depends on positions only."""
    size = tuple(a.extent for a in axes)
    stride = ix.contiguous_strides(size)
    index = sum((s * a.symbol for s, a in zip(stride, axes, strict=True)), sympy.S.Zero)
    buffer = Buffer("mask", DType.F32, size, stride)
    kernel = Kernel("mask", axes, (Store("mask", index, mask),))
    (found,) = run(Program("mask", (), (), (Output(View("mask", size, stride)),), (buffer,), (kernel,)), [])
    assert isinstance(found, torch.Tensor)
    return found
