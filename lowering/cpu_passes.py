"""The passes of a program for a CPU, in order."""

from __future__ import annotations

from collections.abc import Collection

from precast.lowering.attention import recognise_attention
from precast.lowering.batchnorm import fold_batch_norm
from precast.lowering.collapse import collapse_axes
from precast.lowering.constants import fold_constants
from precast.lowering.copies import forward_copies
from precast.lowering.dedupe import dedupe
from precast.lowering.epilogues import attach_epilogues
from precast.lowering.fusion import fuse, fuse_pointwise, fuse_siblings
from precast.lowering.in_place import write_in_place
from precast.lowering.invariants import hoist_invariants
from precast.lowering.layout_choice import channels_last_where_it_pays
from precast.lowering.merge_gemms import merge_gemms
from precast.lowering.name_kernels import name_kernels
from precast.lowering.options import LoweringOptions
from precast.lowering.order import order_steps
from precast.lowering.roundings import drop_roundings
from precast.lowering.scheduling import Pass, Scheduling
from precast.lowering.simplify import simplify
from precast.lowering.split import split_axes


def passes(target: str, options: LoweringOptions, bound: Collection[str] | None = None) -> list[tuple[str, Pass]]:
    """The passes for a CPU; `bound` names the inputs that are weights (None: every input)."""
    epilogues: list[tuple[str, Pass]] = [("epilogues", attach_epilogues)] if options.epilogue_fusion else []
    return [
        ("simplify", simplify),
        ("write in place", write_in_place),
        ("fold constants", fold_constants),
        ("fuse pointwise", fuse_pointwise),
        ("dedupe", dedupe),
        ("fold batch norm", fold_batch_norm(options.freeze, bound)),
        ("merge products", merge_gemms(options.freeze, bound)),
        ("forward copies", forward_copies),
        *epilogues,
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
    ]


CPU = Scheduling(passes)
