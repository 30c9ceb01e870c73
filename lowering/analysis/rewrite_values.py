"""Bottom-up rewriting of a kernel: each distinct value is rebuilt once, from its rewritten operands, and then offered to a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from precast.lowering.analysis.effects import map_views, store_roots
from precast.lowering.ir.nodes import (
    Alu,
    Cast,
    Const,
    Gather,
    Index,
    Kernel,
    Load,
    Program,
    Reduce,
    Scan,
    Step,
    Store,
    Value,
    View,
    walk,
)

Rule = Callable[[Value], Value]


def map_values(roots: tuple[Value, ...], rule: Rule, instead: Mapping[Value, Value] | None = None) -> dict[Value, Value]:
    """What each value under the roots becomes. `instead` names values that are replaced as they stand, before their operands change."""
    found: dict[Value, Value] = {}
    for value in walk(*roots):
        replacement = None if instead is None else instead.get(value)
        found[value] = rule(rebuilt(value, found)) if replacement is None else replacement
    return found


def rebuilt(value: Value, found: Mapping[Value, Value]) -> Value:
    """The value over the new operands; the same object when none changed."""
    match value:
        case Const() | Index():
            return value
        case Alu(op=op, args=args, dtype=dtype):
            return Alu(op, tuple(found[a] for a in args), dtype)
        case Cast(value=inner, dtype=dtype):
            return value if found[inner] is inner else Cast(found[inner], dtype)
        case Reduce(op=op, value=inner, axes=axes, dtype=dtype):
            return value if found[inner] is inner else Reduce(op, found[inner], axes, dtype)
        case Scan(op=op, value=inner, axis=axis, dtype=dtype):
            return value if found[inner] is inner else Scan(op, found[inner], axis, dtype)
        case Load(buffer=buffer, index=index, dtype=dtype, gathers=gathers, mask=mask):
            if mask is None and not gathers:
                return value
            return Load(buffer, index, dtype, _gathers(gathers, found), None if mask is None else found[mask])


def _gathers(gathers: tuple[Gather, ...], found: Mapping[Value, Value]) -> tuple[Gather, ...]:
    return tuple(Gather(g.symbol, found[g.value], g.size, g.checked, g.wraps) for g in gathers)


def replace_values(kernel: Kernel, instead: Mapping[Value, Value]) -> Kernel:
    """The kernel with these values replaced, the outermost where one holds another."""
    return map_kernel(kernel, lambda v: v, instead=instead)


def map_kernel(
    kernel: Kernel, rule: Rule, on_store: Callable[[Store], Store] | None = None, instead: Mapping[Value, Value] | None = None
) -> Kernel:
    """The kernel with `rule` applied to every value (and `on_store` to every rewritten store); the same kernel object when nothing
    changed.
    """
    found = map_values(tuple(r for s in kernel.stores for r in store_roots(s)), rule, instead)
    stores = []
    changed = False
    for store in kernel.stores:
        value, gathers = found[store.value], _gathers(store.gathers, found)
        mask = None if store.mask is None else found[store.mask]
        same = value is store.value and mask is store.mask and all(a is b for a, b in zip(gathers, store.gathers, strict=True))
        new = store if same else replace(store, value=value, gathers=gathers, mask=mask)
        if on_store is not None:
            new = on_store(new)
        changed |= new is not store
        stores.append(new)
    return replace(kernel, stores=tuple(stores)) if changed else kernel


def rename_buffers(program: Program, names: Mapping[str, str]) -> Program:
    """Every read of a renamed buffer reads the other one instead. Outputs and writers keep their names."""
    if not names:
        return program

    def rule(value: Value) -> Value:
        if isinstance(value, Load) and value.buffer in names:
            return Load(names[value.buffer], value.index, value.dtype, value.gathers, value.mask)
        return value

    def view(v: View) -> View:
        return replace(v, buffer=names[v.buffer]) if v.buffer in names else v

    def one(step: Step) -> Step:
        return map_kernel(step, rule) if isinstance(step, Kernel) else map_views(step, view)

    return replace(program, steps=tuple(one(s) for s in program.steps))
