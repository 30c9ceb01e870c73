"""Releases references to tensors after tracing: torch refuses to swap a tensor with weak references (`Module.to`, of tensor subclasses)."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch._decomp.decompositions_for_rng import PhiloxStateTracker
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch._subclasses.meta_utils import MetaTensorDescriber
from torch.utils.weak import TensorWeakRef


@contextlib.contextmanager
def tensors_let_go() -> Iterator[None]:
    """A context that at its end clears the references from fake tensors and guards to the tensors that they were made from. Otherwise they
    live until a garbage collection, as the tracer's objects, those of abandoned attempts included, are in reference cycles.
    """
    with _made(MetaTensorDescriber) as describers, _made(TracingContext) as contexts:
        try:
            yield
        finally:
            for describer in _alive(describers):
                describer.lookup_tensor.clear()
                describer.lookup_storage.clear()
            for context in _alive(contexts):
                context.tensor_to_context.clear()
                for guard in context.guards_context.dynamo_guards.inner:
                    _forget_tensor(guard.create_fn)


def _forget_tensor(create: Any) -> None:
    """Drops the tensor that a guard's creation closure holds."""
    if isinstance(create, functools.partial):
        for name in [name for name, value in create.keywords.items() if isinstance(value, TensorWeakRef)]:
            del create.keywords[name]


@contextlib.contextmanager
def _made(cls: Any) -> Iterator[list[weakref.ref[Any]]]:
    """A list that collects weak references to the instances of a class that are made inside."""
    made: list[weakref.ref[Any]] = []
    original = cls.__init__

    def noted(self: Any, *args: Any, **given: Any) -> None:
        original(self, *args, **given)
        made.append(weakref.ref(self))

    with mock.patch.object(cls, "__init__", noted):
        yield made


def _alive(references: list[weakref.ref[Any]]) -> Iterator[Any]:
    return (instance for reference in references if (instance := reference()) is not None)


def forget_random_state() -> None:
    """Drops the last random state that AOTAutograd keeps in a class: fake tensors whose mode refers to everything that was traced."""
    with unset_fake_temporarily():
        tracker: Any = PhiloxStateTracker
        tracker.reset()


__all__ = ["forget_random_state", "tensors_let_go"]
