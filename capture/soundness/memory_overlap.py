"""In-place writes to memory that several elements share, or that is read at the same time: the tracer's stand-ins let them pass.

Where eager refuses such a write, its error is raised in the traced code's name, as that of a wrong shape is. Where eager writes, the
graph ends: the operator is called as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from precast.capture.adapters.fake_tensors import FakeTensorMode, UnsupportedFakeTensorException
from precast.capture.common.patching import patched

UNCHECKED = frozenset(
    "zero_ fill_ index_fill_ index_put_ _index_put_impl_ masked_fill_ threshold_ tril_ triu_ baddbmm_ conj_physical_".split()
)
"""Operators whose kernels write memory that repeats. Made functional, such a write is the sum over all elements that share the memory."""
RESHAPING = frozenset("set_ resize_ resize_as_ as_strided_ squeeze_ unsqueeze_ transpose_ t_ swapaxes_ swapdims_ detach_".split())
"""Operators that write no elements."""

TWICE = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
PARTLY = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location. "
    "Please clone() the tensor before performing the operation."
)


@contextlib.contextmanager
def overlaps_refused() -> Iterator[None]:
    """While tracing, stand-ins refuse what eager's tensors do."""
    original: Any = FakeTensorMode.dispatch

    def dispatch(self: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable and func.namespace == "aten":
            _check(schema, args, kwargs or {})
        return original(self, func, types, args, kwargs)

    with patched(FakeTensorMode, "dispatch", dispatch):
        yield


def _check(schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    operator = schema.name.removeprefix("aten::")
    if operator in RESHAPING:
        return
    given = {**dict(zip((a.name for a in schema.arguments), args, strict=False)), **kwargs}
    written = {a.name: given.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    for target in written.values():
        if not isinstance(target, torch.Tensor) or target.layout is not torch.strided:
            continue
        if operator in UNCHECKED:
            if _repeats(target):
                raise UnsupportedFakeTensorException(f"{operator} writes a tensor of which one element in memory stands for several")
            continue
        if _repeats(target):
            raise RuntimeError(TWICE)
        for name, value in given.items():
            if name not in written and isinstance(value, torch.Tensor) and value is not target and _meets(value, target):
                raise RuntimeError(PARTLY)


def _repeats(tensor: torch.Tensor) -> bool:
    """Whether several elements share memory, as far as strides of 0 tell: eager looks no further."""
    return any(type(step) is int and step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _meets(value: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether some of `value` lies where `target` does, and it is not the same tensor. Eager looks at dense ones only."""
    if value.layout is not torch.strided or value.untyped_storage()._cdata != target.untyped_storage()._cdata:
        return False
    if not value.numel() or not target.numel() or not all(map(_dense, (value, target))):
        return False
    (start, end), (first, last) = (_bytes(t) for t in (value, target))
    if start == first and end == last:
        return bool(value.stride() != target.stride())
    return bool(start < last and first < end)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the strides are those of a permuted contiguous tensor. (Symbolic ones are compared: the answer is then guarded.)"""
    step: Any = 1
    for size, stride in sorted(((n, s) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1), key=lambda d: d[1]):
        if stride != step:
            return False
        step = step * size
    return True


def _bytes(tensor: torch.Tensor) -> tuple[Any, Any]:
    start = tensor.storage_offset() * tensor.element_size()
    return start, start + tensor.numel() * tensor.element_size()


__all__ = ["overlaps_refused"]
