"""Extern calls as data: which op, and how each argument is made from tensors and integers of the call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sympy

from precast.codegen.common.torch_names import torch_name
from precast.lowering.analysis.effects import is_custom
from precast.lowering.build.float_values import is_real
from precast.lowering.ir.nodes import Buffer, Const, Extern, Index, View

Encoded = Any
"""JSON: null, {"v": scalar}, {"complex": [re, im]}, {"f": "inf"|"-inf"|"nan"},
{"t": tensor number}, {"i": integer number}, {"x": number of an integer that holds a double's bits},
{"dtype"|"device"|"layout"|"memory_format": name}, {"list": […]}."""


class ExternArguments:
    """Collects the tensors and run-time integers of one call while encoding its arguments."""

    def __init__(self) -> None:
        self.tensors: list[View] = []
        self.integers: list[sympy.Expr] = []

    def encode(self, arg: Any) -> Encoded:
        match arg:
            case None:
                return None
            case View():
                self.tensors.append(arg)
                return {"t": len(self.tensors) - 1}
            case Const(value=value):
                return self.encode(value)
            case Index(expr=expr):
                return self.encode(sympy.sympify(expr))
            case sympy.Integer():
                return {"v": int(arg)}
            case sympy.Expr() if is_real(arg):
                self.integers.append(arg)
                return {"x": len(self.integers) - 1}
            case sympy.Expr():
                self.integers.append(arg)
                return {"i": len(self.integers) - 1}
            case float() if not math.isfinite(arg):
                return {"f": repr(arg)}
            case bool() | int() | float() | str():
                return {"v": arg}
            case complex():
                return {"complex": [repr(arg.real), repr(arg.imag)]}
            case (("dtype" | "device" | "layout" | "memory_format") as kind, str(name)):
                return {kind: name}
            case tuple() | list():
                return {"list": [self.encode(a) for a in arg]}
        raise TypeError(f"argument {arg!r} of type {type(arg).__name__} cannot be handed to an extern call")


def _promise(arguments: ExternArguments, buffer: Buffer) -> list[Encoded]:
    """What the operator's fake implementation said of a result: dtype and sizes. The runtime holds the operator to it."""
    return [torch_name(buffer), [arguments.encode(n if isinstance(n, int) else Index(n)) for n in buffer.size]]


def encode_call(step: Extern, buffers: Mapping[str, Buffer]) -> tuple[dict[str, Any], list[View], list[sympy.Expr]]:
    """The JSON record of a call, with its tensors and integers in the order of their numbers."""
    arguments = ExternArguments()
    try:
        record: dict[str, Any] = {
            "op": step.op,
            "args": [arguments.encode(a) for a in step.args],
            "kwargs": {k: arguments.encode(v) for k, v in step.kwargs},
            "outs": len(step.outs),
        }
        if is_custom(step.op):
            record["expect"] = [_promise(arguments, buffers[name]) if name else None for name in step.outs]
    except TypeError as error:
        raise TypeError(f"{step.op}: {error}") from error
    return record, arguments.tensors, arguments.integers
