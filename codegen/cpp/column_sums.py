"""Sums of columns within loops over rows, in C++: memory for the sums of each block of rows, its loops, and what adds them up."""

from __future__ import annotations

from collections.abc import Callable

from precast.codegen.cpp.body import Body, Level
from precast.codegen.cpp.planning.sections import Columns
from precast.codegen.cpp.sharing import Loop, in_order, in_pieces
from precast.codegen.cpp.types import COMPUTE

NO_MEMORY = -3
"""Stands for a dimension in what a kernel reports (`templates.py`)."""


def write_columns(
    columns: Columns,
    body: Body,
    top: Level,
    sections: Callable[[Level], None],
    whole: Callable[[], object],
    pragma: str | None,
    work: str | None,
) -> None:
    """Writes the loops into `top`. `sections` writes those of one row into the level of its loop, and `whole` the phase that adds up."""
    memory, row = body.fresh("sums"), body.variable(columns.row.symbol)
    kind, extent, width = body.index_type, body.extent(columns.row), body.extent(columns.column)
    blocks = f"(((int64_t){extent} + {columns.step - 1}) / {columns.step})"
    sizes = [f"{blocks} * {width} * {every.dtype.itemsize}" for _, every in columns.parts]
    body.checks = True
    top.add("{")
    top.add(f"char* const {memory} = (char*)__builtin_malloc({' + '.join(sizes)});")
    top.add(f"if (!{memory}) {{ bad_index(error, 0, 0, {NO_MEMORY}); return; }}")
    block = Level(frozenset(), top.indent + 1)
    block.add(f"const {kind} {row}_1 = {extent} - {row}_0 > {columns.step} ? {row}_0 + {columns.step} : {extent};")
    for number, (own, every) in enumerate(columns.parts):
        body.buffers |= {own.name: own, every.name: every}
        body.pointers |= {own.name: body.fresh("c"), every.name: body.fresh("all")}
        item, start = COMPUTE[every.dtype], " + ".join([memory, *sizes[:number]])
        top.add(f"{item}* const {body.pointers[every.name]} = ({item}*)({start});")
        place = f"{body.pointers[every.name]} + (int64_t)({row}_0 / {columns.step}) * {width}"
        block.add(f"{item}* const {body.pointers[own.name]} = {place};")
        block.add(f"__builtin_memset({body.pointers[own.name]}, 0, sizeof({item}) * {width});")
    level = Level(frozenset({columns.row.symbol}), top.indent + 2)
    body.path += [block, level]
    sections(level)
    del body.path[-2:]
    block.add(f"{body.loop_header(columns.row, f'{row}_0', f'{row}_1')} {{")
    block.lines += level.lines
    block.add("}")
    loops = [Loop(f"{row}_0", extent, columns.step)]
    if pragma is not None and work is not None:
        in_pieces(loops, block.lines, kind, pragma, work, top)
    else:
        in_order(loops, block.lines, kind, pragma, top)
    whole()
    top.add(f"__builtin_free({memory});")
    top.add("}")


__all__ = ["NO_MEMORY", "write_columns"]
