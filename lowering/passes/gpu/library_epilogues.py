"""Epilogues that cuBLASLt and cuDNN compute exactly as eager does, or with one rounding less.

A product takes a bias, and on top of a bias relu or the tanh form of gelu. A residual stays with the normalisation that follows: one
kernel over rows reads the product once either way, and beta = 1 was measured slower. A convolution takes a bias with relu, and a
residual before that relu.
"""

from __future__ import annotations

from precast.lowering.ir.nodes import Gemm, Program
from precast.lowering.passes.fusion.epilogue_fusion import Epilogue, Library, attach_epilogues

GEMM_ACTIVATIONS = ("relu", "gelu_tanh")


def attach_gpu_epilogues(program: Program) -> Program:
    """The program with the epilogues of the GPU's libraries attached."""
    return attach_epilogues(program, gpu_supported)


def gpu_supported(step: Library, found: Epilogue) -> bool:
    """Whether one library call computes `step` followed by `found`."""
    if step.activation != "none" or step.residual is not None:
        return False
    if found.bias is not None and step.bias is not None:
        return False
    biased = found.bias is not None or step.bias is not None
    activation, residual = found.activation[0], found.residual
    if isinstance(step, Gemm):
        return residual is None and biased and activation in ("none", *GEMM_ACTIVATIONS)
    if step.transposed or len(step.x.size) != 4:
        return residual is None and activation == "none"
    return activation == "relu" or (activation == "none" and residual is None)
