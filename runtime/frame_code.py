"""A FrameRecord -> the rewritten entry function, in any process and without the tracer."""

from __future__ import annotations

import builtins
import importlib
import itertools
import marshal
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from precast.artifact_store.constants import untag
from precast.artifact_store.records import FrameRecord
from precast.runtime.shims import SHIMS


class FrameCodeError(RuntimeError):
    """The record does not fit this process (other Python, an unknown name): the frame counts as a miss."""


_counter = itertools.count()


def build(record: FrameRecord, target: types.FunctionType, graph_callable: Callable[..., Any]) -> types.FunctionType:
    """The rewritten function, to be called with the arguments of `target` (self first for a method).

    `graph_callable` gets the per-call graph inputs in order and returns the sequence that `CapturedFrame.outputs` describes. Names that the
    bytecode needs are put into `target`'s module globals under process-wide unique names and leave with the function.
    Raises FrameCodeError.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if record.python != here:
        raise FrameCodeError(f"the stored bytecode is for Python {record.python}, this is {here}; compile again with this Python")
    renamed = {name: f"{name}_{next(_counter)}" for name, _ in record.names}
    values = {renamed[name]: _supply(supply, graph_callable) for name, supply in record.names}
    side = {tuple(where): tagged for where, tagged in record.constants}
    plain = marshal.loads(record.code)  # noqa: S302 - only from manifests of the local store whose digests held; signatures are not built yet
    code = _restore(plain, renamed, side, target.__globals__, ())
    target.__globals__.update(values)
    function = types.FunctionType(code, target.__globals__, target.__name__, target.__defaults__, target.__closure__)
    function.__kwdefaults__ = target.__kwdefaults__
    function.__qualname__ = target.__qualname__
    weakref.finalize(function, _forget, target.__globals__, tuple(values))
    return function


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
    raise FrameCodeError(f"the stored bytecode needs {supply!r}, which this version of precast does not know")


def _restore(
    code: types.CodeType, renamed: Mapping[str, str], side: Mapping[tuple[int, ...], Any], namespace: dict[str, Any], where: tuple[int, ...]
) -> types.CodeType:
    constants: list[Any] = []
    for i, constant in enumerate(code.co_consts):
        place = (*where, i)
        if isinstance(constant, types.CodeType):
            constants.append(_restore(constant, renamed, side, namespace, place))
        elif place in side:
            constants.append(namespace if side[place] == ("globals",) else untag(side[place]))
        else:
            constants.append(constant)
    return code.replace(co_names=tuple(renamed.get(n, n) for n in code.co_names), co_consts=tuple(constants))
