"""Checks that eager's kernels make of their operands, and fake tensors and decompositions do not: types that agree, sizes and numbers
within bounds.

Where a call does not fit, neither a rule nor a decomposition takes it: it stays the library's call, and raises eager's own error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

HALF = (torch.bfloat16, torch.float16)
Operands = Mapping[str, Any]
"""The arguments of a call, tensors or nodes of a graph, by the names that the schema gives them."""


def _dtypes(operands: Operands, names: tuple[str, ...]) -> set[torch.dtype]:
    found = (operands.get(n) for n in names)
    values = (f.meta.get("val") if isinstance(f, fx.Node) else f for f in found)
    return {value.dtype for value in values if isinstance(value, torch.Tensor)}


def _alike(*names: str) -> Callable[[Operands], bool]:
    """These have one type."""
    return lambda operands: len(_dtypes(operands, names)) <= 1


def _normalises(operands: Operands) -> bool:
    """Parameters and statistics have one type: the input's, or float32 beside half types."""
    found, (kind,) = _dtypes(operands, ("weight", "bias", "running_mean", "running_var")), _dtypes(operands, ("input",))
    return not found or found == {kind} or kind in HALF and found == {torch.float32}


def _counts(name: str, *dtypes: torch.dtype) -> Callable[[Operands], bool]:
    return lambda operands: _dtypes(operands, (name,)) <= set(dtypes)


def _both(*rules: Callable[[Operands], bool]) -> Callable[[Operands], bool]:
    return lambda operands: all(rule(operands) for rule in rules)


def _without(*dtypes: torch.dtype) -> Callable[[Operands], bool]:
    """No operand has one of these types."""
    return lambda operands: not _dtypes(operands, tuple(operands)) & set(dtypes)


def _number(name: str, default: float, holds: Callable[[float], bool]) -> Callable[[Operands], bool]:
    """What an argument that is a number has to be; one that comes with each call is not looked at."""

    def rule(operands: Operands) -> bool:
        value = operands.get(name, default)
        return not isinstance(value, int | float) or holds(value)

    return rule


def _interpolates(of_bytes: bool) -> Callable[[Operands], bool]:
    """Images of floats, or of bytes: eager has no kernel for other integers."""

    def rule(operands: Operands) -> bool:
        (kind,) = _dtypes(operands, ("self", "input"))
        return kind.is_floating_point or (of_bytes and kind is torch.uint8)

    return rule


def _shape(operands: Operands, name: str) -> tuple[Any, ...]:
    """The sizes of a tensor: of a node those that are known, since nothing is guarded any more when there are nodes."""
    value = operands[name]
    if not isinstance(value, fx.Node):
        return tuple(value.shape)
    return tuple(n if isinstance(n, int) else 1 for n in value.meta["val"].shape)


def is_zero(n: int | torch.SymInt) -> bool:
    """Whether a size is 0: of a symbol with a value it is asked, which is a guard; one that data decide counts as another number."""
    return n == 0 if isinstance(n, int) else bool(n.node.has_hint() and n == 0)


def _resampled(operands: Operands) -> bool:
    """Neither the image nor the result is empty; only their batch may be. What is said of symbols is guarded."""
    size = operands.get("output_size")
    given = [n for n in size if isinstance(n, int | torch.SymInt)] if isinstance(size, list | tuple) else []
    return not any(is_zero(n) for n in (*_shape(operands, "self")[1:], *given))


def _at_least_0(name: str) -> Callable[[Operands], bool]:
    """No number of a list is negative."""
    return lambda operands: all(n >= 0 for n in operands[name] if isinstance(n, int))


def _one_target_a_pixel(operands: Operands) -> bool:
    """The targets have the sizes of the image, less that of the classes; both have no others."""
    (batch, _, *image), target = _shape(operands, "self"), _shape(operands, "target")
    return len(image) == 2 and len(target) == 3 and bool(batch == target[0] and image[0] == target[1] and image[1] == target[2])


LONG = torch.int64
INTERPOLATIONS = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d")
LOSS = _both(_alike("self", "weight"), _counts("target", LONG))

RULES: dict[str, Callable[[Operands], bool]] = {
    "native_layer_norm": _normalises,
    "native_group_norm": _normalises,
    "native_batch_norm": _normalises,
    "_native_batch_norm_legit": _normalises,
    "_native_batch_norm_legit_no_training": _normalises,
    "_native_batch_norm_legit_functional": _normalises,
    "_batch_norm_with_update": _normalises,
    "_batch_norm_no_update": _normalises,
    "_batch_norm_with_update_functional": _normalises,
    "index_put": _alike("self", "values"),
    "index_add": _alike("self", "source"),
    "index_copy": _alike("self", "source"),
    "index_select": _counts("index", LONG, torch.int32),
    "index_fill": _counts("index", LONG),
    "linalg_cross": _alike("self", "other"),
    "heaviside": _alike("self", "values"),
    "grid_sampler_2d": _alike("input", "grid"),
    "binary_cross_entropy": _alike("self", "target", "weight"),
    "nll_loss_forward": LOSS,
    "nll_loss2d_forward": _both(LOSS, _one_target_a_pixel),
    "im2col": _at_least_0("padding"),
    "argmax": _without(torch.bool),
    "argmin": _without(torch.bool),
    "sub": _without(torch.bool),
    "rsub": _without(torch.bool),
    "smooth_l1_loss": _number("beta", 1.0, lambda beta: beta >= 0),
    "huber_loss": _number("delta", 1.0, lambda delta: delta > 0),
    "celu": _number("alpha", 1.0, lambda alpha: alpha != 0),
    **{f"upsample_{how}": _both(_interpolates(how not in ("linear1d", "trilinear3d")), _resampled) for how in INTERPOLATIONS},
    **{f"_upsample_nearest_exact{rank}d": _both(_interpolates(True), _resampled) for rank in (1, 2, 3)},
}
"""By the operator's name, of whatever overload."""


def fits(op: torch._ops.OperatorBase, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether eager has a kernel for operands of these types."""
    if not isinstance(op, torch._ops.OpOverload):
        return True
    rule = RULES.get(op._schema.name.removeprefix("aten::"))
    if rule is None:
        return True
    names = [a.name for a in op._schema.arguments]
    return rule({**dict(zip(names, args, strict=False)), **kwargs})


def strict(op: torch._ops.OperatorBase, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition, for operands that fit."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        return decomposition(*args, **kwargs) if fits(op, args, kwargs) else NotImplemented

    named = isinstance(op, torch._ops.OpOverload) and op._schema.name.removeprefix("aten::") in RULES
    return decomposed if named else decomposition
