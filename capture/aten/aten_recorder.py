"""Records calls of ATen operators on fake tensors as a graph.

It replaces `make_fx` for functional graphs of static sizes, in a quarter of the time; `make_fx` also has symbolic numbers, constants whose
elements are known, higher-order operators and real tensors.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import traceback
from torch.utils._python_dispatch import TorchDispatchMode, autograd_would_have_decomposed

from precast.capture.adapters.fake_tensors import FakeTensor, snapshot_fake
from precast.capture.adapters.operators import _make_graph_module, _use_lazy_graph_module

aten = torch.ops.aten


class Unrecorded(Exception):
    """A call that a `Recorder` does not record; the message says which."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which calls on `inputs` (fake tensors of static sizes) and on their results become nodes, decomposed by the table."""

    def __init__(self, inputs: Sequence[torch.Tensor], decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = torch.fx.Graph()
        self.refused: str | None = None
        """The first call that was not recorded, in case its exception was caught."""
        self._table = decompositions
        self._constants: dict[str, torch.Tensor] = {}
        self._nodes: dict[int, tuple[torch.Tensor, torch.fx.Node]] = {}  # by the tensor's id, which the tensor keeps from being another's
        for number, value in enumerate(inputs):
            node = self.graph.placeholder(f"arg{number}_1")
            node.meta["val"] = snapshot_fake(value)
            self._nodes[id(value)] = value, node

    def module(self, results: Sequence[Any]) -> torch.fx.GraphModule:
        """The graph that returns `results`, without dead code. Raises Unrecorded."""
        if self.refused is not None:
            raise Unrecorded(self.refused)
        nodes = [self._argument(result) for result in results]
        if len({id(result) for result in results if isinstance(result, torch.Tensor)}) > len({*filter(_is_node, nodes)}):
            raise Unrecorded("a tensor and what was detached from it are both given back")
        self.graph.output(nodes)
        self.graph.eliminate_dead_code()
        with _use_lazy_graph_module(True):
            made: torch.fx.GraphModule = _make_graph_module(self._constants, self.graph)
        return made

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """The result of a call, which becomes a node unless a decomposition replaces it by other calls."""
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return func(*args, **kwargs)
        if func is aten.detach.default:
            return self._detached(args[0])
        decomposition = self._table.get(func)
        if decomposition is None and _is_composite(func) and autograd_would_have_decomposed(func, [*args, *kwargs.values()]):
            decomposition = func.decompose  # in inference mode, where autograd has not done it
        if decomposition is not None:
            with self:
                result = decomposition(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self._call(func, args, kwargs)

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func._schema.is_mutable or torch.Tag.data_dependent_output in func.tags:
            self._refuse(f"{func} writes, or depends on data")
        if func is aten.lift_fresh.default:
            func = aten.lift_fresh_copy.default  # a graph may run twice, and its constants stay
            self._constant(args[0])
        node = self.graph.create_node(
            "call_function",
            func,
            tuple(map(self._argument, args)),
            {name: self._argument(value) for name, value in kwargs.items()},
            name=self.graph._target_to_str(func.overloadpacket.__name__),
        )
        trace = traceback.get_current_meta().get("stack_trace")
        if trace:
            node.stack_trace = trace
        result = func(*args, **kwargs)
        self._made(node, result)
        return result

    def _detached(self, value: torch.Tensor) -> torch.Tensor:
        """A detached tensor is recorded as the same node's value, since no gradients are recorded; constructors of torch detach, too."""
        result = value.detach()
        self._nodes[id(result)] = result, self._argument(value)
        return result

    def _made(self, node: torch.fx.Node, value: Any) -> None:
        """Records `value` as the result of `node`: a tensor, or a tuple or list each of whose tensors gets a node of its own."""
        node.meta["val"] = value
        if isinstance(value, tuple | list):
            for number, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    self._made(self.graph.call_function(operator.getitem, (node, number)), item)
        elif type(value) is FakeTensor:
            self._nodes[id(value)] = value, node
        else:
            self._refuse(f"{node.target} gives a {type(value).__name__}")

    def _constant(self, value: Any) -> None:
        """A literal of the traced code becomes an attribute of the graph's module."""
        if id(value) not in self._nodes and type(value) is torch.Tensor:
            name = f"_tensor_constant{len(self._constants)}"
            node = self.graph.get_attr(name)
            node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)  # a fake one
            self._constants[name] = value
            self._nodes[id(value)] = value, node

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self._nodes.get(id(value))
            return known[1] if known is not None else self._refuse("a tensor that the graph neither takes nor makes")
        if type(value) in _PLAIN:
            return value
        if isinstance(value, tuple | list):
            return type(value)(map(self._argument, value))
        return self._refuse(f"a {type(value).__name__} as an argument")

    def _refuse(self, what: str) -> Any:
        self.refused = self.refused or what
        raise Unrecorded(what)


def _is_node(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)


_PLAIN = frozenset((int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether the operator is composite (implemented by other operators) and is no query of metadata."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    if func in (aten.size.default, aten.stride.default, aten.storage_offset.default):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), composite)
