"""The scheduler: an unscheduled `Program` becomes a fused, laid out and planned one, by a flat list of named passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from precast.lowering.attention import recognise_attention
from precast.lowering.batchnorm import fold_batch_norm
from precast.lowering.collapse import collapse_axes
from precast.lowering.constants import fold_constants
from precast.lowering.copies import forward_copies
from precast.lowering.dedupe import dedupe
from precast.lowering.epilogues import attach_epilogues
from precast.lowering.fusion import fuse, fuse_pointwise, fuse_siblings
from precast.lowering.invariants import hoist_invariants
from precast.lowering.ir import Kernel, Program, Step
from precast.lowering.layout import channels_last
from precast.lowering.memory import plan_memory
from precast.lowering.merge_gemms import merge_gemms
from precast.lowering.order import order_steps
from precast.lowering.simplify import simplify
from precast.lowering.split import split_axes
from precast.lowering.verify import verify

Pass = Callable[[Program], Program]


def passes(target: str, options: Mapping[str, Any]) -> list[tuple[str, Pass]]:
    """The passes in order, by name. `target` as in `cpu:x86-64-v3`; `options["freeze"]` allows copies of weights, which are
    the inputs that `options["bound"]` names (default: every input); `options["epilogue_fusion"]` is on unless it is False.
    """
    freeze, bound = bool(options.get("freeze")), options.get("bound")
    epilogues = options.get("epilogue_fusion", True)
    return [
        ("simplify", simplify),
        ("fold constants", fold_constants),
        ("fuse pointwise", fuse_pointwise),
        ("dedupe", dedupe),
        ("fold batch norm", fold_batch_norm(freeze, bound)),
        ("merge products", merge_gemms(freeze, bound)),
        ("forward copies", forward_copies),
        ("epilogues", attach_epilogues if epilogues else unchanged),
        ("channels last", channels_last if target.startswith("cpu") else unchanged),
        ("fuse", fuse),
        ("split axes", split_axes),
        ("recognise attention", recognise_attention),
        ("fuse siblings", fuse_siblings),
        ("hoist invariants", hoist_invariants),
        ("collapse axes", collapse_axes),
        ("order", order_steps),
        ("name kernels", name_kernels),
        ("plan memory", plan_memory),
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
