"""What the graph computes from nothing but constants is computed at compile time: masks from `arange`, position tables, ones.

A mask that turns out to add nothing is dropped from its attention, a causal one becomes the `causal` flag, a uniform buffer becomes a
constant,
and small tables are carried in the program. Buffers that are too large to evaluate or whose size is symbolic stay as they are.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import sympy
import torch

from precast.lowering.analysis.buffers import without_unused_buffers
from precast.lowering.analysis.effects import may_draw, reads, step_symbols, writes
from precast.lowering.analysis.rewrite_values import map_kernel, rename_buffers
from precast.lowering.ir.nodes import (
    Attention,
    Buffer,
    Const,
    Constant,
    Extern,
    Kernel,
    Load,
    Output,
    Program,
    Step,
    Value,
    View,
)
from precast.lowering.ir.scalars import DType
from precast.lowering.passes.simplify.cse_kernels import duplicates
from precast.lowering.verify.interpret import run

MAX_EVALUATED = 1 << 23
"""Elements of a buffer that are worth evaluating at compile time."""
MAX_CARRIED = 1 << 14
"""Bytes of a table that the program carries instead of computing it at each call."""
PURE = (
    "aten::cumsum",
    "aten::cumsum.default",
    "aten::arange.start_step",
    "aten::tril",
    "aten::triu",
    "aten::sort.stable",
    "aten::logical_not",
)


def fold_constants(program: Program) -> Program:
    """The program without the steps that need no input."""
    known = _known_steps(program)
    if not known:
        return program
    inside = {name for p in known for name in writes(program.steps[p])}
    frontier = {name for p, s in enumerate(program.steps) if p not in known for name in reads(s) if name in inside}
    values = _evaluate(program, known, sorted(frontier))
    outputs = {o.view.buffer for o in program.outputs if o.view is not None}
    by_name = {b.name: b for b in program.buffers}
    steps = _simplified(program.steps, known, values)
    carried = [_carried(by_name[n], v) for n, v in values.items() if n not in outputs and v.numel() * v.element_size() <= MAX_CARRIED]
    names = {c.buffer for c in carried}
    program = replace(program, steps=tuple(steps), constants=(*program.constants, *carried))
    return without_unused_buffers(without_dead_steps(program, names))


def _known_steps(program: Program) -> set[int]:
    """Positions of the steps that depend on no input. A buffer with several writers counts when all of them do."""
    unknown = {i for i in program.inputs if isinstance(i, str)} | set(program.persistent)
    by_name = {b.name: b for b in program.buffers}
    while True:  # a second round only where a later write spoils an earlier one
        before = len(unknown)
        for step in program.steps:
            pure = isinstance(step, Kernel) or (isinstance(step, Extern) and step.op in PURE and not step.mutates)
            sizes = [n for w in writes(step) for n in by_name[w].size]
            small = not step_symbols(step) and all(isinstance(n, int) for n in sizes)
            small = small and all(prod(int(n) for n in by_name[w].size) <= MAX_EVALUATED for w in writes(step))
            if not pure or not small or any(r in unknown for r in reads(step)) or any(w in unknown for w in writes(step)):
                unknown.update(writes(step))
        if len(unknown) == before:
            return {p for p, s in enumerate(program.steps) if writes(s) and not any(w in unknown for w in writes(s))}


def _evaluate(program: Program, known: set[int], wanted: list[str]) -> dict[str, torch.Tensor]:
    """The values of the buffers `wanted`. Equal ones are one tensor: the layers of a model each compute their mask."""
    by_name = {b.name: b for b in program.buffers}
    steps = tuple(s for p, s in enumerate(program.steps) if p in known)
    alone = replace(program, symbols=(), inputs=(), outputs=(), steps=steps, workspace=(), prepare=(), persistent=())
    same = duplicates(alone)
    alone = rename_buffers(replace(alone, steps=tuple(s for s in steps if same.keys().isdisjoint(writes(s)))), same)
    distinct = sorted({same.get(n, n) for n in wanted})
    outputs = tuple(Output(View(n, by_name[n].size, by_name[n].stride)) for n in distinct)
    found = dict(zip(distinct, run(replace(alone, outputs=outputs), []), strict=True))
    return {n: found[same.get(n, n)] for n in wanted}


def _simplified(steps: tuple[Step, ...], known: set[int], values: dict[str, torch.Tensor]) -> list[Step]:
    distinct = {id(v): v for v in values.values()}
    every = {i: v.reshape(-1)[0].item() for i, v in distinct.items() if _is_uniform(v)}
    uniform = {n: every[id(v)] for n, v in values.items() if id(v) in every}

    def rule(value: Value) -> Value:
        if isinstance(value, Load) and value.buffer in uniform and value.mask is None and not value.gathers:
            return _constant(uniform[value.buffer], value.dtype.compute)
        return value

    result: list[Step] = []
    meanings: dict[object, str] = {}  # the layers of a model have the same mask
    for position, step in enumerate(steps):
        if isinstance(step, Attention) and step.mask is not None and step.mask.buffer in values:
            key = (id(values[step.mask.buffer]), step.mask.size, step.mask.stride, step.mask.offset)
            if key not in meanings:
                meanings[key] = _meaning(step.mask, values[step.mask.buffer])
            if meanings[key] == "nothing":
                step = replace(step, mask=None)
            elif meanings[key] == "causal" and not step.causal:
                step = replace(step, mask=None, causal=True)
        elif isinstance(step, Kernel) and position not in known:
            step = map_kernel(step, rule)
        result.append(step)
    return result


def _is_uniform(values: torch.Tensor) -> bool:
    """Whether all elements are one number; zeros of two signs are not."""
    if not values.numel():
        return False
    first = values.reshape(-1)[0]
    signs = values.signbit() if values.is_floating_point() and first == 0 else None
    return bool((values == first).all()) and (signs is None or bool((signs == first.signbit()).all()))


def _constant(number: bool | int | float, dtype: DType) -> Const:
    return Const(bool(number) if dtype is DType.BOOL else float(number) if dtype.is_float else int(number), dtype)


def _meaning(view: View, values: torch.Tensor) -> str:
    """What an additive mask does: "nothing", "causal" (hides exactly the later columns) or "other"."""
    flat = values.as_strided((values.untyped_storage().nbytes() // values.element_size(),), (1,))
    # the heads, and calls of any number of rows, share theirs
    shared = [s == 0 and n != 0 for n, s in zip(view.size[:-2], view.stride[:-2], strict=True)] + [False, False]
    size = [1 if alike else n for n, alike in zip(view.size, shared, strict=True)]
    if not all(isinstance(n, int | sympy.Integer) for n in (*size, *view.stride, view.offset)):
        return "other"
    mask = flat.as_strided([int(n) for n in size], [int(s) for s in view.stride], int(view.offset))
    if bool((mask == 0).all()):
        return "nothing"
    rows, columns = mask.shape[-2:]
    later = torch.arange(columns) > torch.arange(rows)[:, None]
    causal = rows <= columns and bool(torch.where(later, mask == float("-inf"), mask == 0).all())
    return "causal" if causal else "other"


def _carried(buffer: Buffer, values: torch.Tensor) -> Constant:
    raw = values.clone(memory_format=torch.preserve_format).as_strided((values.numel(),), (1,)).view(torch.uint8)
    return Constant(buffer.name, bytes(raw.numpy().tobytes()))


def without_dead_steps(program: Program, carried: set[str]) -> Program:
    """Drops what only the folded steps needed, and the writers of tables that are now carried."""
    needed = {o.view.buffer for o in program.outputs if o.view is not None} | {i for i in program.inputs if isinstance(i, str)}
    kept: list[Step] = []
    for step in reversed(program.steps):
        written = set(writes(step))
        effect = isinstance(step, Extern) and (bool(step.mutates) or not step.outs or bool(step.binds) or may_draw(step.op))
        if not effect and (not written & needed or written <= carried):
            continue
        kept.append(step)
        needed.update(r for r in reads(step) if r not in carried)
    used = {r for s in kept for r in reads(s)}
    constants = tuple(c for c in program.constants if c.buffer in used or c.buffer in needed)
    return replace(program, steps=tuple(reversed(kept)), constants=constants)
