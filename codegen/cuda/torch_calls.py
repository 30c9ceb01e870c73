"""Library steps by torch's own calls on tensors: what a host program would call, for a tuner to time."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from precast.codegen.common.library_steps import LibraryCall
from precast.codegen.common.measure import view_as_seen
from precast.codegen.cuda.candidates import StandIn, rows_of, weight_matrix
from precast.lowering.ir.nodes import Buffer, Conv, Gemm, View
from precast.lowering.ir.sizes import hint

Tensors = Mapping[str, torch.Tensor]
"""Memory by the name of its buffer, as tensors of one dimension."""


def is_callable(call: LibraryCall) -> bool:
    """Whether `library_call` knows it: products of matrices and convolutions, with nothing behind them but what cuBLAS applies."""
    match call.step:
        case Gemm():
            return call.how in ("aten", "activation")
        case Conv():
            return call.how in ("aten", "product")
        case _:
            return False


def library_call(call: LibraryCall, tensors: Tensors, buffers: Mapping[str, Buffer]) -> StandIn:
    """The call over views of `tensors`. Its `answer` leaves the result in the step's own buffer, wherever the library makes it."""
    step = call.step
    assert is_callable(call) and isinstance(step, Gemm | Conv)
    own = buffers[step.out]
    out = View(own.name, own.size, own.stride)
    if isinstance(step, Gemm):
        return _product(step, out, tensors)
    if call.how == "product":
        x, rows = rows_of(step.x), rows_of(out)
        assert x is not None and rows is not None
        return _product(Gemm(x, weight_matrix(step), step.bias, step.out, step.activation), rows, tensors)
    image, weight, into = _seen(step.x, tensors), _seen(step.weight, tensors), _seen(out, tensors)
    bias = None if step.bias is None else _seen(step.bias, tensors)
    sizes = (step.stride, step.padding, step.dilation, step.transposed, step.output_padding, step.groups)

    def convolve() -> torch.Tensor:
        return torch.convolution(image, weight, bias, *sizes)

    return StandIn(convolve, lambda: into.copy_(convolve()))


def _product(step: Gemm, out: View, tensors: Tensors) -> StandIn:
    a, b, into = _seen(step.a, tensors), _seen(step.b, tensors), _seen(out, tensors)
    bias = None if step.bias is None else _seen(step.bias, tensors)

    def call() -> object:
        if bias is None:
            return torch.mm(a, b, out=into)
        if step.activation == "none":
            return torch.addmm(bias, a, b, out=into)
        return torch.ops.aten._addmm_activation.out(bias, a, b, use_gelu=step.activation != "relu", out=into)

    return StandIn(call, call)


def _seen(view: View, tensors: Tensors) -> torch.Tensor:
    seen = view_as_seen(view)
    return tensors[view.buffer].as_strided([int(n) for n in seen.size], [int(n) for n in seen.stride], hint(view.offset))
