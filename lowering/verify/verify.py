"""Structural checks on a `Program`: run after each pass in tests, and on demand. A failure shows the step in which it lies."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import sympy
import torch

from precast.lowering.analysis.effects import index_expr, reads, store_roots, value_dtype, views, writes
from precast.lowering.analysis.liveness import lifetimes
from precast.lowering.analysis.may_alias import may_reuse
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import (
    LAUNCH,
    Alu,
    Axis,
    Buffer,
    Const,
    Extern,
    Gather,
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
from precast.lowering.ir.ranges import Interval, interval, ranges_of
from precast.lowering.ir.scalars import COMPARISONS, DType, Op, ReduceOp, arity
from precast.lowering.ir.sizes import known
from precast.lowering.ir.sympy_calls import symbols_of
from precast.lowering.ir.text import step_text
from precast.lowering.verify.evaluate import evaluate_index

EXACT_POINTS = 1 << 16
"""Index expressions over at most this many points are enumerated when interval arithmetic cannot prove them."""


class InvalidProgram(ValueError):
    """A program breaks a rule of the IR: a fault of precast, never of the user's model."""


def verify(program: Program, after: str = "") -> Program:
    """Returns `program` when it keeps the rules of `nodes.py`, else raises `InvalidProgram` naming the pass `after` which it was found."""
    checker = _Checker(program)
    try:
        checker.check()
    except InvalidProgram as error:
        where = f" after the pass {after!r}" if after else ""
        context = f"\nin the step:\n{step_text(checker.step)}" if checker.step is not None else ""
        raise InvalidProgram(f"program {program.name}{where}: {error}{context}") from None
    return program


def _fail(condition: bool, message: str) -> None:
    if condition:
        raise InvalidProgram(message)


class _Checker:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers = {b.name: b for b in program.buffers}
        self.step: Step | None = None
        self.seen: set[Value] = set()

    def check(self) -> None:
        program = self.program
        _fail(len(self.buffers) != len(program.buffers), "two buffers have the same name")
        ready = {i for i in program.inputs if isinstance(i, str)} | {c.buffer for c in program.constants}
        for name in ready:
            _fail(name not in self.buffers, f"the input {name} has no buffer")
        for step in program.prepare:
            self.visit(step, ready)
        missing = [p for p in program.persistent if p not in ready]
        _fail(bool(missing), f"persistent buffers {missing} are never prepared")
        for step in program.steps:
            self.visit(step, ready)
        self.step = None
        for output in program.outputs:
            if output.view is not None:
                empty = any(n == 0 for n in output.view.size)
                _fail(not empty and output.view.buffer not in ready, f"the output {output.view.buffer} is never written")
        self.slots()

    def visit(self, step: Step, ready: set[str]) -> None:
        self.step = step
        for name in (*reads(step), *writes(step)):
            _fail(name not in self.buffers, f"{name} has no buffer")
        fresh = set(writes(step)) - ready
        filled = set(step.mutates) if isinstance(step, Extern) and step.op.startswith(LAUNCH) else set()
        for name in reads(step):
            _fail(name not in ready and name not in filled, f"{name} is read before it is written")
        if isinstance(step, Kernel):
            self.kernel(step)
        for view in views(step):
            _fail(
                len(view.size) != len(view.stride), f"the view of {view.buffer} has {len(view.size)} sizes and {len(view.stride)} strides"
            )
            backwards = next((n for n in (view.offset, *view.stride) if ix.is_nonnegative(ix.plain(-n - 1))), None)
            _fail(backwards is not None, f"the view of {view.buffer} has {backwards} for a stride or offset, and torch has no such tensors")
            last = _sum_known([(n, s) for n, s in zip(view.size, view.stride, strict=True)], view.offset)
            span = span_of(self.buffers[view.buffer])
            narrower = view.dtype is not None and view.dtype.itemsize < self.buffers[view.buffer].dtype.itemsize
            bad = last is not None and span is not None and last >= max(span, 1) and not narrower
            _fail(bad, f"the view of {view.buffer} reaches element {last}, the buffer ends at {span}")
        ready |= fresh

    def kernel(self, kernel: Kernel) -> None:
        self.seen.clear()  # the same load is another access under axes of another extent
        axes = {a.symbol: a for a in kernel.axes}
        _fail(len(axes) != len(kernel.axes), "two kernel axes share a symbol")
        _fail(not kernel.stores, "the kernel stores nothing")
        for value in walk(*(r for s in kernel.stores for r in store_roots(s))):
            if isinstance(value, Reduce):
                for axis in value.axes:
                    other = axes.setdefault(axis.symbol, axis)
                    _fail(other.extent != axis.extent, f"the axis {axis.symbol} has two extents, {other.extent} and {axis.extent}")
            self.types(value)
        free: dict[Value, frozenset[sympy.Symbol]] = {}
        for store in kernel.stores:
            self.store(kernel, store, axes, free)

    def store(self, kernel: Kernel, store: Store, axes: dict[sympy.Symbol, Axis], free: dict[Value, frozenset[sympy.Symbol]]) -> None:
        own = kernel.axes if store.axes is None else store.axes
        foreign = [a.symbol for a in own if a not in kernel.axes]
        _fail(bool(foreign), f"the store to {store.buffer} runs over {foreign}, which are not kernel axes")
        allowed = {a.symbol for a in own} | set(self.program.symbols)
        for root in store_roots(store):
            unbound = self.free(root, free) - allowed
            _fail(bool(unbound), f"the store to {store.buffer} uses {sorted(map(str, unbound))}, which nothing binds")
        loose = symbols_of(store.index) - allowed - {g.symbol for g in store.gathers}
        _fail(bool(loose), f"the index of the store to {store.buffer} uses {sorted(map(str, loose))}, which nothing binds")
        target = self.buffers[store.buffer]
        _fail(
            value_dtype(store.value) is not target.dtype.compute,
            f"a value of type {store.value.dtype.value} is stored to {store.buffer}, which holds {target.dtype.value}",
        )
        if store.mask is None:
            self.bounds(store.index, axes, store.gathers, target)
        for value in walk(*store_roots(store)):
            if isinstance(value, Load) and value.mask is None and value not in self.seen:
                self.seen.add(value)
                self.bounds(value.index, axes, value.gathers, self.buffers[value.buffer])

    def free(self, root: Value, memo: dict[Value, frozenset[sympy.Symbol]]) -> frozenset[sympy.Symbol]:
        for value in walk(root):
            if value in memo:
                continue
            found: set[sympy.Symbol] = set()
            expr = index_expr(value)
            if expr is not None:
                found |= symbols_of(expr)
            if isinstance(value, Load):
                found -= {g.symbol for g in value.gathers}
            for operand in operands(value):
                found |= memo[operand]
            if isinstance(value, Scan):
                found.add(value.axis.symbol)
            if isinstance(value, Reduce):
                found -= {a.symbol for a in value.axes}
            memo[value] = frozenset(found)
        return memo[root]

    def types(self, value: Value) -> None:
        match value:
            case Load(buffer=buffer, dtype=dtype, mask=mask):
                held = self.buffers[buffer].dtype
                _fail(dtype.compute is not held.compute, f"a load of {buffer} has type {dtype.value}, the buffer holds {held.value}")
                _fail(mask is not None and mask.dtype is not DType.BOOL, f"the mask of a load of {buffer} is not BOOL")
            case Const(value=number, dtype=dtype):
                kind = bool if dtype is DType.BOOL else float if dtype.is_float else int
                _fail(type(number) is not kind, f"the constant {number!r} does not fit {dtype.value}")
            case Alu(op=op, args=args, dtype=dtype):
                _fail(len(args) != arity(op), f"{op.value} takes {arity(op)} operands, not {len(args)}")
                kinds = [value_dtype(a) for a in args]
                if op is Op.WHERE:
                    _fail(kinds[0] is not DType.BOOL, "the condition of WHERE is not BOOL")
                    kinds = [*kinds[1:], dtype.compute]
                elif op in COMPARISONS:
                    _fail(dtype is not DType.BOOL, f"the comparison {op.value} does not give BOOL")
                elif op not in (Op.BITCAST, Op.DIV):
                    kinds.append(dtype.compute)
                _fail(len(set(kinds)) > 1, f"the operands of {op.value} have types {[k.value for k in kinds]}")
            case Reduce(op=op, value=inner, dtype=dtype):
                if op in (ReduceOp.ARGMIN, ReduceOp.ARGMAX):
                    _fail(dtype is not DType.I64, f"{op.value} gives I64, not {dtype.value}")
                _fail(
                    op in (ReduceOp.MIN, ReduceOp.MAX) and value_dtype(inner) is not dtype.compute,
                    f"{op.value} changes the type to {dtype.value}",
                )
            case _:
                pass

    def bounds(self, expr: sympy.Expr, axes: dict[sympy.Symbol, Axis], gathers: tuple[Gather, ...], target: Buffer) -> None:
        span = span_of(target)
        if span is None:
            return
        used = [axes[s] for s in symbols_of(expr) if s in axes]
        if any(a.extent == 0 for a in used) or any(a.extent == 0 for a in axes.values()):
            return
        ranges: dict[sympy.Symbol, Interval] = ranges_of(used)
        ranges |= {g.symbol: (0, int(g.size) - 1) for g in gathers if isinstance(g.size, int) or g.size.is_Integer}
        found = interval(expr, ranges)
        if found is None or (found[0] >= 0 and found[1] < span):
            return
        exact = _enumerate(expr, ranges)
        if exact is not None:
            _fail(
                exact[0] < 0 or exact[1] >= span,
                f"the index {expr} of {target.name} takes {exact[0]}..{exact[1]}, the buffer has {span} elements",
            )

    def slots(self) -> None:
        program = self.program
        placed = {s.buffer: s for s in program.workspace}
        _fail(len(placed) != len(program.workspace), "a buffer has two slots")
        live = lifetimes(program)
        fixed = {i for i in program.inputs if isinstance(i, str)} | {o.view.buffer for o in program.outputs if o.view is not None}
        for name in placed:
            _fail(
                name in fixed or name in program.persistent, f"{name} is an input, an output or persistent and cannot live in the workspace"
            )
        plain = [(s, int(s.offset), int(s.nbytes)) for s in placed.values() if known(s.offset, s.nbytes)]
        plain.sort(key=lambda k: k[1])
        for slot, offset, nbytes in plain:
            _fail(
                known(program.workspace_bytes) and offset + nbytes > int(program.workspace_bytes),
                f"the slot of {slot.buffer} ends after the workspace",
            )
        plain = [k for k in plain if k[2]]  # what has no bytes shares none
        for i, (a, a_offset, a_bytes) in enumerate(plain):
            for b, b_offset, _ in plain[i + 1 :]:
                if b_offset >= a_offset + a_bytes:
                    break
                first, second = sorted((a, b), key=lambda s: live[s.buffer])
                meets = live[second.buffer][0] < live[first.buffer][1]
                touches = live[second.buffer][0] == live[first.buffer][1]
                legal = (
                    touches and first.offset == second.offset and may_reuse(program, live[second.buffer][0], first.buffer, second.buffer)
                )
                _fail(meets or (touches and not legal), f"{a.buffer} and {b.buffer} share bytes while both are alive")


def _sum_known(pairs: Iterable[tuple[object, object]], offset: object) -> int | None:
    parts = list(chain.from_iterable(pairs)) + [offset]
    if not known(*parts):
        return None
    numbers: list[int] = [int(p) for p in parts]  # type: ignore[call-overload]
    if any(n == 0 for n in numbers[:-1:2]):
        return numbers[-1] - 1
    return sum((n - 1) * s for n, s in zip(numbers[:-1:2], numbers[1:-1:2], strict=True)) + int(numbers[-1])


def span_of(buffer: Buffer) -> int | None:
    """Elements from the first to the last that the buffer touches, where its sizes are known."""
    last = _sum_known(zip(buffer.size, buffer.stride, strict=True), 0)
    return None if last is None else last + 1


def _enumerate(expr: sympy.Expr, ranges: dict[sympy.Symbol, Interval]) -> Interval | None:
    used = sorted((s for s in symbols_of(expr) if s in ranges), key=str)
    points = 1
    for s in used:
        points *= ranges[s][1] + 1
    if points > EXACT_POINTS:
        return None
    grids = torch.meshgrid(*(torch.arange(ranges[s][1] + 1) for s in used), indexing="ij") if used else []
    values = torch.as_tensor(evaluate_index(expr, dict(zip(used, grids, strict=True))))
    return int(values.min()), int(values.max())
