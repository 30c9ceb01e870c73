"""Runs scheduled programs with their kernels rendered as Triton, in Triton's interpreter on CPU tensors.

The process needs `TRITON_INTERPRET=1`. Library steps run as in the oracle. The interpreter knows no libdevice, so its functions are stood
in for by torch's; and it folds custom reductions one element at a time in Python, so a fold by halves takes its place (with the kernel's
own combining function).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from precast.codegen.triton_compile import load
from precast.codegen.triton_render import TritonKernel, render
from precast.codegen.triton_tiling import Tiling
from precast.lowering.evaluate import int_of
from precast.lowering.interpret import _Machine
from precast.lowering.ir import Kernel, Program

UNARY = "expm1 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma trunc"
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
    **{name: _stand_in(getattr(torch, name)) for name in [*UNARY.split(), *BINARY.split()]}, nearbyint=_stand_in(torch.round)
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


interpreter.ReduceOps.generic_reduce = _fold_by_halves


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
        error = torch.zeros(1, dtype=torch.int32)
        sizes = {str(symbol): value for symbol, value in self.sizes.items()}
        arguments: list[Any] = []
        for a in kernel.arguments:
            match a.kind:
                case "buffer":
                    arguments.append(self._fresh(a.buffer))
                case "error":
                    arguments.append(error)
                case "size":
                    arguments.append(sizes[a.name])
        if grid == 0:
            return
        function = load(kernel)
        function.fn.__globals__["libdevice"] = LIBDEVICE
        with np.errstate(all="ignore"):
            function[(grid,)](*arguments)
        if error.item():
            raise IndexError(f"kernel {kernel.name}: index out of range")


def run(program: Program, inputs: Sequence[Any], tiling: Tiling | None = None) -> list[Any]:
    """As `lowering.interpret.run`, kernels in Triton's interpreter."""
    return TritonMachine(program, inputs, tiling).run()
