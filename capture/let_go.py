"""Tracing leaves no references to the tensors that it saw: torch refuses to swap a tensor that has any (`Module.to`, of subclasses)."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch._decomp.decompositions_for_rng import PhiloxStateTracker
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch._subclasses.meta_utils import MetaTensorDescriber


@contextlib.contextmanager
def tensors_let_go() -> Iterator[None]:
    """What fake tensors were made from inside is forgotten at the end. It would be only when the garbage collector comes by: the tracer's
    objects, those of attempts that it gave up too, refer to one another.
    """
    made: list[weakref.ref[Any]] = []
    original = MetaTensorDescriber.__init__

    def noted(self: MetaTensorDescriber, **given: Any) -> None:
        original(self, **given)
        made.append(weakref.ref(self))

    try:
        with mock.patch.object(MetaTensorDescriber, "__init__", noted):
            yield
    finally:
        for describer in (reference() for reference in made):
            if describer is not None:
                describer.lookup_tensor.clear()
                describer.lookup_storage.clear()


def forget_random_state() -> None:
    """AOTAutograd keeps the last state of random numbers in a class: fake tensors, whose mode knows all that was traced."""
    with unset_fake_temporarily():
        tracker: Any = PhiloxStateTracker
        tracker.reset()


__all__ = ["forget_random_state", "tensors_let_go"]
