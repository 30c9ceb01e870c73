"""Small programs by hand, for tests of the code generator."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from precast.lowering.ir.nodes import Alu, Axis, Buffer, Kernel, Load, Output, Program, Store, Value, View, axis_symbol
from precast.lowering.ir.scalars import DType, Op
from tests.codegen.loader import Loaded

F32 = DType.F32


def axis(name: str, extent: int) -> Axis:
    return Axis(axis_symbol(name), extent)


def contiguous(size: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def buffer(name: str, size: Sequence[int], dtype: DType = F32, stride: Sequence[int] | None = None) -> Buffer:
    return Buffer(name, dtype, tuple(size), tuple(contiguous(size) if stride is None else stride))


def view(b: Buffer) -> View:
    return View(b.name, b.size, b.stride)


def at(b: Buffer, axes: Sequence[Axis | sympy.Expr | int]) -> sympy.Expr:
    points = [a.symbol if isinstance(a, Axis) else sympy.sympify(a) for a in axes]
    return sum((p * s for p, s in zip(points, b.stride, strict=True)), sympy.S.Zero)


def load(b: Buffer, axes: Sequence[Axis | sympy.Expr | int], **more: object) -> Value:
    return Load(b.name, at(b, axes), b.dtype, **more)


def alu(op: Op, *args: Value, dtype: DType | None = None) -> Value:
    return Alu(op, args, args[-1].dtype if dtype is None else dtype)


def program(
    inputs: Sequence[Buffer], outputs: Sequence[Buffer], steps: Sequence[object], temps: Sequence[Buffer] = (), **more: object
) -> Program:
    return Program(
        "test",
        (),
        tuple(b.name for b in inputs),
        tuple(Output(view(b)) for b in outputs),
        (*inputs, *outputs, *temps),
        tuple(steps),
        **more,
    )


def build(
    inputs: Sequence[Buffer], outputs: Sequence[Buffer], steps: Sequence[object], target: str = "cpu:native", **more: object
) -> Loaded:
    return Loaded(compile_program(program(inputs, outputs, steps, **more), target, CodegenOptions(measure=False)).library, len(outputs))


def map_kernel(name: str, out: Buffer, axes: Sequence[Axis], value: Value) -> Kernel:
    return Kernel(name, tuple(axes), (Store(out.name, at(out, axes), value),))
