"""A `Program` as text and back. Its nodes are interned: reading makes each through its class, so that equal ones are one object again."""

from __future__ import annotations

import base64
import dataclasses
import io
import pickle
import zlib
from typing import Any

from precast.lowering.ir.nodes import Program
from precast.lowering.ir.sizes import SizeSymbol, size_symbol


class _Writer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, SizeSymbol):
            assert value.is_integer, f"{value} is a float of the call, which this text has no form for"
            return size_symbol, (value.name, value.low, value.high, value.hint, value.unbacked, value.definition)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return type(value), tuple(getattr(value, field.name) for field in dataclasses.fields(value) if field.init)
        return NotImplemented


def write(program: Program) -> str:
    """The program, in printable characters."""
    stream = io.BytesIO()
    _Writer(stream).dump(program)
    return base64.b64encode(zlib.compress(stream.getvalue())).decode()


def read(text: str) -> Program:
    """What `write` was given."""
    program = pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301 - out of a library that this process has opened
    assert isinstance(program, Program)
    return program
