"""A row's maximum and the sum of its exponentials in one pass over memory: block by block, each block read twice while the cache holds it.

The exponentials are taken less a base, which is the largest number so far; where a block has a larger one, the sum so far is scaled to it
(M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018). What the sum is really less of, `shift` below, may be any
function of the maximum, and is made up for at the end: logsumexp takes 0 where the maximum is infinite, softmax does not.

Where the loop that follows needs the exponentials again, the pass leaves them where that loop stores its result, or in a row buffer, with
the base of each block beside them: an exponential costs more than reading what was just written, and one factor a block makes up for its
base.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import sympy

from precast.codegen.common.index_facts import stride_along
from precast.codegen.common.value_facts import Facts
from precast.codegen.cpp.body import Body, Level
from precast.codegen.cpp.loops import Loops
from precast.codegen.cpp.planning.loop_plan import has_loop
from precast.codegen.cpp.planning.sections import Section
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Alu, Axis, Buffer, Const, Load, Reduce, Store, Value, walk
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.sizes import known

BLOCK = 4096
"""Points of a block, also those whose exponentials are added in f32: 16 KiB of f32, half of the first cache."""

SHORT = 64
"""Points up to which a row is not worth the work beside its loops."""

LONG = 1 << 20
"""Points of a row, 4 MiB of f32, beyond which its exponentials have left the caches when they are needed again: then they are made anew."""

WIDE = 1 << 16
"""Points of the longest row buffer for exponentials: 256 KiB on the stack, in the second cache."""


@dataclass(frozen=True)
class Pair:
    """`top`, the maximum of `value`, and `total`, the sum of exponentials of `value - shift`."""

    axis: Axis
    top: Reduce
    total: Reduce
    value: Value
    shift: Value


def pair_of(first: Section, second: Section, facts: Facts, made: set[int]) -> Pair | None:
    """Both sections as one pass, where the first has one maximum and the second the sum that needs it, over the same axis."""
    if first.axes != second.axes or len(first.axes) != 1 or first.kept or second.kept or first.stores or second.stores:
        return None
    if len(first.reduces) != 1 or len(second.reduces) != 1:
        return None
    (axis,), (top,), (total,) = first.axes, first.reduces, second.reduces
    if known(axis.extent) and int(axis.extent) <= SHORT:
        return None
    if top.op is not ReduceOp.MAX or total.op is not ReduceOp.SUM or total.dtype is not DType.F32:
        return None
    power = total.value
    if not (isinstance(power, Alu) and power.op is Op.EXP and power.dtype is DType.F32):
        return None
    difference = power.args[0]
    if not (
        isinstance(difference, Alu) and difference.op is Op.SUB and difference.args[0] is top.value and top.value.dtype.compute is DType.F32
    ):
        return None
    value, shift = difference.args
    plain = not any(isinstance(n, Load) and n.gathers or isinstance(n, Reduce) and id(n) not in made for n in walk(value))
    if not plain or has_loop((value,), made) or axis.symbol in facts.deps(shift) or top not in list(walk(shift)):
        return None
    return Pair(axis, top, total, value, shift)


@dataclass(frozen=True)
class Kept:
    """Exponentials that `user`, the section that follows, needs again. `store`: the store of it in whose place they lie; None: in a row."""

    user: Section
    store: Store | None


def kept_for(pair: Pair, user: Section | None, buffers: Mapping[str, Buffer], read: Collection[str]) -> Kept | None:
    """How the pair's exponentials are kept for the section that follows; `read`: the buffers that the kernel loads."""
    if user is None or user.axes != (pair.axis,) or user.span is not None or user.reduces or user.kept or not _follows(pair):
        return None
    points = int(pair.axis.extent) if known(pair.axis.extent) else None
    if (points is not None and points > LONG) or not any(n is pair.total.value for s in user.stores for n in walk(*store_roots(s))):
        return None
    written = [s.buffer for s in user.stores]
    for store in user.stores:
        plain = store.mode == "set" and store.mask is None and not store.gathers and buffers[store.buffer].dtype is DType.F32
        alone = store.buffer not in read and written.count(store.buffer) == 1
        if plain and alone and stride_along(sympy.sympify(store.index), pair.axis.symbol) == 1:
            others = tuple(s for s in user.stores if s is not store)
            return Kept(replace(user, stores=(*others, store)), store)  # what stands in its place is read by the others first
    return Kept(user, None) if points is not None and points <= WIDE else None


def _follows(pair: Pair) -> bool:
    """Whether the exponentials are less the maximum itself, or 0 in the place of -inf: then no block's factor is above 1."""
    shift = pair.shift
    if shift is pair.top:
        return True
    if not (isinstance(shift, Alu) and shift.op is Op.WHERE and shift.args[2] is pair.top):
        return False
    test, nothing, _ = shift.args
    if not (isinstance(test, Alu) and test.op is Op.EQ and test.args[0] is pair.top and isinstance(nothing, Const) and nothing.value == 0):
        return False
    return isinstance(test.args[1], Const) and test.args[1].value == -math.inf


def write(pair: Pair, body: Body, parent: Level, kept: Kept | None = None) -> tuple[str, str]:
    """Writes the pass into `parent`, and both results as made; gives the place of an exponential, and the name of the bases, if kept."""
    x, extent, kind = body.variable(pair.axis.symbol), body.extent(pair.axis), body.index_type
    place, bases = "", body.fresh("bases")
    loops = []
    for _ in range(2):
        level = Level(frozenset({pair.axis.symbol}), parent.indent + 2, simd=True)
        body.path.append(level)
        name = body.value(pair.value)
        if kept is not None and kept.store is not None:
            place = f"{body.pointers[kept.store.buffer]}[{body.index(sympy.sympify(kept.store.index))}]"
        body.path.pop()
        loops.append((level, name))
    (highest, v), (powers, u) = loops
    top, base, total, nan = (body.fresh(p) for p in ("top", "base", "acc", "n"))
    highest.add(f"best = {v} > best ? {v} : best;")
    if kept is None:
        powers.add(f"part += exp_below_f32({u} - {base});")
    else:
        if not place:
            row = body.fresh("row")
            parent.add(f"float {row}[{extent}];")
            place = f"{row}[{x}]"
        parent.add(f"float {bases}[({extent} + {BLOCK - 1}) / {BLOCK}];")
        powers.add(f"const float power = exp_f32({u} - {base});")
        powers.add(f"{place} = power; part += power;")
    flags = Level(highest.axes, highest.indent, [*highest.lines[:-1]])
    flags.add(f"{nan} |= {v} != {v};")
    block = f"for ({kind} {x} = {x}_b; {x} < {x}_e; ++{x}) {{"
    inner = Level(frozenset(), parent.indent + 1)
    inner.add(f"const {kind} {x}_e = {extent} - {x}_b > {BLOCK} ? {x}_b + {BLOCK} : {extent};")
    inner.add(f"float best = {top}, part = 0.0f;")
    inner.add("#pragma omp simd reduction(max:best)")
    inner.add(block)
    inner.lines += highest.lines
    inner.add("}")
    inner.add(f"if (best > {top}) {{")
    inner.add("  const float next = best == __builtin_inff() ? 0.0f : best;")
    nothing = f"{top} == -__builtin_inff() && {total} == {total}"  # what was added of so many -inf, but for a NaN
    inner.add(f"  {total} = {nothing} ? 0.0 : {total} * (double)exp_f32({base} - next);")
    inner.add(f"  {top} = best; {base} = next;")
    inner.add("}")
    if kept is not None:  # of nothing but -inf the base is none: what it is a factor of stays 0, or is nothing
        inner.add(f"{bases}[{x}_b / {BLOCK}] = {top} == -__builtin_inff() ? {top} : {base};")
    inner.add("#pragma omp simd reduction(+:part)")
    inner.add(block)
    inner.lines += powers.lines
    inner.add("}")
    inner.add(f"{total} += (double)part;")
    parent.add(f"float {top} = -__builtin_inff(), {base} = 0.0f; double {total} = 0.0; int32_t {nan} = 0;")
    parent.add(f"for ({kind} {x}_b = 0; {x}_b < {extent}; {x}_b += {BLOCK}) {{")
    parent.lines += inner.lines
    parent.add("}")
    parent.add(f"if ({total} != {total}) {{")
    parent.add(f"  #pragma omp simd reduction(|:{nan})")
    parent.add(f"  for ({kind} {x} = 0; {x} < {extent}; ++{x}) {{")
    parent.lines += flags.lines
    parent.add("  }")
    parent.add("}")
    parent.add(f"else if ({top} == -__builtin_inff()) {total} = 0.0;")
    found = body.fresh("r")
    parent.add(f'const float {found} = {nan} ? __builtin_nanf("") : {top};')
    body.made[id(pair.top)] = found
    shift = body.value(pair.shift)
    whole = body.fresh("r")
    parent.add(f"const float {whole} = (float)({total} * (double)exp_f32({base} - {shift}));")
    body.made[id(pair.total)] = whole
    return place, bases


def write_user(pair: Pair, kept: Kept, names: tuple[str, str], loops: Loops, parent: Level) -> None:
    """Writes the section that reads the kept exponentials, block by block; `names`: what `write` gave."""
    body, axis = loops.body, pair.axis
    x, extent, kind = body.variable(axis.symbol), body.extent(axis), body.index_type
    place, bases = names
    factor = body.fresh("factor")
    level = Level(frozenset(), parent.indent + 1)
    level.add(f"const {kind} {x}_1 = {extent} - {x}_0 > {BLOCK} ? {x}_0 + {BLOCK} : {extent};")
    level.add(f"const float {factor} = exp_f32({bases}[{x}_0 / {BLOCK}] - {body.value(pair.shift)});")
    power = id(pair.total.value)
    body.made[power] = f"({place} * {factor})"
    loops.section(kept.user, level, (axis,))
    del body.made[power]
    parent.add(f"for ({kind} {x}_0 = 0; {x}_0 < {extent}; {x}_0 += {BLOCK}) {{")
    parent.lines += level.lines
    parent.add("}")
