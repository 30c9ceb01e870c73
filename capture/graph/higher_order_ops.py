"""Higher-order operators in an ATen graph: which are expanded into plain ops, and how.

What stays are loops and branches that depend on data (`KEPT`): their bodies are compiled as graphs of their own, which the runtime calls
(precast/compiling/subgraphs.py, runtime/executable/control_flow.py); and launches of users' Triton kernels
(capture/graph/triton_launches.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from precast.capture.adapters.dynamo import TransformGetItemToIndex
from precast.capture.adapters.higher_order_ops import out_dtype_fallback, sdpa_dense
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.graph import reinplace
from precast.capture.graph.inline_subgraph import splice
from precast.capture.graph.triton_launches import FUNCTIONAL, is_launch, name_launch
from precast.capture.graph.window_overlap import strided_storage

hops = torch.ops.higher_order


def _inlined(subgraph: torch.fx.GraphModule, identifier: Any, *operands: Any) -> Any:
    return torch.fx.Interpreter(subgraph).run(*operands)


def _dense_attention(query: Any, key: Any, value: Any, score_mod: Any, block_mask: tuple[Any, ...], *rest: Any) -> Any:
    """The attention that torch defines as the meaning of flex_attention: all scores, modified and masked, then softmax."""
    with TransformGetItemToIndex():
        return sdpa_dense(query, key, value, score_mod, block_mask, *rest)


EXPANSIONS: dict[Any, Callable[..., Any]] = {
    hops.invoke_subgraph: _inlined,
    hops.flex_attention: _dense_attention,
    hops.out_dtype: out_dtype_fallback,
}
KEPT = ("cond", "while_loop", "scan", "map_impl", "print")


def expand_higher_order(module: torch.fx.GraphModule, fake_mode: Any, decompositions: Mapping[Any, Any]) -> None:
    """Replaces in place the higher-order operators that are plain ops in another form, in the bodies of the others too.

    Raises CaptureRefused for those that precast has no form for.
    """
    found = True
    while found:
        found = False
        for node in list(module.graph.nodes):
            if node.op != "call_function":
                continue
            if node.target in (reinplace.V1, reinplace.V2):
                if not isinstance(node.args[0], torch._ops.OpOverload):
                    raise CaptureRefused(f"the body of {node.args[0]} writes a tensor from outside of it")
                reinplace.unwrap_mutation(module, node, fake_mode, decompositions)
                found = True
            elif node.target in EXPANSIONS:
                splice(module, node, EXPANSIONS[node.target], fake_mode, decompositions)
                found = True
            elif node.target is FUNCTIONAL:
                name_launch(module, node)
            elif (
                isinstance(node.target, torch._ops.HigherOrderOperator) and (name := node.target._name) not in KEPT and not is_launch(node)
            ):
                raise CaptureRefused(f"the higher-order operator {name} has no compiled form")
    _drop_unused(module)
    for body in bodies(module):
        expand_higher_order(body, fake_mode, decompositions)
        _own_results(body)
    module.graph.lint()
    module.recompile()


def bodies(module: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """The graphs that the graph's nodes name, each once."""
    names = dict.fromkeys(str(n.target) for n in module.graph.nodes if n.op == "get_attr")
    found = [_attribute(module, name) for name in names]
    return [body for body in found if isinstance(body, torch.fx.GraphModule)]


def _attribute(module: torch.fx.GraphModule, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _drop_unused(module: torch.fx.GraphModule) -> None:
    for node in reversed(module.graph.nodes):
        if node.op == "get_attr" and not node.users:
            module.graph.erase_node(node)


def _own_results(body: torch.fx.GraphModule) -> None:
    """Every result of a body is a tensor of its own: callers of a branch or a loop take it for one."""
    output = next(n for n in reversed(body.graph.nodes) if n.op == "output")
    values = output.args[0] if isinstance(output.args[0], list | tuple) else (output.args[0],)
    seen = {_storage(n) for n in body.graph.nodes if n.op in ("placeholder", "get_attr")}
    results: list[Any] = []
    with body.graph.inserting_before(output):
        for value in values:
            if isinstance(value, torch.fx.Node) and (storage := _storage(value)) is not None:
                if storage in seen:
                    val = value.meta["val"]
                    value = body.graph.call_function(torch.ops.aten.clone.default, (value,))
                    value.meta["val"] = val
                seen.add(storage)
            results.append(value)
    output.args = (tuple(results),)
    body.recompile()


def _storage(node: torch.fx.Node) -> int | None:
    return strided_storage(node.meta.get("val"))
