"""Alias analysis of strided views of one storage: whether two tensors have the same elements, or certainly none in common."""

from __future__ import annotations

import torch

from precast.capture.adapters.fake_tensors import statically_known_true
from precast.runtime.paths.fake_tensors import storage_of


def strided_storage(value: object) -> int | None:
    """The identity of a tensor's storage; None where the value is no strided tensor."""
    return storage_of(value) if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def same_window(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two views of one storage have the same elements in the same order. Symbolic sizes are compared as expressions."""
    return _text(a) == _text(b)


def _text(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {[*tensor.shape]} {[*tensor.stride()]} {tensor.storage_offset()}"


def apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two views of one storage certainly share no element: disjoint ranges, rows or columns. Adds no guards."""
    if a.dtype is not b.dtype:
        return False
    (first, last), (other_first, other_last) = _reach(a), _reach(b)
    if statically_known_true(last < other_first) or statically_known_true(other_last < first):
        return True
    known = not symbolic(a) and not symbolic(b)
    return known and any(_apart_in(period, a, b) for period in {*a.stride(), *b.stride()} - {0})


def symbolic(tensor: torch.Tensor) -> bool:
    """Whether a size, stride or offset is symbolic."""
    return not all(type(n) is int for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def _reach(tensor: torch.Tensor) -> tuple[int | torch.SymInt, int | torch.SymInt]:
    """The positions, in the storage, of the tensor's first and last element (numbers or symbols)."""
    first = tensor.storage_offset()
    return first, first + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _apart_in(period: int, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the two have disjoint positions modulo `period` elements."""
    (first, last), (other_first, other_last) = _places(period, a), _places(period, b)
    return max(last, other_last) < period and (last < other_first or other_last < first)


def _places(period: int, tensor: torch.Tensor) -> tuple[int, int]:
    first = int(tensor.storage_offset()) % period
    return first, first + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s % period)
