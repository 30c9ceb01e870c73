"""Lambda lifting: a function with free variables as one that takes its closure's cells and their contents as positional arguments.

Code after a graph break gets other cells at each call, so its program is compiled in this form.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from precast.runtime.frames.call_interception import passing
from precast.runtime.frames.entry import parameters

CLOSURE = "__precast_closure"
"""Name of a shell's first parameter."""


class Shell:
    """The lifted form of a function: parameters for the tuple of cells, for the content of each cell, and for the code's own parameters.

    Guards and graph inputs find the contents of the cells among the locals; the function that runs is made with the cells of the call.
    `*args` and `**kwargs` of the code are ordinary parameters here, a tuple and a dict.
    """

    def __init__(self, code: types.CodeType, namespace: dict[str, Any], name: str) -> None:
        self.code = code
        self.namespace = namespace
        self.name = name
        self.free = code.co_freevars
        self.names = parameters(code)
        self.hidden = 1 + len(self.free)

    def function(self, code: types.CodeType, keep: Any = None) -> types.FunctionType:
        """A function of (cells, contents…, arguments…) that runs `code` with these cells as its closure; it keeps `keep` alive."""
        call = f"make(code, namespace, name, None, {CLOSURE})({passing(self.code)})"
        source = f"def shell({', '.join((CLOSURE, *self.free, *self.names))}):\n    return {call}\n"
        values: dict[str, Any] = {"make": types.FunctionType, "code": code, "namespace": self.namespace, "name": self.name, "keep": keep}
        exec(compile(source, "<precast shell>", "exec"), values)  # names come from a code object, so they are identifiers
        shell = values["shell"]
        assert isinstance(shell, types.FunctionType)
        shell.__module__, shell.__qualname__ = str(self.namespace.get("__name__", "")), self.code.co_qualname
        return shell

    def open(self, args: tuple[Any, ...]) -> tuple[types.FunctionType, tuple[Any, ...], Mapping[str, Any]]:
        """The original function with the cells of this call as its closure, and its arguments."""
        function = types.FunctionType(self.code, self.namespace, self.name, None, args[0])
        take = eval(f"lambda take, {', '.join(self.names)}: take({passing(self.code)})")  # identifiers of a code object
        arguments = take(lambda *args, **kwargs: (args, kwargs), *args[self.hidden :])
        return function, *arguments

    def template(self) -> types.FunctionType:
        """The original function with empty cells as its closure, from which its code is rebuilt."""
        return types.FunctionType(self.code, self.namespace, self.name, None, tuple(types.CellType() for _ in self.free) or None)

    def receiver(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function of (cells, arguments…) that reads the cells and calls `call` with (cells, contents…, arguments…)."""
        if not self.free:
            return call
        return lambda cells, *args: call(cells, *map(content, cells), *args)

    def factory(self, call: Callable[..., Any]) -> Callable[[tuple[types.CellType, ...]], Callable[..., Any]]:
        """A function that takes the cells and returns a function of the arguments: what the bytecode of a graph break calls."""

        def make(cells: tuple[types.CellType, ...]) -> Callable[..., Any]:
            def resumed(*args: Any) -> Any:
                return call(cells, *map(content, cells), *args)

            return resumed

        return make


class Unset:
    """The content of an empty cell."""


def content(cell: types.CellType) -> Any:
    """The cell's content; `Unset` where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return Unset


__all__ = ["CLOSURE", "Shell"]
