"""Reductions and scans of a Triton function: over a whole tile at once, or block by block in a loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import sympy

from precast.codegen.triton.render.lanes import Lanes, Loops
from precast.codegen.triton.render.lines import NARROW
from precast.codegen.triton.render.one_pass import OnePass
from precast.codegen.triton.render.ops import COMBINE, RUNNING, TYPES, identity
from precast.codegen.triton.render.value_rewrites import kind
from precast.lowering.ir.nodes import Reduce, Scan
from precast.lowering.ir.scalars import DType, ReduceOp

INDEXED = (ReduceOp.ARGMIN, ReduceOp.ARGMAX)
EXTREMES = {ReduceOp.ARGMIN: ReduceOp.MIN, ReduceOp.ARGMAX: ReduceOp.MAX}
LAST_PLACE = (1 << 31) - 1
NOWHERE = 1 << 62


class Reductions(OnePass):
    """Emits the combination of the lanes of a tile."""

    def reduce(self, reductions: list[Reduce], tile: Lanes) -> None:
        """The reductions of one level over one tile: at once, or together in one loop."""
        if reductions and tile.looped:
            self._reduce_in_loop(reductions, tile)
            return
        for r in self._without_extremes(reductions):
            value, item = self._item(r)
            if tile.mask or tile not in self.lanes_of(r.value):
                value = self._filled(value, tile, r.op, item)
            self._result(r, value, tile.name)

    def _without_extremes(self, reductions: list[Reduce]) -> list[Reduce]:
        """The reductions but for extremes whose place is wanted, too: that gives both."""
        self.extremes = {}
        for r in reductions:
            if r.op in INDEXED:
                twin = next((o for o in reductions if o.op is EXTREMES[r.op] and o.value is r.value and o.axes is r.axes), None)
                if twin is not None and twin.dtype is kind(r.value):
                    self.extremes[r] = twin
        return [r for r in reductions if r not in self.extremes.values()]

    def _filled(self, value: str, tile: Lanes, op: ReduceOp, item: DType) -> str:
        """The value with the neutral element where the tile has no points."""
        return f"tl.where({tile.mask or f'{tile.name} >= 0'}, {value}, tl.full([1, 1], {identity(op, item)}, {TYPES[item]}))"

    def _reduce_in_loop(self, reductions: list[Reduce], tile: Lanes) -> None:
        self.loop = tile
        finished: list[tuple[Reduce, str]] = []
        keep = tile.mask or f"({tile.name} >= 0)"
        ends: list[Callable[[], None]] = []
        tops: dict[Reduce, str] = {}
        for pair in (self.pairs[r] for r in reductions if r in self.pairs):
            value, item = self._item(pair.first)
            if pair.powers:
                name = self.begin_powers(value, item, keep, tile)
                tops.setdefault(pair.first, name)
                ends.append(partial(self.end_powers, pair, name))
            else:
                ends.append(partial(self.end_squares, pair, *self.begin_squares(value, item, keep, tile)))
        for r in self._without_extremes([r for r in reductions if r not in self.pairs and r not in tops]):
            value, item = self._item(r)
            name = self.fresh("a")
            shape = f"[{self.x.block}, {tile.block}]"
            self.starts.append(f"{name} = tl.full({shape}, {identity(r.op, item)}, {TYPES[item]})")
            if r.op in INDEXED:
                place = self._place_type(tile)
                self.starts.append(f"{name}_at = tl.full({shape}, {NOWHERE if place == 'tl.int64' else LAST_PLACE}, {place})")
                self.inner_lines += [
                    f"{name}_new, {name}_next = {COMBINE[r.op]}({name}, {name}_at, {value}, {tile.name}.to({place}))",
                    f"{name}_at = tl.where({keep}, {name}_next, {name}_at)",
                    f"{name} = tl.where({keep}, {name}_new, {name})",
                ]
            elif tile.mask:
                self.inner_lines.append(f"{name} = tl.where({keep}, {COMBINE[r.op]}({name}, {value}), {name})")
            else:
                self.inner_lines.append(f"{name} = {COMBINE[r.op]}({name}, {value})")
            finished.append((r, name))
        self.close()
        for r, name in tops.items():
            self.end_maximum(r, name)
        for r, name in finished:
            self._result(r, name, f"{name}_at")
        for end in ends:
            end()

    def close(self, back: bool = False) -> None:
        """Appends the loop that was being written to the lines outside of it; `back`: the last step is the first one."""
        tile = self.loop
        assert tile is not None
        if tile.mask and self.x.block == 1 and not self.scanned and (tile.count is None or 2 * tile.block <= tile.count <= LAST_PLACE):
            loops = self._in_two(tile)
        else:
            inside = [f"{tile.name} = {tile.name}_start + {self.lane(tile)}", *tile.define(self.size), *self._inside(None)]
            loops = Loops([], ((tile.extent(tile.axes, self.size), inside),))
        self.lines += [*self.starts, *loops.before]
        for count, inside in reversed(loops.loops) if back else loops.loops:
            turned = back and count.isdecimal() and int(count) <= LAST_PLACE
            if turned:
                inside = [f"{tile.name}_start = {(int(count) - 1) // tile.block * tile.block} - {tile.name}_turn", *inside]
            counter = f"{tile.name}_{'turn' if turned else 'start'}"
            self.lines += [f"for {counter} in {self._steps(count, tile)}:", *(f"    {line}" for line in inside)]
        self.starts, self.inner_lines, self.inner_names, self.loop, self.marks = [], [], {}, None, []
        self.scanned = False

    def _in_two(self, tile: Lanes) -> Loops:
        skip = self.skipped()
        if skip is None:
            return tile.in_two_loops(self.size, self.lane(tile), "", 0, lambda _: self._inside(None))
        base, vector = skip
        first = f"(0 - ({self.index(base, {})})) & {vector - 1}"
        return tile.in_two_loops(self.size, self.lane(tile), first, vector - 1, lambda whole: self._inside(base if whole else None))

    def _inside(self, base: sympy.Expr | None) -> list[str]:
        return [self.aligned(line, base) for line in self.inner_lines]

    def _steps(self, count: str, tile: Lanes) -> str:
        if count.isdecimal() and int(count) > LAST_PLACE:  # a plain number would be an unsigned one, and loops count signed ones
            count = f"tl.full([], {count}, tl.int64)"
        stages = self.tiling.num_stages
        return f"range(0, {count}, {tile.block})" if stages == 1 else f"tl.range(0, {count}, {tile.block}, num_stages={stages})"

    def _item(self, r: Reduce | Scan) -> tuple[str, DType]:
        """The name of what is combined, in the type that the accumulator has, and that type."""
        value = self.emit(r.value)
        source = kind(r.value)
        target = source if r.op in INDEXED else DType.BOOL if r.op in (ReduceOp.ANY, ReduceOp.ALL) else r.dtype.compute
        if target in (*NARROW, DType.BOOL) and r.op in INDEXED or (target is DType.BOOL and r.op in (ReduceOp.MIN, ReduceOp.MAX)):
            target = DType.I32
        if source is target:
            return value, target
        key = (r.value, "as", target)
        return self.found(key) or self.line(key, self.cast(value, source, target), self.lanes_of(r.value)), target

    def _result(self, r: Reduce, items: str, places: str) -> None:
        """Combines the lanes of dimension 1; `places` are their linear positions, for index reductions."""
        varies, combine = self.lanes_of(r), COMBINE[r.op]
        if r.op in INDEXED:
            name = self.line((r, "items"), items, varies)
            (tile,) = (t for t in self.tiles if t.axes is r.axes)
            kept, place = COMBINE[EXTREMES[r.op]], self._place_type(tile)
            best = self.line((r, "best"), f"tl.reduce({name}, 1, {kept}, keep_dims=True)", varies)
            same = f"{name} == {best}"
            if kind(r.value).is_float:
                same = f"({same}) | (({name} != {name}) & ({best} != {best}))"
            far = NOWHERE if place == "tl.int64" else LAST_PLACE
            lowest = f"tl.where({same}, {places}, tl.full([1, 1], {far}, {place}))"
            self.line(r, f"tl.reduce({lowest}, 1, combine_min, keep_dims=True).to(tl.int64)", varies)
            if r in self.extremes:
                self.line(self.extremes[r], best, varies)
            return
        if r.op in (ReduceOp.ANY, ReduceOp.ALL):
            text = f"tl.reduce(({items}).to(tl.int32), 1, {combine}, keep_dims=True) != 0"
        else:
            text = f"tl.sum({items}, 1, keep_dims=True)" if r.op is ReduceOp.SUM else f"tl.reduce({items}, 1, {combine}, keep_dims=True)"
            if self.part.grid:  # a scalar: Triton 3.6 would hold all of a block of the row in every thread, in the layout of these items
                text = f"tl.reduce({text}, None, {combine})"
            if r.dtype.compute is DType.BOOL:
                text = f"{text} != 0"
        self.line(r, text, varies)

    def _place_type(self, tile: Lanes) -> str:
        """The type of positions in a tile: 64-bit ones cost twice."""
        return "tl.int32" if self.index_type == "tl.int32" and tile.count is not None and tile.count <= LAST_PLACE else "tl.int64"

    # -- scans

    def scan(self, node: Scan) -> None:
        """The running combination; across the blocks of a loop through a value for each row that is carried on."""
        (tile,) = [t for t in self.tiles if node.axis.symbol in t.symbols]
        value, item = self._item(node)
        varies, combine = [self.x, tile], RUNNING[node.op]
        shape = f"[{self.x.block}, {tile.block}]"
        value = self.line((node, "item"), f"tl.broadcast_to({self._filled(value, tile, node.op, item)}, {shape})", varies)
        place = self.line((node, "place"), f"tl.broadcast_to({tile.name}.to(tl.int64), {shape})", varies)
        done = self.fresh()
        if node.op in INDEXED:
            self._add(f"{done}_best, {done} = tl.associative_scan(({value}, {place}), 1, {combine})")
        else:
            self._add(f"{done} = tl.associative_scan({value}, 1, {combine})")
        if tile.looped:
            self.scanned = True
            self._carry(node, tile, done, item)
        (self.inner_names if tile.looped else self.names)[node] = done

    def _add(self, line: str) -> None:
        (self.lines if self.loop is None else self.inner_lines).append(line)

    def _carry(self, node: Scan, tile: Lanes, done: str, item: DType) -> None:
        first = f"[{self.x.block}, 1]"
        last = f"{tile.name} == {tile.name}_start + {tile.block - 1}"
        self.starts.append(f"{done}_carry = tl.full({first}, {identity(node.op, item)}, {TYPES[item]})")
        if node.op not in INDEXED:
            self.inner_lines += [
                f"{done} = {RUNNING[node.op]}({done}_carry, {done})",
                f"{done}_carry = tl.sum(tl.where({last}, {done}, tl.zeros_like({done})), 1, keep_dims=True).to({TYPES[item]})",
            ]
            return
        self.starts.append(f"{done}_carry_at = tl.full({first}, 0, tl.int64)")
        self.inner_lines += [
            f"{done}_best, {done} = {RUNNING[node.op]}({done}_carry, {done}_carry_at, {done}_best, {done})",
            f"{done}_carry = tl.sum(tl.where({last}, {done}_best, tl.zeros_like({done}_best)), 1, keep_dims=True).to({TYPES[item]})",
            f"{done}_carry_at = tl.sum(tl.where({last}, {done}, tl.zeros_like({done})), 1, keep_dims=True)",
        ]
