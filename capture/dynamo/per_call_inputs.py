"""Which of a graph's inputs the rewritten bytecode passes: those that come fresh with each call, and cannot be read off another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from precast.capture.adapters.dynamo import OutputGraph, PyCodegen
from precast.capture.adapters.guards import TensorProperty, TensorPropertySource
from precast.capture.common.patching import patched
from precast.capture.graph.symbolic_floats import is_float

_PROPERTIES = {TensorProperty.SIZE: "size", TensorProperty.STRIDE: "stride", TensorProperty.STORAGE_OFFSET: "offset"}


def read_off(argument: Any, every: Sequence[Any]) -> tuple[Any, ...] | None:
    """Where a number among the graph's inputs is read, if it is a property of a tensor that is an input too (GraphInput.read)."""
    source = argument.source
    if not isinstance(source, TensorPropertySource):
        return None
    k = next((i for i, other in enumerate(every) if other.is_tensor and other.source == source.base), None)
    if k is None:
        return None
    return (_PROPERTIES[source.prop], k) if source.idx is None else (_PROPERTIES[source.prop], k, source.idx)


@contextlib.contextmanager
def per_call_arguments(is_bound: Callable[[Any], bool]) -> Iterator[None]:
    """While Dynamo writes the call of a graph, `OutputGraph.graphargs` shows just these.

    `is_bound`: does this source stay out of the call?
    """
    graphargs: Any = OutputGraph.graphargs
    original = PyCodegen.make_call_generated_code

    def make_call_generated_code(self: PyCodegen, fn_name: str) -> None:
        every = graphargs.fget(self.tx.output)
        kept = [_as_it_is(a) for a in every if not is_bound(a.source) and read_off(a, every) is None]
        with patched(OutputGraph, "graphargs", property(lambda _: kept)):
            original(self, fn_name)

    with patched(PyCodegen, "make_call_generated_code", make_call_generated_code):
        yield


def _as_it_is(argument: Any) -> Any:
    return replace(argument, pass_arg_as_tensor=False) if is_float(argument) else argument


__all__ = ["per_call_arguments", "read_off"]
