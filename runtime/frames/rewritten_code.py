"""Rebuilds the rewritten entry function from a FrameRecord, in any process and without the tracer."""

from __future__ import annotations

import builtins
import importlib
import itertools
import marshal
import random
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from precast.artifact_store.format.import_names import find_object
from precast.artifact_store.format.records import FrameRecord, ResumeRecord
from precast.artifact_store.format.tagged_constants import untag
from precast.artifact_store.trust.trusted import Trusted, content_of
from precast.runtime.frames.dynamo_shims import SHIMS
from precast.runtime.frames.reconstruct import STEPS, step


class FrameCodeError(RuntimeError):
    """The record does not fit this process (other Python, an unknown name): the frame counts as a miss."""


_counter = itertools.count()
OWN_CODE = "<precast> "
"""The prefix of the qualified names of rewritten code objects, which are no functions of the user's."""
Resume = Callable[[ResumeRecord, types.CodeType, dict[str, Any]], Callable[..., Any]]
"""(record, its code, the globals that it reads) -> what the rewritten bytecode calls: a function of the code's arguments or, where the code
has free variables, a function from the tuple of their cells to that function."""


def build(
    trusted: Trusted[FrameRecord], target: types.FunctionType, graph_callable: Callable[..., Any], resume: Resume | None = None
) -> types.FunctionType:
    """The rewritten function, to be called with the arguments of `target` (self first for a method).

    `graph_callable` gets the per-call graph inputs in order and returns the sequence that `CapturedFrame.outputs` describes. `resume`
    supplies what continues the frame after a graph break; without it the rest runs as plain Python. Names that the bytecode needs are put
    into `target`'s module globals under process-wide unique names and leave with the function. Raises FrameCodeError.
    """
    record = content_of(trusted)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if record.python != here:
        raise FrameCodeError(f"the stored bytecode is for Python {record.python}, this is {here}; compile again with this Python")
    renamed = {name: f"{name}_{next(_counter)}" for name, _ in record.names}
    values = {}
    for name, supply in record.names:
        if supply[0] == "resume":
            values[renamed[name]] = _resume(_part(trusted, supply[1]), target, resume or plain_resume)
        else:
            values[renamed[name]] = _supply(supply, graph_callable)
    side = {tuple(where): tagged for where, tagged in record.constants}
    plain = _code_object(trusted.part(lambda record: record.code))
    code = _restore(plain, renamed, side, target.__globals__, target.__code__.co_filename, ())
    code = code.replace(co_qualname=f"{OWN_CODE}{code.co_qualname}")
    target.__globals__.update(values)
    function = types.FunctionType(code, target.__globals__, target.__name__, target.__defaults__, target.__closure__)
    function.__kwdefaults__ = target.__kwdefaults__
    function.__qualname__ = target.__qualname__
    weakref.finalize(function, _forget, target.__globals__, tuple(values))
    return function


def _object(name: str) -> Any:
    try:
        importlib.import_module(name.partition(":")[0])
        return find_object(name)
    except (ImportError, LookupError) as error:
        raise FrameCodeError(f"the stored bytecode needs {name}, which is not here: {error}") from error


def _part(trusted: Trusted[FrameRecord], index: int) -> Trusted[ResumeRecord]:
    return trusted.part(lambda record: record.resumes[index])


def _code_object(code: Trusted[bytes]) -> types.CodeType:
    """What `marshal.dumps` made the bytes of."""
    made: types.CodeType = marshal.loads(content_of(code))  # noqa: S302 - trusted bytes only
    return made


def _resume(trusted: Trusted[ResumeRecord], target: types.FunctionType, resume: Resume) -> Callable[..., Any]:
    record = content_of(trusted)
    namespace, file = target.__globals__, target.__code__.co_filename
    if record.module:
        namespace = importlib.import_module(record.module).__dict__
        file = str(namespace.get("__file__") or f"<{record.module}>")
    side = {tuple(where): tagged for where, tagged in record.constants}
    plain = _code_object(trusted.part(lambda record: record.code))
    return resume(record, _restore(plain, {}, side, namespace, file, ()), namespace)


def plain_resume(record: ResumeRecord, code: types.CodeType, namespace: dict[str, Any]) -> Callable[..., Any]:
    """The resume function as plain Python."""
    if code.co_freevars:
        return lambda cells: types.FunctionType(code, namespace, record.name, None, cells)
    return types.FunctionType(code, namespace, record.name)


def _forget(namespace: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        namespace.pop(name, None)


def _supply(supply: tuple[Any, ...], graph_callable: Callable[..., Any]) -> Any:
    match supply:
        case ("graph",):
            return graph_callable
        case ("builtins",):
            return builtins.__dict__
        case ("module", name):
            return importlib.import_module(name)
        case ("shims", name) if name in SHIMS:
            return SHIMS[name]
        case ("object", name):
            return _object(name)
        case ("step", name) if name in STEPS:
            return step(name)
        case ("random", draws):
            calls = [(getattr(random, name), untag(args), untag(kwargs)) for name, args, kwargs in draws]
            return lambda: [draw(*args, **kwargs) for draw, args, kwargs in calls]
    raise FrameCodeError(f"the stored bytecode needs {supply!r}, which this version of precast does not know")


def _restore(
    code: types.CodeType,
    renamed: Mapping[str, str],
    side: Mapping[tuple[int, ...], Any],
    namespace: dict[str, Any],
    file: str,
    where: tuple[int, ...],
) -> types.CodeType:
    """The code object for this process; `file`: its source file on this machine, for tracebacks."""
    constants: list[Any] = []
    for i, constant in enumerate(code.co_consts):
        place = (*where, i)
        if isinstance(constant, types.CodeType):
            constants.append(_restore(constant, renamed, side, namespace, file, place))
        elif place in side:
            constants.append(namespace if side[place] == ("globals",) else untag(side[place]))
        else:
            constants.append(constant)
    names = tuple(renamed.get(n, n) for n in code.co_names)
    return code.replace(co_names=names, co_consts=tuple(constants), co_filename=file)
