"""Programs of the functions that continue a frame after a graph break: found, guarded, compiled and limited like any other program."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from precast.artifact_store.records import FrameRecord, ResumeRecord
from precast.runtime.dispatch import make_dispatcher
from precast.runtime.entry import Entry, parameters
from precast.runtime.frame_code import build
from precast.runtime.locks import Lock
from precast.runtime.program import Program

CLOSURE = "__precast_closure"
"""Name of the shell's first parameter (see Shell)."""


class Resumes:
    """The resume functions of one root program: one program each, whichever variant of whichever frame leads to it.

    Called by `frame_code.build` for each name that a rewritten frame resumes by.
    """

    def __init__(self, root: Program) -> None:
        self.root = root
        root.resume = self
        root.on_reset.append(self.reset)
        self._lock = Lock()
        self._made: dict[tuple[str, str], tuple[ResumeProgram, Callable[..., Any]]] = {}

    @property
    def programs(self) -> list[ResumeProgram]:
        """Those that were reached so far, in the order in which they were."""
        return [program for program, _ in self._made.values()]

    def __call__(self, record: ResumeRecord, code: types.CodeType, namespace: dict[str, Any]) -> Callable[..., Any]:
        key = (record.digest, record.module)
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(record, code, namespace)
            return self._made[key][1]

    def _make(self, record: ResumeRecord, code: types.CodeType, namespace: dict[str, Any]) -> tuple[ResumeProgram, Callable[..., Any]]:
        shell = Shell(code, namespace, record.name) if code.co_freevars else None
        function = types.FunctionType(code, namespace, record.name) if shell is None else shell.function(code)
        program = ResumeProgram(self.root, record, code, Entry(function), shell)
        program.resume = self
        dispatcher = make_dispatcher(program, program.entry, program.call)
        return program, dispatcher if shell is None else shell.factory(dispatcher)

    def reset(self) -> None:
        for program in self.programs:
            program.reset()


def reached(program: Program) -> list[Program]:
    """The programs that have continued this one so far."""
    return [*program.resume.programs] if isinstance(program.resume, Resumes) else []


class ResumeProgram(Program):
    """One resume function. Its key follows from the root's and from the code, so that every process and every path to it finds it."""

    def __init__(self, root: Program, record: ResumeRecord, code: types.CodeType, entry: Entry, shell: Shell | None) -> None:
        super().__init__(entry, root.options, root.store, root.name, root.require_hit, backend=root.backend)
        self.root = root
        self.name = f"{root.name} ({record.name.removeprefix('torch_dynamo_')})"
        self.code = code
        self.digest = record.digest
        module = f".{record.module}" if record.module else ""
        self.key = f"{root.key}.{record.digest[:16]}{module}"[:128]
        self.shell = shell

    def traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[types.FunctionType, tuple[Any, ...], Mapping[str, Any]]:
        if self.shell is None:
            return super().traced(args, kwargs)
        return self.shell.open(args), args[self.shell.hidden :], kwargs

    @property
    def free_as_locals(self) -> bool:
        return self.shell is not None

    def build_frame(self, record: FrameRecord, graph: Callable[..., Any]) -> types.FunctionType:
        if self.shell is None:
            return super().build_frame(record, graph)
        frame = build(record, self.shell.open((tuple(types.CellType() for _ in self.shell.free),)), graph, self.resume)
        return self.shell.function(frame.__code__, frame)


class Shell:
    """A resume function with free variables, whose cells are others at each call.

    Its program's function has parameters for the tuple of cells and for their contents before the code's own: guards and inputs find
    what the cells hold among the locals, and the function that runs is made around the cells that came.
    """

    def __init__(self, code: types.CodeType, namespace: dict[str, Any], name: str) -> None:
        self.code = code
        self.namespace = namespace
        self.name = name
        self.free = code.co_freevars
        self.hidden = 1 + len(self.free)

    def function(self, code: types.CodeType, keep: Any = None) -> types.FunctionType:
        """A function of (cells, contents…, arguments…) that runs `code` around the cells; it keeps `keep` alive."""
        names = (CLOSURE, *self.free, *parameters(self.code))
        call = f"make(code, namespace, name, None, {CLOSURE})({', '.join(names[self.hidden :])})"
        source = f"def shell({', '.join(names)}):\n    return {call}\n"
        values: dict[str, Any] = {"make": types.FunctionType, "code": code, "namespace": self.namespace, "name": self.name, "keep": keep}
        exec(compile(source, "<precast resume>", "exec"), values)  # names come from a code object, so they are identifiers
        shell = values["shell"]
        assert isinstance(shell, types.FunctionType)
        return shell

    def open(self, args: tuple[Any, ...]) -> types.FunctionType:
        """The original function around the cells of this call."""
        return types.FunctionType(self.code, self.namespace, self.name, None, args[0])

    def factory(self, call: Callable[..., Any]) -> Callable[[tuple[types.CellType, ...]], Callable[..., Any]]:
        """What the bytecode calls with the cells."""

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


__all__ = ["ResumeProgram", "Resumes", "Shell", "reached"]
