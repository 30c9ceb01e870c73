"""Automatic dynamic shapes: the sizes, strides and numbers in which a call differs from the known variants become symbolic.

They are read from the variants' guards, which are stored: a fresh process knows them at once, and no program learns from another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from precast.artifact_store.format.guards import Path, Predicate
from precast.artifact_store.format.packed_guards import GuardRow
from precast.artifact_store.format.tagged_constants import tag, untag
from precast.runtime.paths.paths import PathError, resolve

Varied = dict[Path, tuple[tuple[str, int], ...]]
_NUMBERS = {"builtins:int": int, "builtins:float": float}


def varied(variants: Iterable[Iterable[GuardRow]], local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> Varied:
    """Maps the path of a tensor to the ("size" | "stride", dim) that differ from some variant's guard or are symbolic there, and the path
    of a number to ().

    As in torch, all dimensions count where the rank differs, and strides count only where all sizes are equal.
    """
    found: dict[Path, dict[tuple[str, int], None]] = {}
    for rows in variants:
        typed: dict[Path, type] = {}
        fixed: set[Path] = set()
        for path, predicate, constant in rows:
            if predicate == Predicate.TENSOR:
                value = _at(path, local_values, cells)
                if isinstance(value, torch.Tensor) and (differing := _differing(value, constant)):
                    found.setdefault(path, {}).update(dict.fromkeys(differing))
            elif predicate == Predicate.TYPE and constant in _NUMBERS:
                typed[path] = _NUMBERS[constant]
            elif predicate == Predicate.EQUALS and constant[0] in ("int", "float"):
                fixed.add(path)
                value, wanted = _at(path, local_values, cells), untag(constant)
                if type(value) is type(wanted) and value != wanted:
                    found.setdefault(path, {})
        for path, kind in typed.items():
            if path not in fixed and type(_at(path, local_values, cells)) is kind:  # free in that variant
                found.setdefault(path, {})
    return {path: tuple(differing) for path, differing in found.items()}


def example(local_values: Mapping[str, Any]) -> tuple[GuardRow, ...]:
    """Guard rows of a call that was not compiled, to compare the next call with: the sizes of its tensor arguments, and its numbers."""
    rows: list[GuardRow] = []
    for name, value in local_values.items():
        if isinstance(value, torch.Tensor):
            stride = value.stride() if value.layout is torch.strided else ()
            rows.append(((("local", name),), str(Predicate.TENSOR), {"size": tuple(value.shape), "stride": stride}))
        elif type(value) in (int, float):
            rows.append(((("local", name),), str(Predicate.EQUALS), tag(value)))
    return tuple(rows)


def _at(path: Path, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> Any:
    try:
        return resolve(path, local_values, cells)
    except PathError:
        return None


def _differing(value: torch.Tensor, spec: Mapping[str, Any]) -> list[tuple[str, int]]:
    if is_lazy(value):
        return []  # a parameter that its module's first call will make
    size = spec["size"]
    if len(size) != value.dim():
        return [("size", dim) for dim in range(value.dim())]
    sizes = [("size", dim) for dim, wanted in enumerate(size) if wanted != value.size(dim)]
    if sizes or value.layout is not torch.strided:
        return sizes
    return [("stride", dim) for dim, wanted in enumerate(spec["stride"]) if wanted != value.stride(dim)]


__all__ = ["Varied", "example", "varied"]
