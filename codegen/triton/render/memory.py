"""Loads, gathers, stores and atomic updates of a Triton function."""

from __future__ import annotations

import re
from typing import Any

import sympy

from precast.codegen.triton.render.index_printer import write_index
from precast.codegen.triton.render.lanes import Lanes
from precast.codegen.triton.render.lines import NARROW, Lines
from precast.codegen.triton.render.ops import BITS, TYPES, Unsupported
from precast.codegen.triton.render.value_rewrites import kind
from precast.lowering.ir.nodes import Const, Gather, Load, Store, Value
from precast.lowering.ir.scalars import DType

OUT_OF_RANGE = "index out of bounds"
NATIVE = {
    "add": (DType.F64, DType.F32, DType.F16, DType.I64, DType.I32),
    "min": (DType.F64, DType.F32, DType.I64, DType.I32),
    "max": (DType.F64, DType.F32, DType.I64, DType.I32),
}
"""Atomic updates that are one instruction on every architecture; the others are loops of compare-and-swap."""


VECTOR = 16
"""Bytes that a thread reads or writes at once, at most, where they are aligned."""
MARK = re.compile(r"@(\d+)\[(.*?)\]@")


class Memory(Lines):
    """Emits reads and writes of buffers."""

    def pointer(self, buffer: str) -> str:
        if self.known[buffer].dtype not in TYPES:
            raise Unsupported(f"{buffer} holds {self.known[buffer].dtype.value}")
        return f"ptr{self.buffers.setdefault(buffer, len(self.buffers))}"

    def _gathers(self, gathers: tuple[Gather, ...], mask: Value | None) -> dict[sympy.Symbol, str]:
        """Names of the gathered positions, which are checked where the gather asks for it."""
        names: dict[sympy.Symbol, str] = {}
        for gather in gathers:
            key = (gather.value, gather.size, gather.checked, gather.wraps, mask)
            names[gather.symbol] = self.found(key) or self._gather(key, gather, mask)
        return names

    def _gather(self, key: object, gather: Gather, mask: Value | None) -> str:
        lanes = self.lanes_of(gather.value)
        size = write_index(gather.size, self.name)
        raw = self.emit(gather.value)
        if kind(gather.value) in (*NARROW, DType.BOOL):
            raw = f"{raw}.to(tl.int32)"
        wraps = gather.wraps or isinstance(gather.value, Const)  # a literal has to become a tensor
        whole = (
            self.line((key, "whole"), f"tl.where({raw} < 0, {f'{raw} + {size}' if gather.wraps else raw}, {raw})", lanes) if wraps else raw
        )
        if gather.checked:
            self.checks = True
            wide = self.lanes_of(gather.value, mask) if mask is not None else lanes
            where = self.mask(wide, "" if mask is None else self.emit(mask))
            condition = f"({whole} >= 0) & ({whole} < {size})"
            self.line((key, "check"), f"tl.device_assert({condition}, {OUT_OF_RANGE!r}{f', {where}' if where else ''})", wide, "_")
        return self.line(key, f"{whole}.to({self.index_type})", lanes)

    def _address(
        self, buffer: str, index: sympy.Expr, gathers: tuple[Gather, ...], mask: Value | None, want: list[Lanes]
    ) -> tuple[str, str]:
        """The base, and an offset of the shape of `want`: pointers must have the shape of what they are masked with."""
        pointer = self.pointer(buffer)
        names = self._gathers(gathers, mask)
        text = self.index(index, names)
        have = self.lanes_of(*(g.value for g in gathers), *_free(index, names))
        if not have:
            ones = [1] * self.rank
            text = f"tl.full({ones}, {text}, {self.index_type})" if text.isdecimal() else f"tl.full({ones}, 0, {self.index_type}) + {text}"
        text = " + ".join([text, *(f"{n.name} * 0" for n in want if n not in have)])
        return pointer, f"({text})" if " " in text else text

    def _marked(self, buffer: str, index: sympy.Expr, gathers: tuple[Gather, ...], place: str) -> str:
        """The offset of an access inside of a loop, with a mark where it counts from a base on that is the same for all of the loop: this
        may begin so that the access is aligned (`aligned`).
        """
        if self.loop is None or gathers or self.x.block > 1:
            return place
        base = self.loop.base(sympy.sympify(index))
        if base is None:
            return place
        self.marks.append((base, VECTOR // self.known[buffer].dtype.itemsize))
        return f"@{len(self.marks) - 1}[{place}]@"

    def skipped(self) -> tuple[sympy.Expr, int] | None:
        """The base from which most of the loop's accesses count without being known to be aligned, and of how many elements the alignment
        is that they want.
        """
        counts: dict[sympy.Expr, int] = {}
        for base, vector in self.marks:
            if not _is_multiple(base, vector):
                counts[base] = counts.get(base, 0) + 1
        if not counts:
            return None
        found = max(counts, key=lambda base: counts[base])
        return found, max(vector for base, vector in self.marks if base == found)

    def aligned(self, line: str, base: sympy.Expr | None) -> str:
        """The line of a loop whose positions are multiples of a vector when counted from `base` on; None: no matter what they are."""

        def offset(match: re.Match[str]) -> str:
            own, vector = self.marks[int(match[1])]
            if base is None or vector == 1 or not _is_multiple(own - base, vector):
                return match[2]
            return f"tl.multiple_of({match[2]}, [1, {vector}])"

        return MARK.sub(offset, line)

    def load(self, node: Load) -> str:
        want = self.lanes_of(node)
        pointer, place = self._address(node.buffer, node.index, node.gathers, node.mask, want)
        place = self._marked(node.buffer, node.index, node.gathers, place)
        mask = self.mask(want, "" if node.mask is None else self.emit(node.mask))
        arguments = f", {mask}, other=0" if mask else ""
        return f"tl.load({pointer} + {place}{arguments}{self._hint(want)}).to({TYPES[kind(node)]})"

    def _hint(self, lanes: list[Lanes]) -> str:
        """The cache hint of a load: data that every program reads again is kept in the cache."""
        shared = self.x.axes and self.x not in lanes and any(t.mode != "grid" for t in lanes)
        return ', eviction_policy="evict_last"' if shared and self.tiling.hints else ""

    def store(self, store: Store) -> str:
        """The line that writes, the lines of its operands being written now."""
        target = self.known[store.buffer].dtype
        axes = store.axes or ()
        want = [self.x, *(t for t in self.tiles if t.axes and t.axes[0] in axes)]
        pointer, place = self._address(store.buffer, store.index, store.gathers, store.mask, want)
        if store.mode == "set":
            place = self._marked(store.buffer, store.index, store.gathers, place)
        once = [f"({self.name(a.symbol)} == 0)" for a in self.x.axes if a not in axes]
        once += [f"{t.name}_first" for t in self.tiles if t.mode == "grid" and t not in want]
        mask = self.mask(want, *once, "" if store.mask is None else self.emit(store.mask))
        value = self.emit(store.value)
        if kind(store.value) is not target.compute:
            value = self.cast(value, kind(store.value), target)
        if store.mode == "set":
            return f"tl.store({pointer} + {place}, {value}{f', {mask}' if mask else ''})"
        return self._update(store.mode, target, (pointer, place), value, mask, want)

    def _update(self, mode: str, target: DType, address: tuple[str, str], value: str, mask: str, want: list[Lanes]) -> str:
        if target in NATIVE.get(mode, ()):
            if mode != "add" and target.is_float:  # compared as integers: NaN must lie at the end that wins
                value = f"nan_{'last' if mode == 'max' else 'first'}({value})"
            return f"tl.atomic_{mode}({' + '.join(address)}, {value}, {mask or None}, sem='relaxed')"
        if target not in BITS:
            raise Unsupported(f"atomic {mode} on {target.value}")
        tile = next((n for n in want if n is not self.x), None)
        blocks = [self.x.block] if self.rank == 1 else [self.x.block, 1 if tile is None else tile.block]
        keep = f"tl.broadcast_to({mask}, {blocks})" if mask else f"tl.full({blocks}, True, tl.int1)"
        place, value = (f"tl.broadcast_to({text}, {blocks})" for text in (address[1], value))
        return f"swap_{mode}({address[0]}, {place}, {value}, {keep}, {TYPES[BITS[target]]})"


def _free(index: sympy.Expr, names: dict[sympy.Symbol, str]) -> list[sympy.Expr]:
    expr: Any = sympy.sympify(index)
    return sorted((s for s in expr.free_symbols if s not in names), key=str)


def _is_multiple(expr: sympy.Expr, number: int) -> bool:
    """Whether the expression is known to be a multiple of the number."""
    expand: Any = sympy.expand
    return all(int(c) % number == 0 for c in expand(expr).as_coefficients_dict().values())
