"""A row's maximum and the sum of its exponentials in one pass over memory: block by block, each block read twice while the cache holds it.

The exponentials are taken less a base, which is the largest number so far; where a block has a larger one, the sum so far is scaled to it
(M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018). What the sum is really less of, `shift` below, may be any
function of the maximum, and is made up for at the end: logsumexp takes 0 where the maximum is infinite, softmax does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from precast.codegen.common.value_facts import Facts
from precast.codegen.cpp.body import Body, Level
from precast.codegen.cpp.planning.loop_plan import has_loop
from precast.codegen.cpp.planning.sections import Section
from precast.lowering.ir.nodes import Alu, Axis, Load, Reduce, Value, walk
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.sizes import known

BLOCK = 4096
"""Points of a block, also those whose exponentials are added in f32: 16 KiB of f32, half of the first cache."""

SHORT = 64
"""Points up to which a row is not worth the work beside its loops."""


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


def write(pair: Pair, body: Body, parent: Level) -> None:
    """Writes the pass into `parent`, and both results as made."""
    x, extent, kind = body.variable(pair.axis.symbol), body.extent(pair.axis), body.index_type
    loops = []
    for _ in range(2):
        level = Level(frozenset({pair.axis.symbol}), parent.indent + 2, simd=True)
        body.path.append(level)
        name = body.value(pair.value)
        body.path.pop()
        loops.append((level, name))
    (highest, v), (powers, u) = loops
    top, base, total, nan = (body.fresh(p) for p in ("top", "base", "acc", "n"))
    highest.add(f"best = {v} > best ? {v} : best;")
    powers.add(f"part += exp_below_f32({u} - {base});")
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
