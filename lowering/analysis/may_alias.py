"""The aliasing check of the memory plan: whether a step may write its result over an operand that is dead afterwards."""

from __future__ import annotations

from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Axis, Kernel, Load, Program, Reduce, Scan, Value, walk


def may_reuse(program: Program, position: int, dying: str, born: str) -> bool:
    """Whether the step may write `born` over `dying`: a kernel that reads it at the index that it stores, and nowhere else."""
    step = program.steps[position]
    if not isinstance(step, Kernel):
        return False
    stores = [s for s in step.stores if s.buffer == born]
    if len(stores) != 1 or stores[0].mode != "set" or stores[0].mask is not None or stores[0].axes is not None:
        return False
    by_name = {b.name: b for b in program.buffers}
    if by_name[dying].dtype.itemsize != by_name[born].dtype.itemsize:
        return False
    bound = {a.symbol for v in walk(*(r for s in step.stores for r in store_roots(s))) if isinstance(v, Reduce | Scan) for a in _bound(v)}
    for store in step.stores:
        for value in walk(*store_roots(store)):
            if isinstance(value, Load) and value.buffer == dying:
                # another store may run in a loop of its own, after this one
                if store is not stores[0] or value.index != store.index or value.gathers or value.index.free_symbols & bound:
                    return False
    return not any(isinstance(v, Reduce | Scan) and _loads(v, dying) for v in walk(*store_roots(stores[0])))


def _loads(value: Value, name: str) -> bool:
    return any(isinstance(v, Load) and v.buffer == name for v in walk(value))


def _bound(value: Reduce | Scan) -> tuple[Axis, ...]:
    return value.axes if isinstance(value, Reduce) else (value.axis,)
