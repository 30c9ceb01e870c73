"""Extern calls straight through torch's dispatcher: arguments as `StableIValue` words, in schema order.

What that encoding lacks (Scalar arguments, generators, non-tensor results) goes through the Python callback instead.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sympy
import torch

from precast.codegen.common.torch_names import DTYPE_CODES, OTHER_CODES
from precast.lowering.analysis.effects import is_custom
from precast.lowering.ir.nodes import Const, Extern, Index, Size, View
from precast.lowering.ir.torch_dtypes import TORCH_NAMES

BUILD_VERSION = (2 << 56) | (11 << 48)
"""The oldest torch whose conventions this encoding follows; the dispatcher adapts newer ones."""

MEMORY_FORMATS = {"contiguous_format": 0, "preserve_format": 1, "channels_last": 2, "channels_last_3d": 3}
CODES = {TORCH_NAMES[d]: code for d, code in DTYPE_CODES.items()} | OTHER_CODES


class NotEncodable(TypeError):
    """An argument or result that the stable encoding has no form for; the message names it."""


class Writer(Protocol):
    """What this file needs of the host writer."""

    inference: bool

    def add(self, line: str) -> None: ...
    def call(self, shim: str, arguments: str, step: str) -> None: ...
    def view_handle(self, view: View, step: str) -> str: ...
    def size(self, size: Size) -> str: ...
    def real(self, value: sympy.Expr) -> str: ...


def find_schema(op: str) -> Any:
    """The schema of "aten::name.overload"."""
    namespace, _, rest = op.partition("::")
    name, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")._schema


@dataclass
class _Encoder:
    writer: Writer
    label: str
    op: str
    lists: int = 0

    def word(self, value: Any, kind: Any, argument: str) -> str:
        """C++ expression of the word of `value` under schema type `kind`; may write lines before."""
        text = str(kind)
        if kind.kind() == "OptionalType":
            if value is None:
                return "0"
            return f"(uint64_t)new uint64_t({self.word(value, kind.getElementType(), argument)})"
        if kind.kind() == "ListType":
            return self._list(value, kind.getElementType(), argument)
        if text == "Tensor" and isinstance(value, View):
            name = self._name("t")
            self.writer.add(f"void* {name} = 0;")
            self.writer.call("aoti_torch_new_tensor_handle", f"{self.writer.view_handle(value, self.label)}, &{name}", self.label)
            return f"(uint64_t){name}"
        return self._scalar(value, text, argument)

    def _scalar(self, value: Any, text: str, argument: str) -> str:
        plain = value.value if isinstance(value, Const) else value
        match text, plain:
            case "bool", bool():
                return "1" if plain else "0"
            case (("int" | "SymInt"), Index(expr=expr)):
                return f"(uint64_t)(int64_t)({self.writer.size(expr)})"
            case (("int" | "SymInt"), sympy.Expr()):
                return f"(uint64_t)(int64_t)({self.writer.size(plain)})"
            case (("int" | "SymInt"), int()):
                return f"(uint64_t)INT64_C({int(plain)})"
            case "int", ("dtype", str(name)) if name.removeprefix("torch.") in CODES:
                return str(CODES[name.removeprefix("torch.")])
            case "int", ("layout", "strided" | "torch.strided"):
                return "0"
            case "int", ("memory_format", str(name)) if name.removeprefix("torch.") in MEMORY_FORMATS:
                return str(MEMORY_FORMATS[name.removeprefix("torch.")])
            case "float", sympy.Expr():
                return f"(uint64_t)double_bits({self.writer.real(plain)})"
            case "float", (float() | int()):
                return f"0x{int.from_bytes(struct.pack('<d', float(plain)), 'little'):x}u"
            case ("ScalarType", ("dtype", str(name))) if name.removeprefix("torch.") in CODES:
                return str(CODES[name.removeprefix("torch.")])
        raise NotEncodable(f"{self.op}: argument {argument} of type {text} has no stable encoding")

    def _list(self, value: Any, element: Any, argument: str) -> str:
        if not isinstance(value, tuple | list):
            raise NotEncodable(f"{self.op}: argument {argument} is not a list")
        words = [self.word(v, element, argument) for v in value]
        name = self._name("l")
        self.writer.add(f"void* {name} = 0;")
        self.writer.call("torch_new_list_reserve_size", f"{len(words)}, &{name}", self.label)
        for word in words:
            self.writer.call("torch_list_push_back", f"{name}, {word}", self.label)
        return f"(uint64_t){name}"

    def _name(self, prefix: str) -> str:
        self.lists += 1
        return f"{prefix}{self.lists}"


def encodable(step: Extern, inference: bool) -> str:
    """Why `step` cannot go through the dispatcher, or an empty string. `inference`: calls are made in inference mode."""
    if is_custom(step.op):
        return f"{step.op} is called through Python, where most of its kind are written"
    if step.op.startswith(("aten::linalg_", "aten::_linalg_")):
        return f"{step.op} raises torch.linalg.LinAlgError, and the dispatcher's C interface keeps no error classes"
    try:
        schema = find_schema(step.op)
        if inference and "SymInt[" in str(schema):  # kernels for ints refuse these where no autograd kernel stands before them
            raise NotEncodable(f"{step.op} takes a list of SymInt, of which the stable encoding makes no list of ints")
        _Encoder(_Silent(), "", step.op)
        for value, argument in zip(_in_order(step, schema), schema.arguments, strict=True):
            _Encoder(_Silent(), "", step.op).word(value, argument.type, argument.name)
        if any(str(r.type) != "Tensor" for r in schema.returns) or len(schema.returns) != len(step.outs):
            raise NotEncodable(f"{step.op}: results other than tensors have no stable encoding")
        if any(r.alias_info is not None for r in schema.returns):
            raise NotEncodable(f"{step.op}: its results may alias its arguments")
    except (NotEncodable, AttributeError) as reason:
        return str(reason)
    return ""


class _Silent:
    """A writer that writes nothing, to try an encoding."""

    inference = False

    def add(self, line: str) -> None:
        return None

    def call(self, shim: str, arguments: str, step: str) -> None:
        return None

    def view_handle(self, view: View, step: str) -> str:
        return ""

    def size(self, size: Size) -> str:
        return ""

    def real(self, value: sympy.Expr) -> str:
        return ""


def _in_order(step: Extern, schema: Any) -> Sequence[Any]:
    """Every argument of the schema in order, defaults filled in."""
    given = dict(step.kwargs)
    values = []
    for number, argument in enumerate(schema.arguments):
        if number < len(step.args):
            values.append(step.args[number])
        elif argument.name in given:
            values.append(given[argument.name])
        elif argument.has_default_value():
            values.append(argument.default_value)
        else:
            raise NotEncodable(f"{step.op}: argument {argument.name} is missing")
    return values


def dispatch(writer: Writer, step: Extern, label: str) -> list[str]:
    """Writes the call; returns the expressions of the result handles, in order. The lines must stand in a block of their own."""
    schema = find_schema(step.op)
    encoder = _Encoder(writer, label, step.op)
    words = [encoder.word(v, a.type, a.name) for v, a in zip(_in_order(step, schema), schema.arguments, strict=True)]
    namespace_name, _, overload = step.op.partition(".")
    writer.add(f"uint64_t stack[{max(len(words), len(schema.returns), 1)}] = {{{', '.join(words)}}};")
    writer.call("torch_call_dispatcher", f"{json.dumps(namespace_name)}, {json.dumps(overload)}, stack, UINT64_C({BUILD_VERSION})", label)
    return [f"(void*)stack[{number}]" for number in range(len(schema.returns))]
