"""Where this torch keeps what inside its tensors, found by looking at tensors that differ in one thing. Nothing is taken for granted.

Each probe is repeated on other tensors before it is believed: an allocation may end in a word that nobody has written, which may look like
anything once, and hardly twice. What cannot be found raises LayoutUnknown: the native runtime stays off.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from typing import Any

import torch

from precast.runtime.native.torch_symbols import new_handle, resolve_symbol, take_handle

_WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"
_LIKELY_POINTER = 1 << 20


class LayoutUnknown(RuntimeError):
    """This torch keeps its tensors in a way that the probes do not understand."""


@dataclass(frozen=True, eq=False, repr=False)
class _Probe:
    """Raw reads of the native module, in words."""

    native: Any
    tensor_in_object: int

    def address(self, tensor: torch.Tensor) -> int:
        """Address of the TensorImpl."""
        return _word(self.native, id(tensor) + self.tensor_in_object)

    def words(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """The TensorImpl as 64-bit words."""
        address = self.address(tensor)
        return self.block(address)

    def block(self, address: int) -> tuple[int, ...]:
        size = self.native.allocation_size(address) // 8 * 8
        if not 16 <= size <= 4096:
            raise LayoutUnknown(f"an allocation of {size} bytes is not what was expected")
        return struct.unpack(f"<{size // 8}Q", self.native.read_bytes(address, size))


def _word(native: Any, address: int) -> int:
    return int(struct.unpack("<Q", native.read_bytes(address, 8))[0])


def configure(native: Any) -> None:
    """Probe, verify, and hand the layout to the native module. Raises LayoutUnknown."""
    shims = {name: resolve_symbol(f"aoti_torch_{name}") for name in _SHIMS}
    missing = [name for name, address in shims.items() if not address]
    if missing:
        raise LayoutUnknown(f"this torch lacks aoti_torch_{missing[0]}")
    with torch.no_grad(), torch.inference_mode(False):
        probe = _Probe(native, _tensor_in_object(native))
        version_pointer, version_value = _version(probe)
        offsets = (
            probe.tensor_in_object,
            _refcount(probe),
            _storage(probe),
            _storage_offset(probe),
            *_autograd(probe),
            _key_set(probe),
            version_pointer,
            version_value,
        )
    steal = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr
    native.configure(torch._C.TensorBase, steal, *offsets, resolve_symbol(_WRAP) or 0, *(shims[name] for name in _SHIMS))


_SHIMS = (
    "delete_tensor_object",
    "new_tensor_handle",
    "get_dtype",
    "get_device_type",
    "get_device_index",
    "get_dim",
    "get_storage_offset",
    "get_sizes",
    "get_strides",
    "get_data_ptr",
)


def _samples() -> list[torch.Tensor]:
    return [torch.zeros(3, 5), torch.zeros(2, dtype=torch.int64), torch.nn.Parameter(torch.zeros(4, 4)), torch.zeros(())]


def _tensor_in_object(native: Any) -> int:
    found: set[int] | None = None
    for tensor in _samples():
        handle = new_handle(tensor)
        implementation = _word(native, handle)
        take_handle(handle)
        places = {at for at in range(16, type(tensor).__basicsize__, 8) if _word(native, id(tensor) + at) == implementation}
        found = places if found is None else found & places
    return _one(found or set(), "the tensor inside its Python object")


def _one(found: set[int], what: str) -> int:
    if len(found) != 1:
        raise LayoutUnknown(f"{what}: candidates {sorted(found)}")
    return found.pop()


def _refcount(probe: _Probe) -> int:
    found: set[int] | None = None
    for tensor in _samples():
        before = probe.words(tensor)
        handle = new_handle(tensor)
        during = probe.words(tensor)
        take_handle(handle)
        places = {i * 8 for i, (a, b) in enumerate(zip(before, during, strict=True)) if a != b}
        found = places if found is None else found & places
    return _one(found or set(), "the reference count")


def _storage(probe: _Probe) -> int:
    found = None
    for tensor in _samples():
        pointer = tensor.untyped_storage()._cdata
        places = {i * 8 for i, word in enumerate(probe.words(tensor)) if word == pointer}
        found = places if found is None else found & places
    return _one(found or set(), "the storage pointer")


def _storage_offset(probe: _Probe) -> int:
    whole = torch.zeros(1000)
    found: set[int] | None = None
    for offset in (77, 391, 950):
        places = {i * 8 for i, word in enumerate(probe.words(whole[offset : offset + 11])) if word == offset}
        found = places if found is None else found & places
    return _one(found or set(), "the storage offset")


def _autograd(probe: _Probe) -> tuple[int, int, int]:
    """Offsets of the pointer to AutogradMeta, and in it of its requires_grad byte and of the pointer to a grad_fn."""
    pointers: set[int] = set()
    flags: set[int] | None = None
    for _ in range(3):
        tensor = torch.zeros(7)
        before = probe.words(tensor)
        tensor.requires_grad_(True)
        after = probe.words(tensor)
        pointers.update(i * 8 for i, (a, b) in enumerate(zip(before, after, strict=True)) if a == 0 and b > _LIKELY_POINTER)
        at = _one(set(pointers), "the autograd metadata")
        meta = after[at // 8]
        size = probe.native.allocation_size(meta)
        states = []
        for value in (True, False, True, False):
            tensor.requires_grad_(value)
            states.append(probe.native.read_bytes(meta, size))
        places = {i for i in range(size) if [state[i] for state in states] == [1, 0, 1, 0]}
        flags = places if flags is None else flags & places
    pointer = _one(pointers, "the autograd metadata")
    return pointer, _one(flags or set(), "requires_grad"), _grad_fn(probe, pointer)


def _grad_fn(probe: _Probe, pointer: int) -> int:
    """What an in-place operation with a tensor that requires grad changes in the AutogradMeta of one that did not.

    torch 2.11 keeps a shared pointer there: the pointer, then that of its counts.
    """
    found: set[int] | None = None
    for _ in range(3):
        tensor, other = torch.zeros(7).requires_grad_(True).requires_grad_(False), torch.zeros(7, requires_grad=True)
        meta = probe.words(tensor)[pointer // 8]
        before = probe.block(meta)
        with torch.enable_grad():
            tensor.add_(other)
        changed = {i * 8 for i, (a, b) in enumerate(zip(before, probe.block(meta), strict=True)) if a == 0 and b > _LIKELY_POINTER}
        found = changed if found is None else found & changed
    first = min(found or {0})
    return _one((found or set()) - {first + 8}, "the grad_fn")


def _key_set(probe: _Probe) -> int:
    found: set[int] | None = None
    for tensor in [*_samples(), torch.zeros(2, dtype=torch.complex64).conj()]:
        raw = torch._C._dispatch_keys(tensor).raw_repr()
        places = {i * 8 for i, word in enumerate(probe.words(tensor)) if word == raw}
        found = places if found is None else found & places
    return _one(found or set(), "the dispatch key set")


def _version(probe: _Probe) -> tuple[int, int]:
    """Offsets of the pointer to the version counter, and of the 32-bit version in it."""
    tensors = [torch.zeros(11) for _ in range(4)]
    pointers: set[int] | None = None
    for tensor, other in itertools.pairwise(tensors):
        places = _shared_pointers(probe, tensor, other)
        pointers = places if pointers is None else pointers & places
    pointer = _one(pointers or set(), "the version counter")
    counter = probe.words(tensors[0])[pointer // 8]
    size = probe.native.allocation_size(counter)
    if not 8 <= size <= 256:
        raise LayoutUnknown(f"the version counter has {size} bytes")
    found: set[int] | None = None
    for _ in range(3):
        tensors[0].add_(1)
        data = probe.native.read_bytes(counter, size)
        places = {i for i in range(0, size - 3, 4) if struct.unpack_from("<I", data, i)[0] == tensors[0]._version}
        found = places if found is None else found & places
    return pointer, _one(found or set(), "the version")


def _shared_pointers(probe: _Probe, tensor: torch.Tensor, other: torch.Tensor) -> set[int]:
    """Offsets of pointers that a tensor shares with its detached twin, its storage apart, and not with another tensor."""
    twin = tensor.detach()
    storage = tensor.untyped_storage()._cdata
    rows = enumerate(zip(probe.words(tensor), probe.words(twin), probe.words(other), strict=False))
    return {i * 8 for i, (a, b, c) in rows if a == b != c and a > _LIKELY_POINTER and a != storage}
