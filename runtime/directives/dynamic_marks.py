"""Marks of dynamic dimensions, with torch's meaning (`torch._dynamo.mark_dynamic` …) and without importing the tracer.

A mark is an attribute of the tensor, which the tracer reads at the next compile. A variant serves tensors whose marks are a subset of those
that it was compiled for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.runtime.common.errors import DirectiveError, OptionError
from precast.runtime.common.supported_torch import is_before

Dims = int | Sequence[int]


@dataclass(frozen=True)
class _Range:
    """An item of a tensor's `_dynamo_dynamic_range`: the bounds of one dimension."""

    dim: int
    min: int | None
    max: int | None


def mark_dynamic(t: torch.Tensor, index: Dims, *, min: int | None = None, max: int | None = None) -> None:
    """Dimensions `index` of `t` are symbolic in the next compile, for sizes from `min` to `max`.

    Compiling raises MarkError where the program allows one size only. Marks add up; of two of one dimension the later has the bounds.
    """
    for dim in _dims(t, index):
        if dim in (weak := t.__dict__.get("_dynamo_weak_dynamic_indices", ())):
            t.__dict__["_dynamo_weak_dynamic_indices"] = weak - {dim}
        _set_of(t, "_dynamo_dynamic_indices").add(dim)
        _bound(t, dim, min, max)
        _dict_of(t, "_dynamo_hint_overrides")
        _dict_of(t, "_specialize_on")[dim] = []
        _note(t)


def maybe_mark_dynamic(t: torch.Tensor, index: Dims, *, min: int | None = None, max: int | None = None) -> None:
    """As mark_dynamic, and no error where the program allows one size only; nothing for a dimension that mark_dynamic has marked.

    Bounds need torch 2.15: DirectiveError before it.
    """
    if _EACH_HAS_BOUNDS and not (min is None and max is None):
        raise DirectiveError("maybe_mark_dynamic takes min and max from torch 2.15 on: use mark_dynamic, or leave them out")
    for dim in _dims(t, index):
        if dim in t.__dict__.get("_dynamo_dynamic_indices", ()):
            continue
        _set_of(t, "_dynamo_weak_dynamic_indices").add(dim)
        if not _EACH_HAS_BOUNDS:
            _bound(t, dim, min, max)
        _note(t)


def mark_static(t: Any, index: Dims | None = None) -> Any:
    """Dimensions `index` of the tensor `t` (default: all) are never symbolic, unless mark_dynamic says so. Not inside compiled code.

    For a class of nn.Module: the numbers that its instances hold are never symbolic; returns the class.
    """
    if isinstance(t, type) and issubclass(t, torch.nn.Module):
        t._dynamo_marked_static = True  # type: ignore[attr-defined]
        return t
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"marks are for tensors, not for a {type(t).__name__}")
    for dim in _dims(t, tuple(range(t.dim())) if index is None else index):
        _set_of(t, "_dynamo_static_indices").add(dim)
        _note(t)
    return None


def mark_unbacked(t: torch.Tensor, index: Dims, *, min: int | None = None, max: int | None = None) -> None:
    """Dimensions `index` of `t` are sizes of which nothing is known in the next compile: a decision that needs one is an error."""
    for dim in _dims(t, index):
        _dict_of(t, "_specialize_on")[dim] = []
        _dict_of(t, "_dynamo_hint_overrides")
        if min is not None or max is not None:
            _dict_of(t, "_dynamo_unbacked_bounds")[dim] = (min, max)
        _set_of(t, "_dynamo_unbacked_indices").add(dim)
        _note(t)


_EACH_HAS_BOUNDS = is_before(torch.__version__, "2.15")
"""Whether the tracer looks for an item of `_dynamo_dynamic_range` for each marked dimension; later ones, for those with bounds only."""


def _bound(t: torch.Tensor, dim: int, low: int | None, high: int | None) -> None:
    """A new set, not the old one changed: torch's own guards hold on to that."""
    others = {known for known in t.__dict__.get("_dynamo_dynamic_range", ()) if known.dim != dim}
    stated = _EACH_HAS_BOUNDS or not (low is None and high is None)
    if others or stated or "_dynamo_dynamic_range" in t.__dict__:
        t.__dict__["_dynamo_dynamic_range"] = others | ({_Range(dim, low, high)} if stated else set())


def _dims(t: Any, index: Any) -> Sequence[int]:
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"marks are for tensors, not for a {type(t).__name__}")
    dims = (index,) if isinstance(index, int) else tuple(index)
    for dim in dims:
        if not isinstance(dim, int) or not 0 <= dim < t.dim():
            raise IndexError(f"dimension {dim!r} of a tensor with {t.dim()} dimensions cannot be marked: count from 0")
    return dims


def _set_of(t: torch.Tensor, name: str) -> set[Any]:
    found: set[Any] = t.__dict__.setdefault(name, set())
    return found


def _dict_of(t: torch.Tensor, name: str) -> dict[int, Any]:
    found: dict[int, Any] = t.__dict__.setdefault(name, {})
    return found


def _note(t: torch.Tensor) -> None:
    t.__dict__["_has_dynamo_dim_marking"] = True


@contextlib.contextmanager
def marked(local_values: Mapping[str, Any], args: Sequence[Any], dynamic_shapes: Any) -> Iterator[None]:
    """A context in which the tensors of a call are marked as `dynamic_shapes` says.

    `dynamic_shapes` is torch.export's form: by argument name (dict) or position (tuple, list), nested as the arguments are; for a tensor
    a dict of dimension -> mark, a tuple of marks, or None. A mark is a name, a `torch.export.Dim`, `Dim.DYNAMIC`, or {"min": …, "max": …}
    (dynamic); "auto" or `Dim.AUTO` (dynamic if it can be); None, `Dim.STATIC` or a number (fixed). Raises OptionError.
    """
    before: list[tuple[torch.Tensor, dict[str, Any]]] = []
    try:
        if isinstance(dynamic_shapes, Mapping):
            for name, spec in dynamic_shapes.items():
                if name not in local_values:
                    known = ", ".join(n for n in local_values if n != "self")
                    raise OptionError(f"dynamic_shapes: there is no argument {name!r}; the arguments are {known}")
                _apply(local_values[name], spec, str(name), before)
        elif isinstance(dynamic_shapes, (tuple, list)):
            if len(dynamic_shapes) > len(args):
                raise OptionError(f"dynamic_shapes has {len(dynamic_shapes)} entries for {len(args)} arguments")
            for position, spec in enumerate(dynamic_shapes):
                _apply(args[position], spec, f"argument {position}", before)
        else:
            raise OptionError("dynamic_shapes is a dict by argument name, or a tuple by position")
        yield
    finally:
        for tensor, attributes in before:
            tensor.__dict__.clear()
            tensor.__dict__.update(attributes)


def _apply(value: Any, spec: Any, where: str, before: list[tuple[torch.Tensor, dict[str, Any]]]) -> None:
    if spec is None:
        return
    if isinstance(value, torch.Tensor):
        before.append((value, {name: _copy(held) for name, held in value.__dict__.items()}))
        marks = spec.items() if isinstance(spec, Mapping) else enumerate(spec) if isinstance(spec, (tuple, list)) else None
        if marks is None:
            raise OptionError(f"dynamic_shapes of {where}: give a dict of dimension -> mark, not {spec!r}")
        for dim, mark in marks:
            if isinstance(dim, bool) or not str(dim).isdecimal():
                raise OptionError(f"dynamic_shapes of {where}: {dim!r} is no dimension: count from 0")
            try:
                _mark(value, int(dim), mark, where)
            except IndexError as error:
                raise OptionError(f"dynamic_shapes of {where}: {error}") from error
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key, inner in spec.items():
            if key not in value:
                raise OptionError(f"dynamic_shapes of {where} names {key!r}, which is not in it")
            _apply(value[key], inner, f"{where}[{key!r}]", before)
    elif isinstance(value, (tuple, list)) and isinstance(spec, (tuple, list)) and len(spec) == len(value):
        for position, inner in enumerate(spec):
            _apply(value[position], inner, f"{where}[{position}]", before)
    else:
        raise OptionError(f"dynamic_shapes of {where} does not fit a {type(value).__name__}; numbers are made dynamic by dynamic=True")


def _copy(held: Any) -> Any:
    return held.copy() if isinstance(held, (set, dict)) else held


def _mark(tensor: torch.Tensor, dim: int, mark: Any, where: str) -> None:
    kind = getattr(getattr(mark, "type", None), "name", "")  # torch.export's Dim.AUTO, Dim.DYNAMIC, Dim.STATIC
    if mark is None or kind == "STATIC" or type(mark) is int:
        return
    if kind == "AUTO" or mark == "auto":
        maybe_mark_dynamic(tensor, dim)
        return
    if isinstance(mark, Mapping) and set(mark) <= {"min", "max"}:
        low, high = mark.get("min"), mark.get("max")
        if any(bound is not None and type(bound) is not int for bound in (low, high)):
            raise OptionError(f"dynamic_shapes of {where}, dimension {dim}: min and max are whole numbers, not {dict(mark)}")
    elif kind == "DYNAMIC" or isinstance(mark, str) or (hasattr(mark, "min") and hasattr(mark, "max")):
        low, high = getattr(mark, "min", None), getattr(mark, "max", None)
    else:
        raise OptionError(f"dynamic_shapes of {where}, dimension {dim}: {mark!r} is no mark")
    mark_dynamic(tensor, dim, min=low if isinstance(low, int) and low > 0 else None, max=high if type(high) is int else None)


__all__ = ["mark_dynamic", "mark_static", "mark_unbacked", "marked", "maybe_mark_dynamic"]
