"""Pairs of a row's statistics in one loop (`lowering/analysis/row_statistics.py`): each lane has a pair of its own, and the pairs of the
lanes are joined behind the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from precast.codegen.triton.render.lanes import Lanes
from precast.codegen.triton.render.memory import Memory
from precast.codegen.triton.render.ops import TYPES, literal
from precast.lowering.analysis.row_statistics import Pair, pair_of, reductions_in
from precast.lowering.ir.nodes import Reduce
from precast.lowering.ir.scalars import DType

LOWEST = {DType.F32: -3.4028234663852886e38, DType.F64: -1.7976931348623157e308}
"""Where running maxima begin: from minus infinity the distance to an item that is minus infinity, too, would be no number."""


def levels_of(reductions: Sequence[Reduce], pairs: dict[Reduce, Pair]) -> dict[Reduce, int]:
    """In which loop each reduction, given behind those that it needs, is computed: the second of a pair in that of the first."""
    levels: dict[Reduce, int] = {}
    for r in reductions:
        needed = {levels[o] for o in reductions_in(r.value)}
        pair = pairs.get(r)
        if pair is not None:
            needed = {levels[o] for o in reductions_in(r.value) - {pair.first}}
            if max(needed, default=0) < levels[pair.first]:
                levels[r] = levels[pair.first]
                continue
            del pairs[r]  # the item is known later than the first
            needed.add(levels[pair.first])
        levels[r] = 1 + max(needed, default=0)
    return levels


class OnePass(Memory):
    """Emits pairs. `pairs`: by the second, those that a loop computes together."""

    pairs: dict[Reduce, Pair]

    def find_pairs(self, reductions: Sequence[Reduce]) -> None:
        looped = {t.axes for t in self.tiles if t.looped}
        found = ((r, pair_of(r)) for r in reductions if r.axes in looped)
        self.pairs = {r: pair for r, pair in found if pair is not None and pair.first.axes is r.axes}

    def begin_squares(self, value: str, item: DType, keep: str, tile: Lanes) -> tuple[str, str]:
        """Welford's running mean and squares for each lane, of what its items lie apart from its first one: means that are far larger than
        the deviation then cost no digits. Gives their name, and that of the lanes' numbers of items.
        """
        name, kind = self.fresh("a"), TYPES[item]
        shape = f"[{self.x.block}, {tile.block}]"
        self.starts += [f"{name}{part} = tl.full({shape}, 0.0, {kind})" for part in ("", "_mean", "_first")]
        self.starts.append(f"{name}_step = tl.full([1, 1], 0.0, {kind})")
        lines = [
            f"{name}_step += 1.0",
            f"{name}_first = tl.where({name}_step == 1.0, {value}, {name}_first)",
            f"{name}_item = {value} - {name}_first",
            f"{name}_away = {name}_item - {name}_mean",
            f"{name}_next = tl.fma({name}_away, divide(tl.full([1, 1], 1.0, {kind}), {name}_step), {name}_mean)",
        ]
        squares = f"tl.fma({name}_away, {name}_item - {name}_next, {name})"
        if not tile.mask:
            self.inner_lines += [*lines, f"{name} = {squares}", f"{name}_mean = {name}_next"]
            return name, f"{name}_step"
        self.starts.append(f"{name}_count = tl.full({shape}, 0.0, {kind})")
        self.inner_lines += [
            *lines,
            f"{name} = tl.where({keep}, {squares}, {name})",
            f"{name}_mean = tl.where({keep}, {name}_next, {name}_mean)",
            f"{name}_count = tl.where({keep}, {name}_step, {name}_count)",
        ]
        return name, f"{name}_count"

    def end_squares(self, pair: Pair, name: str, count: str) -> None:
        """Joins the lanes about the mean of all."""
        centre = self.emit(pair.centre)
        lanes = self.lanes_of(pair.second)
        apart = self.line((pair.second, "apart"), f"({name}_first - {centre}) + {name}_mean", lanes)
        text = f"{name} + {count} * ({apart} * {apart})"
        if count.endswith("_count"):
            text = f"tl.where({count} > 0, {text}, 0.0)"
        self.line(pair.second, f"tl.sum({text}, 1, keep_dims=True)", lanes)

    def begin_powers(self, value: str, item: DType, keep: str, tile: Lanes) -> str:
        """The running maximum, and the sum of the exponentials beside it, for each lane; gives the latter's name.

        An exponential of f32 is off by 2^-23 and, of -t, by t 2^-23: times exp(-t), as it counts in the sum, less than the sum's rounding.
        """
        name, kind = self.fresh("a"), TYPES[item]
        shape = f"[{self.x.block}, {tile.block}]"
        self.starts += [f"{name} = tl.full({shape}, 0.0, {kind})", f"{name}_top = tl.full({shape}, {literal(LOWEST[item], item)}, {kind})"]
        if tile.mask:
            self.inner_lines.append(f'{name}_item = tl.where({keep}, {value}, float("-inf"))')
        else:
            self.inner_lines.append(f"{name}_item = {value}")
        self.inner_lines += [
            f"{name}_away = {name}_item - {name}_top",
            f"{name}_power = {'tl' if item is DType.F32 else 'libdevice'}.exp(-tl.abs({name}_away))",
            f"{name} = tl.fma({name}, tl.where({name}_away > 0, {name}_power, 1.0), tl.where({name}_away > 0, 1.0, {name}_power))",
            f"{name}_top = combine_max({name}_top, {name}_item)",
        ]
        return name

    def end_maximum(self, first: Reduce, name: str) -> None:
        """The maximum of the lanes: a lane without a sum saw no number but minus infinity."""
        self.lines.append(f'{name}_top = tl.where({name} == 0, float("-inf"), {name}_top)')
        self.line(first, f"tl.reduce({name}_top, 1, combine_max, keep_dims=True)", self.lanes_of(first))

    def end_powers(self, pair: Pair, name: str) -> None:
        """Joins the lanes beside the maximum of all. An infinite one leaves what the exponential of it alone is."""
        whole, centre = self.emit(pair.first), self.emit(pair.centre)
        lanes = self.lanes_of(pair.second)
        total = self.fresh()
        self.line((pair.second, "sum"), f"tl.sum({name} * libdevice.exp({name}_top - {centre}), 1, keep_dims=True)", lanes, total)
        alone = f"libdevice.exp({whole} - {centre})"
        self.line(pair.second, f'tl.where(tl.abs({whole}) == float("inf"), {alone}, {total})', lanes)
