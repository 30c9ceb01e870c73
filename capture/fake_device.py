"""Captures for a GPU that this machine lacks: a copy of the program with fake tensors on `cuda:0`, and torch patched to trace them.

The user's objects are not changed, and no weight is copied: fake tensors have sizes and strides, and no elements.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.capture.adapters.fake_tensors import FakeTensor, FakeTensorMode
from precast.capture.aten.patches import ABSENT_DEVICE, COPIES
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.common.patching import applied
from precast.runtime.frames.entry import entry_of
from precast.runtime.paths.fake_tensors import STANDS_FOR, is_stand_in

DEVICE = torch.device("cuda", 0)
Signature = tuple[tuple[Any, ...], Mapping[str, Any]]
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)


def stand_ins(model: Any, signatures: Sequence[Signature]) -> tuple[Any, tuple[Signature, ...]] | None:
    """Copies of a program and its calls that can be traced for a GPU which is not here; None where their tensors are on one that is.

    Tensors on `meta` and on the CPU become fake tensors on the GPU, and a `torch.device` that an object holds (a static cache does) the
    GPU; where some tensors are fake ones on a GPU already, those on the CPU stay there.
    Raises CaptureRefused for an object that cannot be copied or represented.
    """
    found = list(_tensors(model, signatures))
    if any(tensor.device.type == DEVICE.type and type(tensor) is not FakeTensor and not is_stand_in(tensor) for tensor in found):
        return None
    if found and all(map(is_stand_in, found)):
        return model, tuple(signatures)
    placed = any(tensor.device.type == DEVICE.type for tensor in found)
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
        with applied(COPIES, self):
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
                made = made.requires_grad_() if value.is_leaf else _recorded(made)
        own = value.__dict__.keys() - made.__dict__.keys()  # a fake keeps what it is there, too
        made.__dict__.update({name: copy.copy(value.__dict__[name]) for name in sorted(own)})
        made.__dict__[STANDS_FOR] = value.__dict__.get(STANDS_FOR, kind)
        return made

    def place(self, device: torch.device) -> torch.device:
        """The device that the copy of what is on `device` is on."""
        return device if device.type == DEVICE.type or (self._keep_cpu and device.type == "cpu") else DEVICE

    def _like(self, value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        device = self.place(value.device)
        with self._mode:
            known = self._storages.get(storage._cdata)
            if known is None:
                memory = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device)
                known = self._storages[storage._cdata] = (storage, memory)  # the first keeps the address from being another's
            place = known[1].untyped_storage()
            return torch.empty(0, dtype=value.dtype, device=device).set_(place, value.storage_offset(), value.shape, value.stride())


def without_device() -> contextlib.AbstractContextManager[Any]:
    """Lets fake tensors on a GPU be traced where there is none, by code that asks for one."""
    return contextlib.nullcontext() if torch.cuda.is_available() else applied(ABSENT_DEVICE, None)


def _recorded(value: torch.Tensor) -> torch.Tensor:
    """A tensor with the memory of `value` that autograd has recorded, so that it is no leaf. It need not be the result of that operator."""
    with torch.enable_grad():
        made = torch.empty_like(value, requires_grad=True).clone()
    return made.set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def _function(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """The function with copies of what its closure and its defaults hold."""
    cells = tuple(types.CellType(copy.deepcopy(cell.cell_contents, memo)) for cell in function.__closure__ or ())
    defaults = copy.deepcopy(function.__defaults__, memo)
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells or None)
    made.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
    made.__dict__.update(function.__dict__)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made
