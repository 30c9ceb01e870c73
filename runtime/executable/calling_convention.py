"""The calling convention of compiled graphs: what `precast_run` is given for each input, and what its raw outputs are.

This is its form in Python, through ctypes; `runtime/native/src/graph_call.c` holds the fast one.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from precast.artifact_store.format.expressions import Expression, evaluate, leaves
from precast.artifact_store.format.records import GraphInput, GraphOutput
from precast.runtime.executable.run_errors import ERROR_CAPACITY, raise_run_error
from precast.runtime.native.torch_symbols import new_handle, resolve_symbol, take_handle

Finish = Callable[[tuple[Any, ...], Sequence[Any]], tuple[Any, ...]]
"""(raw outputs, all graph inputs) -> what the bytecode gets."""


class Runnable(Protocol):
    """A compiled library, as far as a call of its `precast_run` needs it."""

    @property
    def table(self) -> int:
        """Address of its table of resolved symbols."""

    @property
    def frees(self) -> Sequence[int]:
        """Inputs that it frees after their last use."""

    @property
    def call_run(self) -> Callable[..., int]:
        """`precast_run` as a ctypes function; 0 where all went well."""


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


def raw_kinds(outputs: Sequence[GraphOutput], io: Any, numbers: Sequence[Expression] = ()) -> str:
    """The kinds of the library's outputs: from the frame's outputs, padded by what the library itself says that it has. `numbers`: what
    else is computed from them.
    """
    kinds: dict[int, str] = {}
    for number in numbers:
        kinds.update((leaf[1], "i") for leaf in leaves(number) if leaf[0] == "raw")
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


def is_recorded(item: GraphInput) -> bool:
    """Whether it is the local tensor of a DTensor that records gradients."""
    return bool(item.part) and item.part[0][0] == "to_local"


def is_plain(outputs: Sequence[GraphOutput]) -> bool:
    """Whether the frame's outputs are exactly the raw ones, in order."""
    return all(output.kind == "raw" and output.index == i for i, output in enumerate(outputs))


def scalar_word(value: Any, kind: str) -> int:
    """A symbolic int or float input as the 64-bit word that `precast_run` takes."""
    if kind == "float":
        return int(struct.unpack("<Q", struct.pack("<d", float(value)))[0])
    return int(value) & (2**64 - 1)


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
    library: Runnable, spec: GraphSpec, values: list[Any], state: int, homes: Sequence[torch.Tensor | None] = (), consumed: bool = False
) -> tuple[Any, ...]:
    """Run the graph on `values` (one per graph input) and wrap its raw outputs; `homes`: memory for those that `library.lent` names;
    `consumed`: the list is emptied before.

    Raises RuntimeError or IndexError as the graph says.
    """
    inputs, handles = input_words(spec, values)
    if consumed:
        values.clear()
    taken = [(i, inputs[i] or 0) for i in library.frees]
    outputs = (ctypes.c_void_p * (len(spec.raw_kinds) + 1))()
    for i, home in enumerate(homes):
        outputs[i] = None if home is None else new_handle(home)
    error = ctypes.create_string_buffer(ERROR_CAPACITY)
    try:
        failed = library.call_run(library.table, ctypes.addressof(inputs), ctypes.addressof(outputs), state, error, ERROR_CAPACITY)
    finally:
        freed = {handle for i, handle in taken if not inputs[i]}
        delete_handles([handle for handle in handles if handle not in freed])
    if failed:
        delete_handles([outputs[i] or 0 for i, kind in enumerate(spec.raw_kinds) if kind == "t" and outputs[i]])
        raise_run_error(error.value.decode(errors="replace"), spec.inputs)
    return tuple(
        take_handle(outputs[i] or 0) if kind == "t" else ctypes.c_int64(outputs[i] or 0).value for i, kind in enumerate(spec.raw_kinds)
    )


def graph_outputs(outputs: Sequence[GraphOutput], raw: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """One object per position; `inputs` are all graph inputs, bound ones included. A grad mode that stays is the last, and set then."""
    if not outputs or outputs[-1].kind != "grad_mode":
        return tuple([_one(output, raw, inputs) for output in outputs])
    made = tuple([_one(output, raw, inputs) for output in outputs[:-1]])
    torch._C._set_grad_enabled(bool(outputs[-1].value))
    return made


def _one(output: GraphOutput, raw: Sequence[Any], inputs: Sequence[Any]) -> Any:
    index = output.index if output.index is not None else -1
    match output.kind:
        case "raw":
            return raw[index]
        case "input":
            return inputs[index]
        case "view":
            return _view(output, inputs[index], inputs, raw)
        case "output_view":
            return _view(output, raw[index], inputs, raw)
        case "int":
            return raw[index] if output.value is None else evaluate(output.value, inputs, raw)
        case "none" | "grad_mode":
            return None


def _view(output: GraphOutput, base: torch.Tensor, inputs: Sequence[Any], raw: Sequence[Any]) -> torch.Tensor:
    size, stride = ([n if isinstance(n, int) else evaluate(n, inputs, raw) for n in numbers] for numbers in (output.size, output.stride))
    offset = evaluate(output.offset, inputs, raw)
    if output.dtype is None:
        view = base.as_strided(size, stride, base.storage_offset() + offset)
    else:
        view = torch.empty(0, dtype=getattr(torch, output.dtype), device=base.device)
        start = base.storage_offset() * base.element_size() // view.element_size()
        view.set_(base.untyped_storage(), start + offset, size, stride)
    return view.detach() if output.detach else view
