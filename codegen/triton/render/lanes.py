"""The dimensions of a Triton block: the points that their lanes compute, and index expressions over them with as few divisions as
possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import sympy

from precast.codegen.common.value_facts import static_product
from precast.codegen.triton.render.index_printer import write_index
from precast.lowering.ir.nodes import Axis, axis_symbol

Mode = Literal["grid", "whole", "loop"]


@dataclass(frozen=True)
class Run:
    """Adjacent axes, at positions `first` to `last`, that an index treats as one."""

    first: int
    last: int


@dataclass(frozen=True)
class Loops:
    """Lines `before` loops, and of each loop its end, a text, and its lines."""

    before: list[str]
    loops: tuple[tuple[str, list[str]], ...]


class Lanes:
    """One dimension of a block: the points of `axes` in row-major order, `block` at a time.

    "grid": each program has one block of them; "whole": every program has all; "loop": every program walks over them.
    """

    def __init__(self, name: str, axes: tuple[Axis, ...], block: int, mode: Mode) -> None:
        self.name, self.axes, self.block, self.mode = name, axes, block, mode
        self.symbols = frozenset(a.symbol for a in axes)
        self.used: dict[sympy.Symbol, Run] = {}
        count = static_product(a.extent for a in axes)
        self.count = count
        full = count is not None and count > 0 and count % block == 0 or (mode == "grid" and block == 1)
        self.mask = "" if full else f"{name}_mask"

    @property
    def looped(self) -> bool:
        return self.mode == "loop"

    def symbol(self, run: Run) -> sympy.Symbol:
        """The symbol of the position along a run of axes, whose definition `define` will write."""
        symbol = self.axes[run.first].symbol if run.first == run.last else axis_symbol(f"{self.name}_{run.first}_{run.last}")
        self.used[symbol] = run
        return symbol

    def joined(self, expr: Any) -> Any:
        """`expr` over runs of axes in place of single ones, where it is linear in them and their strides flatten to those of one axis."""
        mine = [a.symbol in expr.free_symbols for a in self.axes]
        if sum(mine) < 2:
            return expr
        rest = expr.xreplace({s: sympy.S.Zero for s in self.symbols})
        strides = [expr.coeff(a.symbol) if used else sympy.S.Zero for a, used in zip(self.axes, mine, strict=True)]
        linear = sympy.Add(*(c * a.symbol for c, a in zip(strides, self.axes, strict=True)))
        if any(c.free_symbols & self.symbols for c in strides) or not _equal(expr, rest + linear):
            return expr
        terms = [strides[run.last] * self.symbol(run) for run in self._runs(strides) if strides[run.last] != 0]
        return sympy.Add(rest, *terms)

    def base(self, expr: Any) -> Any:
        """What the expression is at the first point, where it counts the points in order; None where it does not."""
        joined = self.joined(expr)
        whole = self.axes[0].symbol if len(self.axes) == 1 else axis_symbol(f"{self.name}_0_{len(self.axes) - 1}")
        rest = joined.xreplace({whole: sympy.S.Zero})
        return rest if not rest.free_symbols & self.symbols and _equal(joined, rest + whole) else None

    def _runs(self, strides: list[Any]) -> Iterator[Run]:
        last = len(strides) - 1
        first = last
        while last >= 0:
            while first > 0 and strides[first] != 0 and _equal(strides[first - 1], strides[first] * self.axes[first].extent):
                first -= 1
            yield Run(first, last)
            last = first = first - 1

    def define(self, size: Callable[[sympy.Symbol], str]) -> list[str]:
        """Lines for the mask and for the positions that are used; `size` names symbols of sizes."""
        lines = [f"{self.mask} = {self.name} < {self.extent(self.axes, size)}"] if self.mask else []
        for symbol, run in sorted(self.used.items(), key=lambda item: (item[1].first, item[1].last)):
            below = self.extent(self.axes[run.last + 1 :], size)
            text = self.name if below == "1" else f"{self.name} // {below}"
            if run.first:
                inside = self.extent(self.axes[run.first : run.last + 1], size)
                text = f"({text}) % {inside}" if "/" in text else f"{text} % {inside}"
            lines.append(f"{symbol} = {text}")
        return lines

    def in_two_loops(
        self, size: Callable[[sympy.Symbol], str], lane: str, skip: str, most: int, inside: Callable[[bool], list[str]]
    ) -> Loops:
        """The text of a masked walk in two loops: whole blocks, for which the mask always holds, from point `skip` on (at most `most`); and
        what those leave at both ends. `inside(True)` are the lines of the first loop, `inside(False)` of the second.
        """
        count, name = self.extent(self.axes, size), self.name
        mask, *defined = self.define(size)
        whole, rest = f"{name}_whole", f"{name}_rest"
        before = [f"{whole} = tl.maximum({count} - {most}, 0) // {self.block} * {self.block}", f"{rest} = {count} - {whole}"]
        if count.isdecimal():
            whole = str(max(int(count) - most, 0) // self.block * self.block)
            before, rest = [], str(int(count) - int(whole))
        start, beyond = f"{name}_start", f"{name} + {whole}"
        if most:
            before.append(f"{name}_skip = {skip}")
            start, beyond = f"({name}_skip + {start})", f"tl.where({name} < {name}_skip, {name}, {beyond})"
        first = [f"{name} = {start} + {lane}", f"{self.mask} = tl.full([1, 1], True, tl.int1)", *defined, *inside(True)]
        last = [f"{name} = {name}_start + {lane}", f"{self.mask} = {name} < {rest}", f"{name} = {beyond}", *defined, *inside(False)]
        return Loops(before, ((whole, first), (rest, last)))

    def extent(self, axes: tuple[Axis, ...], size: Callable[[sympy.Symbol], str]) -> str:
        """How many points the axes have, as an operand."""
        total: sympy.Expr = sympy.Mul(*(sympy.sympify(a.extent) for a in axes))
        text = write_index(total, size)
        return text if total.is_Integer or total.is_Symbol else f"({text})"


def _equal(a: Any, b: Any) -> bool:
    expand: Any = sympy.expand
    return a == b or bool(expand(a - b) == 0)
