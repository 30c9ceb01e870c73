"""How a kernel is cut into Triton programs: decided apart from the rendering, as data.

A `Part` is what one launch computes: stores that share their outer ("x") axes, over which programs are spread, and whose other
axes and reductions run inside a program, in lanes or in a loop. A `Tiling` says how wide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import sympy

from precast.codegen.triton_ops import Unsupported
from precast.codegen.values import Facts, store_roots
from precast.lowering.ir import Axis, Kernel, Load, Reduce, Size, Store, walk

Extents = tuple[Size, ...]


@dataclass(frozen=True)
class Tiling:
    """Blocks and the launch. All blocks are powers of two."""

    xblock: int
    persistent: int = 1024
    """Largest inner extent whose lanes are all alive at once; longer ones are looped over."""
    rblock: int = 1024
    """Lanes of one step of such a loop."""
    num_warps: int = 4
    num_stages: int = 1
    unroll: int = 16
    """Reductions of at most this many points are written out."""


@dataclass(frozen=True, eq=False)
class Part:
    """`stores` of one kernel over the same outer axes `x`, on which alone their reductions depend. Each store's `axes` are spelt out."""

    x: tuple[Axis, ...]
    stores: tuple[Store, ...]


def power_of_two(value: int) -> int:
    """The next one, at least 1."""
    return 1 << max(value - 1, 0).bit_length()


def static(sizes: Iterable[Size]) -> int | None:
    """The product, where all are known."""
    total = 1
    for size in sizes:
        if not isinstance(size, int | sympy.Integer):
            return None
        total *= int(size)
    return total


def split(kernel: Kernel, facts: Facts) -> tuple[Part, ...]:
    """Groups the stores by the axes that their reductions depend on. `Unsupported` where one part reads what another overwrites."""
    groups: dict[tuple[Axis, ...], list[Store]] = {}
    plain: list[Store] = []
    for store in kernel.stores:
        store = replace(store, axes=kernel.axes if store.axes is None else tuple(a for a in kernel.axes if a in store.axes))
        outer = _outer(store, kernel, facts)
        if outer is None:
            plain.append(store)
        else:
            groups.setdefault(outer, []).append(store)
    for store in plain:
        axes = store.axes or ()
        home = next((x for x in groups if x and set(x) < set(axes)), axes)
        groups.setdefault(home, []).append(store)
    parts = tuple(Part(x, tuple(stores)) for x, stores in groups.items())
    for part in parts:
        read = loaded(part.stores)
        clash = {s.buffer for other in parts if other is not part for s in other.stores} & read
        if clash:
            raise Unsupported(f"{kernel.name}: one part overwrites {sorted(clash)}, which another reads")
    return parts


def loaded(stores: Iterable[Store]) -> set[str]:
    """The buffers that the stores read."""
    return {v.buffer for v in walk(*(root for s in stores for root in store_roots(s))) if isinstance(v, Load)}


def _outer(store: Store, kernel: Kernel, facts: Facts) -> tuple[Axis, ...] | None:
    """The kernel axes that the store's reductions depend on; None where it has none."""
    reductions = [v for v in walk(*store_roots(store)) if isinstance(v, Reduce)]
    if not reductions:
        return None
    symbols = frozenset().union(*(facts.deps(r) for r in reductions))
    return tuple(a for a in kernel.axes if a.symbol in symbols)


def choose(x: Size, inner: Iterable[Size]) -> Tiling:
    """A tiling for `x` outer points and inner extents, without having measured: about 8 elements a thread, one row or more a program."""
    widest = max((static((extent,)) or 1 << 20 for extent in inner), default=1)
    rows = static((x,)) or 1 << 20
    if widest == 1:
        xblock = min(1024, power_of_two(rows))
        return Tiling(xblock, num_warps=4 if xblock >= 512 else 1)
    lanes = power_of_two(widest)
    xblock = max(1, min(power_of_two(rows), 1024 // min(lanes, 1024)))
    persistent = 4096
    width = lanes if lanes <= persistent else 2048
    warps = max(1, min(16, xblock * width // 256))
    return Tiling(xblock, persistent=persistent, rblock=2048, num_warps=power_of_two(warps))
