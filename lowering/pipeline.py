"""The scheduler: an unscheduled `Program` becomes a fused, laid out and planned one, by a flat list of named passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from precast.lowering.analysis.dependencies import order_steps
from precast.lowering.ir.nodes import Kernel, Program, Step
from precast.lowering.passes.fusion.epilogue_fusion import attach_epilogues
from precast.lowering.passes.fusion.fusion import fuse, fuse_pointwise, fuse_siblings
from precast.lowering.passes.gpu.attention_layout import heads_of_a_row_together
from precast.lowering.passes.gpu.batch_kernels import gpu_batches
from precast.lowering.passes.gpu.concat_in_place import share_joins
from precast.lowering.passes.gpu.conv_bias_and_layout import conv_biases, weights_channels_last
from precast.lowering.passes.gpu.gemv_as_reduction import vector_products
from precast.lowering.passes.gpu.library_epilogues import attach_gpu_epilogues
from precast.lowering.passes.gpu.matmul_template_fusion import products_in_kernels
from precast.lowering.passes.gpu.pad_matmul_rows import roomy_rows
from precast.lowering.passes.gpu.patch_conv_as_matmul import is_patch, patches_as_products
from precast.lowering.passes.gpu.prologue_kernels_first import small_kernels_first
from precast.lowering.passes.gpu.skinny_matmul_rule import SHALLOW
from precast.lowering.passes.gpu.space_to_depth import space_to_depth
from precast.lowering.passes.gpu.split_reductions import gpu_reductions
from precast.lowering.passes.gpu.weight_only_quant_matmul import narrow_products
from precast.lowering.passes.layout.channels_last import channels_last
from precast.lowering.passes.layout.layout_assignment import channels_last_where_it_pays
from precast.lowering.passes.memory.memory_plan import DEVICE_ALIGNMENT, plan_memory
from precast.lowering.passes.simplify.algebra import simplify
from precast.lowering.passes.simplify.collapse_axes import collapse_axes
from precast.lowering.passes.simplify.constant_fold import fold_constants
from precast.lowering.passes.simplify.cse_kernels import dedupe
from precast.lowering.passes.simplify.drop_roundings import drop_roundings
from precast.lowering.passes.simplify.fold_batch_norm import fold_batch_norm
from precast.lowering.passes.simplify.forward_copies import forward_copies
from precast.lowering.passes.simplify.hoist_invariants import hoist_invariants
from precast.lowering.passes.simplify.in_place import write_in_place
from precast.lowering.passes.simplify.merge_matmuls import merge_gemms
from precast.lowering.passes.simplify.recognise_attention import recognise_attention
from precast.lowering.passes.simplify.split_axes import split_axes
from precast.lowering.verify.verify import verify

Pass = Callable[[Program], Program]


def passes(target: str, options: Mapping[str, Any]) -> list[tuple[str, Pass]]:
    """The passes in order, by name. `target` as in `cpu:x86-64-v3`; `options["freeze"]` allows copies of weights, which are
    the inputs that `options["bound"]` names (default: every input); `options["epilogue_fusion"]` is on unless it is False.
    """
    if target.startswith("cuda"):
        return gpu_passes(options)
    freeze, bound = bool(options.get("freeze")), options.get("bound")
    epilogues = options.get("epilogue_fusion", True)
    return [
        ("simplify", simplify),
        ("write in place", write_in_place),
        ("fold constants", fold_constants),
        ("fuse pointwise", fuse_pointwise),
        ("dedupe", dedupe),
        ("fold batch norm", fold_batch_norm(freeze, bound)),
        ("merge products", merge_gemms(freeze, bound)),
        ("forward copies", forward_copies),
        ("epilogues", attach_epilogues if epilogues else unchanged),
        ("channels last", channels_last_where_it_pays),
        ("fuse", fuse),
        ("drop roundings", drop_roundings),
        ("split axes", split_axes),
        ("recognise attention", recognise_attention),
        ("fuse siblings", fuse_siblings),
        ("hoist invariants", hoist_invariants),
        ("collapse axes", collapse_axes),
        ("order", order_steps),
        ("name kernels", name_kernels),
        ("plan memory", plan_memory),
    ]


def gpu_passes(options: Mapping[str, Any]) -> list[tuple[str, Pass]]:
    """The same for a GPU: convolutions in channels-last, and the epilogues of its libraries. `options["products"]` says which products are
    kernels of ours (`gpu_products.Decides`; default: the rule of `skinny_matmul_rule.py`).
    """
    freeze, bound = bool(options.get("freeze")), options.get("bound")
    epilogues = options.get("epilogue_fusion", True)
    return [
        ("simplify", simplify),
        ("write in place", write_in_place),
        ("fold constants", fold_constants),
        ("stem", space_to_depth),
        ("fuse pointwise", fuse_pointwise),
        ("dedupe", dedupe),
        ("fold batch norm", fold_batch_norm(freeze, bound, gpu=True)),
        ("merge products", merge_gemms(freeze, bound)),
        ("forward copies", forward_copies),
        ("vector products", vector_products),
        ("narrow weights", narrow_products),
        ("epilogues", attach_gpu_epilogues if epilogues else unchanged),
        ("roomy rows", roomy_rows),
        ("convolution biases", conv_biases),
        ("weights channels last", weights_channels_last(freeze, bound)),
        ("channels last", partial(channels_last, as_it_is=is_patch)),
        ("patches as products", patches_as_products),
        ("joins share", share_joins),
        ("fuse", fuse),
        ("drop roundings", drop_roundings),
        ("split axes", split_axes),
        ("recognise attention", recognise_attention),
        ("heads of a row together", heads_of_a_row_together),
        ("fuse siblings", partial(fuse_siblings, launches=True)),
        ("hoist invariants", hoist_invariants),
        ("products in kernels", partial(products_in_kernels, decides=options.get("products", SHALLOW)) if epilogues else unchanged),
        ("gpu reductions", gpu_reductions),
        ("collapse axes", collapse_axes),
        ("order", order_steps),
        ("small kernels first", small_kernels_first),
        ("gpu batches", gpu_batches),
        ("name kernels", name_kernels),
        ("plan memory", partial(plan_memory, alignment=DEVICE_ALIGNMENT)),
    ]


def name_kernels(program: Program) -> Program:
    """Numbers the kernels in order, so that names are unique and do not depend on what was fused away."""
    names = (f"kernel{n}" for n in count())

    def named(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(replace(s, name=next(names)) if isinstance(s, Kernel) else s for s in steps)

    return replace(program, prepare=named(program.prepare), steps=named(program.steps))


def unchanged(program: Program) -> Program:
    """Stands for a pass that this target, or an option, does not want."""
    return program


def schedule(
    program: Program,
    target: str,
    options: Mapping[str, Any] | None = None,
    *,
    check: bool = False,
    trace: Callable[[str, Program], None] | None = None,
) -> Program:
    """The scheduled program. With `check` each pass's result is verified; `trace` sees the program after each pass."""
    for name, run in passes(target, options or {}):
        program = run(program)
        if check:
            verify(program, name)
        if trace is not None:
            trace(name, program)
    return program
