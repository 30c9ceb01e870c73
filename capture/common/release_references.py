"""Releases references to tensors after tracing: torch refuses to swap a tensor with weak references (`Module.to`, of tensor subclasses)."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

from torch.utils.weak import TensorWeakRef

from precast.capture.adapters.fake_tensors import MetaTensorDescriber, unset_fake_temporarily
from precast.capture.adapters.guards import TracingContext
from precast.capture.adapters.operators import PhiloxStateTracker
from precast.capture.common.patching import patched


@contextlib.contextmanager
def descriptions_forgotten() -> Iterator[None]:
    """What fake tensors were made from inside is forgotten at the end. It would be only when the garbage collector comes by: the tracer's
    objects, those of attempts that it gave up too, refer to one another.
    """
    with _made(MetaTensorDescriber) as describers:
        try:
            yield
        finally:
            for describer in _alive(describers):
                describer.lookup_tensor.clear()
                describer.lookup_storage.clear()


@contextlib.contextmanager
def guarded_tensors_forgotten() -> Iterator[None]:
    """What guards that were made inside are about is forgotten at the end, for the same reason."""
    with _made(TracingContext) as contexts:
        try:
            yield
        finally:
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

    with patched(cls, "__init__", noted):
        yield made


def _alive(references: list[weakref.ref[Any]]) -> Iterator[Any]:
    return (instance for reference in references if (instance := reference()) is not None)


def forget_random_state() -> None:
    """Drops the last random state that AOTAutograd keeps in a class: fake tensors whose mode refers to everything that was traced."""
    with unset_fake_temporarily():
        tracker: Any = PhiloxStateTracker
        tracker.reset()


__all__ = ["descriptions_forgotten", "forget_random_state", "guarded_tensors_forgotten"]
