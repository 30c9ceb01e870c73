"""Programs of the functions that continue a frame after a graph break: found, guarded, compiled and limited like any other program."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from precast.artifact_store.records import FrameRecord, ResumeRecord
from precast.artifact_store.trust.trusted import Trusted
from precast.runtime.dispatch import make_dispatcher
from precast.runtime.entry import Entry
from precast.runtime.frame_code import build
from precast.runtime.locks import Lock
from precast.runtime.program import Program
from precast.runtime.shell import Shell


class Resumes:
    """The resume functions of one root program: one program each, whichever variant of whichever frame leads to it.

    Called by `frame_code.build` for each name that a rewritten frame resumes by.
    """

    def __init__(self, root: Program) -> None:
        self.root = root
        root.resume = self
        root.parts.append(lambda: self.programs)
        root.on_reset.append(self.reset)
        self._lock = Lock()
        self._made: dict[tuple[str, str], tuple[ResumeProgram, Callable[..., Any]]] = {}

    @property
    def programs(self) -> list[ResumeProgram]:
        """Those that were reached so far, in the order in which they were."""
        return [program for program, _ in tuple(self._made.values())]  # a call in another thread may add one

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
        program.on_build = self.root.on_build
        dispatcher = make_dispatcher(program, program.entry, program.call)
        return program, dispatcher if shell is None else shell.factory(dispatcher)

    def reset(self) -> None:
        for program in self.programs:
            program.reset()


class ResumeProgram(Program):
    """One resume function. Its key follows from the root's and from the code, so that every process and every path to it finds it."""

    def __init__(self, root: Program, record: ResumeRecord, code: types.CodeType, entry: Entry, shell: Shell | None) -> None:
        super().__init__(entry, root.options, root.store, root.name, root.require_hit, backend=root.backend)
        self.root = root
        self.name = f"{root.name} (resumed at line {record.name.rpartition('_at_')[2]})"
        self.code = code
        self.digest = record.digest
        module = f".{record.module}" if record.module else ""
        self.key = f"{root.key}.{record.digest[:16]}{module}"[:128]
        self.shell = shell

    def traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[types.FunctionType, tuple[Any, ...], Mapping[str, Any]]:
        if self.shell is None:
            return super().traced(args, kwargs)
        return self.shell.open(args)

    @property
    def is_part(self) -> bool:
        return True

    @property
    def free_as_locals(self) -> bool:
        return self.shell is not None

    def build_frame(self, record: Trusted[FrameRecord], graph: Callable[..., Any]) -> Callable[..., Any]:
        if self.shell is None:
            return super().build_frame(record, graph)
        self.built()
        frame = build(record, self.shell.template(), graph, self.resume)
        return self.shell.function(frame.__code__, frame)


__all__ = ["ResumeProgram", "Resumes"]
