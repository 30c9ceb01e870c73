"""What sympy imports only when it is first asked to do something."""

from __future__ import annotations

import sympy


def import_what_comes_late() -> None:
    """For a compile in another thread: a process that forks while that thread imports has, in its child, modules that wait for ever."""
    # the first sum imports sympy.tensor and what that needs
    sympy.Add(sympy.Symbol("a"), sympy.Symbol("b"))  # type: ignore[no-untyped-call]


__all__ = ["import_what_comes_late"]
