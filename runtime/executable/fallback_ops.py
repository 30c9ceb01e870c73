"""Ops that the C shims cannot express: the graph calls back into Python, one record of data per call site (docs/internals.md)."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precast.runtime.common.errors import LoadError
from precast.runtime.executable.run_errors import leave_exception
from precast.runtime.executable.triton_launch import LAUNCH, launcher
from precast.runtime.native.torch_symbols import new_handle, take_handle

_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
)

Decode = Callable[[Sequence[torch.Tensor], Any], Any]
Call = Callable[[Sequence[torch.Tensor], Any], Sequence[torch.Tensor | None]]


class Externs:
    """The Python side of one library's `precast_call_python`. Ops are looked up on first use: an absent one fails its call only."""

    def __init__(self, text: bytes, name: str, parts: Mapping[str, Any] | None = None) -> None:
        try:
            self._records: list[dict[str, Any]] = json.loads(text or b"[]")
        except ValueError as error:
            raise LoadError(f"{name}: its table of Python calls cannot be read ({error})") from error
        self._calls: dict[int, Call] = {}
        self._parts: Mapping[str, Any] = {} if parts is None else parts  # filled further by who opens the libraries
        self._callback = _CALL(self._call)
        self.address = ctypes.cast(self._callback, ctypes.c_void_p).value

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that may be called."""
        return tuple(record["op"] for record in self._records)

    def _call(
        self, number: int, tensors: Any, n_tensors: int, ints: Any, n_ints: int, outs: Any, n_outs: int, error: int, capacity: int
    ) -> int:
        try:
            values = [take_handle(tensors[i]) for i in range(n_tensors)]
            call = self._calls.get(number)
            if call is None:
                call = self._calls[number] = _compile(self._records[number], self._parts)
            with torch.no_grad():
                results = call(values, ints)
            for i in range(n_outs):
                result = results[i]
                outs[i] = new_handle(result) if isinstance(result, torch.Tensor) else None  # numbers are known from the trace
            return 0
        except BaseException as problem:  # noqa: BLE001 - nothing may cross into C, not even Ctrl-C; the caller raises it
            leave_exception(problem, error, capacity)
            return 1


def _compile(record: dict[str, Any], parts: Mapping[str, Any]) -> Call:
    """A record -> a function of the run-time tensors and integers."""
    if record["op"].startswith("control::"):
        from precast.runtime.executable.control_flow import control_flow  # few graphs branch on data: spare the others its import

        op = control_flow(record["op"], parts)
    elif record["op"].startswith(LAUNCH):
        op = launcher(record["op"])
    else:
        op = find_op(record["op"])
    args = [_decoder(item) for item in record["args"]]
    kwargs = {name: _decoder(item) for name, item in record["kwargs"].items()}

    expect = [None if item is None else (getattr(torch, item[0]), [_decoder(n) for n in item[1]]) for item in record.get("expect", ())]
    name = record["op"]

    def call(tensors: Sequence[torch.Tensor], ints: Any) -> Sequence[torch.Tensor | None]:
        result = op(*(arg(tensors, ints) for arg in args), **{name: arg(tensors, ints) for name, arg in kwargs.items()})
        results = _flatten(result)
        if expect:
            _hold_to(name, results, [None if e is None else (e[0], [n(tensors, ints) for n in e[1]]) for e in expect])
        return results

    return call


def find_op(name: str) -> Any:
    """The operator overload "namespace::name.overload". Raises RuntimeError where nothing has registered it."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except AttributeError as error:
        raise RuntimeError(f"the operator {name} is not registered: import the package that registers it before the call") from error


def _hold_to(name: str, results: Sequence[Any], promised: Sequence[tuple[torch.dtype, list[int]] | None]) -> None:
    """Raises RuntimeError where an operator's results are not what its fake implementation said when the graph was made."""
    if len(results) != len(promised):
        raise RuntimeError(f"the operator {name} gave {len(results)} tensors; its fake implementation promised {len(promised)}")
    for position, (result, promise) in enumerate(zip(results, promised, strict=True)):
        found = None if result is None else (result.dtype, list(result.shape))
        if found != promise:
            said, got = (_describe(spec) for spec in (promise, found))
            raise RuntimeError(f"result {position} of the operator {name} is {got}; its fake implementation promised {said}")


def _describe(spec: tuple[torch.dtype, list[int]] | None) -> str:
    return "None" if spec is None else f"{str(spec[0]).removeprefix('torch.')}{spec[1]}"


def _flatten(result: Any) -> Sequence[torch.Tensor | None]:
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in _flatten(item)]
    return [result]


def _decoder(item: Any) -> Decode:
    if item is None:
        return lambda tensors, ints: None
    kind, value = next(iter(item.items()))
    match kind:
        case "t":
            return lambda tensors, ints: tensors[value]
        case "i":
            return lambda tensors, ints: int(ints[value])
        case "x":
            return lambda tensors, ints: struct.unpack("<d", struct.pack("<q", int(ints[value])))[0]
        case "list":
            parts = [_decoder(part) for part in value]
            return lambda tensors, ints: [part(tensors, ints) for part in parts]
    constant = _constant(kind, value)
    return lambda tensors, ints: constant


def _constant(kind: str, value: Any) -> Any:
    match kind:
        case "v":
            return value
        case "f":
            return float(value)
        case "complex":
            return complex(float(value[0]), float(value[1]))
        case "dtype" | "layout" | "memory_format":
            return getattr(torch, value.removeprefix("torch."))
        case "device":
            return torch.device(value)
    raise RuntimeError(f"unknown argument kind {kind!r} in a compiled graph's table of Python calls")
