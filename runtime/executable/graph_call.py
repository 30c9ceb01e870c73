"""Graph callables: what the rewritten bytecode of a frame calls with its per-call inputs.

Parameters and buffers are bound: fetched once by path and kept until the dispatcher sees their owner change. This file holds the pure
Python (ctypes) form; `runtime/native` holds the fast one. Both run the same `precast_run`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.artifact_store.format.expressions import evaluate, leaves
from precast.artifact_store.format.records import GraphInput, GraphOutput
from precast.runtime.common.locks import Lock
from precast.runtime.executable.fallback_ops import new_handle, take_handle
from precast.runtime.executable.library import ERROR_CAPACITY, Library, raise_run_error, resolve_symbol
from precast.runtime.native import loader as native_runtime

Finish = Callable[[tuple[Any, ...], Sequence[Any]], tuple[Any, ...]]
"""(raw outputs, all graph inputs) -> what the bytecode gets."""


@dataclass(frozen=True)
class GraphSpec:
    """A compiled graph's calling convention.

    `raw_kinds`: one letter per raw output, "t" tensor or "i" integer. `finish` makes the bytecode's outputs; None: they are the raw ones.
    """

    inputs: tuple[GraphInput, ...]
    raw_kinds: str
    finish: Finish | None

    @property
    def bound_positions(self) -> tuple[int, ...]:
        """Indices of the graph inputs that are bound."""
        return tuple(i for i, item in enumerate(self.inputs) if item.bound or item.kind == "constant")

    def lasting(self, bound: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The bound tensors that the graph only reads: weights are prepared of these alone, and anew when one changes."""
        return tuple(tensor for i, tensor in zip(self.bound_positions, bound, strict=True) if not self.inputs[i].mutated)


def raw_kinds(outputs: Sequence[GraphOutput], io: Any) -> str:
    """The kinds of the library's outputs: from the frame's outputs, padded by what the library itself says that it has."""
    kinds: dict[int, str] = {}
    for output in outputs:
        if output.index is not None and (output.kind in ("raw", "output_view") or (output.kind == "int" and output.value is None)):
            kinds[output.index] = "i" if output.kind == "int" else "t"
        numbers = (*output.size, *output.stride, output.offset)
        kinds.update((leaf[1], "i") for number in numbers for leaf in leaves(number) if leaf[0] == "raw")
    declared = io.get("outputs") if isinstance(io, dict) else None
    count = max(len(declared) if declared is not None else 0, max(kinds, default=-1) + 1)
    return "".join(kinds.get(i, "t") for i in range(count))


def graph_inputs(inputs: Sequence[GraphInput], bound: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """One value per graph input, from the bound ones (in order) and the call's arguments; sizes are read off the tensors."""
    left = iter(bound)
    values = [
        next(left) if item.bound or item.kind == "constant" else args[item.position] if item.position is not None else None
        for item in inputs
    ]
    for i, item in enumerate(inputs):
        if item.read is not None:
            values[i] = evaluate(item.read, values)
    return values


def is_plain(outputs: Sequence[GraphOutput]) -> bool:
    """Whether the frame's outputs are exactly the raw ones, in order."""
    return all(output.kind == "raw" and output.index == i for i, output in enumerate(outputs))


def scalar_word(value: Any, kind: str) -> int:
    """A symbolic int or float input as the 64-bit word that `precast_run` takes."""
    if kind == "float":
        return int(struct.unpack("<Q", struct.pack("<d", float(value)))[0])
    return int(value) & (2**64 - 1)


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
    call: Callable[..., Any] = native.GraphCall(*addresses, sources, kinds, spec.raw_kinds, *given, spec.finish, library, spec.inputs)
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


def tensor_handles(tensors: Sequence[torch.Tensor]) -> list[int]:
    """New AtenTensorHandles; the caller deletes them with `delete_handles`."""
    return [new_handle(tensor) for tensor in tensors]


def delete_handles(handles: Sequence[int]) -> None:
    delete = _delete_function()
    for handle in handles:
        delete(handle)


def _delete_function() -> Callable[[int], int]:
    address = resolve_symbol("aoti_torch_delete_tensor_object")
    assert address is not None, "this torch has no aoti_torch_delete_tensor_object"
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)


def input_words(spec: GraphSpec, values: Sequence[Any]) -> tuple[ctypes.Array[ctypes.c_void_p], list[int]]:
    """The `inputs` array of `precast_run` and the handles in it that have to be deleted afterwards."""
    positions = [i for i, item in enumerate(spec.inputs) if item.kind in ("tensor", "constant")]
    handles = tensor_handles([values[i] for i in positions])
    words = [0 if item.kind in ("tensor", "constant") else scalar_word(values[i], item.kind) for i, item in enumerate(spec.inputs)]
    for position, handle in zip(positions, handles, strict=True):
        words[position] = handle
    return (ctypes.c_void_p * (len(words) + 1))(*words, None), handles


def run_library(
    library: Library, spec: GraphSpec, values: Sequence[Any], state: int, homes: Sequence[torch.Tensor | None] = ()
) -> tuple[Any, ...]:
    """Run the graph on `values` (one per graph input) and wrap its raw outputs; `homes`: memory for those that `library.lent` names.

    Raises RuntimeError or IndexError as the graph says.
    """
    inputs, handles = input_words(spec, values)
    outputs = (ctypes.c_void_p * (len(spec.raw_kinds) + 1))()
    for i, home in enumerate(homes):
        outputs[i] = None if home is None else new_handle(home)
    error = ctypes.create_string_buffer(ERROR_CAPACITY)
    try:
        failed = library.call_run(library.table, ctypes.addressof(inputs), ctypes.addressof(outputs), state, error, ERROR_CAPACITY)
    finally:
        delete_handles(handles)
    if failed:
        delete_handles([outputs[i] or 0 for i, kind in enumerate(spec.raw_kinds) if kind == "t" and outputs[i]])
        raise_run_error(error.value.decode(errors="replace"), spec.inputs)
    return tuple(
        take_handle(outputs[i] or 0) if kind == "t" else ctypes.c_int64(outputs[i] or 0).value for i, kind in enumerate(spec.raw_kinds)
    )
