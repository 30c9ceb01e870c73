"""What a family of targets brings to the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from precast.lowering.analysis.buffer_bytes import ALIGNMENT
from precast.lowering.ir.nodes import Program
from precast.lowering.options import LoweringOptions

Pass = Callable[[Program], Program]


@dataclass(frozen=True)
class Scheduling:
    """`passes(target, options, bound)`: the passes in order, by name; `bound` names the inputs that are weights (None: every input)."""

    passes: Callable[[str, LoweringOptions, Collection[str] | None], list[tuple[str, Pass]]]
    alignment: int = ALIGNMENT
    """Bytes to whose multiples the places of temporaries in the workspace are aligned."""
