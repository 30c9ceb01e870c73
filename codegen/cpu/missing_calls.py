"""Library calls whose C function the torch at hand lacks: oneDNN is not asked, and the rest goes through the operators of ATen."""

from __future__ import annotations

from collections.abc import Sequence

from precast.codegen.common.library_steps import LibraryCall, RunStep, attention_call
from precast.lowering.ir.nodes import Attention, Conv, Extern, Gemm

ONEDNN = frozenset(
    {
        "aoti_torch_cpu__linear_pointwise",
        "aoti_torch_cpu__linear_pointwise_binary",
        "aoti_torch_cpu_mkldnn__convolution_pointwise",
        "aoti_torch_cpu_mkldnn__convolution_pointwise_binary",
        "aoti_torch_cpu_mkldnn__convolution_pointwise_binary_",
        "mkldnn::_reorder_linear_weight",
        "mkldnn::_reorder_convolution_weight",
    }
)
"""What calls of oneDNN need: C functions, and operators that pack weights. Where one is missing none is made."""
ATEN = frozenset({f"aoti_torch_cpu_{name}" for name in ("mm_out", "bmm_out", "addmm_out", "baddbmm_out", "convolution")})
FLASH = "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu"


def without_missing(steps: Sequence[RunStep], missing: frozenset[str]) -> list[RunStep]:
    """The same steps; a library call that cannot be made is its operator of ATen, which torch's dispatcher calls."""
    return [_as_operator(step) if isinstance(step, LibraryCall) and _needs(step) & missing else step for step in steps]


def _needs(call: LibraryCall) -> frozenset[str]:
    match call.step:
        case Gemm() as step if call.how == "aten":
            batched = len(step.a.size) == 3
            product = ("bmm" if batched else "mm") if step.bias is None else ("baddbmm" if batched else "addmm")
            return frozenset({f"aoti_torch_cpu_{product}_out"})
        case Conv() if call.how == "aten":
            return frozenset({"aoti_torch_cpu_convolution"})
        case Attention() if call.how == "flash":
            return frozenset({FLASH})
    return frozenset()


def _as_operator(call: LibraryCall) -> RunStep:
    match call.step:
        case Gemm() as step:
            batched = "b" if len(step.a.size) == 3 else ""
            if step.bias is None:
                return Extern(f"aten::{batched}mm", (step.a, step.b), (), (step.out,))
            return Extern("aten::baddbmm" if batched else "aten::addmm", (step.bias, step.a, step.b), (), (step.out,))
        case Conv() as step:
            spread = (step.stride, step.padding, step.dilation)
            output_padding = step.output_padding or (0,) * len(step.stride)
            args = (step.x, step.weight, step.bias, *spread, step.transposed, output_padding, step.groups)
            return Extern("aten::convolution", args, (), (step.out,))
        case Attention() as step:
            return attention_call(step)


__all__ = ["ATEN", "FLASH", "ONEDNN", "without_missing"]
