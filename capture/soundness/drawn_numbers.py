"""Numbers that a traced function draws from Python's `random` are traced with the dtype that eager gives to a number: the default dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from precast.capture.adapters.guards import RandomValueSource
from precast.capture.adapters.variables import VariableBuilder, VariableTracker
from precast.capture.common.patching import patched


@contextlib.contextmanager
def drawn_in_default_dtype() -> Iterator[None]:
    """While it lasts, Dynamo's stand-in of a drawn float has the default dtype, as it had before torch 2.15: there it is of float64,
    and what is computed with it (of integers, or of tensors without dimensions) is of float64 too, which eager's result is not.
    The runtime hands drawn floats over in the default dtype (`with_draws_as_traced`)."""
    original = VariableBuilder.wrap_unspecialized_primitive

    def wrap_unspecialized_primitive(self: VariableBuilder, value: Any) -> VariableTracker:
        if not isinstance(value, float) or not isinstance(self.source, RandomValueSource):
            return original(self, value)
        with patched(torch, "_as_tensor_fullprec", torch.tensor):
            return original(self, value)

    with patched(VariableBuilder, "wrap_unspecialized_primitive", wrap_unspecialized_primitive):
        yield
