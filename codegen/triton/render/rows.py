"""One launch for many rows: a kernel over one axis of flat tensors, as a kernel that finds each row's tensors in a table.

An optimiser's step updates hundreds of parameters with one kernel. A program of this form takes `chunk` blocks of one row: it reads which
from `blocks` (row, first block), and from `table` the row's addresses and its number of elements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import sympy

from precast.codegen.common.value_facts import Facts
from precast.codegen.triton.render.body import Body
from precast.codegen.triton.render.heuristics import choose
from precast.codegen.triton.render.module import rows_module
from precast.codegen.triton.render.ops import TYPES
from precast.codegen.triton.render.render import ENTRY, Argument, TritonKernel
from precast.codegen.triton.render.tiling import split
from precast.lowering.analysis.traits import Traits
from precast.lowering.build.float_values import is_real
from precast.lowering.ir.nodes import Buffer, Kernel, Program


@dataclass(frozen=True, eq=False)
class RowsKernel:
    """`kernel`: its arguments are the table, the blocks and the chunk, then `numbers`, which all rows share. `buffers`: in the order of a
    row's addresses; `count`: the symbol of its elements, of which a block has `block`.
    """

    kernel: TritonKernel
    buffers: tuple[str, ...]
    count: sympy.Symbol
    numbers: tuple[sympy.Symbol, ...]
    block: int


def render_rows(program: Program, traits: Traits) -> RowsKernel | None:
    """The form of a program that is one such kernel and gives back nothing; None of others."""
    kernels = [s for s in program.steps if isinstance(s, Kernel)]
    if len(program.steps) != 1 or len(kernels) != 1 or program.outputs or program.prepare or program.constants:
        return None
    kernel, known = kernels[0], {b.name: b for b in program.buffers}
    if any(b.on_cpu for b in program.buffers):
        return None
    parts = split(kernel, Facts())
    (axis,) = kernel.axes if len(kernel.axes) == 1 else (None,)
    if axis is None or not isinstance(axis.extent, sympy.Symbol) or len(parts) != 1 or any(s.axes != (axis,) for s in parts[0].stores):
        return None
    tiling = choose(parts[0], known, traits)
    body = Body(parts[0], dict(known), tiling, "tl.int32")
    body.write()
    if body.tiles or body.checks or axis.extent not in body.sizes:
        return None
    return _rendered(kernel, body, axis.extent, known.values())


def _rendered(kernel: Kernel, body: Body, count: sympy.Symbol, buffers: Iterable[Buffer]) -> RowsKernel:
    known = {b.name: b for b in buffers}
    numbers = tuple(s for s in body.sizes if s is not count)
    arguments = [
        Argument("table", "buffer", "*i64", aligned=True),
        Argument("blocks", "buffer", "*i32", aligned=True),
        Argument("chunk", "size", "i32"),
        *(Argument(f"size{body.sizes[s]}", "size", "fp64" if is_real(s) else "i32", symbol=s) for s in numbers),
    ]
    draft = rows_module(ENTRY, [a.name for a in arguments], body, [TYPES[known[b].dtype] for b in body.buffers], f"size{body.sizes[count]}")
    entry = f"rows_{hashlib.sha256(draft.encode()).hexdigest()[:12]}"
    made = TritonKernel(f"{kernel.name}_rows", entry, draft.replace(ENTRY, entry), tuple(arguments), 0, body.tiling)
    return RowsKernel(made, tuple(body.buffers), count, numbers, body.x.block)


__all__ = ["RowsKernel", "render_rows"]
