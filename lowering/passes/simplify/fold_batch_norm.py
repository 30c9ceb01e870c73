"""Per-channel scale and shift after a convolution (evaluated batch norm) become part of its weight and bias.

With `freeze` the folded weight is prepared once per binding of the weights. Otherwise it is computed at each call, where that moves fewer
bytes than the pointwise pass over the result that it saves; on a GPU (`gpu`) nearly always, as most weights are copied there anyway (into
channels-last), all by one launch. Half types are left alone, as a folded weight is rounded: over ResNet-50 the error against float32 is
then 1.5 times eager's. On a GPU `freeze` asks for that too, for a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import sympy

from precast.lowering.analysis.buffers import add_buffer, without_unused_buffers
from precast.lowering.analysis.effects import index_expr, lasting_inputs, reads, writes
from precast.lowering.analysis.rewrite_values import map_kernel
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Buffer, Conv, Kernel, Load, Program, Size, Step, Store, Value, View, operands, walk
from precast.lowering.ir.scalars import HALVES, DType, Op
from precast.lowering.ir.sizes import hint
from precast.lowering.ir.substitution import Definition, Rewriter, Uninvertible, coordinates, shared_axis
from precast.lowering.passes.simplify.constant_fold import without_dead_steps

Affine = tuple[Value | None, Value | None]
"""`scale * x + shift`; None is 1 and 0."""


def fold_batch_norm(freeze: bool, bound: Collection[str] | None = None, gpu: bool = False) -> Callable[[Program], Program]:
    """The pass, with or without copies of weights that outlive the call; `bound` names the inputs that are weights (None: every input)."""

    def fold(program: Program) -> Program:
        return _Folder(program, freeze, bound, gpu).run()

    return fold


class _Folder:
    def __init__(self, program: Program, freeze: bool, bound: Collection[str] | None = None, gpu: bool = False) -> None:
        self.program, self.freeze = program, freeze
        self.types = (DType.F32, DType.F64, *(HALVES if gpu and freeze else ()))
        self.factor = 0.25 if gpu else 1.5
        self.buffers = {b.name: b for b in program.buffers}
        self.users: dict[str, list[int]] = {}
        self.outputs = {o.view.buffer for o in program.outputs if o.view is not None}
        self.written = {w for s in program.steps for w in writes(s)}
        self.lasting = lasting_inputs(program, bound)
        for position, step in enumerate(program.steps):
            for name in reads(step):
                self.users.setdefault(name, []).append(position)
        self.definitions = self._per_channel()
        self.changed: dict[int, Kernel] = {}
        self.prepare: list[Step] = []
        self.persistent: list[str] = []

    def run(self) -> Program:
        steps: list[Step] = []
        changed = self.changed
        for position, step in enumerate(self.program.steps):
            step = changed.get(position, step)
            found = self.fold(step) if isinstance(step, Conv) else None
            if found is None:
                steps.append(step)
                continue
            at, kernel, conv, before = found
            changed[at] = kernel
            if self._outlives({r for s in before for r in reads(s)}):
                self.prepare.extend(before)
                self.persistent.extend(w for s in before for w in writes(s))
            else:
                steps.extend(before)
            steps.append(conv)
        program = replace(
            self.program,
            steps=tuple(steps),
            buffers=tuple(self.buffers.values()),
            prepare=(*self.program.prepare, *self.prepare),
            persistent=(*self.program.persistent, *self.persistent),
        )
        return without_unused_buffers(without_dead_steps(program, set()) if self.changed else program)

    def _per_channel(self) -> dict[str, Definition]:
        """Small vectors that a kernel makes of inputs alone (a norm's scale and shift, kept apart because they are costly to repeat)."""
        found: dict[str, Definition] = {}
        for step in self.program.steps:
            if not isinstance(step, Kernel) or len(step.axes) != 1:
                continue
            for store in step.stores:
                plain = store.mode == "set" and not store.gathers and store.mask is None and store.axes is None
                temporary = {v.buffer for v in walk(store.value) if isinstance(v, Load)} & self.written
                if plain and store.buffer not in self.outputs and temporary <= found.keys():
                    found[store.buffer] = Definition(store.buffer, step.axes, store.index, store.value)
        return found

    def _inlined(self, value: Value | None, channel: sympy.Symbol, extent: Size) -> Value | None:
        """The value with such vectors replaced by what they hold."""
        if value is None or not any(isinstance(v, Load) and v.buffer in self.definitions for v in walk(value)):
            return value
        rewriter = Rewriter((shared_axis(channel, extent),), self.definitions)
        try:
            return rewriter.rewrite(value, rewriter.env(()))
        except Uninvertible:
            return value

    def fold(self, conv: Conv) -> tuple[int, Kernel, Conv, list[Step]] | None:
        """Position and new form of the kernel after the convolution, the folded convolution, and what computes its weight and bias."""
        result = self.buffers[conv.out]
        plain = conv.activation == "none" and conv.residual is None and not conv.transposed
        if not plain or conv.out in self.outputs or len(self.users.get(conv.out, ())) != 1 or result.dtype not in self.types:
            return None
        at = self.users[conv.out][0]
        kernel = self.changed.get(at, self.program.steps[at])
        if not isinstance(kernel, Kernel) or len(kernel.stores) != 1:
            return None
        values = list(walk(kernel.stores[0].value))
        own = [v for v in values if isinstance(v, Load) and v.buffer == conv.out]
        if len(own) != 1 or own[0].mask is not None or own[0].gathers:
            return None
        channel = self._channel(kernel, own[0], result)
        found = None if channel is None else _affine_part(values, own[0], channel)
        if found is None or channel is None:
            return None
        top, (scale, shift) = found
        scale, shift = (self._inlined(v, channel, conv.weight.size[0]) for v in (scale, shift))
        given = [v for v in (scale, shift) if v is not None]
        if not all(self._steady(v) for v in given) or not self._pays(conv, result, given):
            return None
        new = map_kernel(kernel, lambda v: own[0] if v is top else v)
        before, weight, bias = self._folded(conv, channel, scale, shift)
        return at, new, replace(conv, weight=weight, bias=bias), before

    def _outlives(self, names: set[str]) -> bool:
        """Whether what is computed from buffers `names` may be kept from call to call."""
        return self.freeze and names <= self.lasting

    def _pays(self, conv: Conv, result: Buffer, given: list[Value]) -> bool:
        names = {v.buffer for v in walk(*given) if isinstance(v, Load)} | {v.buffer for v in (conv.weight, conv.bias) if v is not None}
        weight = hint(ix.numel(conv.weight.size))
        return self._outlives(names) or hint(ix.numel(result.size)) > self.factor * weight

    def _steady(self, value: Value) -> bool:
        """Whether the scale is made of inputs only, which the program does not write: it may then be computed before the first step."""
        names = {v.buffer for v in walk(value) if isinstance(v, Load)}
        return not names & self.written

    def _channel(self, kernel: Kernel, load: Load, result: Buffer) -> sympy.Symbol | None:
        dims = ix.symbols(len(result.size))
        axes = tuple(shared_axis(s, n) for s, n in zip(dims, result.size, strict=True))
        whole = ix.affine(0, tuple(zip(result.stride, dims, strict=True)))
        where = coordinates(whole, axes, load.index, tuple((a.symbol, a.extent) for a in kernel.axes))
        found = None if where is None else dict(where)[dims[1]]
        return found if isinstance(found, sympy.Symbol) else None

    def _folded(self, conv: Conv, channel: sympy.Symbol, scale: Value | None, shift: Value | None) -> tuple[list[Step], View, View | None]:
        steps: list[Step] = []
        weight, bias = conv.weight, conv.bias
        dtype = self.buffers[conv.out].dtype
        compute = dtype.compute
        if scale is not None:
            order = (0, *range(2, len(weight.size)), 1)  # channels last, as the library wants it beside channels-last images
            stride: list[Size] = [0] * len(order)
            for dim, step in zip(order, ix.contiguous_strides(tuple(weight.size[d] for d in order)), strict=True):
                stride[dim] = step
            symbols = ix.symbols(len(order))
            place = {dim: s for dim, s in zip(order, symbols, strict=True)}
            source = ix.affine(weight.offset, tuple((weight.stride[d], place[d]) for d in order))
            value = Alu(Op.MUL, (Load(weight.buffer, source, dtype), _moved(scale, channel, place[0], weight.size[0])), compute)
            target = add_buffer(self.buffers, f"{conv.out}_weight", weight.size, tuple(stride), dtype)
            index = ix.affine(0, tuple((stride[d], place[d]) for d in order))
            axes = tuple(shared_axis(place[d], weight.size[d]) for d in order)
            steps.append(Kernel(f"fold_{conv.out}_weight", axes, (Store(target, index, value),), conv.origins))
            weight = View(target, weight.size, tuple(stride))
        one = ix.symbols(1)[0]
        parts = None if shift is None else _moved(shift, channel, one, weight.size[0])
        if bias is not None:
            old: Value = Load(bias.buffer, ix.affine(bias.offset, ((bias.stride[0], one),)), dtype)
            old = old if scale is None else Alu(Op.MUL, (old, _moved(scale, channel, one, weight.size[0])), compute)
            parts = old if parts is None else Alu(Op.ADD, (old, parts), compute)
        if parts is not None and (shift is not None or scale is not None):
            target = add_buffer(self.buffers, f"{conv.out}_bias", (weight.size[0],), (1,), dtype)
            steps.append(Kernel(f"fold_{conv.out}_bias", (shared_axis(one, weight.size[0]),), (Store(target, one, parts),), conv.origins))
            bias = View(target, (weight.size[0],), (1,))
        return steps, weight, bias


def _moved(value: Value, channel: sympy.Symbol, to: sympy.Symbol, extent: Size) -> Value:
    rewriter = Rewriter((shared_axis(to, extent),), {})
    return rewriter.rewrite(value, rewriter.env(((channel, to),)))


def _affine_part(values: list[Value], x: Load, channel: sympy.Symbol) -> tuple[Value, Affine] | None:
    """The topmost value that is affine in `x` per channel and through which alone `x` is used; None when that is `x` itself."""
    per_channel: dict[Value, bool] = {}
    forms: dict[Value, Affine] = {x: (None, None)}
    top: Value = x
    for value in values:
        expr = index_expr(value)
        fits = expr is None or expr.free_symbols <= {channel}
        per_channel[value] = value is not x and fits and all(per_channel[o] for o in operands(value))
        if not isinstance(value, Alu) or value.op not in (Op.ADD, Op.SUB, Op.MUL) or not any(a in forms for a in value.args):
            continue
        form = _combined(value, forms, per_channel)
        if form is not None and value.args.count(top) == 1:
            forms[value] = form
            top = value
    uses = [v for v in values if any(o in forms and o is not top for o in operands(v)) and v not in forms]
    return None if top is x or uses else (top, forms[top])


def _combined(value: Alu, forms: dict[Value, Affine], per_channel: dict[Value, bool]) -> Affine | None:
    a, b = value.args
    inner, other = (a, b) if a in forms else (b, a)
    if other in forms or not per_channel[other] or (value.op is Op.SUB and inner is b):
        return None
    scale, shift = forms[inner]
    dtype = value.dtype
    match value.op:
        case Op.ADD:
            return scale, other if shift is None else Alu(Op.ADD, (shift, other), dtype)
        case Op.SUB:
            negative = Alu(Op.NEG, (other,), dtype)
            return scale, negative if shift is None else Alu(Op.SUB, (shift, other), dtype)
        case _:
            new = other if scale is None else Alu(Op.MUL, (scale, other), dtype)
            return new, None if shift is None else Alu(Op.MUL, (shift, other), dtype)
