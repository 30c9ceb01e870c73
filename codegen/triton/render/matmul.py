"""Matrix products as generated Triton functions: sums of products whose two sides vary along different outer axes, on tensor cores.

Each side is a device function that gives one block of it, so that what is computed from memory (a cast of int8 weights, say) is computed as
it is read; what follows the sums is written as for any other part, over a block of rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import sympy

from precast.codegen.common.value_facts import rebuild, rebuild_store
from precast.codegen.triton.render.body import Body
from precast.codegen.triton.render.memory import Memory
from precast.codegen.triton.render.ops import TYPES
from precast.codegen.triton.render.tiling import Part, Tiling
from precast.codegen.triton.render.value_rewrites import kind
from precast.lowering.analysis.effects import store_roots
from precast.lowering.analysis.matmul_patterns import Product, product_of
from precast.lowering.ir.nodes import Axis, Buffer, Load, Reduce, Store, Value, walk
from precast.lowering.ir.scalars import DType

SIDE = "side"
Axes = tuple[tuple[Axis, ...], tuple[Axis, ...]]
"""A side's own, and those of the sum."""


def product_in(part: Part) -> Product | None:
    """The part as products of matrices; None where it is anything else."""
    if part.grid or any(s.axes != part.x for s in part.stores):
        return None
    return product_of(part.x, part.stores)


class ProductBody(Body):
    """The function of a part that `product_in` recognised, in a tiling that has a `depth`. The sums are named before all else."""

    def __init__(self, part: Part, product: Product, known: Mapping[str, Buffer], tiling: Tiling, index_type: str) -> None:
        self.product = product
        new: dict[int, Value] = {}
        point = sympy.Add(*(a.symbol for a in part.x))
        places = {s.value: Load(f"sum{n}", point, DType.F32) for n, s in enumerate(product.sums)}
        for value in walk(*(root for s in part.stores for root in store_roots(s))):
            new[id(value)] = places[value] if isinstance(value, Reduce) else rebuild(value, new)
        stores = tuple(rebuild_store(s, new) for s in part.stores)
        super().__init__(Part(product.rows, stores, grid=True), dict(known), tiling, index_type)
        for value in self._values():
            if isinstance(value, Load) and value.buffer in (p.buffer for p in places.values()):
                self.names[value] = value.buffer

    @property
    def what(self) -> str:
        return "product"

    def write(self) -> None:
        self._store_all()
        self.lines = [*self._header(), *self._sums(), *self.lines]

    def _sums(self) -> Iterator[str]:
        (columns,) = self.tiles
        blocks = self.index(self._blocks(columns), {})
        shape = f"[{self.x.block}, {columns.block}]"
        inside: dict[str, str] = {}
        multiplied: list[str] = []
        for number, s in enumerate(self.product.sums):
            yield f"sum{number} = tl.zeros({shape}, tl.float32)"
            left = self._side("left", s.left, s.half, (self.product.rows, s.value.axes), self.x.block, inside)
            right = self._side("right", s.right, s.half, (self.product.columns, s.value.axes), columns.block, inside)
            multiplied.append(f"sum{number} = tl.dot({left}, tl.trans({right}), sum{number})")
        yield f"row_block, column_block = program // ({blocks}), program % ({blocks})"
        depth: sympy.Expr = sympy.Mul(*(sympy.sympify(a.extent) for a in self.product.depth))
        yield f"for start in tl.range(0, {self.index(depth, {})}, {self.tiling.depth}, num_stages={self.tiling.num_stages}):"
        for line in (*(f"{name} = {call}" for call, name in inside.items()), *multiplied):
            yield f"    {line}"

    def _side(self, what: str, value: Value, half: DType, axes: Axes, block: int, calls: dict[str, str]) -> str:
        """The name of the side's block in the loop, the function that makes it being written unless there is an equal one."""
        side = _Side(value, half, *axes, self.known, replace(self.tiling, xblock=block), self.index_type)
        parameters = ["block", "start", *(f"ptr{n}" for n in side.buffers.values()), *(f"size{n}" for n in side.sizes.values())]
        given = [f"{'row' if what == 'left' else 'column'}_block", "start", *map(self.pointer, side.buffers), *map(self.size, side.sizes)]
        body = (f"({', '.join(parameters)}):\n", *(f"    {line}\n" for line in side.lines))
        name = self.functions.setdefault("".join(body), f"{what}{len(self.functions)}")
        self.checks = self.checks or side.checks
        return calls.setdefault(f"{name}({', '.join(given)})", f"{what}_block{len(calls)}")


class _Side(Memory):
    """A device function that returns one block of a side: `xblock` of its own axes, `depth` of the sum's."""

    def __init__(
        self,
        value: Value,
        half: DType,
        axes: tuple[Axis, ...],
        depth: tuple[Axis, ...],
        known: Mapping[str, Buffer],
        tiling: Tiling,
        integer: str,
    ) -> None:
        store = Store(SIDE, sympy.S.Zero, value, axes=(*axes, *depth))
        buffers = {**known, SIDE: Buffer(SIDE, half, (), ())}
        super().__init__(Part(axes, (store,)), buffers, replace(tiling, persistent=0, rblock=tiling.depth), integer)
        (tile,), (inner,) = self.tiles, self.stores
        self.loop = tile
        found = self.emit(inner.value)
        if kind(inner.value) is not half:
            found = f"{found}.to({TYPES[half]})"
        if tile.mask:
            found = f"tl.where({tile.mask}, {found}, 0.0)"
        self.lines = [
            f"x = block * {self.x.block} + {self.lane(self.x)}",
            *self.x.define(self.size),
            f"{tile.name} = start + {self.lane(tile)}",
            *tile.define(self.size),
            *self.lines,
            *self.inner_lines,
            f"return {found}",
        ]
