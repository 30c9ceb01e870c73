"""What a step touches: the buffers that it reads and writes, its views, and rewriting them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import fields, replace
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import sympy
import torch

from precast.lowering.ir.nodes import (
    CHECK,
    POSITION,
    RANGE,
    Attention,
    Bind,
    Buffer,
    Conv,
    Extern,
    Gemm,
    Index,
    Kernel,
    Load,
    Program,
    Reduce,
    Step,
    Store,
    Value,
    View,
    walk,
)
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import is_unbacked
from precast.lowering.ir.sympy_calls import symbols_of

K = TypeVar("K", bound=Step | Buffer)
R = TypeVar("R")


def store_roots(store: Store) -> tuple[Value, ...]:
    """The values that a store needs: what it writes, where, and whether."""
    return (store.value, *(g.value for g in store.gathers), *((store.mask,) if store.mask is not None else ()))


def loads(kernel: Kernel) -> Iterator[Load]:
    """Each distinct load of the kernel."""
    for value in walk(*(root for store in kernel.stores for root in store_roots(store))):
        if isinstance(value, Load):
            yield value


def views(step: Step) -> tuple[View, ...]:
    """The windows that a library or extern step reads (none for kernels)."""
    match step:
        case Kernel():
            return ()
        case Extern(args=args, kwargs=kwargs):
            return tuple(_views_in((args, tuple(v for _, v in kwargs))))
        case Gemm(a=a, b=b, bias=bias, residual=residual):
            return tuple(v for v in (a, b, bias, residual) if v is not None)
        case Conv(x=x, weight=weight, bias=bias, residual=residual):
            return tuple(v for v in (x, weight, bias, residual) if v is not None)
        case Attention(q=q, k=k, v=v, mask=mask):
            return tuple(x for x in (q, k, v, mask) if x is not None)


def _views_in(arg: Any) -> Iterator[View]:
    if isinstance(arg, View):
        yield arg
    elif isinstance(arg, tuple | list):
        for a in arg:
            yield from _views_in(a)


def map_views(step: Step, change: Callable[[View], View]) -> Step:
    """The step with each view that it reads replaced; the very step when nothing changes."""
    match step:
        case Kernel():
            return step
        case Extern(args=args, kwargs=kwargs):
            new_args, new_kwargs = _map_arg(args, change), tuple((k, _map_arg(v, change)) for k, v in kwargs)
            if all(a is b for a, b in zip(_views_in((args, kwargs)), _views_in((new_args, new_kwargs)), strict=True)):
                return step
            return replace(step, args=new_args, kwargs=new_kwargs)
        case _:
            found = {name: getattr(step, name) for name in VIEW_FIELDS[type(step)]}
            changed = {name: change(v) for name, v in found.items() if v is not None}
            changed = {name: v for name, v in changed.items() if v is not found[name]}
            return replace(step, **cast(Any, changed)) if changed else step


VIEW_FIELDS: dict[type, tuple[str, ...]] = {
    Gemm: ("a", "b", "bias", "residual"),
    Conv: ("x", "weight", "bias", "residual"),
    Attention: ("q", "k", "v", "mask"),
}


def _map_arg(arg: Any, change: Callable[[View], View]) -> Any:
    if isinstance(arg, View):
        return change(arg)
    if isinstance(arg, tuple | list):
        return type(arg)(_map_arg(a, change) for a in arg)
    return arg


def remembered(function: Callable[[K], R]) -> Callable[[K], R]:
    """The function with its result kept for as long as the step (or buffer) lives: passes ask the same of one that they leave alone."""
    known: WeakKeyDictionary[K, R] = WeakKeyDictionary()

    @wraps(function)
    def ask(step: K) -> R:
        found = known.get(step)
        if found is None:
            found = known[step] = function(step)
        return found

    return ask


@remembered
def reads(step: Step) -> tuple[str, ...]:
    """The buffers that the step reads, each once, in order of first mention. Combining stores read what they write."""
    if isinstance(step, Kernel):
        names = [load.buffer for load in loads(step)] + [s.buffer for s in step.stores if s.mode != "set"]
    else:
        names = [v.buffer for v in views(step)]
    return tuple(dict.fromkeys(names))


def writes(step: Step) -> tuple[str, ...]:
    """The buffers that the step writes, each once."""
    match step:
        case Kernel(stores=stores):
            return tuple(dict.fromkeys(s.buffer for s in stores))
        case Extern(outs=outs, mutates=mutates):
            return tuple(dict.fromkeys(name for name in (*outs, *mutates) if name))  # "": a result that is None
        case _:
            return (step.out,)


@remembered
def step_symbols(step: Step) -> frozenset[sympy.Symbol]:
    """The size symbols that the step mentions: those that none of its own loops and gathers binds."""
    if not isinstance(step, Kernel):
        return frozenset().union(*(symbols_in(getattr(step, f.name)) for f in fields(step)))
    found: set[sympy.Symbol] = set()
    bound: set[sympy.Symbol] = {a.symbol for a in step.axes}
    exprs: list[Any] = [a.extent for a in step.axes] + [s.index for s in step.stores]
    gathers = [g for s in step.stores for g in s.gathers]
    for value in walk(*(root for store in step.stores for root in store_roots(store))):
        expr = index_expr(value)
        if expr is not None:
            exprs.append(expr)
        if isinstance(value, Load):
            gathers += value.gathers
        elif isinstance(value, Reduce):
            bound |= {a.symbol for a in value.axes}
            exprs += [a.extent for a in value.axes]
    for expr in (*exprs, *(g.size for g in gathers)):
        found |= symbols_in(expr)
    return frozenset(found - bound - {g.symbol for g in gathers})


def symbols_bound(step: Step) -> frozenset[sympy.Symbol]:
    """The symbols whose values are settled once the step ran: those that it binds, and data-dependent ones that it checks."""
    if not isinstance(step, Extern):
        return frozenset()
    checked = step_symbols(step) if step.op in (CHECK, RANGE, POSITION) else frozenset()
    return frozenset(b.symbol for b in step.binds) | {s for s in checked if is_unbacked(s)}


def symbols_in(arg: Any) -> frozenset[sympy.Symbol]:
    """The symbols of a size, a view, or an argument of a library or extern call."""
    match arg:
        case sympy.Basic():
            return symbols_of(arg)
        case View():
            return symbols_in((arg.size, arg.stride, arg.offset))
        case Index():
            return symbols_in(arg.expr)
        case Bind():
            return frozenset({arg.symbol})
        case tuple() | list():
            return frozenset().union(*(symbols_in(a) for a in arg))
        case _:
            return frozenset()


def value_dtype(value: Value) -> DType:
    """The type that a value has in arithmetic: half types are computed in f32."""
    return value.dtype.compute


def index_expr(value: Value) -> Any:
    """The sympy expression that the value holds itself, if it has one."""
    return value.expr if isinstance(value, Index) else value.index if isinstance(value, Load) else None


def is_custom(op: str) -> bool:
    """Whether an extern's op is not torch's own: what it does with its arguments beyond its schema is not known."""
    return not op.startswith(("aten::", "prims::", "precast::"))


@lru_cache(None)
def may_draw(op: str) -> bool:
    """Whether an extern's op may draw random numbers."""
    namespace, _, rest = op.partition("::")
    if not rest or namespace in ("precast", "triton-kernel"):
        return False
    name, _, overload = rest.partition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except AttributeError:
        return True  # a branch or a loop, whose body may
    return torch.Tag.nondeterministic_seeded in found.tags


def custom_operands(steps: Iterable[Step]) -> set[str]:
    """Buffers that operators which are not torch's own see: they need tensors of their own, since such an operator may keep them."""
    return {name for step in steps if isinstance(step, Extern) and is_custom(step.op) for name in reads(step)}


def lasting_inputs(program: Program, bound: Collection[str] | None) -> set[str]:
    """Inputs whose contents stay from call to call: those of `bound` (None: every input) that no step writes."""
    inputs = {i for i in program.inputs if isinstance(i, str)}
    written = {w for s in program.steps for w in writes(s)}
    return (inputs if bound is None else inputs & set(bound)) - written
