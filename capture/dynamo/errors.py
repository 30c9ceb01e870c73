"""Dynamo's errors as refusals: what cannot be captured, where, and what to do about it."""

from __future__ import annotations

import contextlib
import os
import traceback
import types
from collections.abc import Iterator

import torch

from precast.capture.adapters.dynamo import exc
from precast.capture.adapters.fake_tensors import ConstraintViolationError, GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound
from precast.capture.common.captured_frame import CaptureRefused, MarkViolated
from precast.capture.dynamo.break_reasons import BY_DATA, known_by_data, operator_error, shorten
from precast.runtime.common.errors import RegionError

_FORBIDDEN = "forbidden callable"
"""Dynamo's message for a call that must not happen in traced code, such as `set_stance`."""
_RAISES = ("Observed exception", "TypeError when making fake tensor call")
"""Begin the tracer's words for code that seems to raise."""


@contextlib.contextmanager
def refusals(function: types.FunctionType, one_graph: bool, raises: bool) -> Iterator[None]:
    """Raises CaptureRefused (MarkViolated, RegionError) for what Dynamo raises inside; `raises`: a graph break is an error. What is the
    program's own, or a fault of precast's or torch's, passes through.
    """
    try:
        yield
    except ConstraintViolationError as error:
        raise MarkViolated(str(error), _where(error, function)) from error
    except exc.SkipFrame as error:
        raise CaptureRefused(f"there is nothing to compile: {_first_line(error)}", _where(error, function), skipped=True) from error
    except (exc.Unsupported, exc.UserError, exc.UncapturedHigherOrderOpError, exc.CondOpArgsMismatchError) as error:
        what, hint = shorten(str(error) or type(error).__name__)
        hint = hint or "rewrite that line, or mark the call with precast.disable"
        refused = CaptureRefused(what, _where(error, function), hint, skipped=not one_graph)
        traced = getattr(error, "_torch_dynamo_tracer_output", None)
        refused.forbidden = not one_graph and (raises if traced is None else traced.error_on_graph_break)
        refused.raises = what.startswith(_RAISES)
        raise refused from error
    except exc.TorchRuntimeError as error:  # an operator does not take these sizes, or not in torch's simulation of it
        what = operator_error(str(error)) or shorten(str(error))[0]
        refused = CaptureRefused(what, _own_line(error) or _where(error, function))
        refused.raises = True
        raise refused from error
    except PendingUnbackedSymbolNotFound as error:
        what = f"torch's tracer loses a size that depends on data: {_first_line(error)}"
        raise CaptureRefused(what, _where(error, function), "call that operator outside of the one graph", skipped=not one_graph) from error
    except AssertionError as error:
        if _FORBIDDEN in str(error):
            raise RegionError(f"{_first_line(error)} ({_where(error, function)}): it cannot be called inside a compiled program") from error
        raise
    except AttributeError as error:
        if traceback.extract_tb(error.__traceback__)[-1].name != "__tensor_flatten__":
            raise
        what = f"a tensor subclass is traced before its attributes are set: {_first_line(error)}"
        raise CaptureRefused(what, _where(error, function), skipped=not one_graph) from error
    except exc.BackendCompilerFailed as error:
        inner = error.inner_exception
        if isinstance(inner, CaptureRefused):
            raise CaptureRefused(inner.reason, inner.where or _where(error, function), inner.hint) from inner
        if isinstance(inner, GuardOnDataDependentSymNode):
            raise CaptureRefused(*known_by_data(inner), hint=BY_DATA) from inner
        raise inner from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _own_line(error: Exception) -> str:
    """The innermost line of the user's stack that is not torch's."""
    torchs = os.path.dirname(torch.__file__) + os.sep
    own = [f for f in getattr(error, "real_stack", None) or () if not f.filename.startswith(torchs)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _where(error: Exception, function: types.FunctionType) -> str:
    stack = getattr(error, "real_stack", None)
    if stack:
        return f"{stack[-1].filename}:{stack[-1].lineno}"
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


__all__ = ["refusals"]
