"""Looking on while something compiles: `precast.explain` and `precast tune` learn from compiles that they start what is in them.

Who looks on is a context variable: an observer is shown what its own thread (or task) compiles inside of `watch`, and nothing of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, ParamSpec

from precast.capture import CapturedFrame, CaptureRefused
from precast.lowering.ir import nodes
from precast.lowering.options import LoweringOptions
from precast.runtime.programs.program import Program

P = ParamSpec("P")


class Observers(Generic[P]):
    """Those who look on at one stage of compiling."""

    def __init__(self, stage: str) -> None:
        self._observers: ContextVar[tuple[Callable[P, None], ...]] = ContextVar(stage, default=())

    @contextmanager
    def watch(self, observer: Callable[P, None]) -> Iterator[None]:
        """`observer` is called for each compile of the body."""
        token = self._observers.set((*self._observers.get(), observer))
        try:
            yield
        finally:
            self._observers.reset(token)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Show it to those who look on."""
        for observer in self._observers.get():
            observer(*args, **kwargs)


captures: Observers[[Program, CapturedFrame | CaptureRefused]] = Observers("precast captures")
"""Shown what came of each capture of a program's call."""
lowerings: Observers[[nodes.Program, str, LoweringOptions, tuple[str, ...]]] = Observers("precast lowerings")
"""Shown each lowered program before it is scheduled, with its target, its options and the names of its weights."""

__all__ = ["Observers", "captures", "lowerings"]
