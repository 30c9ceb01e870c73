"""What TENSOR guards compare of a tensor, as plain data and in words."""

from __future__ import annotations

from typing import Any

import torch

from precast.artifact_store.format.import_names import type_name
from precast.runtime.paths.fake_tensors import class_of

MARKS = frozenset(
    (
        "_dynamo_dynamic_indices",
        "_dynamo_weak_dynamic_indices",
        "_dynamo_unbacked_indices",
        "_dynamo_strict_unbacked_indices",
        "_dynamo_static_indices",
    )
)
"""Attributes by which torch marks dimensions of a tensor as dynamic or static."""


def spec_of(value: torch.Tensor) -> dict[str, Any]:
    """The metadata of a tensor as it is; sizes, strides and offset count elements."""
    if value.layout is torch.strided:
        return {**metadata(value, tuple(value.shape), value.stride()), "offset": value.storage_offset()}
    return {**metadata(value, tuple(value.shape), ()), "offset": None}


def metadata(value: torch.Tensor, size: tuple[int | None, ...], stride: tuple[int | None, ...]) -> dict[str, Any]:
    """What a TENSOR guard compares but for the offset; None where a size or stride varies. The device's index is left out: `cuda:0` and
    `cuda:5` share an artifact.
    """
    return {
        "type": type_name(class_of(value)),
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": value.device.type,
        "layout": str(value.layout).removeprefix("torch."),
        "requires_grad": value.requires_grad,
        "size": size,
        "stride": stride,
        "conj": value.is_conj(),
        "neg": value.is_neg(),
    }


def spec_fits(spec: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether a tensor with the metadata `found` is one that `spec` allows: what is None there is free."""
    for key, wanted in spec.items():
        have = found[key]
        if key in ("size", "stride"):
            if len(wanted) != len(have) or any(w is not None and w != h for w, h in zip(wanted, have, strict=True)):
                return False
        elif key == "offset":
            if wanted is not None and wanted != have:
                return False
        elif wanted != have:
            return False
    return True


def describe_tensor(spec: dict[str, Any], against: dict[str, Any] | None = None) -> str:
    """`float32[2, 8] stride (8, 1) on cpu`; free sizes show as `?`; other facts only where unusual or different from `against`."""
    sizes = ", ".join("?" if s is None else str(s) for s in spec["size"])
    strides = ", ".join("?" if s is None else str(s) for s in spec["stride"])
    text = f"{spec['dtype']}[{sizes}] stride ({strides}) on {spec['device']}"
    if spec["type"] not in ("torch:Tensor", "torch.nn.parameter:Parameter") or (against and against["type"] != spec["type"]):
        text += f" of type {spec['type']}"
    if spec["layout"] != "strided":
        text += f" layout {spec['layout']}"
    if spec["requires_grad"] or (against and against["requires_grad"]):
        text += f" requires_grad={spec['requires_grad']}"
    if spec["offset"] is not None and against and against["offset"] is not None:
        text += f" storage offset {spec['offset']}"
    return text + " conj" * bool(spec["conj"]) + " neg" * bool(spec["neg"])


__all__ = ["MARKS", "describe_tensor", "spec_fits", "spec_of"]
