"""Removes redundant roundings to half types: after a load of that type, and before a store of it.

Roundings are kept until kernels are fused: a value that is not written to memory any more is rounded where the graph converts it, or
where a discontinuous operation (a comparison, a conversion to integers) reads it.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering.analysis.rewrite_values import map_kernel
from precast.lowering.ir.nodes import Cast, Kernel, Load, Program, Store, Value


def drop_roundings(program: Program) -> Program:
    """The program without them."""
    dtypes = {b.name: b.dtype for b in program.buffers}

    def loaded(value: Value) -> Value:
        return value.value if isinstance(value, Cast) and isinstance(value.value, Load) and value.value.dtype is value.dtype else value

    def stored(store: Store) -> Store:
        value = store.value
        while isinstance(value, Cast) and value.dtype is dtypes[store.buffer] and value.dtype.compute is value.value.dtype.compute:
            value = value.value
        return store if value is store.value or store.mode != "set" else replace(store, value=value)

    return replace(program, steps=tuple(map_kernel(s, loaded, stored) if isinstance(s, Kernel) else s for s in program.steps))
