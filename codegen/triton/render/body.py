"""Writes one `Part` of a kernel as the body of a Triton function.

Outer points are lanes of dimension 0 ("x"); the points of a reduction, and a store's remaining axes, are lanes of dimension 1, a *tile*.
Tiles of equal extents share their symbols, so that a row that is normalised is loaded once. A tile that fits is evaluated at once, a
longer one in loops, one for each level of reductions that need one another; or, where nothing is reduced, it is shared out to programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy

from precast.codegen.triton.render.lanes import Lanes
from precast.codegen.triton.render.one_pass import levels_of
from precast.codegen.triton.render.ops import Unsupported
from precast.codegen.triton.render.reductions import Reductions
from precast.codegen.triton.render.tiling import loaded
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.index import FloorDiv, plain
from precast.lowering.ir.nodes import Reduce, Scan, Size, Store, Value, walk


class Body(Reductions):
    """The whole function: reductions level by level, then what is stored."""

    reduced: Sequence[Lanes] = ()
    """Tiles over which loops have reduced."""

    def write(self) -> None:
        """Fills `lines`, the function's."""
        reductions = [v for v in self._values() if isinstance(v, Reduce)]
        self.reduced = [t for t in self.tiles if t.looped and any(r.axes is t.axes for r in reductions)]
        self.find_pairs(reductions)
        levels = levels_of(reductions, self.pairs)
        for level in sorted(set(levels.values())):
            for tile in self.tiles:
                self.reduce([r for r in reductions if levels[r] == level and r.axes is tile.axes], tile)
        self._store_all()
        self.lines = [*self._header(), *(self._without_mask() or self.lines)]

    def _without_mask(self) -> list[str]:
        """The lines behind the header in two forms, without a mask for all programs but the last: Triton reads several neighbours at once
        only where it knows that a mask is the same for them, which a size of the run time does not tell. Empty where that is no matter.
        """
        (axis,) = self.x.axes if len(self.x.axes) == 1 else (None,)
        if axis is None or self.tiles or not self.x.mask or self.x.count is not None or any(isinstance(v, Scan) for v in self._values()):
            return []
        whole = type(self)(self.part, self.known, self.tiling, self.index_type)
        whole.buffers, whole.sizes = self.buffers, self.sizes
        whole.x.mask = ""
        whole._store_all()
        here = f"if (program + 1) * {self.x.block} <= {self.x.extent(self.x.axes, self.size)}:"
        return [here, *(f"    {line}" for line in whole.lines), "else:", *(f"    {line}" for line in self.lines)]

    @property
    def what(self) -> str:
        """The kind of kernel, for its name."""
        kinds = {type(v) for v in self._values()}
        return "scan" if Scan in kinds else "reduction" if Reduce in kinds else "pointwise"

    @property
    def grid(self) -> Size:
        """How many programs there are."""
        total: Any = sympy.S.One
        for lanes in (self.x, *self.tiles):
            if lanes.mode == "grid":
                total = total * self._blocks(lanes)
        return plain(total)

    def _blocks(self, lanes: Lanes) -> Any:
        count: Any = sympy.Mul(*(sympy.sympify(a.extent) for a in lanes.axes))
        return FloorDiv(count + lanes.block - 1, sympy.Integer(lanes.block))

    def _values(self) -> Iterator[Value]:
        return walk(*(root for s in self.stores for root in store_roots(s)))

    def _header(self) -> list[str]:
        program = "program"
        shared = [t for t in self.tiles if t.mode == "grid"]
        lines = []
        if shared and any(isinstance(v, Reduce) for v in self._values()):  # the end of the last row was read last, and is in the cache
            program = "(tl.num_programs(0) - 1 - program)"
        for tile in shared:
            blocks = self.index(self._blocks(tile), {})
            blocks = f"({blocks})" if " " in blocks else blocks
            if any(tile.axes[0] not in (s.axes or ()) for s in self.stores):
                lines.append(f"{tile.name}_first = {program} % {blocks} == 0")
            lines += [f"{tile.name} = {program} % {blocks} * {tile.block} + {self.lane(tile)}", *tile.define(self.size)]
            program = f"{program} // {blocks}"
        lines += [f"x = {program} * {self.x.block} + {self.lane(self.x)}", *self.x.define(self.size)]
        for tile in self.tiles:
            if tile.mode == "whole":
                lines += [f"{tile.name} = {self.lane(tile)}", *tile.define(self.size)]
        return lines

    def _store_all(self) -> None:
        """Stores without a loop together, and one loop for each long tile; what overwrites a buffer comes after what reads it."""
        for loop in self._order():
            stores = [s for s in self.stores if self._loop_of(s) is loop]
            self.loop = loop
            written = [self.store(s) for s in stores]
            if loop is not None:
                self.inner_lines += written
                self.close(back=loop in self.reduced)  # what was read last is still in the cache
            else:
                self.lines += written

    def _loop_of(self, store: Store) -> Lanes | None:
        return next((t for t in self.tiles if t.looped and t.axes[0] in (store.axes or ())), None)

    def _order(self) -> list[Lanes | None]:
        """The loops (None: outside of any) in an order that lets each read before another overwrites."""
        waiting = [loop for loop in (None, *self.tiles) if any(self._loop_of(s) is loop for s in self.stores)]
        order: list[Lanes | None] = []
        while waiting:
            for loop in waiting:
                writes = {s.buffer for s in self.stores if self._loop_of(s) is loop}
                later = [s for s in self.stores if any(self._loop_of(s) is o for o in waiting if o is not loop)]
                if not writes & loaded(later):
                    break
            else:
                raise Unsupported("an in-place kernel whose loops overwrite what the others read")
            waiting.remove(loop)
            order.append(loop)
        return order
