"""Reductions and scans of a Triton function: over a whole tile at once, or block by block in a loop."""

from __future__ import annotations

from precast.codegen.triton.render.lanes import Lanes
from precast.codegen.triton.render.lines import NARROW
from precast.codegen.triton.render.memory import Memory
from precast.codegen.triton.render.ops import COMBINE, RUNNING, TYPES, identity
from precast.codegen.triton.render.value_rewrites import kind
from precast.lowering.ir.nodes import Reduce, Scan
from precast.lowering.ir.scalars import DType, ReduceOp

INDEXED = (ReduceOp.ARGMIN, ReduceOp.ARGMAX)
LAST_PLACE = (1 << 31) - 1
NOWHERE = 1 << 62


class Reductions(Memory):
    """Emits the combination of the lanes of a tile."""

    def reduce(self, reductions: list[Reduce], tile: Lanes) -> None:
        """The reductions of one level over one tile: at once, or together in one loop."""
        if reductions and tile.looped:
            self._reduce_in_loop(reductions, tile)
            return
        for r in reductions:
            value, item = self._item(r)
            if tile.mask or tile not in self.lanes_of(r.value):
                value = self._filled(value, tile, r.op, item)
            self._result(r, value, tile.name)

    def _filled(self, value: str, tile: Lanes, op: ReduceOp, item: DType) -> str:
        """The value with the neutral element where the tile has no points."""
        return f"tl.where({tile.mask or f'{tile.name} >= 0'}, {value}, tl.full([1, 1], {identity(op, item)}, {TYPES[item]}))"

    def _reduce_in_loop(self, reductions: list[Reduce], tile: Lanes) -> None:
        self.loop = tile
        finished: list[tuple[Reduce, str]] = []
        keep = tile.mask or f"({tile.name} >= 0)"
        for r in reductions:
            value, item = self._item(r)
            name = self.fresh("a")
            shape = f"[{self.x.block}, {tile.block}]"
            self.starts.append(f"{name} = tl.full({shape}, {identity(r.op, item)}, {TYPES[item]})")
            if r.op in INDEXED:
                self.starts.append(f"{name}_at = tl.full({shape}, {NOWHERE}, tl.int64)")
                self.inner_lines += [
                    f"{name}_new, {name}_next = {COMBINE[r.op]}({name}, {name}_at, {value}, {tile.name}.to(tl.int64))",
                    f"{name}_at = tl.where({keep}, {name}_next, {name}_at)",
                    f"{name} = tl.where({keep}, {name}_new, {name})",
                ]
            elif tile.mask:
                self.inner_lines.append(f"{name} = tl.where({keep}, {COMBINE[r.op]}({name}, {value}), {name})")
            else:
                self.inner_lines.append(f"{name} = {COMBINE[r.op]}({name}, {value})")
            finished.append((r, name))
        self.close()
        for r, name in finished:
            self._result(r, name, f"{name}_at")

    def close(self) -> None:
        """Appends the loop that was being written to the lines outside of it."""
        tile = self.loop
        assert tile is not None
        inside = [f"{tile.name} = {tile.name}_start + {self.lane(tile)}", *tile.define(self.size), *self.inner_lines]
        count = tile.extent(tile.axes, self.size)
        if count.isdecimal() and int(count) > LAST_PLACE:  # a plain number would be an unsigned one, and loops count signed ones
            count = f"tl.full([], {count}, tl.int64)"
        stages = self.tiling.num_stages
        steps = f"range(0, {count}, {tile.block})" if stages == 1 else f"tl.range(0, {count}, {tile.block}, num_stages={stages})"
        self.lines += [*self.starts, f"for {tile.name}_start in {steps}:", *(f"    {line}" for line in inside)]
        self.starts, self.inner_lines, self.inner_names, self.loop = [], [], {}, None

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
            place = self.line((r, "places"), f"{places} + tl.zeros_like({name}).to(tl.int64)", varies)
            found = self.fresh()
            self.line((r, "best"), f"{found}_best, {found} = tl.reduce(({name}, {place}), 1, {combine}, keep_dims=True)", varies, "_")
            self.names[r] = found
            return
        if r.op in (ReduceOp.ANY, ReduceOp.ALL):
            text = f"tl.reduce(({items}).to(tl.int32), 1, {combine}, keep_dims=True) != 0"
        else:
            text = f"tl.sum({items}, 1, keep_dims=True)" if r.op is ReduceOp.SUM else f"tl.reduce({items}, 1, {combine}, keep_dims=True)"
            if r.dtype.compute is DType.BOOL:
                text = f"{text} != 0"
        self.line(r, text, varies)

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
