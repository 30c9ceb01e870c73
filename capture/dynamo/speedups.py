"""Work that Dynamo does around a trace and that a capture has no use for, left out: about a tenth of it."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from precast.capture.adapters.dynamo import InstructionTranslator, symbolic_convert
from precast.capture.adapters.functorch import peek_interpreter_stack
from precast.capture.adapters.operators import _use_lazy_graph_module
from precast.capture.adapters.variables import LocalMapWrappedHigherOrderVariable
from precast.capture.common.patching import patched

Context = contextlib.AbstractContextManager[Any]


def unwritten_graphs() -> Context:
    """A graph's Python is written and compiled when somebody runs it: nobody does."""
    lazily: Context = _use_lazy_graph_module(True)
    return lazily


def backends_unimported() -> Context:
    """Dynamo's check for functorch's transforms imports every backend: it is made where there is something to check."""
    return patched(InstructionTranslator, "_throw_if_in_functorch", _refuse_inside_functorch)


def distributed_unimported() -> Context:
    """Dynamo's question whether a function is a `local_map` imports much of torch.distributed: asked where the answer can be yes."""
    return patched(LocalMapWrappedHigherOrderVariable, "should_wrap_in_hop", staticmethod(_is_local_map))


def functions_unnamed() -> Context:
    """Dynamo finds the name of each function that it calls for lines of a log: not where that log is off."""
    if any(log.isEnabledFor(logging.DEBUG) for log in (symbolic_convert.trace_call_log, symbolic_convert.trace_source_log)):
        return contextlib.nullcontext()
    return patched(symbolic_convert, "get_funcname", _no_name)


_refuse_inside = InstructionTranslator._throw_if_in_functorch
_is_local_map_of_torch = LocalMapWrappedHigherOrderVariable.should_wrap_in_hop


def _refuse_inside_functorch(self: InstructionTranslator) -> None:
    """Dynamo's check, which imports every backend that there is, where there is something to check."""
    if peek_interpreter_stack() is not None:
        _refuse_inside(self)


def _is_local_map(value: Any) -> bool:
    """Dynamo's question, for which it imports much of torch.distributed, where the answer can be yes."""
    return LocalMapWrappedHigherOrderVariable._enabled and bool(_is_local_map_of_torch(value))


def _no_name(filename: str, lineno: int) -> None:
    """For each call Dynamo writes a line to a log that is usually off; to name the function in it, it tokenizes every source file that it
    meets: a twentieth of the trace.
    """


__all__ = ["backends_unimported", "distributed_unimported", "functions_unnamed", "unwritten_graphs"]
