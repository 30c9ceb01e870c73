"""How a kernel is cut into Triton programs: decided apart from the rendering, as data.

A `Part` is what one launch computes: stores that share their outer ("x") axes, over which programs are spread, and whose other
axes and reductions run inside a program, in lanes or in a loop. A `Tiling` says how wide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from precast.codegen.common.value_facts import Facts
from precast.codegen.triton.render.ops import Unsupported
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Axis, Kernel, Load, Reduce, Scan, Size, Store, walk

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
    hints: bool = True
    """Loads tell the cache what is read again."""
    depth: int = 0
    """Steps of a matrix product's sum that are taken at once, `xblock` rows by `rblock` columns. 0: a part without products."""


@dataclass(frozen=True, eq=False)
class Part:
    """`stores` of one kernel over the same outer axes `x`, on which alone their reductions depend. Each store's `axes` are spelt out."""

    x: tuple[Axis, ...]
    stores: tuple[Store, ...]
    grid: bool = False
    """The tile of the stores is cut into blocks of `rblock` lanes, each a program's: nothing is reduced, or short reductions over other
    tiles are computed in each of these programs anew."""
    planes: bool = False
    """Such a tile is all that lies within one point of `x`, to which many of the loads belong."""


def power_of_two(value: int) -> int:
    """The next one, at least 1."""
    return 1 << max(value - 1, 0).bit_length()


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
    return _ordered(kernel, [Part(x, tuple(stores)) for x, stores in groups.items()])


def _ordered(kernel: Kernel, parts: list[Part]) -> tuple[Part, ...]:
    """The parts so that each reads before another overwrites."""
    order: list[Part] = []
    reads = {id(part): loaded(part.stores) for part in parts}
    while parts:
        for part in parts:
            written = {s.buffer for s in part.stores}
            if not any(written & reads[id(other)] for other in parts if other is not part):
                break
        else:
            raise Unsupported(f"{kernel.name}: its parts overwrite what the others read")
        parts.remove(part)
        order.append(part)
    return tuple(order)


def loaded(stores: Iterable[Store]) -> set[str]:
    """The buffers that the stores read."""
    return {v.buffer for v in walk(*(root for s in stores for root in store_roots(s))) if isinstance(v, Load)}


def _outer(store: Store, kernel: Kernel, facts: Facts) -> tuple[Axis, ...] | None:
    """The kernel axes that the store's reductions depend on, or that its scans do not run along; None where it has neither."""
    values = list(walk(*store_roots(store)))
    reductions = [v for v in values if isinstance(v, Reduce)]
    scanned = {v.axis for v in values if isinstance(v, Scan)}
    if not reductions and not scanned:
        return None
    symbols = frozenset().union(*(facts.deps(r) for r in reductions))
    if len(scanned) > 1 or any(a.symbol in symbols for a in scanned):
        raise Unsupported(f"{kernel.name}: a scan whose axis another scan or a reduction inside it depends on")
    if scanned:
        return tuple(a for a in store.axes or () if a not in scanned)
    return tuple(a for a in kernel.axes if a.symbol in symbols)
