"""The passes of a program for a CPU, in order."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from precast.lowering.analysis.dependencies import order_steps
from precast.lowering.options import LoweringOptions
from precast.lowering.passes.fusion.column_sums import join_column_sums
from precast.lowering.passes.fusion.epilogue_fusion import attach_epilogues
from precast.lowering.passes.fusion.fusion import CPU_GATHER, fuse, fuse_pointwise, fuse_siblings
from precast.lowering.passes.layout.fold_padding import fold_padding, pad_again
from precast.lowering.passes.layout.layout_assignment import channels_last_where_it_pays
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


def passes(target: str, options: LoweringOptions, bound: Collection[str] | None = None) -> list[tuple[str, Pass]]:
    """The passes for a CPU; `bound` names the inputs that are weights (None: every input)."""
    epilogues: list[tuple[str, Pass]] = [("epilogues", attach_epilogues)] if options.epilogue_fusion else []
    updates: list[tuple[str, Pass]] = [("one update kernel", one_update_kernel)] if options.updates else []
    return [
        ("simplify", simplify),
        *updates,
        ("write in place", write_in_place),
        ("fold constants", fold_constants),
        ("fold padding", fold_padding),
        ("fuse pointwise", partial(fuse_pointwise, gather_cost=CPU_GATHER)),
        ("dedupe", dedupe),
        ("fold batch norm", fold_batch_norm(options.freeze, bound)),
        ("merge products", merge_gemms(options.freeze, bound)),
        ("forward copies", forward_copies),
        *epilogues,
        ("channels last", channels_last_where_it_pays),
        ("pad again", pad_again),
        ("fuse", partial(fuse, rows_in_points=True, gather_cost=CPU_GATHER)),
        ("one-hot sums", one_hot_sums),
        ("drop roundings", drop_roundings),
        ("split axes", partial(split_axes, positions=True)),
        ("recognise attention", recognise_attention),
        ("fuse siblings", partial(fuse_siblings, growth=options.memory_growth / 2)),
        ("hoist invariants", partial(hoist_invariants, growth=options.memory_growth / 2)),
        ("column sums", join_column_sums),
        ("collapse axes", collapse_axes),
        ("order", order_steps),
        ("name kernels", name_kernels),
    ]


CPU = Scheduling(passes)
