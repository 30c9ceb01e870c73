"""Work that Dynamo does around a trace and that a capture has no use for, left out: about a tenth of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.higher_order_ops import LocalMapWrappedHigherOrderVariable
from torch.fx._lazy_graph_module import _use_lazy_graph_module


@contextlib.contextmanager
def shortcuts() -> Iterator[None]:
    """While it lasts, Dynamo leaves out what the functions below name."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_use_lazy_graph_module(True))  # a graph's Python is written and compiled when somebody runs it: nobody does
        stack.enter_context(mock.patch.object(InstructionTranslator, "_throw_if_in_functorch", _refuse_inside_functorch))
        stack.enter_context(mock.patch.object(LocalMapWrappedHigherOrderVariable, "should_wrap_in_hop", _is_local_map))
        if not any(log.isEnabledFor(logging.DEBUG) for log in (symbolic_convert.trace_call_log, symbolic_convert.trace_source_log)):
            stack.enter_context(mock.patch.object(symbolic_convert, "get_funcname", _no_name))
        yield


_refuse_inside = InstructionTranslator._throw_if_in_functorch
_is_local_map_of_torch = LocalMapWrappedHigherOrderVariable.should_wrap_in_hop


def _refuse_inside_functorch(self: InstructionTranslator) -> None:
    """Dynamo's check, which imports every backend that there is, where there is something to check."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        _refuse_inside(self)


def _is_local_map(value: Any) -> bool:
    """Dynamo's question, for which it imports much of torch.distributed, where the answer can be yes."""
    return LocalMapWrappedHigherOrderVariable._enabled and bool(_is_local_map_of_torch(value))


def _no_name(filename: str, lineno: int) -> None:
    """For each call Dynamo writes a line to a log that is usually off; to name the function in it, it tokenizes every source file that it
    meets: a twentieth of the trace.
    """
