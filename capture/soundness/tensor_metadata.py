"""Operators that change what a tensor is: its shape and strides (`t_`, `unsqueeze_`), or the memory behind it (`x.data = y`, `resize_`).

Dynamo notes a tensor's shape when it meets the tensor, and goes by that later on. Where it traces for precast, by precast's own door or
by torch.compile's, this holds instead:

* Shape and strides of a tensor that an in-place view changed are read off the tensor, under every name that the traced code has for it.
* At a change of an input of the graph, and at one of the memory behind a tensor, the graph ends: Python makes the change, and what follows
  is traced, and guarded, with what the tensors are then.
* A view that was given other data is no view any more of what it was taken of.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from precast.capture.adapters.dynamo import SkipFrame, unimplemented
from precast.capture.adapters.dynamo import utils as dynamo_utils
from precast.capture.adapters.fake_tensors import FakeTensor, MetaTensorDescriber
from precast.capture.adapters.variables import TensorVariable, UntypedStorageVariable, builder

_VIEWS = frozenset("as_strided_ detach_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_".split())
"""Operators that change a tensor's shape and strides within its memory (`detach_`: whether it requires gradients)."""
_MEMORY = frozenset("set_ set_data shallow_copy_data_ resize_ resize_as_ _resize_output_ resize_storage_bytes_".split())
"""Operators that put other memory behind a tensor, or more of it, or less. For `x.data = y` Dynamo writes `set_`, and from torch 2.14 on
`shallow_copy_data_`."""
NOTED = ("_size", "stride", "ndim", "is_contiguous", "requires_grad", "has_grad_fn")
"""What Dynamo notes of a tensor that may change; None where that is symbolic."""

_NOT_SIMULATED = "tried to directly modify sizes for customized tensor"
"""What torch says where its simulation of an operator (`torch.cat`) would have to resize `out`."""

_FOLLOWS = "_precast_follows_metadata"
_FOLLOWED = "precast_followed"
_CHANGED = "_precast_changed"

_Backend = TypeVar("_Backend", bound=Callable[..., Any])


def marked(backend: _Backend) -> _Backend:
    """Marks a backend: where Dynamo traces for it, changes of metadata are followed as described above, once that is installed."""
    setattr(backend, _FOLLOWS, True)
    return backend


def following(backend: _Backend) -> _Backend:
    """Marks a backend that torch.compile traces for, and installs what follows the changes."""
    install()
    return marked(backend)


def unfollowed(gm: torch.fx.GraphModule) -> SkipFrame | None:
    """What a backend has to raise, so that Dynamo runs the frame as written: its graph has an operator that changes metadata, and the trace
    did not follow that. So it is where somebody's own backend hands its graphs on to precast's.
    """
    graphs = [module.graph for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
    names = (_name(node) for graph in graphs for node in graph.nodes if not node.meta.get(_FOLLOWED))
    name = next((name for name in names if name in _VIEWS | _MEMORY), None)
    if name is None:
        return None
    reason = f"{name} changes a tensor's shape or memory, and torch's tracer goes on with what they were"
    return SkipFrame(f"{reason} (give precast's backend to torch.compile itself: there it is followed)")


@functools.cache
def install() -> None:
    """Once in a process, and for good: what Dynamo traces for other backends is left as it is."""
    run, call_storage = dynamo_utils.run_node, UntypedStorageVariable.call_method
    wrap, describe = builder.wrap_to_fake_tensor_and_record, MetaTensorDescriber.describe_tensor

    @functools.wraps(run)
    def run_node(tracer: Any, node: torch.fx.Node, args: Any, kwargs: Any, nnmodule: Any) -> Any:
        if not _is_for_precast(tracer):
            return run(tracer, node, args, kwargs, nnmodule)
        return _follow(tracer, node, (args, kwargs), lambda: run(tracer, node, args, kwargs, nnmodule))

    @functools.wraps(call_storage)
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "resize_" and _is_for_precast(tx.output):
            _end_at_memory("untyped_storage().resize_")
        return call_storage(self, tx, name, args, kwargs)

    @functools.wraps(wrap)
    def wrap_to_fake_tensor_and_record(e: Any, tx: Any, **given: Any) -> Any:
        with views_apart() if _is_for_precast(tx.output) else contextlib.nullcontext():
            return wrap(e, tx, **given)

    @functools.wraps(describe)
    def describe_tensor(self: Any, t: torch.Tensor, **given: Any) -> Any:
        found = describe(self, t, **given)
        return replace(found, is_view=False, base=None, creation_meta=None) if _here.apart and _lies_elsewhere(t) else found

    dynamo_utils.run_node = run_node
    builder.wrap_to_fake_tensor_and_record = wrap_to_fake_tensor_and_record
    MetaTensorDescriber.describe_tensor = describe_tensor  # type: ignore[method-assign]
    UntypedStorageVariable.call_method = call_method  # type: ignore[method-assign]
    for name in NOTED:
        setattr(TensorVariable, name, _Noted(name))


class _Here(threading.local):
    apart = False


_here = _Here()


@contextlib.contextmanager
def views_apart() -> Iterator[None]:
    """While tensors are described to torch's simulation of them: a view that was given other data is none of its base's memory."""
    before, _here.apart = _here.apart, True
    try:
        yield
    finally:
        _here.apart = before


def _lies_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether a tensor that torch has for a view shows other memory than what it was taken of."""
    base = tensor._base if tensor._is_view() and tensor.layout is torch.strided else None
    return base is not None and type(tensor) is type(base) and tensor.untyped_storage()._cdata != base.untyped_storage()._cdata


class _Noted:
    """An attribute of a TensorVariable, read off the tensor once an operator has changed that in place."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, variable: Any, owner: type) -> Any:
        if variable is None:
            return self
        noted = variable.__dict__
        tensor = noted["proxy"].node.meta.get("example_value") if "proxy" in noted else None
        if tensor is not None and _CHANGED in tensor.__dict__:
            return TensorVariable.specialize(tensor).get(self.name)
        if self.name not in noted:
            raise AttributeError(self.name)
        return noted[self.name]

    def __set__(self, variable: Any, value: Any) -> None:
        variable.__dict__[self.name] = value


def _is_for_precast(tracer: Any) -> bool:
    """Whether a trace is for a marked backend, under what torch and functools wrap it in."""
    backend = getattr(tracer, "compiler_fn", None)
    while backend is not None and _FOLLOWS not in getattr(backend, "__dict__", ()):
        inner = [getattr(backend, name, None) for name in ("_torchdynamo_orig_backend", "compiler_fn")]
        backend = backend.func if isinstance(backend, functools.partial) else inner[0] or inner[1]
    return backend is not None


@dataclass(frozen=True)
class _Look:
    """What of a tensor operators may change in place: shape, strides and offset; whether it requires gradients; its storage, how large."""

    window: tuple[Any, ...] = ()
    requires_grad: bool = False
    memory: tuple[Any, ...] = ()


def _look(tensor: torch.Tensor) -> _Look:
    if tensor.layout is not torch.strided:
        return _Look()
    window = (*tensor.shape, *tensor.stride())
    if type(tensor) is not FakeTensor:  # one that wraps others, or stands for many under vmap: it has no storage of its own
        return _Look(window, tensor.requires_grad)
    storage = tensor.untyped_storage()
    return _Look((*window, tensor.storage_offset()), tensor.requires_grad, (storage._cdata, storage.nbytes()))


def _same(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Whether numbers are the same, by what is known of symbolic ones by now. Comparing the numbers themselves would make guards."""
    return len(before) == len(after) and all(map(operator.eq, map(_expression, before), map(_expression, after)))


def _expression(number: Any) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else number


def _follow(output: Any, node: torch.fx.Node, given: Any, run: Callable[[], Any]) -> Any:
    """The operator's result. Ends the graph at what a graph cannot hold; notes which of its own tensors the operator changed."""
    name = _name(node)
    if name in _MEMORY:
        _end_at_memory(name)
    if not _may_change(node, name):
        return run()
    tensors = [value for value in tree_leaves(given) if isinstance(value, torch.Tensor)]
    if name in _VIEWS and _is_input(tensors[0], output):
        _end_at_input(name)
    before = [_look(tensor) for tensor in tensors]
    try:
        result = run()
    except RuntimeError as error:
        if _NOT_SIMULATED not in str(error):
            raise
        _end_at_size(name)
    for tensor, was in zip(tensors, before, strict=True):
        now = _look(tensor)
        moved = not _same(was.window, now.window)
        if moved and name not in _VIEWS:
            _end_at_size(name)
        if not _same(was.memory, now.memory):
            _end_at_memory(name)
        if moved or now.requires_grad != was.requires_grad:
            setattr(tensor, _CHANGED, True)
    node.meta[_FOLLOWED] = True
    return result


def _may_change(node: torch.fx.Node, name: str) -> bool:
    """Whether it has to be looked at what an operator leaves of its tensors. torch's own say it by their name, or by an `out`."""
    if name in _VIEWS or "out" in node.kwargs or isinstance(node.target, torch._ops.OperatorBase | torch._ops.OpOverloadPacket):
        return True
    return not isinstance(node.target, str) and not (getattr(node.target, "__module__", None) or "torch").startswith(_HOMES)


_HOMES = ("torch", "_operator", "math")


def _name(node: torch.fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.partition("::")[2]
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_input(tensor: torch.Tensor, output: Any) -> bool:
    """Whether it is the very tensor that comes into the graph: one of the call's, or of a module's."""
    placeholders = (node.meta.get("example_value") for node in output.graph.find_nodes(op="placeholder"))
    return any(tensor is held for held in (*placeholders, *(tracked.fake for tracked in output.tracked_fakes)))


def _end_at_memory(name: str) -> NoReturn:
    _end(
        f"a tensor is given other memory, or another amount of it (by {'`.data =`' if name == 'shallow_copy_data_' else name})",
        "copy_() into the tensor, or do it before or after what is compiled",
    )


def _end_at_input(name: str) -> NoReturn:
    _end(
        f"the shape or strides of a tensor that the graph is given change in place (by {name})",
        f"take a view: {name.rstrip('_')}() instead of {name}()",
    )


def _end_at_size(name: str) -> NoReturn:
    _end(
        f"an operator changes the size of a tensor that it is given (by {name})",
        "give `out` the size of the result, or use what the operator returns",
    )


def _end(what: str, hint: str) -> NoReturn:
    unimplemented(
        gb_type=what,
        context="",
        explanation="a graph cannot hold this: Python does it between two graphs",
        hints=[hint],
    )
    raise AssertionError("unreachable")


__all__ = ["following", "unfollowed", "views_apart"]
