"""Random straight-line graphs: any list of integers is one.

A graph is a list of instructions (small integer tuples). Running them looks at the shapes that it has so far and takes every choice
modulo what is possible there, so hypothesis can shrink freely and each list means the same function in eager and under a tracer. Values
stay of order one, and no instruction is discontinuous, so that results can be compared closely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Instruction = tuple[int, int, int, int]
"""(kind, first operand, second operand, choice)."""
MOST = 3000
"""Elements of the largest tensor that an instruction may make."""

Tensor = torch.Tensor

UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    torch.sigmoid,
    torch.sin,
    F.relu,
    torch.neg,
    torch.abs,
    F.gelu,
    F.silu,
    lambda x: torch.exp(-x.abs()),
    lambda x: x * 0.5 + 1,
    lambda x: torch.sqrt(x.abs() + 0.1),
    lambda x: x.clamp(-0.5, 0.7),
    lambda x: torch.log1p(x * x),
    lambda x: torch.rsqrt(x * x + 1),
    lambda x: 1 / (1 + x.abs()),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: (a + b) * 0.5,
    lambda a, b: a - b.tanh(),
    lambda a, b: a.tanh() * b,
    torch.maximum,
    torch.minimum,
    lambda a, b: torch.where(a > b, a, b),
    lambda a, b: torch.lerp(a, b.expand_as(a + b) if a.dim() else b, 0.3) if (a + b).shape == a.shape else (a + b) / 2,
    lambda a, b: a / (1 + b * b),
]


def _dim(x: Tensor, choice: int) -> int:
    return choice % x.dim()


def _views(x: Tensor, choice: int) -> Tensor:
    """A view, or a flip or roll, of a tensor with at least one dimension."""
    dim = _dim(x, choice // 8)
    match choice % 8:
        case 0:
            return x.transpose(dim, -1)
        case 1:
            return x.reshape(-1)
        case 2:
            return x.unsqueeze(dim) if x.dim() < 4 else x.flatten(0, 1)
        case 3:
            return x.narrow(dim, 1, x.shape[dim] - 1) if x.shape[dim] > 1 else x
        case 4:
            return x.flip(dim)
        case 5:
            return x.select(dim, x.shape[dim] // 2)
        case 6:
            return x[..., ::2]
        case _:
            return x.roll(1, dim)


def _reduce(x: Tensor, choice: int) -> Tensor:
    dim, keep = _dim(x, choice // 8), bool(choice & 64)
    match choice % 8:
        case 0 | 1:
            return x.mean(dim, keep)
        case 2:
            return x.amax(dim, keep)
        case 3:
            return x.amin(dim, keep)
        case 4:
            return x.var(dim, keepdim=keep, correction=0)
        case 5:
            return F.softmax(x, dim)
        case 6:
            return F.layer_norm(x, x.shape[-1:], eps=0.1)
        case _:
            return x.mean()


def _move(x: Tensor, y: Tensor, index: Tensor, choice: int) -> Tensor:
    """Joins, gathers, pads and running sums."""
    dim = _dim(x, choice // 8)
    chosen = index.remainder(x.shape[dim])
    match choice % 8:
        case 0:
            return torch.cat([x, y], dim) if x.dim() == y.dim() and _fits(x, y, dim) else torch.cat([x, x.flip(dim)], dim)
        case 1:
            return torch.stack([x, x * 0.5], dim) if x.dim() < 4 else x
        case 2:
            return x.index_select(dim, chosen)
        case 3:
            return x[chosen] if dim == 0 else x.transpose(0, dim)[chosen]
        case 4:
            return F.pad(x, (1, 2), value=0.25)
        case 5:
            return x.cumsum(dim) / x.shape[dim]
        case 6:
            return x.masked_fill(torch.arange(x.shape[-1]) % 2 == 0, 0.5)
        case _:
            return x.tril() if x.dim() > 1 else x.repeat(2)


def _fits(x: Tensor, y: Tensor, dim: int) -> bool:
    return all(a == b for d, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if d != dim)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """A matrix product of order one."""
    if x.dim() < 2:
        return torch.outer(x, x) if x.dim() == 1 else x * x
    if y.dim() == 2 and y.shape[0] == x.shape[-1]:
        return x @ y / x.shape[-1]
    return x @ x.transpose(-1, -2) / x.shape[-1]


def _broadcasts(x: Tensor, y: Tensor) -> bool:
    return all(a == b or a == 1 or b == 1 for a, b in zip(reversed(x.shape), reversed(y.shape), strict=False))


@dataclass(frozen=True)
class Graph:
    """One function of three float tensors and an index tensor; returns its last three values."""

    instructions: tuple[Instruction, ...]

    def __call__(self, x: Tensor, y: Tensor, z: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        pool = [x, y, z]
        for instruction in self.instructions:
            made = apply(pool, index, instruction)
            if 0 < made.numel() <= MOST and made.dim() <= 4:
                pool.append(made)
        return tuple(pool[-3:])


def apply(pool: Sequence[Tensor], index: Tensor, instruction: Instruction) -> Tensor:
    """One instruction on the values so far."""
    kind, first, second, choice = instruction
    x, y = pool[-1 - first % len(pool)], pool[-1 - second % len(pool)]
    match kind % 8:
        case 0 | 1:
            return UNARY[choice % len(UNARY)](x)
        case 2 | 3:
            return BINARY[choice % len(BINARY)](x, y) if _broadcasts(x, y) else UNARY[choice % len(UNARY)](x)
        case 4 if x.dim():
            return _views(x, choice)
        case 5 if x.dim():
            return _reduce(x, choice)
        case 6 if x.dim():
            return _move(x, y, index, choice)
        case 7:
            return _product(x, y)
        case _:
            return x.reshape(1, 1)
