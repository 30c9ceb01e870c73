"""Tensor subclasses that wrap plain tensors, of the kinds that libraries write, and programs on them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only


class Pair(torch.Tensor):
    """Two tensors on which every operator acts alike; `unit` is metadata."""

    a: torch.Tensor
    b: torch.Tensor
    unit: Any

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor, unit: Any = "m") -> Pair:
        made: Pair = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, a.size(), strides=a.stride(), storage_offset=a.storage_offset(), dtype=a.dtype, device=a.device
        )
        made.a, made.b, made.unit = a, b, unit
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pair({self.a!r}, {self.b!r}, {self.unit!r})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["a", "b"], (self.unit,)

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], meta: Any, size: Any, stride: Any) -> Pair:
        return cls(inner["a"], inner["b"], *meta)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unit = next((x.unit for x in (*args, *(kwargs or {}).values()) if isinstance(x, Pair)), "m")
        halves = []
        for side in ("a", "b"):
            taken, named = (tree_map_only(Pair, lambda x, s=side: getattr(x, s), given) for given in (args, kwargs or {}))
            halves.append(func(*taken, **named))
        made = tree_map_only(torch.Tensor, lambda _: None, halves[0])
        if isinstance(halves[0], torch.Tensor):
            made = Pair(halves[0], halves[1], unit)
        elif isinstance(halves[0], (tuple, list)):
            made = type(halves[0])(Pair(x, y, unit) if isinstance(x, torch.Tensor) else x for x, y in zip(*halves, strict=True))
        return return_and_correct_aliasing(func, args, kwargs or {}, made)


@dataclasses.dataclass(frozen=True)
class PerRow:
    """How numbers are quantized, as libraries say it."""

    axis: int = 0


class Quantized(torch.Tensor):
    """Rows of int8 with a scale each; functions of a table do the work, all of them called `_`."""

    TABLE: dict[Any, Callable[..., Any]] = {}
    values: torch.Tensor
    scale: torch.Tensor
    how: PerRow

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor, how: PerRow) -> Quantized:
        made: Quantized = torch.Tensor._make_wrapper_subclass(cls, values.size(), dtype=scale.dtype, device=values.device)  # type: ignore[attr-defined]
        made.values, made.scale, made.how = values, scale, how
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Quantized({self.values!r}, {self.scale!r}, {self.how!r})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["values", "scale"], {"how": self.how}

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], meta: Any, size: Any, stride: Any) -> Quantized:
        return cls(inner["values"], inner["scale"], meta["how"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls.TABLE[func](func, args, kwargs or {})

    @classmethod
    def implements(cls, *operators: Any) -> Callable[[Any], Any]:
        def register(function: Any) -> Any:
            @functools.wraps(function)
            def wrapper(func: Any, args: Any, kwargs: Any, _function: Any = function) -> Any:
                return _function(func, args, kwargs)

            cls.TABLE.update(dict.fromkeys(operators, wrapper))
            return function

        return register


aten = torch.ops.aten


@Quantized.implements(aten.detach.default, aten.clone.default, aten.alias.default)
def _(func: Any, args: Any, kwargs: Any) -> Any:
    made = Quantized(func(args[0].values), func(args[0].scale), args[0].how)
    return return_and_correct_aliasing(func, args, kwargs, made)


@Quantized.implements(aten.t.default)
def _(func: Any, args: Any, kwargs: Any) -> Any:
    return args[0].values.to(args[0].scale.dtype).mul(args[0].scale).t()


@Quantized.implements(aten.linear.default)
def _(func: Any, args: Any, kwargs: Any) -> Any:
    x, weight, *bias = args
    made = torch.mm(x, weight.values.to(x.dtype).t()) * weight.scale.view(-1)
    return made + bias[0] if bias and bias[0] is not None else made


def quantized(weight: torch.Tensor) -> Quantized:
    """The weight, a row at a time."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return Quantized((weight / scale).round().to(torch.int8), scale, PerRow())


class Net(torch.nn.Module):
    def __init__(self, how: Callable[[torch.Tensor], torch.Tensor] = quantized) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        for layer in (self.first, self.second):
            layer.weight = torch.nn.Parameter(how(layer.weight.detach()), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(torch.relu(self.first(x)))
        return made


def pair(*size: int, unit: str = "m") -> Pair:
    return Pair(torch.randn(size), torch.randn(size), unit)


def pointwise(x: Any) -> Any:
    return (x * 2).sin() + x


def reduced(x: Any) -> Any:
    return x.softmax(-1).sum(0), x.shape[0]


def mixed(x: Any, y: Any) -> Any:
    return x * y, y + 1


def views(x: Any) -> Any:
    return x.t(), x.view(-1), (x + 1).t()


def written(x: Any) -> Any:
    x.mul_(3)
    return x


def written_aside(x: Any) -> Any:
    x.add_(1)
    return x.sum(), x * 2


def inner(x: Any) -> Any:
    return x.a + x.b * 2


def parts(x: Any) -> Any:
    return x.split(2)


def made(x: Any) -> Any:
    return Pair(x, x + 1, "s") * 2


def told(x: Any) -> Any:
    return Pair(x + 1, x, {"unit": ["s", (1, [])]})


def sized(x: Any) -> Any:
    return Pair(x.a, x.b, tuple(x.shape)) * 2


def resized(x: Any) -> Any:
    x.t_()
    return x * 1


def twice(x: Any) -> Any:
    y = x * 2
    return y, y


def both(x: Any, y: Any) -> Any:
    x.mul_(2)
    return y + 1


def beside(x: Any, y: Any) -> Any:
    return x * 2 + y


def and_inner(x: Any) -> Any:
    return x * 2, x.b + 1


def attribute(x: Any) -> Any:
    x.b = x.b + 1
    return x * 2


def broken(x: Any) -> Any:
    y = x * 2
    print(end="")
    if y.a.sum() > 1e9:
        return y
    return Pair(y.a, y.b, "s").cos() + 1


def entries(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value * 2 for name, value in given.items()}


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "pointwise": (pointwise, lambda: (pair(4, 6),)),
    "reduced": (reduced, lambda: (pair(4, 6),)),
    "mixed": (mixed, lambda: (pair(4, 6), torch.randn(6))),
    "views": (views, lambda: (pair(4, 6),)),
    "written": (written, lambda: (pair(4, 6),)),
    "written_aside": (written_aside, lambda: (pair(4, 6),)),
    "inner": (inner, lambda: (pair(4, 6),)),
    "parts": (parts, lambda: (pair(4, 6),)),
    "made": (made, lambda: (torch.randn(4, 6),)),
    "told": (told, lambda: (torch.randn(4, 6),)),
    "sized": (sized, lambda: (pair(4, 6),)),
    "twice": (twice, lambda: (pair(4, 6),)),
    "nested": (pointwise, lambda: (Pair(pair(4, 6), pair(4, 6), "kg"),)),
    "and_inner": (and_inner, lambda: (pair(4, 6),)),
    "entries": (entries, lambda: ({"a": pair(2, 3), "b": torch.randn(3)},)),
    "strided": (pointwise, lambda: (Pair(torch.randn(6, 4).t(), torch.randn(6, 4).t()),)),
    "module": (Net(), lambda: (torch.randn(3, 8),)),
}
