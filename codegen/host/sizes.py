"""Sizes in the host program: those of the call's inputs, those that depend on data, and the checks of these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

import sympy

from precast.codegen.cpp.types import load
from precast.lowering.analysis.symbol_bindings import FromInteger, FromSizes, FromTensor, bindings
from precast.lowering.build.float_values import is_real
from precast.lowering.ir.nodes import CHECK, POSITION, Buffer, Extern, Program, Size, View
from precast.lowering.ir.sizes import is_unbacked, range_message


class Writer(Protocol):
    """What this file needs of the host writer."""

    program: Program
    buffers: dict[str, Buffer]
    names: dict[sympy.Symbol, str]
    python: list[str]

    def add(self, line: str) -> None: ...
    def call(self, shim: str, arguments: str, step: str) -> None: ...
    def element(self, view: View) -> str: ...
    def size(self, size: Size) -> str: ...
    def truth(self, condition: sympy.Basic) -> str: ...


def emit_bindings(writer: Writer) -> None:
    """The size symbols of the call: integer inputs, sizes and strides of tensors, and what follows from these; each computed once."""
    arrays: dict[tuple[int, str], str] = {}
    bound = bindings(writer.program)
    for binding in bound:
        name = writer.names[binding.symbol]
        match binding:
            case FromInteger(position=position) if is_real(binding.symbol):
                writer.add(f"double {name}; __builtin_memcpy(&{name}, &inputs[{position}], 8); (void){name};")
                continue
            case FromInteger(position=position):
                text = f"(int64_t)inputs[{position}]"
            case FromTensor(position=position, what=what, dim=dim):
                if (position, what) not in arrays:
                    array = arrays[position, what] = f"{what}s{position}"
                    writer.add(f"int64_t* {array} = 0;")
                    writer.call(f"aoti_torch_get_{what}s", f"inputs[{position}], &{array}", f"input {position}")
                text = _solved(f"{arrays[position, what]}[{dim}]", binding.factor, binding.offset)
                shown = _solved(f"{writer.program.inputs[position]}.{what}({dim})", binding.factor, binding.offset)
                writer.python.append(f"    {binding.symbol} = {shown}")
            case FromSizes(value=value):
                text = writer.size(value)
                writer.python.append(f"    {binding.symbol} = {value}")
        writer.add(f"const int64_t {name} = {text}; (void){name};")
    given = {binding.symbol for binding in bound}  # a number that the call brings may be one that no hint is known of
    for symbol in writer.program.symbols:
        if is_unbacked(symbol) and symbol not in given:
            kind = "double" if is_real(symbol) else "int64_t"
            writer.add(f"{kind} {writer.names[symbol]} = 0; (void){writer.names[symbol]};")


def _solved(text: str, factor: int, offset: int) -> str:
    text = f"({text} - {offset})" if offset else text
    return f"{text} / {factor}" if factor != 1 else text


def emit_item(writer: Writer, step: Extern) -> None:
    """Reads one element into a number."""
    (view,), (bind,) = step.args, step.binds
    dtype = view.dtype or writer.buffers[view.buffer].dtype
    writer.add(f"{writer.names[bind.symbol]} = {load(dtype, writer.element(view))};")
    writer.python.append(f"    {bind.symbol} = {view.buffer}.item()")


def emit_let(writer: Writer, step: Extern) -> None:
    """A size that follows from data-dependent ones."""
    (bind,) = step.binds
    writer.add(f"{writer.names[bind.symbol]} = {writer.size(step.args[0])};")
    writer.python.append(f"    {bind.symbol} = {step.args[0]}")


def emit_check(writer: Writer, step: Extern) -> None:
    """Ends the call where an assertion over sizes is false, or a number is out of the range that the trace took for granted."""
    if step.op == CHECK:
        condition, message = step.args
        writer.add(f"if (!({writer.truth(condition)})) {{ say(error, capacity, {json.dumps(message)}); return 1; }}")
        writer.python.append(f"    assert {condition}, {message!r}")
        return
    if step.op == POSITION:
        index, size, dim = step.args
        writer.add(f"{{ const int64_t index = {writer.size(index)}, size = {writer.size(size)};")
        writer.add("if (index < -size || index >= size) {")
        writer.add(f"  const Error bad = {{1, {dim}, index, size}}; return say_index(bad, error, capacity); }} }}")
        writer.python.append(f"    assert -{size} <= {index} < {size}")
        return
    symbol, low, high = step.args
    name = writer.names[symbol]
    tests = [f"{name} < {writer.size(low)}"] if low is not None else []
    tests += [f"{name} > {writer.size(high)}"] if high is not None else []
    message = range_message("%lld", low, high)
    writer.add(f"if ({' || '.join(tests)}) {{")
    writer.add(f"  if (capacity > 0) snprintf(error, (__SIZE_TYPE__)capacity, {json.dumps(message)}, (long long){name});")
    writer.add("  return 1; }")
    writer.python.append(f"    assert {'' if low is None else f'{low} <= '}{symbol}{'' if high is None else f' <= {high}'}")


def emit_sizes_of_results(writer: Writer, step: Extern, handles: Mapping[str, str], label: str) -> None:
    """The symbols that the sizes of a call's results tell; `handles` by the name of the result's buffer."""
    for number in dict.fromkeys(b.out for b in step.binds):
        writer.add("{ int64_t* sizes = 0;")
        writer.call("aoti_torch_get_sizes", f"{handles[step.outs[number]]}, &sizes", label)
        for bind in step.binds:
            if bind.out == number:
                writer.add(f"{writer.names[bind.symbol]} = {_solved(f'sizes[{bind.dim}]', bind.factor, bind.offset)};")
                writer.python.append(f"    {bind.symbol} = {_solved(f'{step.outs[number]}.size({bind.dim})', bind.factor, bind.offset)}")
        writer.add("}")
