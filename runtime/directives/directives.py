"""Directives on functions (`disable`, `allow_in_graph` and the like), with torch's meaning and without its tracer.

torch's own import the tracer when they are called. These set the same attributes, which the tracer reads when it is there one day, or keep
a note in `notes`, which `capture` hands to the tracer before it traces. A tracer that is loaded already is told at once.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.compiler import is_compiling, is_exporting

from precast.runtime.common.errors import DirectiveError
from precast.runtime.common.eval_frame import eval_frame
from precast.runtime.frames.compiled_module import mixed_class, share_state
from precast.runtime.settings.stance import leaves_region

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(eq=False, repr=False)
class Notes:
    """What the tracer has to be told before it traces. `substituted`: (stand-in that users call, original, handler, constant folding)."""

    allowed: list[Callable[..., Any]] = field(default_factory=list)
    substituted: list[tuple[Any, Any, Any, bool]] = field(default_factory=list)


notes = Notes()


def innermost(function: Any) -> Any:
    """What a chain of compile and disable wrappers, torch's or precast's, was made from. Bound methods and copies by `wraps` stay."""
    while getattr(function, "_torchdynamo_wrapper_id", None) == id(function) and hasattr(function, "_torchdynamo_orig_callable"):
        function = function._torchdynamo_orig_callable
    return function


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Keep `fn` (a function, class or module) out of compiled programs: a program that calls it breaks there, and it runs as it is written.

    recursive: what it calls is not compiled either, unless it was compiled by itself; False: only its own code is left out.
    `reason` is shown where a program breaks because of it. Without `fn`, a decorator. Raises DirectiveError.
    """
    if fn is None:
        return _Disabling(recursive, reason)
    fn = innermost(fn)
    if not callable(fn):
        raise DirectiveError(f"precast.disable takes a function, a class or a module, not {fn!r}")
    if recursive and isinstance(fn, torch.nn.Module):
        return _disabled_module(fn, reason)
    if recursive and isinstance(fn, type):
        return _disable_class(fn, reason)
    return _marked(_skipping(fn) if recursive else _passing(fn), fn, recursive, reason)


class _Disabling:
    """`precast.disable()` before it is given its function."""

    def __init__(self, recursive: bool, reason: str | None) -> None:
        self.recursive = recursive
        self.reason = reason

    def __call__(self, fn: Any) -> Any:
        return disable(fn, self.recursive, reason=self.reason)

    def __enter__(self) -> None:
        raise RuntimeError(
            "precast.disable is a decorator, as torch.compiler.disable is; for a block use precast.set_stance('force_eager')"
        )

    def __exit__(self, *exc: object) -> None:
        pass


def _marked(wrapper: Any, fn: Any, recursive: bool, reason: str | None) -> Any:
    wrapper._torchdynamo_disable = True
    wrapper._torchdynamo_disable_msg = reason
    wrapper._torchdynamo_disable_recursive = recursive
    wrapper._torchdynamo_orig_callable = fn
    wrapper._torchdynamo_wrapper_id = id(wrapper)
    return wrapper


def _skipping(fn: Callable[..., Any]) -> Any:
    set_eval_frame = eval_frame.set_eval_frame

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return fn(*args, **kwargs)
        finally:
            set_eval_frame(before)

    return disabled


def _passing(fn: Callable[..., Any]) -> Any:
    @functools.wraps(fn)
    def disabled_itself(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_exporting():
            raise RuntimeError("precast.disable(recursive=False) is not supported with torch.export")
        tracer = sys.modules.get("torch._dynamo.external_utils")
        if tracer is None:
            return fn(*args, **kwargs)
        return tracer.get_nonrecursive_disable_wrapper(fn)(*args, **kwargs)  # torch.compile knows `fn` by the code of its caller

    return disabled_itself


def cudagraph_mark_step_begin() -> None:
    """Begin another step, as torch's does for what Inductor captured. precast's own CUDA graphs need no mark: an output that the caller
    still has is never written again, with or without one.
    """
    trees = sys.modules.get("torch._inductor.cudagraph_trees")  # there is something to mark where Inductor has captured something
    if trees is not None:
        trees.mark_step_begin()


def _leave_to_python(function: Any) -> None:
    """Tells torch's frame evaluation not to look at this code: it may be called inside a torch.compile region."""
    native = eval_frame
    native.set_code_exec_strategy(function.__code__, native._FrameExecStrategy(native._FrameAction.SKIP, native._FrameAction.DEFAULT))


def _disable_class(cls: type, reason: str | None) -> type:
    namespace: Any = cls
    namespace.__init__ = disable(namespace.__init__, reason=reason)
    namespace.__call__ = disable(namespace.__call__, reason=reason)
    if issubclass(cls, torch.nn.Module):
        namespace._call_impl = disable(namespace._call_impl, reason=reason)
    return cls


class DisabledModule:
    """Mixed in before a module's class: the same state, and a call that no tracer follows. `_orig_mod` is the original."""

    __slots__ = ()
    _orig_mod: torch.nn.Module


def _disabled_module(module: torch.nn.Module, reason: str | None) -> Any:
    cls: Any = mixed_class(DisabledModule, type(module), ("_orig_mod",))
    cls._call_impl = disable(torch.nn.Module._call_impl, reason=reason)
    return share_state(cls, module, {"_orig_mod": module})


def allow_in_graph(fn: Any) -> Any:
    """Let the tracer put calls of `fn` into the graph unread; what `fn` does with tensors is traced from there. A list marks its members.

    Guards on what `fn` itself reads (globals, closures) do not exist: it must depend on its arguments only. Raises DirectiveError.
    """
    if isinstance(fn, (list, tuple)):
        return [allow_in_graph(one) for one in fn]
    if not callable(fn):
        raise DirectiveError(f"allow_in_graph expects a callable, not {fn!r}")
    tracer = sys.modules.get("torch._dynamo")
    if tracer is not None and hasattr(tracer, "allow_in_graph"):
        return tracer.allow_in_graph(fn)
    notes.allowed.append(fn)
    return fn


def assume_constant_result(fn: F) -> F:
    """Mark `fn`: traced code takes what it returns as a constant. A process that loads the stored code calls `fn` once to compare."""
    fn._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return fn


def substitute_in_graph(
    original_fn: Any, *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[F], F]:
    """Decorate a Python function that traced code uses in place of `original_fn`, usually a C function; a direct call runs the original.

    can_constant_fold_through: calls with constant arguments may be replaced by their result. Raises DirectiveError where either is no
    function, where their signatures differ, and where `original_fn` has a substitute already.
    """
    if not isinstance(original_fn, _FUNCTIONS):
        raise DirectiveError(f"substitute_in_graph expects a function but got {type(original_fn)!r}")

    def substitute(handler: F) -> F:
        if not isinstance(handler, _FUNCTIONS):
            raise DirectiveError(f"@substitute_in_graph(...) expects a function but got {type(handler)!r}")
        if not skip_signature_check:
            _check_signature(original_fn, handler)
        if any(original is original_fn for _, original, _, _ in notes.substituted):
            raise DirectiveError(f"{original_fn} has a substitute already")

        @functools.wraps(handler)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return original_fn(*args, **kwargs)

        marks: Any = stand_in
        marks.__torch_dynamo_original__ = original_fn
        marks.__torch_dynamo_polyfill__ = handler
        marks.__torch_dynamo_can_constant_fold_through__ = can_constant_fold_through
        notes.substituted.append((stand_in, original_fn, handler, can_constant_fold_through))
        return stand_in  # type: ignore[return-value]

    return substitute


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def _check_signature(original: Any, handler: Any) -> None:
    try:
        wanted = inspect.signature(original)
    except ValueError:
        return  # a C function that does not say
    found = inspect.signature(handler)
    if _shape(wanted) != _shape(found):
        raise DirectiveError(f"Signature mismatch between {original} and {handler}: {wanted} != {found}")


def _shape(signature: inspect.Signature) -> tuple[Any, ...]:
    """What two signatures must share: names, kinds and defaults of parameters; annotations and the names of `*args` do not matter."""
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [p for p in signature.parameters.values() if p.kind not in rest]
    positional = tuple(p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY)
    keyword_only = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return positional, keyword_only, {p.name: p.default for p in parameters}


_sample = _skipping(lambda: None), _passing(lambda: None)
for _wrapper in _sample:
    _leave_to_python(_wrapper)
leaves_region(_sample[0])

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "disable",
    "innermost",
    "is_compiling",
    "is_exporting",
    "notes",
    "substitute_in_graph",
]
