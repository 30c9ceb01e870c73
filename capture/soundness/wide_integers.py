"""Integers of a call that vary are 64 bits wide in a graph; larger ones, which Python has too, are captured as constants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from precast.artifact_store.format.guards import Guard, Predicate
from precast.artifact_store.format.records import GraphInput
from precast.capture.adapters.guards import GuardBuilder
from precast.capture.adapters.variables import ConstantVariable, VariableBuilder, VariableTracker
from precast.capture.common.patching import patched

LARGEST = 2**63 - 1
"""Of magnitude, so that the absolute value has 64 bits too: -2**63 counts as larger."""


def within_64_bits(inputs: Sequence[GraphInput]) -> list[Guard]:
    """One guard per symbolic integer of the call (not for sizes, which fit)."""
    expression = ("<=", ("abs", ("int", 0)), LARGEST)
    numbers = (i.path for i in inputs if i.kind == "int" and i.read is None)
    return [Guard((("state",),), Predicate.SHAPE, {"expr": expression, "paths": (path,)}) for path in numbers]


@contextlib.contextmanager
def larger_are_constants() -> Iterator[None]:
    """While it lasts, Dynamo guards on the value of an integer that has more than 64 bits; a symbol of it raises OverflowError later."""
    original = VariableBuilder.wrap_symint

    def wrap_symint(self: VariableBuilder, value: int, *args: Any, **kwargs: Any) -> VariableTracker:
        if abs(value) <= LARGEST:
            return original(self, value, *args, **kwargs)
        self.install_guards(GuardBuilder.CONSTANT_MATCH)
        return ConstantVariable.create(value=value, source=self.source)

    with patched(VariableBuilder, "wrap_symint", wrap_symint):
        yield
