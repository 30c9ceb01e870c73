"""Where each size symbol's value comes from when a program is called: an integer input, a size or stride of a tensor input, or other
symbols. Symbols of data-dependent sizes are bound later, by the step that learns them, unless an input has such a size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import sympy

from precast.lowering.analysis.effects import step_symbols, symbols_in
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Program, Size
from precast.lowering.ir.sizes import SizeSymbol


@dataclass(frozen=True)
class FromInteger:
    """The symbol is integer input `position`."""

    symbol: sympy.Symbol
    position: int


@dataclass(frozen=True)
class FromTensor:
    """`factor * symbol + offset` is the size (or stride) of dimension `dim` of the tensor input at `position`."""

    symbol: sympy.Symbol
    position: int
    what: Literal["size", "stride"]
    dim: int
    factor: int = 1
    offset: int = 0


@dataclass(frozen=True)
class FromSizes:
    """The symbol is this expression over symbols that were bound before."""

    symbol: sympy.Symbol
    value: Size


Binding = FromInteger | FromTensor | FromSizes


def bindings(program: Program) -> tuple[Binding, ...]:
    """How each symbol of `program.symbols` is bound, in an order in which each needs only earlier ones.

    Raises `ValueError` for a symbol that nothing gives a value.
    """
    found: dict[sympy.Symbol, Binding] = {}
    for position, item in enumerate(program.inputs):
        if isinstance(item, sympy.Symbol):
            found[item] = FromInteger(item, position)
    derived = dict(program.derived)
    tensors = list(_tensor_bindings(program))
    told = told_by_tensors(program)
    wanted = [s for s in program.symbols if s not in found and (s in told or not (isinstance(s, SizeSymbol) and s.unbacked))]
    while wanted:
        left = []
        for symbol in wanted:
            value = derived.get(symbol) or (symbol.definition if isinstance(symbol, SizeSymbol) else None)
            if value is not None and symbols_in(value) <= found.keys():
                found[symbol] = FromSizes(symbol, value)
                continue
            direct = [t for t in tensors if t.symbol is symbol]
            if direct:
                found[symbol] = min(direct, key=lambda t: (t.what != "size", t.factor != 1, t.offset != 0))
            else:
                left.append(symbol)
        if len(left) == len(wanted):
            names = ", ".join(str(s) for s in left)
            raise ValueError(f"{program.name}: the size {names} can be read off no input")
        wanted = left
    return tuple(found.values())


def told_by_tensors(program: Program) -> frozenset[sympy.Symbol]:
    """What can be read off sizes and strides of the program's inputs, also where it depended on data in the program that made them."""
    return frozenset(tensor.symbol for tensor in _tensor_bindings(program))


def symbols_used(program: Program) -> set[sympy.Symbol]:
    """Every size symbol that the program's buffers, steps, results and definitions mention."""
    found: set[sympy.Symbol] = set()
    for buffer in program.buffers:
        for size in (*buffer.size, *buffer.stride):
            found |= symbols_in(size)
    for step in (*program.prepare, *program.steps):
        found |= step_symbols(step)
    for output in program.outputs:
        found |= symbols_in(output.view) | symbols_in(output.scalar)
    waiting = list(found)
    while waiting:  # what the found ones are defined by
        symbol = waiting.pop()
        inner = symbols_in(symbol.definition) - found if isinstance(symbol, SizeSymbol) else frozenset()
        found |= inner
        waiting += inner
    return found


def _tensor_bindings(program: Program) -> Iterator[FromTensor]:
    buffers = {b.name: b for b in program.buffers}
    for position, item in enumerate(program.inputs):
        if not isinstance(item, str):
            continue
        buffer = buffers[item]
        kinds: tuple[tuple[Literal["size", "stride"], tuple[Size, ...]], ...] = (("size", buffer.size), ("stride", buffer.stride))
        for what, values in kinds:
            for dim, value in enumerate(values):
                solved = ix.affine_in_one(value)
                if solved is not None:
                    symbol, factor, offset = solved
                    yield FromTensor(symbol, position, what, dim, factor, offset)
