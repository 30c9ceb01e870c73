"""Steps of a program as what really runs: kernels, extern calls, and library calls with a chosen implementation."""

from __future__ import annotations

from dataclasses import dataclass

from precast.lowering.ir.nodes import Attention, Conv, Extern, Gemm, Kernel, View


@dataclass(frozen=True)
class LibraryCall:
    """`step` run by library `how`; what it does not take (activation, residual) was split off into a kernel that follows."""

    step: Gemm | Conv | Attention
    how: str
    """Each target has its own closed set of names: `cpu.select_library.How`, `cuda.select_library.How`."""
    packed: int | None = None
    """Number of the (first) prepared weight in the library's own layout that takes the place of the ordinary one (under `freeze`)."""
    over: bool = False
    """The result is written over the residual, which dies with this call (only oneDNN's convolution does so)."""

    @property
    def out(self) -> str:
        return self.step.out


@dataclass(frozen=True)
class Pack:
    """A copy of a weight in its library's own layout, made once per binding of the weights, for `step`."""

    step: Gemm | Conv


RunStep = Kernel | Extern | LibraryCall


def attention_call(step: Attention) -> Extern:
    """Attention as torch's own operator, which picks its backend when it runs."""
    grouped = step.q.size[1] != step.k.size[1]
    kwargs: tuple[tuple[str, object], ...] = (
        ("attn_mask", step.mask),
        ("is_causal", step.causal),
        ("scale", step.scale),
        ("enable_gqa", grouped),
    )
    return Extern("aten::scaled_dot_product_attention", (step.q, step.k, step.v), kwargs, (step.out,), origins=step.origins)


def views_of(step: RunStep) -> list[View]:
    """Operand views of a library call."""
    if not isinstance(step, LibraryCall):
        return []
    match step.step:
        case Gemm() as s:
            found = (s.a, s.b, s.bias, s.residual)
        case Conv() as s:
            found = (s.x, s.weight, s.bias, s.residual)
        case Attention() as s:
            found = (s.q, s.k, s.v, s.mask)
    return [v for v in found if v is not None]


def weight_view(step: Gemm | Conv) -> View:
    """The weight as oneDNN takes it: [N, K] of a product, [O, I, …] of a convolution."""
    if isinstance(step, Conv):
        return step.weight
    return View(step.b.buffer, step.b.size[::-1], step.b.stride[::-1], step.b.offset, step.b.dtype)
