"""What one trace looked at, noted while Dynamo traces: it keeps less of that than other processes have to know."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from precast.capture.adapters.dynamo import InliningInstructionTranslator
from precast.capture.adapters.guards import AttrSource
from precast.capture.adapters.variables import BuiltinVariable, VariableBuilder
from precast.capture.common.patching import patched
from precast.capture.dynamo.assumed_constants import ConstantCall
from precast.capture.soundness.process_groups import Questions


@dataclass(frozen=True)
class TraceRecord:
    """All of it in the order of the trace; dicts without values are ordered sets."""

    functions: dict[types.FunctionType, None] = field(default_factory=dict)
    """What was inlined."""
    compared: dict[Any, int] = field(default_factory=dict)
    """Sources of objects that the traced code asked `id()` of, and what it got."""
    consumed: dict[Any, None] = field(default_factory=dict)
    """Sources of all objects that the traced code looked at, guarded or not."""
    met: dict[Any, Any] = field(default_factory=dict)
    """The same, with every source of an object that is reached by several; for each source of a tuple the tuple."""
    told_apart: dict[Any, None] = field(default_factory=dict)
    """Sources of tuples that the traced code asked whether they are one."""
    constants: list[ConstantCall] = field(default_factory=list)
    """Calls whose results the traced code takes as constant."""
    asked: Questions = field(default_factory=Questions)
    """What the traced code asked of process groups."""

    def source(self, name: str) -> Any:
        """The source of this name. The inner tensors of a subclass are described before they are looked at."""
        found = next((s for s in reversed(self.consumed) if s.name == name), None)
        base, _, attribute = name.rpartition(".")
        owner = self.source(base) if found is None and attribute.isidentifier() and base else None
        return found if owner is None else AttrSource(owner, attribute)


@contextlib.contextmanager
def recorded_inlining(functions: dict[types.FunctionType, None]) -> Iterator[None]:
    """Notes every function that Dynamo inlines (its list of code objects alone has no module names)."""
    original = InliningInstructionTranslator.check_inlineable

    def check_inlineable(func: Any) -> Any:
        result = original(func)
        with contextlib.suppress(NotImplementedError, AttributeError, AssertionError):
            found = func.get_function()
            if isinstance(found, types.FunctionType):
                functions[found] = None
        return result

    with patched(InliningInstructionTranslator, "check_inlineable", staticmethod(check_inlineable)):
        yield


_original_call_id = BuiltinVariable.call_id


class _Recording(threading.local):
    """The innermost capture's record of this thread. No closure has it: Dynamo keeps handlers, and with them `_call_id`, for good."""

    def __init__(self) -> None:
        self.records: list[dict[Any, int]] = []


_recording = _Recording()


def _call_id(self: BuiltinVariable, tx: Any, *args: Any) -> Any:
    records = _recording.records
    source = getattr(args[0], "source", None) if len(args) == 1 and records else None
    pinned = source is not None and any(g.originating_source == source and g.create_fn_name() == "ID_MATCH" for g in tx.output.guards)
    result: Any = _original_call_id(self, tx, *args)
    if source is not None and not pinned and isinstance(getattr(result, "value", None), int):
        records[-1][source] = result.value
    return result


@contextlib.contextmanager
def recorded_ids(compared: dict[Any, int]) -> Iterator[None]:
    """Notes the objects whose `id()` the traced code takes (as `copy.deepcopy` does): Dynamo pins them, though only comparisons matter."""
    _recording.records.append(compared)
    try:
        with patched(BuiltinVariable, "call_id", _call_id):
            yield
    finally:
        _recording.records.pop()


@contextlib.contextmanager
def recorded_reads(consumed: dict[Any, None], met: dict[Any, Any]) -> Iterator[None]:
    """Notes the source of every object that the traced code looked at: Dynamo guards most of them, but no method descriptors.

    An object that it has met before is not wrapped again, whatever the source.
    """
    original, look = VariableBuilder._wrap, VariableBuilder.__call__

    def __call__(self: VariableBuilder, value: Any) -> Any:
        met[self.source] = value if isinstance(value, (tuple, frozenset)) else None
        return look(self, value)

    def _wrap(self: VariableBuilder, value: Any) -> Any:
        if self.source is not None:
            consumed[self.source] = None
        return original(self, value)

    with patched(VariableBuilder, "_wrap", _wrap), patched(VariableBuilder, "__call__", __call__):
        yield


__all__ = ["TraceRecord", "recorded_ids", "recorded_inlining", "recorded_reads"]
