"""What torch asks of a GPU that is not there, answered so that fake tensors on it can be traced."""

from __future__ import annotations

import contextlib
import copyreg
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from precast.capture.adapters.fake_tensors import proxy_tensor
from precast.capture.adapters.variables import TorchInGraphFunctionVariable
from precast.capture.common.patching import patched, replaced

_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
"""c10's table of what switches devices and streams, by device type: one pointer each."""
_CUDA, _META = 1, 14


@contextlib.contextmanager
def literals_lifted_on_cpu() -> Iterator[None]:
    """Literals for the GPU are made on the CPU, and moved to the GPU by the graph."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


def autocast_possible() -> contextlib.AbstractContextManager[Any]:
    """Mixed precision on the GPU is there."""
    return patched(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)


def bfloat16_possible() -> contextlib.AbstractContextManager[Any]:
    """The GPU computes in bfloat16."""
    return patched(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)


def available_when_traced() -> contextlib.AbstractContextManager[Any]:
    """Traced code that asks whether there is a GPU is told that there is."""
    return patched(TorchInGraphFunctionVariable, "as_python_constant", _constant)


def moves_recorded() -> contextlib.AbstractContextManager[Any]:
    """What moves a literal to the GPU is left in the graph: the tracer would do it, to know the elements of the result."""
    return patched(proxy_tensor, "proxy_call", _proxy_call)


_original_proxy_call = proxy_tensor.proxy_call
_MOVES = (torch.ops.aten._to_copy.default, torch.ops.prims.device_put.default)


def _proxy_call(mode: Any, func: Any, pre_dispatch: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func not in _MOVES:
        return _original_proxy_call(mode, func, pre_dispatch, args, kwargs)
    with replaced(proxy_tensor, "CONSTANT_NUMEL_LIMIT", -1):
        return _original_proxy_call(mode, func, pre_dispatch, args, kwargs)


_as_python_constant = TorchInGraphFunctionVariable.as_python_constant


def _constant(variable: TorchInGraphFunctionVariable) -> Any:
    """What Dynamo calls for a function whose result is a constant: whether there is a GPU."""
    return _available if variable.value is torch.cuda.is_available else _as_python_constant(variable)


def _available() -> bool:
    return True


@contextlib.contextmanager
def no_op_guards() -> Iterator[None]:
    """Autograd asks the device's guard for a stream, and ends the process where the device has none: here it gets that of `meta`."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    table = (ctypes.c_void_p * (_META + 1)).in_dll(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY), _GUARDS)
    torch._C._ensureCUDADeviceGuardSet()  # fills the place in a build of torch that has CUDA
    before, table[_CUDA] = table[_CUDA], table[_CUDA] or table[_META]
    try:
        yield
    finally:
        table[_CUDA] = before


# -- copies of programs whose tensors are fake


class Copier(Protocol):
    """What copies a program with fake tensors in place of its own (`standins.StandIns`)."""

    def tensor(self, value: torch.Tensor) -> torch.Tensor:
        """The fake tensor for one tensor."""

    def place(self, device: torch.device) -> torch.device:
        """The device that the copy of what is on `device` is on."""


def tensors_stood_for(made: Copier) -> contextlib.AbstractContextManager[Any]:
    """A copy of a tensor, on this thread, is its stand-in."""
    stack = contextlib.ExitStack()
    for cls in (torch.Tensor, torch.nn.Parameter):
        stack.enter_context(patched(cls, "__deepcopy__", _copied(made)))
    return stack


def _copied(made: Copier) -> Callable[[torch.Tensor, dict[int, Any]], Any]:
    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if id(tensor) not in memo:
            memo[id(tensor)] = made.tensor(tensor)
        return memo[id(tensor)]

    return copied


@contextlib.contextmanager
def devices_stood_for(made: Copier) -> Iterator[None]:
    """A copy of a `torch.device`, on this thread, is the device that the stand-ins are on."""
    owner, table = threading.get_ident(), copyreg.dispatch_table

    def moved(device: torch.device) -> tuple[Any, ...]:
        known = made.place(device) if threading.get_ident() == owner else device
        return torch.device, (known.type,) if known.index is None else (known.type, known.index)

    before = table.get(torch.device)
    table[torch.device] = moved
    try:
        yield
    finally:
        if before is None:
            del table[torch.device]
        else:
            table[torch.device] = before


__all__ = [
    "Copier",
    "autocast_possible",
    "available_when_traced",
    "bfloat16_possible",
    "devices_stood_for",
    "literals_lifted_on_cpu",
    "moves_recorded",
    "no_op_guards",
    "tensors_stood_for",
]
