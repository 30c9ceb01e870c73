"""Under `freeze`: products of one matrix with several weights become one product with the weights side by side (query, key and value;
gate and up).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from precast.lowering.analysis.effects import lasting_inputs
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Gemm, Kernel, Load, Program, Size, Step, Store, View
from precast.lowering.ir.substitution import shared_axis


def merge_gemms(freeze: bool, bound: Collection[str] | None = None) -> Callable[[Program], Program]:
    """The pass; without `freeze` weights stay where they are and nothing is merged. `bound` names the weights (None: every input)."""
    return (lambda program: _Merger(program, bound).run()) if freeze else (lambda program: program)


class _Merger:
    def __init__(self, program: Program, bound: Collection[str] | None) -> None:
        self.program = program
        self.buffers = {b.name: b for b in program.buffers}
        self.weights = lasting_inputs(program, bound)
        self.prepare: list[Step] = []
        self.persistent: list[str] = []

    def run(self) -> Program:
        groups: dict[object, list[Gemm]] = {}
        for step in self.program.steps:
            if isinstance(step, Gemm) and self._fits(step):
                groups.setdefault(self._key(step), []).append(step)
        merged = {id(g): members for members in groups.values() if len(members) > 1 for g in members}
        if not merged:
            return self.program
        steps: list[Step] = []
        done: set[int] = set()
        for step in self.program.steps:
            members = merged.get(id(step))
            if members is None:
                steps.append(step)
            elif id(members) not in done:
                done.add(id(members))
                steps.extend(self._merged(members))
        return replace(
            self.program,
            steps=tuple(steps),
            buffers=tuple(self.buffers.values()),
            prepare=(*self.program.prepare, *self.prepare),
            persistent=(*self.program.persistent, *self.persistent),
        )

    def _fits(self, g: Gemm) -> bool:
        out = self.buffers[g.out]
        plain = g.activation == "none" and g.residual is None and len(g.a.size) == 2
        weights = g.b.buffer in self.weights and (g.bias is None or g.bias.buffer in self.weights)
        sizes = all(isinstance(n, int) for n in g.b.size)
        return plain and weights and sizes and out.stride == ix.contiguous_strides(out.size) and g.b.size[1] == out.size[-1]

    def _key(self, g: Gemm) -> object:
        return (g.a.buffer, g.a.size, g.a.stride, g.a.offset, g.a.dtype, g.b.stride[0] == 1, g.bias is None)

    def _merged(self, members: list[Gemm]) -> list[Step]:
        """The one product, then a copy of each part under its old name: readers look through those copies."""
        first = members[0]
        depth = first.b.size[0]
        widths = [int(g.b.size[1]) for g in members]
        total = sum(widths)
        dtype = self.buffers[first.out].dtype
        transposed = first.b.stride[0] == 1
        stride: tuple[Size, Size] = (1, depth) if transposed else (total, 1)
        name = f"{first.out}_merged"
        weight = self._fresh(f"{name}_weight", (depth, total), stride, persistent=True, like=first.b.buffer)
        bias = None if first.bias is None else self._fresh(f"{name}_bias", (total,), (1,), persistent=True, like=first.bias.buffer)
        offset = 0
        for g, width in zip(members, widths, strict=True):
            self.prepare.append(self._copy(weight, stride, (0, offset), g.b, transposed))
            if bias is not None and g.bias is not None:
                self.prepare.append(self._copy(bias, (1,), (offset,), g.bias, False))
            offset += width
        rows = first.a.size[0]
        self.buffers[name] = Buffer(name, dtype, (rows, total), (total, 1))
        bias_view = None if bias is None else View(bias, (total,), (1,))
        origins = tuple(o for g in members for o in g.origins)
        steps: list[Step] = [Gemm(first.a, View(weight, (depth, total), stride), bias_view, name, origins=origins)]
        offset = 0
        for g, width in zip(members, widths, strict=True):
            part = View(name, (rows, width), (total, 1), offset)
            steps.append(self._copy(g.out, (width, 1), (0, 0), part, False))
            offset += width
        return steps

    def _fresh(self, name: str, size: tuple[Size, ...], stride: tuple[Size, ...], *, persistent: bool, like: str) -> str:
        self.buffers[name] = Buffer(name, self.buffers[like].dtype, size, stride)
        if persistent:
            self.persistent.append(name)
        return name

    def _copy(self, target: str, stride: tuple[Size, ...], at: tuple[int, ...], source: View, swapped: bool) -> Kernel:
        """Copies a window to `target` at the coordinates `at`; `swapped` loops over the dimensions in reverse order."""
        order = tuple(reversed(range(len(source.size)))) if swapped else tuple(range(len(source.size)))
        symbols = ix.symbols(len(order))
        axes = tuple(shared_axis(s, source.size[d]) for s, d in zip(symbols, order, strict=True))
        place = dict(zip(order, symbols, strict=True))
        load = Load(source.buffer, ix.affine(source.offset, tuple((source.stride[d], place[d]) for d in order)), self.buffers[target].dtype)
        index = ix.affine(0, tuple((stride[d], place[d] + at[d]) for d in order))
        return Kernel(f"copy_{target}", axes, (Store(target, index.expand(), load),))
