"""Graph callables: what the rewritten bytecode of a frame calls with its per-call inputs.

Parameters and buffers are bound: fetched once by path and kept until the dispatcher sees their owner change. This file holds the pure
Python (ctypes) form; `runtime/native` holds the fast one. Both run the same `precast_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from precast.artifact_store.format.records import GraphInput
from precast.runtime.common.locks import Lock
from precast.runtime.executable.calling_convention import GraphSpec, delete_handles, graph_inputs, input_words, run_library
from precast.runtime.executable.library import Library
from precast.runtime.native import loader as native_runtime


class PythonGraphCall:
    """A graph callable by ctypes: works without the native runtime, at about 20 us plus 1 us per tensor."""

    __slots__ = ("_lock", "_prepared", "_stamp", "bound", "library", "spec")

    def __init__(self, library: Library, spec: GraphSpec, bound: Sequence[torch.Tensor]) -> None:
        self.library = library
        self.spec = spec
        self.bound = tuple(bound)
        self._lock = Lock()
        self._stamp: tuple[Any, ...] | None = None
        self._prepared = Prepared(library, 0)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return self.into((), *args)

    def into(self, homes: Sequence[torch.Tensor | None], *args: Any) -> tuple[Any, ...]:
        """The same, with raw outputs written into the tensors that are given, where the library lends itself to it (`Library.lent`)."""
        values = graph_inputs(self.spec.inputs, self.bound, args)
        prepared = self._prepare(values) if self.library.prepare else self._prepared
        raw = run_library(self.library, self.spec, values, prepared.state, homes)
        return raw if self.spec.finish is None else self.spec.finish(raw, values)

    def consume(self, given: list[Any]) -> tuple[Any, ...]:
        """Calls with the arguments of a list, which is emptied first: what nobody else holds is freed after its last use."""
        values = graph_inputs(self.spec.inputs, self.bound, given)
        given.clear()
        prepared = self._prepare(values) if self.library.prepare else self._prepared
        return run_library(self.library, self.spec, values, prepared.state, consumed=True)

    def each(self, rows: int, *columns: Any) -> None:
        """Calls for a number of rows: an argument is a tuple with one value a row, or what all rows get. The graph has no outputs."""
        for row in range(rows):
            self(*(column[row] if isinstance(column, tuple) else column for column in columns))

    def _prepare(self, values: Sequence[Any]) -> Prepared:
        """The prepared weights, made anew when the storage or version of one that the graph only reads changed."""
        stamp = weights_stamp(self.spec.lasting(self.bound))
        with self._lock:
            if stamp != self._stamp:
                inputs, handles = input_words(self.spec, values)
                try:
                    self._prepared = Prepared(self.library, self.library.prepare_state(inputs, self.spec.inputs))
                finally:
                    delete_handles(handles)
                self._stamp = stamp
            return self._prepared


def weights_stamp(weights: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Another one whenever a tensor's storage or version is another one."""
    return tuple((id(t), t.untyped_storage()._cdata, 0 if t.is_inference() else t._version) for t in weights)


class Prepared:
    """A library's prepared state, released when the last call that uses it is done."""

    def __init__(self, library: Library, state: int) -> None:
        self.library = library
        self.state = state

    def __del__(self) -> None:
        self.library.release_state(self.state)


def graph_call(library: Library, spec: GraphSpec, bound: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """The fastest graph callable that there is here."""
    native = native_runtime.loaded()
    if native is None:
        return PythonGraphCall(library, spec, bound)
    ours = sorted(zip(spec.bound_positions, bound, strict=True), key=lambda item: spec.inputs[item[0]].mutated)
    numbers = {position: -1 - i for i, (position, _) in enumerate(ours)}
    sources = tuple(numbers[i] if i in numbers else item.position if item.read is None else item.read for i, item in enumerate(spec.inputs))
    kinds = "".join({"int": "i", "float": "f"}.get(item.kind, "t") for item in spec.inputs)
    addresses = (library.run, library.prepare, library.release, library.table)
    given = (tuple(tensor for _, tensor in ours), len(spec.lasting(bound)))
    call: Callable[..., Any] = native.GraphCall(
        *addresses, sources, kinds, spec.raw_kinds, *given, spec.finish, library, spec.inputs, library.frees
    )
    if (
        library.uses_threads and not torch.are_deterministic_algorithms_enabled()
    ):  # libraries may round otherwise on another number of threads
        call.adapt_threads()  # type: ignore[attr-defined]
    if library.run_rows:
        call.rows_by(library.run_rows)  # type: ignore[attr-defined]
    return call


def bound_call(graph: Callable[..., Any], spec: GraphSpec, bound: Sequence[Any]) -> Callable[..., Any]:
    """`graph`, which takes every graph input, as a callable of the per-call inputs only."""
    if not spec.bound_positions and all(item.read is None for item in spec.inputs):
        return lambda *args: tuple(graph(*args))
    return lambda *args: tuple(graph(*graph_inputs(spec.inputs, bound, args)))


def with_draws_as_traced(graph: Callable[..., Any], inputs: Sequence[GraphInput]) -> Callable[..., Any]:
    """`graph`, given the numbers that the bytecode draws from Python's `random` in the dtype that they were traced with.

    The bytecode makes a float a float64 tensor, and Dynamo traces with one of the default dtype.
    """
    drawn = {item.position for item in inputs if item.path[0][0] == "random"}
    if not drawn:
        return graph

    def call(*args: Any) -> tuple[Any, ...]:
        dtype = torch.get_default_dtype()
        return tuple(graph(*(a.to(dtype) if i in drawn and a.is_floating_point() else a for i, a in enumerate(args))))

    return call
