"""Higher-order operators: control flow, Triton kernels, effects. Private to torch: imported here only."""

from __future__ import annotations

from torch._higher_order_ops import effects
from torch._higher_order_ops.auto_functionalize import auto_functionalized_dense, auto_functionalized_v2_dense, get_mutable_args
from torch._higher_order_ops.flat_apply import flat_apply
from torch._higher_order_ops.flex_attention import sdpa_dense
from torch._higher_order_ops.out_dtype import out_dtype_fallback
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation

__all__ = [
    "auto_functionalized_dense",
    "auto_functionalized_v2_dense",
    "effects",
    "flat_apply",
    "get_mutable_args",
    "kernel_side_table",
    "out_dtype_fallback",
    "sdpa_dense",
    "triton_kernel_wrapper_functional",
    "triton_kernel_wrapper_mutation",
]
