"""Operators with effects, and draws of random numbers, stay in the graph as plain calls.

torch threads tokens through operators with effects, to keep their order; precast keeps the order of operators that are not ATen's by
itself, and of ATen's there are only checks, which read what they check.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
import torch.fx.node as fx_node

from precast.capture.adapters.fake_tensors import PythonFunctionalizeAPI
from precast.capture.adapters.higher_order_ops import effects
from precast.capture.adapters.operators import simple_registry, utils
from precast.capture.adapters.partitioners import partitioners
from precast.capture.common.patching import patched, replaced
from precast.capture.graph.triton_launches import LAUNCH


@contextlib.contextmanager
def effects_as_calls(gm: torch.fx.GraphModule) -> Iterator[None]:
    """While `gm`, Dynamo's graph, is traced further, its operators with effects have none for torch, and are kept if nothing reads them."""
    called = {n.target for m in gm.modules() if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes if n.op == "call_function"}
    operators = [torch.ops.aten._linalg_check_errors.default, *(op for op in called if effects.has_effects(op))]
    fx_node._side_effectful_functions.update((*operators, LAUNCH))  # for good: that is what they are, and other threads may be here
    with contextlib.ExitStack() as stack:
        for op in operators:
            if isinstance(op, torch._ops.HigherOrderOperator):
                continue  # these ask for their token themselves (`plain_calls`), and torch 2.11 keeps unused ones for their effect only
            holder: Any = simple_registry.singleton.find(effects._get_op_qualname(op)).effect
            stack.enter_context(replaced(holder, "_effect", None))
        yield


def plain_calls() -> contextlib.AbstractContextManager[Any]:
    """Higher-order operators that always ask for a token get none."""
    return patched(effects, "handle_effects", _plain_call)


def draws_kept() -> contextlib.AbstractContextManager[Any]:
    """Draws of random numbers, and launches of Triton kernels, are kept where nothing reads their result."""
    return patched(utils, "is_impure", _is_impure)


_impure = utils.is_impure


def _is_impure(op: Any, **given: Any) -> bool:
    """Launches of Triton kernels write; torch 2.11 does not look for higher-order operators among those with side effects. A draw moves
    the generator, read or not: what is drawn after it are eager's numbers only if it stays.
    """
    if "impure_random" in given:
        given["impure_random"] = True
    return op is LAUNCH or _impure(op, **given)


def draws(node: torch.fx.Node) -> bool:
    """Whether it may take numbers from a random generator."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def draws_apart() -> contextlib.AbstractContextManager[Any]:
    """Where a joint graph is cut, torch keeps one of equal calls, also of those that draw, but for a list that lacks most of them."""
    return patched(partitioners, "fx_graph_cse", _merged)


_merge: Any = partitioners.fx_graph_cse  # type: ignore[attr-defined]


def _merged(graph: torch.fx.Graph, **keys: Any) -> torch.fx.Graph:
    """A copy of the graph with one node for equal ones, but for those that draw: each calls something of its own meanwhile."""
    drawing = [node for node in graph.nodes if draws(node)]
    for node in drawing:
        node.target = _Draw(node.target)
    try:
        made: torch.fx.Graph = _merge(graph, **keys)
    finally:
        for node in drawing:
            node.target = node.target.operator
    for node in made.nodes:
        if isinstance(node.target, _Draw):
            node.target = node.target.operator
    return made


class _Draw:
    """Stands for an operator in one node, and equals nothing else."""

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.__name__ = operator.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.operator(*args, **kwargs)


def _plain_call(allow_token_discovery: bool, tokens: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In place of `handle_effects`, for higher-order operators that always ask for a token."""
    context: Any = PythonFunctionalizeAPI()
    inner_args, inner_kwargs = context.unwrap_tensors(args), context.unwrap_tensors(kwargs)
    with context.redispatch_to_next():
        return context.wrap_tensors(op(*inner_args, **inner_kwargs))


__all__ = ["draws", "draws_apart", "draws_kept", "effects_as_calls", "plain_calls"]
