"""Softmax in a joint graph, in terms of its rows' largest elements and sums.

The backward pass of `_log_softmax` takes its result: for cross-entropy over a vocabulary the largest tensor of the whole step, in float32,
which the loss itself never needs in memory. Written out, the partitioner may keep the logits, which the graph has anyway and often in a
narrower dtype, with two numbers a row, and compute the rest again. The same holds for a softmax in a wider dtype than that of the scores
which it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from precast.capture.graph.inline_subgraph import splice

aten = torch.ops.aten


def _written_out(x: torch.Tensor, dim: int, half_to_float: bool, log: bool) -> torch.Tensor:
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    value = x.to(torch.float32) if narrow else x
    top = value.amax(dim, True)
    powers = (value - top).exp()
    total = powers.sum(dim, True)
    # the same difference, as a node of its own: with two users it would be a tensor in memory
    found = value + -top - total.log() if log else powers / total
    return found if half_to_float or not narrow else found.to(x.dtype)


def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    return _written_out(x, dim, half_to_float, log=True)


def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    return _written_out(x, dim, half_to_float, log=False)


def drop_detach(joint: torch.fx.GraphModule) -> None:
    """Lets the nodes that read a detached tensor read that tensor; in place. A joint graph has its gradients already, and the partitioner
    takes `detach` for an operator that is neither fused nor computed again.
    """
    for node in list(joint.graph.nodes):
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0], lambda user: user.op != "output")
            if not node.users:
                joint.graph.erase_node(node)


def write_out_softmax(joint: torch.fx.GraphModule, fake_mode: Any, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
    """Replaces each log-softmax, and each softmax whose input was cast to a wider dtype, by what it is made of; in place."""
    for node in list(joint.graph.nodes):
        if node.target is aten._log_softmax.default:
            rule = log_softmax
        elif node.target is aten._softmax.default and (node.args[2] or _widened(node.args[0])):
            rule = softmax
        else:
            continue
        if _has_elements(node.meta["val"]):
            splice(joint, node, rule, fake_mode, decompositions)


def _widened(source: Any) -> bool:
    """Whether the node casts a tensor to a type of more bytes."""
    if not isinstance(source, torch.fx.Node) or source.target is not aten._to_copy.default:
        return False
    before = source.all_input_nodes[0].meta["val"]
    return bool(before.dtype.itemsize < source.meta["val"].dtype.itemsize)


def _has_elements(value: torch.Tensor) -> bool:
    """Whether no size is zero, or may turn out to be."""
    return all(n > 0 if isinstance(n, int) else n.node.hint is not None for n in value.shape)


__all__ = ["drop_detach", "write_out_softmax"]
