"""The scheduler's part: a flat list of passes like any family's, a short one."""

from __future__ import annotations

from collections.abc import Collection

from precast.lowering.analysis.dependencies import order_steps
from precast.lowering.options import LoweringOptions
from precast.lowering.passes.fusion.fusion import fuse_pointwise
from precast.lowering.passes.simplify.algebra import simplify
from precast.lowering.passes.simplify.name_kernels import name_kernels
from precast.lowering.targets.scheduling import Pass, Scheduling


def passes(target: str, options: LoweringOptions, bound: Collection[str] | None) -> list[tuple[str, Pass]]:
    return [("simplify", simplify), ("fuse pointwise", fuse_pointwise), ("order", order_steps), ("name kernels", name_kernels)]


TOY = Scheduling(passes)
