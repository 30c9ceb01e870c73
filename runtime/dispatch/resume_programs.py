"""Programs of the functions that continue a frame after a graph break: found, guarded, compiled and limited like any other program."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from precast.artifact_store.format.records import ResumeRecord
from precast.runtime.common.locks import Lock
from precast.runtime.frames.lambda_lift import Shell
from precast.runtime.programs.program import Program


class Resumes:
    """The resume functions of one root program: one program each, whichever variant of whichever frame leads to it.

    Called by `rewritten_code.build` for each name that a rewritten frame resumes by: it is the `resume` hook of the root and of every
    program
    that it makes. `make`: what builds such a program, and its dispatcher, from the record, the code, and the code's function or shell.
    """

    def __init__(self, make: MakeResumed) -> None:
        self._make_program = make
        self._lock = Lock()
        self._made: dict[tuple[str, str], tuple[Program, Callable[..., Any]]] = {}

    def programs(self) -> list[Program]:
        """Those that were reached so far, in the order in which they were."""
        return [program for program, _ in tuple(self._made.values())]  # a call in another thread may add one

    def __call__(self, record: ResumeRecord, code: types.CodeType, namespace: dict[str, Any]) -> Callable[..., Any]:
        key = (record.digest, record.module)
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(record, code, namespace)
            return self._made[key][1]

    def _make(self, record: ResumeRecord, code: types.CodeType, namespace: dict[str, Any]) -> tuple[Program, Callable[..., Any]]:
        shell = Shell(code, namespace, record.name) if code.co_freevars else None
        function = types.FunctionType(code, namespace, record.name) if shell is None else shell.function(code)
        program, dispatcher = self._make_program(self, record, code, function, shell)
        return program, dispatcher if shell is None else shell.factory(dispatcher)

    def reset(self) -> None:
        """Forget what the programs have loaded."""
        for program in self.programs():
            program.reset()


MakeResumed = Callable[[Resumes, ResumeRecord, types.CodeType, types.FunctionType, Shell | None], tuple[Program, Callable[..., Any]]]
"""(the resume hook, record, code, the code's function or its shell's, its shell) -> the program, and its dispatcher."""

__all__ = ["MakeResumed", "Resumes"]
