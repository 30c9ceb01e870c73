"""How each reduction starts, takes an element, and yields its result in C++."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from precast.codegen.cpp.types import COMPUTE, LIMITS, literal
from precast.lowering.ir.scalars import DType, ReduceOp


def identity(op: ReduceOp, dtype: DType) -> str:
    """The neutral element as a literal of `dtype`'s compute type."""
    match op:
        case ReduceOp.SUM | ReduceOp.ANY | ReduceOp.ARGMIN | ReduceOp.ARGMAX:
            return literal(0, dtype)
        case ReduceOp.PROD | ReduceOp.ALL:
            return literal(1, dtype)
        case ReduceOp.MIN | ReduceOp.MAX:
            if dtype.is_float:
                return literal(float("inf") if op is ReduceOp.MIN else float("-inf"), dtype)
            low, high = LIMITS[dtype]
            return literal(high if op is ReduceOp.MIN else low, dtype)
        case ReduceOp.LOGSUMEXP:
            raise TypeError(NO_LOOP)


@dataclass(frozen=True)
class Accumulator:
    """Lines of one accumulator. `clauses` are its OpenMP simd reduction clauses; none means that the loop cannot be `omp simd`."""

    variables: tuple[tuple[str, str, str], ...]
    """(type, name, start) of each variable."""
    update: Callable[[str, str], tuple[str, ...]]
    result: str
    clauses: tuple[str, ...]
    part: tuple[str, str, str] | None = None
    """Of a sum in two levels, the variable that `update` adds to: the sum of few points, which goes into the first of `variables`."""


COMBINE = {ReduceOp.SUM: "+", ReduceOp.PROD: "*", ReduceOp.ANY: "|", ReduceOp.ALL: "&", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}


COMBINERS = {
    ReduceOp.SUM: "{a} += {b};", ReduceOp.PROD: "{a} *= {b};", ReduceOp.ANY: "{a} |= {b};", ReduceOp.ALL: "{a} &= {b};",
    ReduceOp.MIN: "{a} = {a} != {a} || {a} <= {b} ? {a} : {b};", ReduceOp.MAX: "{a} = {a} != {a} || {a} >= {b} ? {a} : {b};",
}  # fmt: skip
"""How two accumulators become one; a NaN stays, and is taken, as no comparison with it holds."""


NO_LOOP = "a running log of summed exponentials has no loop on CPUs: lowering leaves it to the library"


def flag_type(dtype: DType) -> str:
    """An integer as wide as the element, so that NaN flags keep the lanes of the data."""
    return "int64_t" if dtype is DType.F64 else "int32_t"


def accumulator_type(op: ReduceOp, dtype: DType) -> str:
    if op in (ReduceOp.ANY, ReduceOp.ALL):
        return "int32_t"
    return COMPUTE[dtype]


def unsigned_sum(op: ReduceOp, dtype: DType) -> bool:
    """Integer sums and products wrap: they run in unsigned arithmetic."""
    return op in (ReduceOp.SUM, ReduceOp.PROD) and dtype in (DType.I64, DType.I32)


def update_lines(op: ReduceOp, dtype: DType, item: DType, acc: str, extra: str, scan: bool = False, wide: bool = False) -> Accumulator:
    """The accumulator `acc` (with `extra` beside it: a NaN flag or the best value of an index reduction).

    A scan's NaN stays in the value itself, as every prefix is a result; its ties take the last index. `wide` sums f32 in f64.
    """
    if op in (ReduceOp.ARGMIN, ReduceOp.ARGMAX):
        return _arg(op, item, acc, extra, scan)
    kind = accumulator_type(op, dtype)
    start = identity(op, dtype)
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        sign = "<" if op is ReduceOp.MIN else ">"
        if dtype.is_float and scan:
            step = (
                f"{acc} = ({acc} != {acc} || {{0}} != {{0}}) ? {acc} + {{0}} : ({{0}} {sign}= {acc} ? {{0}} : {acc});"  # of zeros the last
            )
            return Accumulator(((kind, acc, start),), lambda v, i: (step.format(v),), acc, ())
        variables = [(kind, acc, start)]
        clauses = [f"{COMBINE[op]}:{acc}"]
        result = acc
        if dtype.is_float:
            variables.append((flag_type(dtype), extra, "0"))
            clauses.append(f"|:{extra}")
            result = f'{extra} ? ({kind})__builtin_nan("") : {acc}'

        def extreme(v: str, i: str) -> tuple[str, ...]:
            lines = [f"{acc} = {v} {sign} {acc} ? {v} : {acc};"]
            return (*lines, f"{extra} |= {v} != {v};") if dtype.is_float else tuple(lines)

        return Accumulator(tuple(variables), extreme, result, tuple(clauses))
    sign = COMBINE[op]
    if op in (ReduceOp.ANY, ReduceOp.ALL):
        test = f"{acc} != 0"
        return Accumulator(
            (("int32_t", acc, "0" if op is ReduceOp.ANY else "1"),),
            lambda v, i: (f"{acc} {sign}= (int32_t)({v} != 0);",),
            test,
            (f"{sign}:{acc}",),
        )
    if scan and dtype.compute is DType.F32:  # as eager: every prefix of a long scan is a result, so errors must not grow along it
        return Accumulator((("double", acc, start),), lambda v, i: (f"{acc} {sign}= (double){v};",), f"(float){acc}", ())
    if wide and op is ReduceOp.SUM and dtype.compute is DType.F32:
        return Accumulator((("double", acc, start),), lambda v, i: (f"{acc} += (double){v};",), f"(float){acc}", (f"+:{acc}",))
    if unsigned_sum(op, dtype):
        return Accumulator(
            ((f"u{kind}", acc, start),), lambda v, i: (f"{acc} {sign}= (u{kind}){v};",), f"({kind}){acc}", (f"{sign}:{acc}",)
        )
    return Accumulator(((kind, acc, start),), lambda v, i: (f"{acc} {sign}= {v};",), acc, (f"{sign}:{acc}",))


def in_two_levels(op: ReduceOp, dtype: DType, fresh: Callable[[str], str], index: str = "") -> Accumulator | None:
    """A sum of f32 as f32 sums of few points each, which are added in f64: its error does not grow with the number of points, and it takes
    no longer. `fresh`: makes names; `index`: of the lane, where the variables are arrays of lanes. None for other reductions.
    """
    if op is not ReduceOp.SUM or dtype.compute is not DType.F32:
        return None
    total, part = f"{fresh('acc')}{index}", f"{fresh('part')}{index}"
    return Accumulator(
        (("double", total, "0.0"),), lambda v, i: (f"{part} += {v};",), f"(float){total}", (f"+:{part}",), ("float", part, "0.0f")
    )


def extreme_of_lanes(op: ReduceOp, dtype: DType, acc: str) -> Accumulator | None:
    """A float's extreme where `acc` is an element of an array of lanes: a NaN stays in the value itself, which takes one instruction more,
    but no second array to load and store. None for other reductions.
    """
    if op not in (ReduceOp.MIN, ReduceOp.MAX) or not dtype.is_float:
        return None
    kind, sign = COMPUTE[dtype], "<" if op is ReduceOp.MIN else ">"

    def update(v: str, i: str) -> tuple[str, ...]:  # a NaN on the right is taken, as no comparison with it holds
        return (f"{{ const {kind} old = {acc}, next = old {sign} {v} ? old : {v}; {acc} = old != old ? old : next; }}",)

    return Accumulator(((kind, acc, identity(op, dtype)),), update, acc, ())


def better(op: ReduceOp, item: DType, value: str, best: str, last: bool) -> str:
    """Whether `value` replaces `best` when points come in ascending order."""
    sign = {(False, False): ">", (False, True): ">=", (True, False): "<", (True, True): "<="}[(op is ReduceOp.ARGMIN, last)]
    if not item.is_float:
        return f"{value} {sign} {best}"
    nan = f"{value} != {value}" if last else f"({value} != {value} && {best} == {best})"
    return f"({value} {sign} {best} || {nan})"


def row_scan_lines(op: ReduceOp, item: DType, acc: str, best: str, value: str, index: str) -> tuple[str, ...] | None:
    """One step of a running extreme of one row, as a branch: most elements are none, so the next need not wait for a choice. None where a
    choice is one instruction, and for other scans. The empty assembly keeps it a branch.
    """
    keep = '__asm__ volatile("");'
    if op in (ReduceOp.ARGMIN, ReduceOp.ARGMAX):
        test = f"{acc} < 0 || {better(op, item, value, best, True)}"
        return (f"if (__builtin_expect({test}, 0)) {{ {acc} = (int64_t){index}; {best} = {value}; {keep} }}",)
    if op not in (ReduceOp.MIN, ReduceOp.MAX) or not item.is_float:
        return None
    sign = ">" if op is ReduceOp.MIN else "<"  # a NaN is taken, as no comparison with it holds, and stays
    test = f"__builtin_expect(!({value} {sign} {acc}), 0)"
    return (f"if ({test}) {{ if (__builtin_expect({acc} == {acc}, 1)) {{ {acc} = {value}; {keep} }} }}",)


def _arg(op: ReduceOp, item: DType, acc: str, best: str, scan: bool) -> Accumulator:
    kind = COMPUTE[item]
    extreme = ReduceOp.MIN if op is ReduceOp.ARGMIN else ReduceOp.MAX
    # an index below zero marks "nothing yet": the first point may itself equal the identity
    variables = ((kind, best, identity(extreme, item)), ("int64_t", acc, "-1"))

    def update(v: str, i: str) -> tuple[str, ...]:
        test = f"{acc} < 0 || {better(op, item, v, best, scan)}"
        return (f"{{ const bool take = {test}; {acc} = take ? (int64_t){i} : {acc}; {best} = take ? {v} : {best}; }}",)

    return Accumulator(variables, update, acc, ())


def inline_fold(op: ReduceOp, dtype: DType, item: DType, items: list[str], result: str, extra: str) -> tuple[str, ...]:
    """Lines that define `result` from the named `items`, without a loop (so that the surrounding loop vectorises)."""
    kind = COMPUTE[dtype]
    match op:
        case ReduceOp.SUM | ReduceOp.PROD:
            sign = COMBINE[op]
            if unsigned_sum(op, dtype):
                return (f"const {kind} {result} = ({kind})({f' {sign} '.join(f'(u{kind}){v}' for v in items)});",)
            return (f"const {kind} {result} = ({kind})({f' {sign} '.join(items)});",)
        case ReduceOp.ANY | ReduceOp.ALL:
            sign = COMBINE[op]
            return (f"const {kind} {result} = {f' {sign} '.join(f'({v} != 0)' for v in items)};",)
        case ReduceOp.MIN | ReduceOp.MAX:
            return _fold_extreme(op, dtype, items, result, extra)
        case ReduceOp.ARGMIN | ReduceOp.ARGMAX:
            best, lines = COMPUTE[item], [f"{COMPUTE[item]} {extra} = {items[0]}; int64_t a{extra} = 0;"]
            for number, v in enumerate(items[1:], 1):
                flag = f"b{extra}_{number}"
                lines.append(f"const bool {flag} = {better(op, item, v, extra, False)};")
                lines.append(f"a{extra} = {flag} ? {number} : a{extra}; {extra} = {flag} ? ({best}){v} : {extra};")
            return (*lines, f"const int64_t {result} = a{extra};")
        case ReduceOp.LOGSUMEXP:
            raise TypeError(NO_LOOP)


def _fold_extreme(op: ReduceOp, dtype: DType, items: list[str], result: str, extra: str) -> tuple[str, ...]:
    """One comparison in a conditional becomes one instruction; two joined by `||` would be branches where the loop is not vectorised.

    A NaN on the right of a float's comparison is taken, as none with it holds, and one on the left is lost: those are looked for, two at a
    time, and decide once. Choices that depend on one another, step by step, become paths of their own with comparisons of their own.
    """
    kind, sign = COMPUTE[dtype], "<" if op is ReduceOp.MIN else ">"
    if not dtype.is_float:
        lines = [f"{kind} {extra} = {items[0]};", *(f"{extra} = {v} {sign} {extra} ? {v} : {extra};" for v in items[1:])]
        return (*lines, f"const {kind} {result} = {extra};")
    lines, best, before = [], items[0], items[:-1]
    for number, v in enumerate(items[1:]):
        lines.append(f"const {kind} {extra}_{number} = {best} {sign} {v} ? {best} : {v};")
        best = f"{extra}_{number}"
    pairs = [before[i : i + 2] for i in range(0, len(before), 2)]
    lost = " | ".join(f"__builtin_isunordered({pair[0]}, {pair[-1]})" for pair in pairs)
    if not lost:
        return (f"const {kind} {result} = {best};",)
    return (*lines, f"const bool {extra} = {lost};", f'const {kind} {result} = {extra} ? ({kind})__builtin_nan("") : {best};')
