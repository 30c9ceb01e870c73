"""What a family of targets brings to the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from precast.lowering.ir import Program

Pass = Callable[[Program], Program]


@dataclass(frozen=True)
class Scheduling:
    """`passes(options)`: the passes in order, by name."""

    passes: Callable[[Mapping[str, Any]], list[tuple[str, Pass]]]


def unchanged(program: Program) -> Program:
    """Stands for a pass that this target, or an option, does not want."""
    return program
