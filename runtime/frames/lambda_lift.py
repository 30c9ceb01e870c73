"""Functions whose free variables are other cells at each call, as functions of plain positional arguments."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from precast.runtime.frames.call_interception import passing
from precast.runtime.frames.entry import parameters

CLOSURE = "__precast_closure"
"""Name of a shell's first parameter."""


class Shell:
    """A function as a program sees it: parameters for the tuple of cells, for what they hold, and for each of the code's own parameters.

    Guards and inputs find the contents of the cells among the locals; the function that runs is made around the cells that came.
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
        """A function of (cells, contents…, arguments…) that runs `code` around the cells; it keeps `keep` alive."""
        call = f"make(code, namespace, name, None, {CLOSURE})({passing(self.code)})"
        source = f"def shell({', '.join((CLOSURE, *self.free, *self.names))}):\n    return {call}\n"
        values: dict[str, Any] = {"make": types.FunctionType, "code": code, "namespace": self.namespace, "name": self.name, "keep": keep}
        exec(compile(source, "<precast shell>", "exec"), values)  # names come from a code object, so they are identifiers
        shell = values["shell"]
        assert isinstance(shell, types.FunctionType)
        shell.__module__, shell.__qualname__ = str(self.namespace.get("__name__", "")), self.code.co_qualname
        return shell

    def open(self, args: tuple[Any, ...]) -> tuple[types.FunctionType, tuple[Any, ...], Mapping[str, Any]]:
        """The original function around the cells of this call, and its arguments."""
        function = types.FunctionType(self.code, self.namespace, self.name, None, args[0])
        take = eval(f"lambda take, {', '.join(self.names)}: take({passing(self.code)})")  # identifiers of a code object
        arguments = take(lambda *args, **kwargs: (args, kwargs), *args[self.hidden :])
        return function, *arguments

    def template(self) -> types.FunctionType:
        """The original function around empty cells: for what rebuilds its code."""
        return types.FunctionType(self.code, self.namespace, self.name, None, tuple(types.CellType() for _ in self.free) or None)

    def receiver(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function of (cells, arguments…) that calls `call` as the shell is called."""
        if not self.free:
            return call
        return lambda cells, *args: call(cells, *map(content, cells), *args)

    def factory(self, call: Callable[..., Any]) -> Callable[[tuple[types.CellType, ...]], Callable[..., Any]]:
        """A function from the cells to what is called with the arguments."""

        def make(cells: tuple[types.CellType, ...]) -> Callable[..., Any]:
            def resumed(*args: Any) -> Any:
                return call(cells, *map(content, cells), *args)

            return resumed

        return make


class Unset:
    """Stands for the content of a cell that is empty."""


def content(cell: types.CellType) -> Any:
    """What the cell holds; `Unset` where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return Unset


__all__ = ["CLOSURE", "Shell"]
