"""Small programs by hand: the tests of interpretation and scheduling are tables of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import sympy
import torch

from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import (
    Alu,
    Axis,
    Buffer,
    Const,
    Gemm,
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
    axis_symbol,
)
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.torch_dtypes import TORCH_DTYPES
from precast.lowering.options import DEFAULTS, LoweringOptions
from precast.lowering.pipeline import planned, schedule
from precast.lowering.verify.evaluate import int_of
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import verify

F = DType.F32


def alu(op: Op, *args: Value, dtype: DType = F) -> Value:
    return Alu(op, args, dtype)


def const(value: float) -> Value:
    return Const(float(value), F)


class Build:
    """Collects buffers and steps. Buffers are contiguous unless a stride is given."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Step] = []
        self.inputs: list[str | sympy.Symbol] = []

    def buffer(self, name: str, size: Sequence[Size], dtype: DType = F, stride: Sequence[Size] | None = None) -> str:
        self.buffers[name] = Buffer(name, dtype, tuple(size), tuple(stride or ix.contiguous_strides(tuple(size))))
        return name

    def input(self, name: str, *size: Size, dtype: DType = F, stride: Sequence[Size] | None = None) -> str:
        self.inputs.append(name)
        return self.buffer(name, size, dtype, stride)

    def at(self, name: str, index: Sequence[Any]) -> sympy.Expr:
        return sum((c * i for c, i in zip(self.buffers[name].stride, index, strict=True)), sympy.S.Zero)

    def load(self, name: str, *index: Any) -> Value:
        return Load(name, self.at(name, index), self.buffers[name].dtype)

    def kernel(self, name: str, size: Sequence[Size], body: Callable[..., Value], dtype: DType = F) -> str:
        """One kernel that computes the fresh buffer `name`."""
        axes = tuple(Axis(axis_symbol(f"i{len(size) - 1 - d}"), n) for d, n in enumerate(size))
        self.buffer(name, size, dtype)
        index = [a.symbol for a in axes]
        self.steps.append(Kernel(f"k_{name}", axes, (Store(name, self.at(name, index), body(*index)),)))
        return name

    def view(self, name: str) -> View:
        return View(name, self.buffers[name].size, self.buffers[name].stride)

    def gemm(self, out: str, a: View | str, b: View | str) -> str:
        a, b = (self.view(x) if isinstance(x, str) else x for x in (a, b))
        self.buffer(out, (*a.size[:-1], b.size[-1]))
        self.steps.append(Gemm(a, b, None, out))
        return out

    def program(self, *outputs: str) -> Program:
        found = tuple(Output(self.view(o)) for o in outputs)
        symbols = tuple(sorted({s for b in self.buffers.values() for n in b.size for s in sympy.sympify(n).free_symbols}, key=str))
        return Program("t", symbols, tuple(self.inputs), found, tuple(self.buffers.values()), tuple(self.steps))


def reduce(op: ReduceOp, extent: Size, body: Callable[[sympy.Symbol], Value], dtype: DType = F, name: str = "r0") -> Value:
    symbol = axis_symbol(name)
    return Reduce(op, body(symbol), (Axis(symbol, extent),), dtype)


def layer_norm(b: Build, x: str, rows: int, width: int, out: str) -> str:
    """Three kernels: mean, variance, result."""
    mean = b.kernel(f"{out}_mean", (rows,), lambda i: alu(Op.DIV, reduce(ReduceOp.SUM, width, lambda r: b.load(x, i, r)), const(width)))

    def square(i: Any, r: Any) -> Value:
        d = alu(Op.SUB, b.load(x, i, r), b.load(mean, i))
        return alu(Op.MUL, d, d)

    var = b.kernel(f"{out}_var", (rows,), lambda i: alu(Op.DIV, reduce(ReduceOp.SUM, width, lambda r: square(i, r)), const(width)))

    def result(i: Any, j: Any) -> Value:
        return alu(Op.MUL, alu(Op.SUB, b.load(x, i, j), b.load(mean, i)), alu(Op.RSQRT, alu(Op.ADD, b.load(var, i), const(1e-5))))

    return b.kernel(out, (rows, width), result)


def softmax(b: Build, x: str, size: Sequence[int], out: str) -> str:
    """Four kernels along the last dimension: maximum, exponentials, sum, quotient."""
    rows, width = size[:-1], size[-1]
    b.kernel(f"{out}_m", rows, lambda *i: reduce(ReduceOp.MAX, width, lambda r: b.load(x, *i, r)))
    b.kernel(f"{out}_e", size, lambda *i: alu(Op.EXP, alu(Op.SUB, b.load(x, *i), b.load(f"{out}_m", *i[:-1]))))
    b.kernel(f"{out}_z", rows, lambda *i: reduce(ReduceOp.SUM, width, lambda r: b.load(f"{out}_e", *i, r)))
    return b.kernel(out, size, lambda *i: alu(Op.DIV, b.load(f"{out}_e", *i), b.load(f"{out}_z", *i[:-1])))


def gelu(x: Value) -> Value:
    half = alu(Op.MUL, x, const(0.5))
    return alu(Op.MUL, half, alu(Op.ADD, alu(Op.ERF, alu(Op.MUL, x, const(0.7071067811865476))), const(1.0)))


def random_inputs(program: Program, seed: int = 0, **sizes: int) -> list[Any]:
    """Fresh inputs for the program's buffers; symbols take their value from `sizes`."""
    torch.manual_seed(seed)
    env = {s: sizes[str(s)] for s in program.symbols}
    found: list[Any] = []
    for name in program.inputs:
        if isinstance(name, sympy.Symbol):
            found.append(env[name])
            continue
        buffer = program.buffer(name)
        size = [int_of(n, env) for n in buffer.size]
        dtype = TORCH_DTYPES[buffer.dtype]
        value = torch.randn(size) if dtype.is_floating_point else torch.randint(0, 2 if dtype is torch.bool else 5, size)
        stride = [int_of(n, env) for n in buffer.stride]
        span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if prod(size) else 0
        found.append(torch.zeros(span, dtype=dtype).as_strided(size, stride).copy_(value))
    return found


def checked_schedule(program: Program, options: LoweringOptions = DEFAULTS, tolerance: float = 1e-4, **sizes: int) -> Program:
    """The scheduled program, after every pass was verified and shown to compute the same as the unscheduled one."""
    inputs = random_inputs(program, **sizes)
    wanted = run(verify(program), [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs], double=True)

    def same(name: str, after: Program) -> None:
        found = run(after, [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
        for want, got in zip(wanted, found, strict=True):
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got.to(want.dtype), want, atol=tolerance, rtol=tolerance, msg=lambda m: f"after {name}: {m}")
            else:
                assert want == got

    found = verify(planned(schedule(program, "cpu:native", options, check=True, trace=same), "cpu:native"), "plan memory")
    same("plan memory", found)
    return found


def kernels(program: Program) -> list[str]:
    """The kinds of the program's steps, in order."""
    return [type(s).__name__.lower() for s in program.steps]
