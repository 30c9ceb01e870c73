"""What a row of the op table is, and the maker of its inputs.

A row is data: a function over tensors and a maker that draws fresh inputs from a seeded `Sampler`. The table says nothing about
who runs it; `runners.py` holds the backends and `check.py` what is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
I64, I32, I16, I8, U8, BOOL = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool
SHORT = {
    F32: "f32",
    F64: "f64",
    BF16: "bf16",
    F16: "f16",
    I64: "i64",
    I32: "i32",
    I16: "i16",
    I8: "i8",
    U8: "u8",
    BOOL: "bool",
    torch.complex64: "c64",
}

SPECIALS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    float("inf"),
    float("-inf"),
    float("nan"),
    1e-30,
    -1e-30,
    80.0,
    -80.0,
    3e4,
    -3e4,
)


class Sampler:
    """Draws the inputs of one row; every draw comes from one seeded generator, in the row's `dtype` unless told otherwise."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(seed)

    def t(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal values for floats, small integers of both signs for ints, coins for bool."""
        dtype = dtype or self.dtype
        if dtype.is_complex or dtype in (F32, F64):
            return torch.randn(shape, generator=self.generator, dtype=dtype)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=self.generator).to(dtype)
        if dtype == BOOL:
            return self.ints(*shape, low=0, high=2).bool()
        return self.ints(*shape, low=0 if dtype == U8 else -9, high=10, dtype=dtype)

    def ints(self, *shape: int, low: int, high: int, dtype: torch.dtype = I64) -> torch.Tensor:
        """Integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator).to(dtype)

    def float8(self, kind: torch.dtype, *shape: int) -> torch.Tensor:
        """Floats of eight bits: each that there is, or random ones."""
        count = math.prod(shape)
        found = torch.arange(256, dtype=U8) if count == 256 else self.t(count, dtype=F32).to(kind).view(U8)
        return found.view(kind).reshape(shape)

    def uniform(self, *shape: int, low: float, high: float, dtype: torch.dtype | None = None) -> torch.Tensor:
        dtype = dtype or self.dtype
        values = torch.rand(shape, generator=self.generator, dtype=F64) * (high - low) + low
        return values.to(dtype)

    def distinct(self, *shape: int) -> torch.Tensor:
        """Values without ties, 1/8 apart: for sorts and arg-extremes. Exact for up to 2048 elements of f16, 256 of bf16."""
        count = 1
        for extent in shape:
            count *= extent
        return (torch.randperm(count, generator=self.generator).to(F32) / 8 - count / 16).to(self.dtype).reshape(shape)

    def special(self, *shape: int) -> torch.Tensor:
        """Normal values with NaN, infinities, zeros of both signs, halves and huge and tiny numbers strewn in."""
        values = self.t(*shape).flatten()
        specials = torch.tensor(SPECIALS, dtype=F64).to(values.dtype)
        where = torch.randperm(values.numel(), generator=self.generator)[: len(SPECIALS)]
        values[where] = specials[: len(where)]
        return values.reshape(shape)

    def transposed(self, *shape: int) -> torch.Tensor:
        """Non-contiguous: the storage is in the opposite dimension order."""
        return self.t(*reversed(shape)).permute(*reversed(range(len(shape))))

    def sliced(self, *shape: int) -> torch.Tensor:
        """Non-contiguous with a storage offset: every second element along the last dimension of a larger tensor."""
        big = self.t(*(extent + 1 for extent in shape[:-1]), 2 * shape[-1] + 1)
        index = (*(slice(1, None) for _ in shape[:-1]), slice(1, None, 2))
        return big[index]

    def channels_last(self, *shape: int) -> torch.Tensor:
        return self.t(*shape).to(memory_format=torch.channels_last)

    def perm(self, count: int) -> torch.Tensor:
        return torch.randperm(count, generator=self.generator)


Make = Callable[[Sampler], tuple[Any, ...]]

LAYOUTS: dict[str, Callable[[Sampler], torch.Tensor]] = {
    "c": lambda s: s.t(5, 37),
    "t": lambda s: s.transposed(5, 37),
    "s": lambda s: s.sliced(3, 19),
    "0d": lambda s: s.t(),
    "empty": lambda s: s.t(0, 3),
    "expand": lambda s: s.t(1, 7).expand(5, 7),
    "cl": lambda s: s.channels_last(2, 5, 3, 4),
    "one": lambda s: s.t(1, 1, 1),
    "5d": lambda s: s.t(2, 1, 3, 2, 5),
    "long": lambda s: s.t(2, 1031),
}
"""The layouts that pointwise rows cycle through."""

BROADCASTS: dict[str, tuple[Callable[[Sampler], torch.Tensor], Callable[[Sampler], torch.Tensor]]] = {
    "same": (lambda s: s.t(5, 37), lambda s: s.t(5, 37)),
    "row": (lambda s: s.t(5, 37), lambda s: s.t(37)),
    "col": (lambda s: s.t(5, 37), lambda s: s.t(5, 1)),
    "outer": (lambda s: s.t(7, 1), lambda s: s.t(1, 9)),
    "0d": (lambda s: s.t(3, 4), lambda s: s.t()),
    "0d0d": (lambda s: s.t(), lambda s: s.t()),
    "empty": (lambda s: s.t(0, 3), lambda s: s.t(3)),
    "mixed": (lambda s: s.transposed(6, 11), lambda s: s.sliced(6, 11)),
    "cl": (lambda s: s.channels_last(2, 4, 3, 5), lambda s: s.t(4, 1, 1)),
}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `reference` is "f64" (compare with the function run in float64: error at most `factor` times eager's own plus `ulps` units in the
    last place), "eager" (the function's meaning depends on the dtype: compare with eager itself) or a function of the same arguments (as
    "f64", where torch's own in float64 is not exact enough). Tags: "mutates" (writes to its
    arguments), "random" (only shape and type can be compared), "extern" (a library call is expected), "free_strides" (eager's strides
    are an accident of its implementation), "triton" (of the part that the Triton interpreter runs).
    """

    id: str
    fn: Callable[..., Any]
    make: Make
    dtype: torch.dtype
    reference: str | Callable[..., Any] = "f64"
    factor: float = 2.0
    ulps: float = 8.0
    tags: frozenset[str] = frozenset()

    def inputs(self, seed: int) -> tuple[Any, ...]:
        """Fresh arguments; the same seed gives the same ones."""
        return self.make(Sampler(self.dtype, seed))


@dataclass
class Table:
    """Collects rows; ids are unique."""

    rows: list[Row] = field(default_factory=list)

    def add(
        self,
        name: str,
        fn: Callable[..., Any],
        make: Make,
        dtypes: Sequence[torch.dtype] = (F32,),
        *,
        tags: str = "",
        reference: str | Callable[..., Any] = "f64",
        factor: float = 2.0,
        ulps: float = 8.0,
    ) -> None:
        """One row for each dtype."""
        for dtype in dtypes:
            self.rows.append(Row(f"{name}-{SHORT[dtype]}", fn, make, dtype, reference, factor, ulps, frozenset(tags.split())))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


def cycle(kinds: Sequence[str], number: int, count: int) -> list[str]:
    """`count` of `kinds`, starting at another one for each `number`: spreads the layouts over the ops instead of multiplying them."""
    return [kinds[(number * count + offset) % len(kinds)] for offset in range(count)]
