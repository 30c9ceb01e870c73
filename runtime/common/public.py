"""Public classes belong to the module `precast`, wherever their file is."""

from __future__ import annotations

from typing import TypeVar

C = TypeVar("C", bound=type)


def public(cls: C) -> C:
    """A decorator of classes that users meet: tracebacks, pickles and messages name them as `precast.X`, which `precast` resolves."""
    cls.__module__ = "precast"
    return cls


__all__ = ["public"]
