"""The dynamic extent in which Python's calls are looked at: what a program calls between its graphs is compiled as programs of its own.

torch's frame evaluation hook does the looking (`torch._C._dynamo.eval_frame`; it needs no tracer). It is on only while a program with
graph breaks, or one that is not compiled itself, runs on this thread, and it keeps what it replaces on the code objects: nothing of a
function's own is changed.
"""

from __future__ import annotations

import contextlib
import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch._C._dynamo import eval_frame
from torch._C._dynamo.guards import RootGuardManager

from precast.runtime.entry import parameters

LOOK_UP: Any = False
"""For `set_eval_frame`: run what is known of each code object, ask nobody about the others."""
_DEFAULT, _SKIP = eval_frame._FrameAction.DEFAULT, eval_frame._FrameAction.SKIP


class Answer:
    """What the hook is told of a frame: run `replacement` in its place or, without one, the frame as it is. Asked again next time."""

    def __init__(self, replacement: types.CodeType | None = None) -> None:
        self.frame_exec_strategy = eval_frame._FrameExecStrategy(_SKIP if replacement is None else _DEFAULT, _DEFAULT)
        self.apply_to_code = False  # other users of the hook decide for themselves
        self.guarded_code = None if replacement is None else _Replacement(replacement)
        self.skip_reason = None


class _Replacement:
    """Bytecode that always holds: the program that it calls has guards of its own."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.guard_manager = _NoGuards()
        self.compile_id = None
        self.trace_annotation = "precast"


class _NoGuards:
    def __init__(self) -> None:
        self.root = RootGuardManager()
        self.diff_guard_root = RootGuardManager()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No looking at calls inside, whatever goes on outside: precast at work, or the tracer."""
    before = eval_frame.set_eval_frame(None)
    try:
        yield
    finally:
        eval_frame.set_eval_frame(before)


def active() -> bool:
    """Whether calls on this thread are looked at now."""
    return eval_frame.get_eval_frame_callback() is not None


def trampoline(code: types.CodeType, call: Callable[..., Any]) -> types.CodeType:
    """Code with the parameters and free variables of `code` that returns `call(cells, *locals)`.

    `cells`: tuple of the cells of its free variables, None without any. `locals`: one value per parameter, `*args` as a tuple and
    `**kwargs` as a dict.
    """
    names = parameters(code)
    source = (
        f"def outer({', '.join(code.co_freevars)}):\n"
        f"    def trampoline({declaration(code)}):\n"
        f"        return 'call'({_cells(code)}, {', '.join(names)})\n"
        "    return trampoline\n"
    )
    namespace: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # that a string is called: the callable takes its place
        exec(compile(source, code.co_filename, "exec"), namespace)  # names come from a code object, so they are identifiers
    made: types.CodeType = namespace["outer"](*code.co_freevars).__code__
    constants = tuple(call if constant == "call" else constant for constant in made.co_consts)
    return made.replace(co_consts=constants, co_name=code.co_name, co_firstlineno=code.co_firstlineno)


def _cells(code: types.CodeType) -> str:
    return f"(lambda: ({', '.join(code.co_freevars)},)).__closure__" if code.co_freevars else "None"


def declaration(code: types.CodeType) -> str:
    """The parameter list of `code`, without defaults."""
    names = parameters(code)
    positional = code.co_argcount
    rest = list(names[positional + code.co_kwonlyargcount :])
    parts = list(names[:positional])
    if code.co_posonlyargcount:
        parts.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{rest.pop(0)}")
    elif code.co_kwonlyargcount:
        parts.append("*")
    parts += names[positional : positional + code.co_kwonlyargcount]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{rest.pop(0)}")
    return ", ".join(parts)


def passing(code: types.CodeType) -> str:
    """The argument list that gives each parameter of `code` the local of the same name."""
    names = parameters(code)
    positional = code.co_argcount
    keyword_only = names[positional : positional + code.co_kwonlyargcount]
    rest = list(names[positional + code.co_kwonlyargcount :])
    parts = list(names[:positional])
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{rest.pop(0)}")
    parts += [f"{name}={name}" for name in keyword_only]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{rest.pop(0)}")
    return ", ".join(parts)


__all__ = ["LOOK_UP", "Answer", "active", "declaration", "passing", "paused", "trampoline"]
