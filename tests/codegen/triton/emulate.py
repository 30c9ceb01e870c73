"""Runs scheduled programs with their kernels rendered as Triton, in Triton's interpreter on CPU tensors.

The process needs `TRITON_INTERPRET=1`. Library steps run as in the oracle. The interpreter knows no libdevice, so its functions are stood
in for by torch's; and it folds custom reductions and scans one element at a time in Python, so vectorised ones take their place (with
the kernel's own combining function).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from precast.codegen.triton.build.images import load
from precast.codegen.triton.render.render import TritonKernel, render
from precast.codegen.triton.render.tiling import Tiling
from precast.lowering.ir.nodes import Kernel, Program
from precast.lowering.verify.evaluate import int_of
from precast.lowering.verify.interpret import _Machine

UNARY = "rsqrt exp exp2 log log2 expm1 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma trunc"
BINARY = "pow atan2 hypot copysign nextafter fmod"


def _stand_in(function: Any) -> Any:
    def run(*args: Any) -> Any:
        data = [torch.from_numpy(np.ascontiguousarray(a.handle.data)) for a in args]
        result = function(*torch.broadcast_tensors(*data)).numpy()
        return tl.core.tensor(interpreter.TensorHandle(result, args[0].dtype.scalar), _block(args[0].dtype.scalar, result.shape))

    return run


def _block(scalar: Any, shape: tuple[int, ...]) -> Any:
    return tl.block_type(scalar, list(shape)) if shape else scalar


LIBDEVICE = SimpleNamespace(
    **{name: _stand_in(getattr(torch, name)) for name in [*UNARY.split(), *BINARY.split()]},
    nearbyint=_stand_in(torch.round),
    **{name: _stand_in(getattr(torch.special, f"bessel_{name}")) for name in ("j0", "j1", "y0", "y1")},
)


def _fold_by_halves(self: Any, inputs: Any) -> Any:
    """`ReduceOps.generic_reduce`, vectorised: lanes are powers of two."""
    data = [a.handle.data for a in inputs]
    axis = self.axis
    while data[0].shape[axis] > 1:
        half = data[0].shape[axis] // 2
        parts = [[np.take(d, range(start, start + half), axis=axis) for d in data] for start in (0, half)]
        wrapped = [self.to_tensor(d, inputs[i].dtype) for side in parts for i, d in enumerate(side)]
        combined = self.combine_fn.fn(*wrapped)
        data = [c.handle.data for c in (combined if isinstance(combined, tuple | tl.tuple) else (combined,))]
    if not self.keep_dims:
        data = [d.squeeze(axis) for d in data]
    return [self.to_tensor(d, inputs[i].dtype) for i, d in enumerate(data)]


def _scan_by_doubling(self: Any, inputs: Any) -> Any:
    """`ScanOps.generic_scan`, vectorised, and with the rounding of a tree as on a device."""
    data = [a.handle.data for a in inputs]
    axis, step = self.axis, 1
    while step < data[0].shape[axis]:
        before = [np.roll(d, step, axis=axis) for d in data]
        wrapped = [self.to_tensor(d, inputs[i].dtype) for side in (before, data) for i, d in enumerate(side)]
        combined = self.combine_fn.fn(*wrapped)
        first = np.arange(data[0].shape[axis]).reshape([-1 if i == axis else 1 for i in range(data[0].ndim)]) < step
        results = combined if isinstance(combined, tuple | tl.tuple) else (combined,)
        data = [np.where(first, d, c.handle.data) for d, c in zip(data, results, strict=True)]
        step *= 2
    return [self.to_tensor(d, inputs[i].dtype) for i, d in enumerate(data)]


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """`create_dot`, which takes the bits of bfloat16 numbers for integers."""
    sides = ((x.data.astype(np.uint32) << 16).view(np.float32) if x.dtype.scalar is tl.bfloat16 else x.data for x in (a, b))
    return interpreter.TensorHandle(np.matmul(*sides, dtype=d.data.dtype) + d.data, d.dtype.scalar)


def _rounded(self: Any, value: Any, kind: Any) -> Any:
    """`create_fp_trunc`, which drops the bits that a bfloat16 has no room for. To nearest, ties to even, as devices do; NaN stays one."""
    if value.dtype.scalar is not tl.float32 or kind.scalar is not tl.bfloat16:
        return _cast(self, value, kind)
    bits = value.data.view(np.uint32).astype(np.uint64)
    nearest = np.where(np.isnan(value.data), bits | 0x400000, bits + 0x7FFF + ((bits >> 16) & 1))
    return interpreter.TensorHandle((nearest >> 16).astype(np.uint16), kind.scalar)


_cast = interpreter.InterpreterBuilder.cast_impl
interpreter.InterpreterBuilder.create_fp_trunc = _rounded
interpreter.InterpreterBuilder.create_dot = _dot
interpreter.ReduceOps.generic_reduce = _fold_by_halves
interpreter.ScanOps.generic_scan = _scan_by_doubling
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(debug=True, sanitize_overflow=False)  # assertions are kept


ASSEMBLY = {"rcp.approx.ftz.f32": lambda a: np.reciprocal(a), "ex2.approx.ftz.f32": lambda a: np.exp2(a)}


def _assembly(asm: str, constraints: str, args: list[Any], dtype: Any, is_pure: bool, pack: int) -> Any:
    """The instructions that helpers are written in."""
    (operand,) = args
    result = ASSEMBLY[asm.split()[0]](operand.handle.data)
    return tl.core.tensor(interpreter.TensorHandle(result, dtype), _block(dtype, result.shape))


class TritonMachine(_Machine):
    """The oracle with its kernels run by Triton."""

    def __init__(self, program: Program, inputs: Sequence[Any], tiling: Tiling | None) -> None:
        super().__init__(program, inputs, False)
        self.tiling = tiling
        self.slots = {}  # every buffer by itself: the memory plan is not what is tested here

    def _kernel(self, kernel: Kernel) -> None:
        for part in render(kernel, self.program.buffers, self.tiling):
            self.launch(part)

    def launch(self, kernel: TritonKernel) -> None:
        grid = int_of(kernel.grid, self.sizes)
        for argument in kernel.arguments:
            if argument.symbol is None:
                self._fresh(argument.buffer)
        arguments = [self.sizes[a.symbol] if a.symbol is not None else self._elements(a.buffer) for a in kernel.arguments]
        if grid == 0:
            return
        function = load(kernel)
        function.fn.__globals__["libdevice"] = LIBDEVICE
        tl.inline_asm_elementwise = _assembly
        with np.errstate(all="ignore"):
            try:
                function[(grid,)](*arguments)
            except AssertionError as error:
                raise IndexError(f"kernel {kernel.name}: index out of range") from error


def run(program: Program, inputs: Sequence[Any], tiling: Tiling | None = None) -> list[Any]:
    """As `lowering.interpret.run`, kernels in Triton's interpreter."""
    return TritonMachine(program, inputs, tiling).run()
