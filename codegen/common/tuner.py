"""What a family whose choices `precast tune` can measure brings to code generation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from precast.codegen.common.measure import Record
from precast.lowering.ir.nodes import Program
from precast.lowering.options import LoweringOptions


class Problem(Protocol):
    """One question that compiling a program asks: which of several ways to the same results is the fastest."""

    @property
    def key(self) -> str:
        """The same on every machine: under it the answer is kept."""
        ...

    @property
    def default(self) -> str:
        """The way that is taken where nothing was measured."""
        ...

    @property
    def library(self) -> Sequence[object]:
        """Steps of the way that calls a library, where that is one of the ways; what those steps ask is to be measured before."""
        ...

    def accepts(self, winner: str) -> bool:
        """Whether a record with this winner answers the question."""
        ...


Answer = Callable[[Any], Record | None]
"""Given one of the family's problems, its record; None where there is none."""


class Tuner(Protocol):
    def ask(self, program: Program, target: str, options: LoweringOptions, bound: Collection[str] | None, answer: Answer) -> None:
        """Puts every question to `answer` that scheduling and compiling the program would ask, and compiles nothing."""
        ...

    def lab(self, target: str) -> Answer:
        """What answers by measuring on this machine's device. Raises RuntimeError where that does not run the target."""
        ...


__all__ = ["Answer", "Problem", "Tuner"]
