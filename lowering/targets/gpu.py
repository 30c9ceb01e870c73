"""The passes of a program for a GPU, in order."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from precast.lowering.analysis.buffer_bytes import DEVICE_ALIGNMENT
from precast.lowering.analysis.dependencies import order_steps
from precast.lowering.analysis.traits import traits_of
from precast.lowering.options import LoweringOptions
from precast.lowering.passes.fusion.fuse_rows import fuse_rows
from precast.lowering.passes.fusion.fusion import fuse, fuse_pointwise, fuse_results, fuse_siblings
from precast.lowering.passes.fusion.join_parts import join_parts
from precast.lowering.passes.gpu.attention_layout import heads_of_a_row_together
from precast.lowering.passes.gpu.batch_kernels import gpu_batches
from precast.lowering.passes.gpu.concat_in_place import share_joins
from precast.lowering.passes.gpu.convolutions.conv_bias_and_layout import conv_biases, images_channels_last, weights_channels_last
from precast.lowering.passes.gpu.convolutions.depthwise_conv import depthwise_convolutions
from precast.lowering.passes.gpu.convolutions.patch_conv_as_matmul import patches_as_products
from precast.lowering.passes.gpu.convolutions.space_to_depth import space_to_depth
from precast.lowering.passes.gpu.gemv_as_reduction import vector_products
from precast.lowering.passes.gpu.library_epilogues import attach_gpu_epilogues
from precast.lowering.passes.gpu.order_axes import reduced_axes_in_memory_order
from precast.lowering.passes.gpu.pad_matmul_rows import roomy_rows
from precast.lowering.passes.gpu.prologue_kernels_first import small_kernels_first
from precast.lowering.passes.gpu.skinny_matmul_rule import shallow_products
from precast.lowering.passes.gpu.split_reductions import gpu_reductions
from precast.lowering.passes.gpu.spread_updates import spread_updates
from precast.lowering.passes.gpu.weight_only_quant_matmul import narrow_products
from precast.lowering.passes.layout.innermost_dimension import innermost_dimensions
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
from precast.lowering.passes.simplify.name_kernels import name_kernels
from precast.lowering.passes.simplify.one_hot_sums import one_hot_sums
from precast.lowering.passes.simplify.one_update_kernel import one_update_kernel
from precast.lowering.passes.simplify.recognise_attention import recognise_attention
from precast.lowering.passes.simplify.split_axes import split_axes
from precast.lowering.targets.scheduling import Pass, Scheduling

GROWING = 5
"""How many passes may raise the peak of memory: each by an equal part of what the option allows."""


def passes(target: str, options: LoweringOptions, bound: Collection[str] | None = None) -> list[tuple[str, Pass]]:
    """The passes for a GPU; `bound` names the inputs that are weights (None: every input). A backend that measures which products are
    better made by kernels of ours has a pass of its own for "products in kernels".
    """
    traits = traits_of(target)
    growth = options.memory_growth / GROWING
    epilogues: list[tuple[str, Pass]] = []
    products: list[tuple[str, Pass]] = []
    updates: list[tuple[str, Pass]] = [("one update kernel", one_update_kernel)] if options.updates else []
    if options.epilogue_fusion:
        epilogues = [("epilogues", attach_gpu_epilogues)]
        products = [("products in kernels", partial(shallow_products, traits=traits))]
    return [
        ("simplify", simplify),
        *updates,
        ("write in place", write_in_place),
        ("fold constants", fold_constants),
        ("stem", space_to_depth),
        ("fuse pointwise", fuse_pointwise),
        ("dedupe", dedupe),
        ("fold batch norm", fold_batch_norm(options.freeze, bound, gpu=True)),
        ("merge products", merge_gemms(options.freeze, bound)),
        ("forward copies", forward_copies),
        ("vector products", partial(vector_products, traits=traits)),
        ("narrow weights", partial(narrow_products, traits=traits)),
        *epilogues,
        ("roomy rows", partial(roomy_rows, traits=traits)),
        ("depthwise convolutions", depthwise_convolutions),
        ("convolution biases", conv_biases),
        ("weights channels last", weights_channels_last(options.freeze, bound)),
        ("channels last", images_channels_last),
        ("patches as products", patches_as_products),
        ("joins share", partial(share_joins, growth=growth)),
        ("updates spread", partial(spread_updates, traits=traits)),
        ("fuse", fuse),
        ("one-hot sums", one_hot_sums),
        ("drop roundings", drop_roundings),
        ("split axes", split_axes),
        ("fuse split axes", fuse_rows),
        ("recognise attention", recognise_attention),
        ("heads of a row together", heads_of_a_row_together),
        ("join parts", join_parts),
        ("fuse siblings", partial(fuse_siblings, growth=growth, launches=True)),
        ("hoist invariants", partial(hoist_invariants, growth=growth)),
        ("innermost dimensions", partial(innermost_dimensions, traits=traits)),
        *products,
        ("reductions along memory", reduced_axes_in_memory_order),
        ("gpu reductions", partial(gpu_reductions, traits=traits)),
        ("fuse results", fuse_results),
        ("collapse axes", collapse_axes),
        ("order", order_steps),
        ("small kernels first", partial(small_kernels_first, traits=traits, growth=growth)),
        ("gpu batches", partial(gpu_batches, traits=traits, growth=growth)),
        ("name kernels", name_kernels),
    ]


GPU = Scheduling(passes, DEVICE_ALIGNMENT)
