"""What is imported only when a compile gets there: the passes of a target, and parts of sympy."""

from __future__ import annotations

import sympy

from precast.lowering.pipeline import scheduling_of


def import_what_comes_late(target: str) -> None:
    """For a compile in another thread: a process that forks while that thread imports has, in its child, modules that wait for ever."""
    scheduling_of(target)
    # the first sum imports sympy.tensor and what that needs
    sympy.Add(sympy.Symbol("a"), sympy.Symbol("b"))  # type: ignore[no-untyped-call]


__all__ = ["import_what_comes_late"]
