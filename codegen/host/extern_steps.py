"""Extern steps in the host program: precast's ops over numbers, calls through torch's dispatcher, and calls back into Python."""

from __future__ import annotations

from typing import Protocol

import sympy

from precast.codegen.host.dispatcher_calls import Writer as DispatchWriter
from precast.codegen.host.dispatcher_calls import dispatch, encodable
from precast.codegen.host.extern_arguments import encode_call
from precast.codegen.host.shims import DISPATCHER, SymbolTable
from precast.codegen.host.sizes import Writer as SizeWriter
from precast.codegen.host.sizes import emit_check, emit_item, emit_let, emit_sizes_of_results
from precast.codegen.host.step_effects import argument_views
from precast.lowering.analysis.effects import is_custom
from precast.lowering.ir.nodes import CHECK, ITEM, LET, POSITION, RANGE, Extern, View


class Writer(DispatchWriter, SizeWriter, Protocol):
    """What this file needs of the host writer."""

    externs: list[dict[str, object]]
    table: SymbolTable
    missing: frozenset[str]

    def new_owned(self) -> str: ...
    def scalar(self, value: sympy.Expr) -> str: ...
    def tensor_handle(self, view: View, step: str) -> str: ...
    def settle(self, name: str, target: str, label: str) -> None: ...


def emit_extern(writer: Writer, step: Extern, label: str) -> None:
    """Writes an extern step."""
    if step.op == ITEM:
        emit_item(writer, step)
    elif step.op == LET:
        emit_let(writer, step)
    elif step.op in (CHECK, RANGE, POSITION):
        emit_check(writer, step)
    elif not encodable(step, writer.inference) and not writer.missing & DISPATCHER:
        _dispatched(writer, step, label)
    else:
        _through_python(writer, step, label)


def _through_python(writer: Writer, step: Extern, label: str) -> None:
    """A call of the runtime's callback into Python, which takes owned handles and returns new ones."""
    record, tensors, integers = encode_call(step, writer.buffers)
    number = len(writer.externs)
    writer.externs.append(record)
    writer.add("{")
    handles = [writer.tensor_handle(v, label) if is_custom(step.op) else writer.view_handle(v, label) for v in tensors]
    writer.add(f"void* in[{max(len(handles), 1)}];")
    for position, handle in enumerate(handles):
        writer.call("aoti_torch_new_tensor_handle", f"{handle}, &in[{position}]", label)
    values = ", ".join(writer.scalar(i) for i in integers) or "0"
    writer.add(f"const int64_t numbers[] = {{{values}}};")
    writer.add(f"void* out[{max(len(step.outs), 1)}] = {{0}};")
    shim = writer.table.use("precast_call_python")
    writer.add(f"if ({shim}({number}, in, {len(handles)}, numbers, {len(integers)}, out, {len(step.outs)}, error, capacity)) return 1;")
    targets = []
    for position, name in enumerate(step.outs):
        if name:  # "": the op gives None here
            target = writer.new_owned()
            writer.add(f"{target} = out[{position}];")
            targets.append((name, target))
    writer.add("}")
    emit_sizes_of_results(writer, step, dict(targets), label)
    for name, target in targets:
        writer.settle(name, target, label)
    results = f"{', '.join(name or '_' for name in step.outs)} = " if step.outs else ""
    writer.python.append(f"    {results}{step.op}({', '.join(v.buffer for v in tensors)})")


def _dispatched(writer: Writer, step: Extern, label: str) -> None:
    """A call through torch's dispatcher."""
    writer.add("{")
    targets = []
    for name, result in zip(step.outs, dispatch(writer, step, label), strict=True):
        target = writer.new_owned()
        writer.add(f"{target} = {result};")
        if name:  # "": a tensor that is not defined, where the op gives None
            targets.append((name, target))
    writer.add("}")
    emit_sizes_of_results(writer, step, dict(targets), label)
    for name, target in targets:
        writer.settle(name, target, label)
    writer.python.append(
        f"    {', '.join(name or '_' for name in step.outs)} = {step.op}({', '.join(v.buffer for v in argument_views(step.args))})"
    )
