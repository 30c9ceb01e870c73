"""Captures for a GPU that this machine lacks: a copy of the program with fake tensors on `cuda:0`, and torch patched to trace them.

The user's objects are not changed, and no weight is copied: fake tensors have sizes and strides, and no elements.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import ctypes
import itertools
import os
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree

from precast.capture.frame import CaptureRefused
from precast.runtime.entry import entry_of
from precast.runtime.standins import STANDS_FOR, is_stand_in

DEVICE = torch.device("cuda", 0)
Signature = tuple[tuple[Any, ...], Mapping[str, Any]]
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
"""c10's table of what switches devices and streams, by device type: one pointer each."""
_CUDA, _META = 1, 14
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)


def stand_ins(model: Any, signatures: Sequence[Signature]) -> tuple[Any, tuple[Signature, ...]] | None:
    """Copies of a program and its calls that can be traced for a GPU which is not here; None where their tensors are on one that is.

    Tensors on `meta` and on the CPU become fake tensors on the GPU, and a `torch.device` that an object holds (a static cache does) the
    GPU; where some tensors are fake ones on a GPU already, those on the CPU stay there.
    Raises CaptureRefused for an object that cannot be copied or represented.
    """
    found = list(_tensors(model, signatures))
    if any(tensor.device.type == "cuda" and type(tensor) is not FakeTensor and not is_stand_in(tensor) for tensor in found):
        return None
    if found and all(map(is_stand_in, found)):
        return model, tuple(signatures)
    placed = any(tensor.device.type == "cuda" for tensor in found)
    model, *calls = StandIns(keep_cpu=placed).of(model, *signatures)
    return model, tuple(calls)


def _tensors(model: Any, signatures: Sequence[Signature]) -> Iterator[torch.Tensor]:
    entry = entry_of(model)
    modules = [item for item in (model, *entry.prefix) if isinstance(item, torch.nn.Module)]
    for module in modules:
        yield from itertools.chain(module.parameters(), module.buffers())
    leaves = pytree.tree_leaves((entry.prefix, dict(entry.keywords), [(args, dict(kwargs)) for args, kwargs in signatures]))
    yield from (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


class StandIns:
    """Copies objects; each tensor in them becomes a fake tensor, the same for the same tensor. Tensors that share memory share it again."""

    def __init__(self, keep_cpu: bool = False) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._storages: dict[int, tuple[Any, torch.Tensor]] = {}
        self._keep_cpu = keep_cpu

    def of(self, *objects: Any) -> tuple[Any, ...]:
        """Copies of `objects`. Raises CaptureRefused for what cannot be copied or stood for."""
        owner = threading.get_ident()
        originals: dict[type, Callable[..., Any]] = {cls: cls.__deepcopy__ for cls in (torch.Tensor, torch.nn.Parameter)}

        def deepcopied(cls: type) -> Callable[[torch.Tensor, dict[int, Any]], Any]:
            def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
                if threading.get_ident() != owner:
                    return originals[cls](tensor, memo)
                if id(tensor) not in memo:
                    memo[id(tensor)] = self.tensor(tensor)
                return memo[id(tensor)]

            return copied

        def moved(device: torch.device) -> tuple[Any, ...]:
            known = self._place(device) if threading.get_ident() == owner else device
            return torch.device, (known.type,) if known.index is None else (known.type, known.index)

        with contextlib.ExitStack() as stack:
            for cls in originals:
                stack.enter_context(mock.patch.object(cls, "__deepcopy__", deepcopied(cls)))
            stack.enter_context(mock.patch.dict(copyreg.dispatch_table, {torch.device: moved}))
            try:
                memo: dict[int, Any] = {}
                return tuple(
                    _function(item, memo) if isinstance(item, types.FunctionType) else copy.deepcopy(item, memo) for item in objects
                )
            except (TypeError, AttributeError, RuntimeError) as error:
                raise CaptureRefused(f"the program cannot be copied, to be traced for a device that is not here: {error}") from error

    def tensor(self, value: torch.Tensor) -> torch.Tensor:
        """The stand-in of one tensor. Raises CaptureRefused."""
        kind = torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor
        if type(value) not in _PLAIN or value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise CaptureRefused(f"a {type(value).__name__} of layout {value.layout} has no stand-in on a device that is not here")
        with torch.inference_mode(False), torch.no_grad(), without_device():
            made = self._like(value)
            if kind is torch.nn.Parameter:
                made = torch.nn.Parameter(made, requires_grad=value.requires_grad)
            elif value.requires_grad:
                made.requires_grad_()
        own = value.__dict__.keys() - made.__dict__.keys()  # a fake keeps what it is there, too
        made.__dict__.update({name: copy.copy(value.__dict__[name]) for name in sorted(own)})
        made.__dict__[STANDS_FOR] = value.__dict__.get(STANDS_FOR, kind)
        return made

    def _place(self, device: torch.device) -> torch.device:
        """The device that the copy of what is on `device` is on."""
        return device if device.type == "cuda" or (self._keep_cpu and device.type == "cpu") else DEVICE

    def _like(self, value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        device = self._place(value.device)
        with self._mode:
            known = self._storages.get(storage._cdata)
            if known is None:
                memory = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device)
                known = self._storages[storage._cdata] = (storage, memory)  # the first keeps the address from being another's
            place = known[1].untyped_storage()
            return torch.empty(0, dtype=value.dtype, device=device).set_(place, value.storage_offset(), value.shape, value.stride())


def _function(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """The function with copies of what its closure and its defaults hold."""
    cells = tuple(types.CellType(copy.deepcopy(cell.cell_contents, memo)) for cell in function.__closure__ or ())
    defaults = copy.deepcopy(function.__defaults__, memo)
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells or None)
    made.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
    made.__dict__.update(function.__dict__)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made


@contextlib.contextmanager
def without_device() -> Iterator[None]:
    """Lets fake tensors on a GPU be traced where there is none, by code that asks for one."""
    if torch.cuda.is_available():
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(_no_op_guards())
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # literals for the GPU are made here and moved there by the graph
        stack.enter_context(mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False))
        stack.enter_context(mock.patch.object(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True))
        stack.enter_context(mock.patch.object(TorchInGraphFunctionVariable, "as_python_constant", _constant))
        stack.enter_context(mock.patch.object(proxy_tensor, "proxy_call", _proxy_call))
        yield


_original_proxy_call = proxy_tensor.proxy_call
_MOVES = (torch.ops.aten._to_copy.default, torch.ops.prims.device_put.default)


def _proxy_call(mode: Any, func: Any, pre_dispatch: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What moves a literal to the GPU is left in the graph: the tracer would do it, to know the elements of the result."""
    if func not in _MOVES:
        return _original_proxy_call(mode, func, pre_dispatch, args, kwargs)
    with mock.patch.object(proxy_tensor, "CONSTANT_NUMEL_LIMIT", -1):
        return _original_proxy_call(mode, func, pre_dispatch, args, kwargs)


_as_python_constant = TorchInGraphFunctionVariable.as_python_constant


def _constant(variable: TorchInGraphFunctionVariable) -> Any:
    """What Dynamo calls for a function whose result is a constant: whether there is a GPU."""
    return _available if variable.value is torch.cuda.is_available else _as_python_constant(variable)


def _available() -> bool:
    return True


@contextlib.contextmanager
def _no_op_guards() -> Iterator[None]:
    """Autograd asks the device's guard for a stream, and ends the process where the device has none: here it gets that of `meta`."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    table = (ctypes.c_void_p * (_META + 1)).in_dll(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY), _GUARDS)
    torch._C._ensureCUDADeviceGuardSet()  # fills the place in a build of torch that has CUDA
    before, table[_CUDA] = table[_CUDA], table[_CUDA] or table[_META]
    try:
        yield
    finally:
        table[_CUDA] = before
