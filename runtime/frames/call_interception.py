"""Call interception by torch's frame evaluation hook: functions that a program calls between its graphs are compiled as programs of their
own.

The hook (`torch._C._dynamo.eval_frame`) needs no tracer. It is on only while a program with graph breaks, or one that is not compiled
itself, runs on this thread: a *region* is that dynamic extent. Replacements are kept on code objects; functions are not changed.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from precast.runtime.common.eval_frame import RootGuardManager, eval_frame
from precast.runtime.frames.entry import parameters

LOOK_UP: Any = False
"""For `set_eval_frame`: run known replacements of code objects, without a callback for the others."""
_DEFAULT, _SKIP = eval_frame._FrameAction.DEFAULT, eval_frame._FrameAction.SKIP


class Answer:
    """What the hook's callback returns for a frame: code to run in its place, or none to run it as it is. It is asked again next time."""

    def __init__(self, replacement: types.CodeType | None = None, owner: object = None) -> None:
        self.frame_exec_strategy = eval_frame._FrameExecStrategy(_SKIP if replacement is None else _DEFAULT, _DEFAULT)
        self.apply_to_code = False  # other users of the hook decide for themselves
        self.guarded_code = None if replacement is None else _ForNow(replacement, owner)
        self.skip_reason = None


class _ForNow:
    """Bytecode to run until the region ends; then `keep` installs it so that `torch.compile` in the same process does not run it."""

    def __init__(self, code: types.CodeType, owner: object) -> None:
        self.code = code
        self.guard_manager = _InRegion(owner)
        self.compile_id = None
        self.trace_annotation = "precast"


class _InRegion:
    """A guard manager of torch's that holds in regions of `owner`. The program that the bytecode calls has its own guards."""

    def __init__(self, owner: object) -> None:
        self.root = RootGuardManager()
        self.root.add_lambda_guard(lambda values: _here.owner is owner, ["called by a program of precast"], None)
        self.diff_guard_root = RootGuardManager()
        self.id_matched_objs: dict[str, Any] = {}  # the tracer reads it of all entries

    def check_verbose(self, values: Any) -> Any:
        """Says which guard failed; torch asks for it where its stance forbids a recompile."""
        return self.root.check_verbose(values)

    def __str__(self) -> str:
        return "precast's replacement of this function, which holds inside of its own programs only: "


class _Here(threading.local):
    """The owner of the region that this thread is in, if any."""

    owner: object = None


_here = _Here()


def has_entries(code: types.CodeType) -> bool:
    """Whether the code has cache entries of `torch.compile`."""
    return bool(eval_frame._debug_get_cache_entry_list(code))


_kept: dict[int, tuple[types.CodeType, list[tuple[object, types.CodeType]]]] = {}


def keep(code: types.CodeType, replacement: types.CodeType, owner: object, alone: bool) -> None:
    """Run `replacement` wherever `code` is called in a region of `owner`. `alone`: the code has no cache entries of `torch.compile`."""
    others = _kept.setdefault(id(code), (code, []))[1]
    if alone:
        eval_frame.reset_code(code)  # drops what an Answer has left there
        for known in others:
            _load(code, *known)
    others.append((owner, replacement))
    _load(code, owner, replacement)


def _load(code: types.CodeType, owner: object, replacement: types.CodeType) -> None:
    eval_frame._load_precompile_entry(code, _InRegion(owner), replacement)


def forget(owner: object) -> None:
    """Remove the replacements that `keep` installed for `owner`."""
    for code, entries in tuple(_kept.values()):
        left = [entry for entry in entries if entry[0] is not owner]
        if len(left) < len(entries):
            entries[:] = left
            eval_frame._reset_precompile_entries(code)
            for entry in left:
                _load(code, *entry)


def run(mode: Any, owner: object, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call `function` in a region of `owner`. `mode`: the hook's callback, or LOOK_UP to run known replacements only."""
    before, _here.owner = _here.owner, owner
    callback = eval_frame.set_eval_frame(mode)
    try:
        return function(*args, **kwargs)
    finally:
        eval_frame.set_eval_frame(callback)
        _here.owner = before


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Turns interception off inside: while precast itself or the tracer is at work."""
    before = eval_frame.set_eval_frame(None)
    try:
        yield
    finally:
        eval_frame.set_eval_frame(before)


def trampoline(code: types.CodeType, call: Callable[..., Any]) -> types.CodeType:
    """Code with the parameters and free variables of `code` that returns `call(cells, *locals)`.

    `cells`: tuple of the cells of its free variables, None without any. `locals`: one value per parameter, `*args` as a tuple and
    `**kwargs` as a dict.
    """
    names = parameters(code)
    own = [name for name in code.co_cellvars if name not in names]
    source = (
        f"def outer({', '.join(code.co_freevars)}):\n"
        f"    def trampoline({declaration(code)}):\n"
        f"        return 'call'({_cells(code)}, {', '.join(names)})\n"
        # The hook copies a frame's last places by their count: the replacement has as many cells of its own as the code.
        + "".join(f"        {name} = None\n" for name in own)
        + (f"        lambda: ({', '.join(code.co_cellvars)},)\n" if code.co_cellvars else "")
        + "    return trampoline\n"
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


__all__ = ["LOOK_UP", "Answer", "forget", "has_entries", "keep", "passing", "paused", "run", "trampoline"]
