"""The memory plan: which temporaries share bytes of the call's one workspace.

A buffer lives from the step that first writes it to the last that uses it. A pointwise kernel may write over an operand that dies with it.
Offsets are assigned largest-first into the lowest gap that is free for the whole lifetime (near-optimal for such interval graphs).
Byte counts with symbols are compared where they are multiples of one expression (`3072*s0*s1` and `9216*s0*s1`): each such family is
placed like constant sizes, in units of the expression, in a part of the workspace of its own behind the constant part. Buffers of
data-dependent size are not in the plan: the host program allocates them when their size is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import cast

import sympy

from precast.lowering.analysis.buffer_bytes import ALIGNMENT, nbytes_of, unit_of
from precast.lowering.analysis.effects import custom_operands, reads, writes
from precast.lowering.analysis.liveness import lifetimes
from precast.lowering.analysis.may_alias import may_reuse
from precast.lowering.ir.nodes import Kernel, Program, Size, Slot
from precast.lowering.ir.sizes import is_unbacked
from precast.lowering.ir.sympy_calls import expand


@dataclass
class Block:
    """Buffers that share one slot: each later one is written over the one before by the step where that one dies."""

    buffers: list[str]
    nbytes: Size
    first: int
    last: int


def plan_memory(program: Program, *, reuse: bool = True, elsewhere: Collection[str] = (), alignment: int = ALIGNMENT) -> Program:
    """The program with a workspace slot for each temporary. Inputs, outputs, persistent and opaque buffers and
    operands of custom operators have none, nor have the buffers named in `elsewhere`, which libraries allocate."""
    blocks = blocks_of(program, reuse=reuse, elsewhere=elsewhere, alignment=alignment)
    distinct = distinct_blocks(blocks)
    constant = [b for b in distinct if isinstance(b.nbytes, int)]
    offsets, top = place(constant)
    total: Size = top
    groups: dict[sympy.Expr, list[Block]] = {}
    for block in distinct:
        if not isinstance(block.nbytes, int):
            groups.setdefault(unit_of(block.nbytes)[1], []).append(block)
    for unit, group in groups.items():
        scaled = {id(b): replace(b, nbytes=unit_of(cast(sympy.Expr, b.nbytes))[0]) for b in group}
        places, top = place(list(scaled.values()))
        for block in group:
            offsets[id(block)] = expand(total + places[id(scaled[id(block)])] * unit)
        total = total + top * unit
    slots = [Slot(name, offsets[id(block)], block.nbytes) for name, block in blocks.items()]
    return replace(program, workspace=tuple(slots), workspace_bytes=total)


def blocks_of(program: Program, *, reuse: bool = True, elsewhere: Collection[str] = (), alignment: int = ALIGNMENT) -> dict[str, Block]:
    """The block of each temporary that `plan_memory` places."""
    live = lifetimes(program)
    by_name = {b.name: b for b in program.buffers}
    outside = {i for i in program.inputs if isinstance(i, str)} | set(program.persistent) | {c.buffer for c in program.constants}
    outside |= set(elsewhere)
    outside |= {o.view.buffer for o in program.outputs if o.view is not None} | custom_operands(program.steps)
    blocks: dict[str, Block] = {}
    for position, step in enumerate(program.steps):
        for name in writes(step):
            if name in outside or name in blocks or live[name][0] != position or not by_name[name].dtype.itemsize:
                continue
            nbytes = nbytes_of(by_name[name], alignment)
            if is_unbacked(nbytes):
                continue  # the workspace is made before its size is known: the host program allocates it when it is
            dying = _reusable(program, position, name, nbytes, live, blocks) if reuse and isinstance(step, Kernel) else None
            if dying is not None:
                block = blocks[dying]
                block.buffers.append(name)
                block.last = live[name][1]
            else:
                block = Block([name], nbytes, *live[name])
            blocks[name] = block
    return blocks


def distinct_blocks(blocks: Mapping[str, Block]) -> list[Block]:
    """Each block once."""
    return list({id(b): b for b in blocks.values()}.values())


def _reusable(
    program: Program, position: int, name: str, nbytes: Size, live: dict[str, tuple[int, int]], blocks: dict[str, Block]
) -> str | None:
    """An operand that dies at this step and over which the kernel may write."""
    step = program.steps[position]
    assert isinstance(step, Kernel)
    written = set(writes(step))
    for candidate in reads(step):
        if candidate in written:
            continue
        block = blocks.get(candidate)
        if block is None or block.buffers[-1] != candidate or live[candidate][1] != position or block.nbytes != nbytes:
            continue
        if live[candidate][0] < position and may_reuse(program, position, candidate, name):
            return candidate
    return None


def place(blocks: list[Block]) -> tuple[dict[int, Size], int]:
    """Byte offsets of blocks with known sizes, and the bytes needed in all."""
    offsets: dict[int, Size] = {}
    placed: list[tuple[int, int, Block]] = []  # (offset, end, block), by offset
    top = 0
    for block in sorted(blocks, key=lambda b: (-int(b.nbytes), b.first)):
        size = int(block.nbytes)
        best: tuple[int, int] | None = None  # (gap, offset): best fit
        cursor = 0
        for offset, end, other in placed:
            if other.last < block.first or block.last < other.first:
                continue
            if offset - cursor >= size and (best is None or offset - cursor < best[0]):
                best = (offset - cursor, cursor)
            cursor = max(cursor, end)
        where = cursor if best is None else best[1]
        offsets[id(block)] = where
        placed.append((where, where + size, block))
        placed.sort(key=lambda p: p[0])
        top = max(top, where + size)
    return offsets, top
