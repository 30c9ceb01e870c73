"""What the backward graph reads from memory, and what it computes again: a minimum cut of the joint graph by bytes that are moved.

Each value of the forward pass that the backward pass needs is kept or computed again. Kept, it is read once more; it is also written, where
fusion would have held it in registers, and it stays in memory until the backward pass. Computed again, its operands have to be there in
turn, its operations take their time, and it is written and read where a library call takes it. Of all choices, the one that moves least is
a minimum cut between source and sink (as in Min-Cut Rematerialization of torch's functorch, whose costs are other ones: it never computes
again what a library call takes, however cheap). functorch makes the two graphs then, from the marks that this pass leaves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx
import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from precast.capture.adapters.partitioners import asks_for_a_budget
from precast.capture.aten.effects import draws
from precast.capture.graph.recorded_outputs import is_view

aten = torch.ops.aten

PRICES = {"default": 1.0, "less": 3.0}
"""By the option `activation_memory`: what a byte that is kept until the backward pass is worth, in bytes that are moved."""
BYTES_PER_OPERATION = 0.25
"""What an operation on an element is worth, in bytes that are moved: a core does some four a byte that the memory gives it, a GPU 15."""
TRANSCENDENTAL = 8
"""Operations of a transcendental function, as lowering/costs/work.py counts them."""
_TRANSCENDENTAL = frozenset(
    "acos acosh asin asinh atan atan2 atanh cos cosh digamma elu erf erfc erfinv exp exp2 expm1 gelu i0 lgamma log log10 log1p log2 "
    "log_sigmoid_forward logit mish pow sigmoid silu sin sinc sinh softplus special_i1 tan tanh xlogy".split()
)
_COPIES = frozenset({aten._to_copy.default, aten.clone.default, aten._unsafe_view.default})
_CONSTANTS = frozenset(
    {
        *(aten.full.default, aten.full_like.default, aten.scalar_tensor.default, aten.arange.start_step, aten.arange.default),
        *(aten.arange.start, aten.zeros_like.default, aten.ones_like.default, aten.zeros.default, aten.ones.default),
    }
)
_REDUCTIONS = frozenset(
    {
        *(aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default, aten.amax.default, aten.amin.default),
        *(aten.var_mean.correction, aten.var.correction, aten.prod.dim_int, aten.any.dim, aten.any.default),
    }
)
SOURCE, SINK = "source", "sink"
_OWN = 0
"""Under which number marks of ours stand; the regions of torch.utils.checkpoint are counted from 1."""


def compute_again(node: torch.fx.Node) -> None:
    """Marks a value of the forward pass that the backward pass computes again, whatever that costs."""
    node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": _OWN}


def choose(joint: torch.fx.GraphModule, num_forward: int, memory: str = "default") -> None:
    """Marks the values of the forward pass that the backward pass needs: to be kept, or to be computed again. `memory`: a key of PRICES.

    Keeps to marks that stand there (`compute_again`). Leaves the graph as it is where the program itself says what to compute again
    (torch.utils.checkpoint, a memory budget), and where a size depends on data.
    """
    said = any("recompute" in node.meta and node.meta.get("ac_graph_id") != _OWN for node in joint.graph.nodes)
    if said or asks_for_a_budget(joint.graph):
        return
    costs = _Costs(joint.graph, num_forward, PRICES[memory])
    if not costs.needed or any(costs.bytes_of(node) is None for node in costs.forward):
        return
    kept = _minimum_cut(costs)
    pending, seen = list(costs.needed), set[torch.fx.Node]()
    while pending:
        node = pending.pop()
        if node in seen or node.op != "call_function":
            continue
        seen.add(node)
        plain = node.target is not operator.getitem and isinstance(node.meta.get("val"), torch.Tensor)
        if node in kept or not costs.may_be_computed_again(node):
            if plain:
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            continue
        if plain:
            compute_again(node)
        pending += node.all_input_nodes


@dataclass
class _Costs:
    """Of the values of the forward pass, in bytes that are moved."""

    graph: torch.fx.Graph
    num_forward: int
    price: float

    @cached_property
    def end(self) -> torch.fx.Node:
        found: torch.fx.Node
        (found,) = self.graph.find_nodes(op="output")
        return found

    @property
    def values(self) -> Sequence[Any]:
        """The graph's: what the caller gets, then the gradients."""
        found: Any = self.end.args[0]
        return tuple(found)

    @cached_property
    def results(self) -> frozenset[torch.fx.Node]:
        """What the caller gets."""
        return frozenset(node for node in self.values[: self.num_forward] if isinstance(node, torch.fx.Node))

    @cached_property
    def backward(self) -> frozenset[torch.fx.Node]:
        """What depends on gradients that come in."""
        found = {node for node in self.graph.nodes if node.op == "placeholder" and "tangents" in node.name}
        for node in self.graph.nodes:
            if node is not self.end and not found.isdisjoint(node.all_input_nodes):
                found.add(node)
        return frozenset(found)

    @cached_property
    def forward(self) -> tuple[torch.fx.Node, ...]:
        return tuple(node for node in self.graph.nodes if node is not self.end and node not in self.backward)

    @cached_property
    def needed(self) -> tuple[torch.fx.Node, ...]:
        """What the backward pass takes from the forward pass."""
        gradients = {node for node in self.values[self.num_forward :] if isinstance(node, torch.fx.Node)}
        return tuple(n for n in self.forward if n in gradients or not self.backward.isdisjoint(n.users))

    @cached_property
    def of_the_caller(self) -> frozenset[torch.fx.Node]:
        """What the forward graph computes in any case: its results are made of it."""
        pending, found = list(self.results), set[torch.fx.Node]()
        while pending:
            node = pending.pop()
            if node not in found:
                found.add(node)
                pending += node.all_input_nodes
        return frozenset(found)

    @cached_property
    def depths(self) -> Mapping[torch.fx.Node, tuple[int, int]]:
        """How many library calls lie above a node, without itself and with: two nodes in one kernel have none between them."""
        found: dict[torch.fx.Node, tuple[int, int]] = {}
        for node in self.graph.nodes:
            above = max((found[source][1] for source in node.all_input_nodes), default=0)
            call = node.op == "call_function" and not _in_a_kernel(node) and node.target is not operator.getitem
            found[node] = above, above + call
        return found

    def bytes_of(self, node: torch.fx.Node) -> int | None:
        """0 for what is no tensor; None where the size depends on data."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return 0
        sizes = [int(n) if isinstance(n, int) else n.node.hint for n in value.shape]
        return None if None in sizes else math.prod(map(int, sizes)) * value.element_size()

    def in_memory(self, node: torch.fx.Node) -> bool:
        """Whether the forward pass writes it to memory in any case."""
        if node.op != "call_function" or node in self.results or not _in_a_kernel(node) or node.target in _REDUCTIONS:
            return True
        below = [user for user in _readers(node) if user in self.of_the_caller]
        return any(not _in_a_kernel(user) or self.depths[user][0] > self.depths[node][1] for user in below)

    def may_be_computed_again(self, node: torch.fx.Node) -> bool:
        if "recompute" in node.meta:
            return True
        if node.target is operator.getitem:
            return is_view(node)
        return is_view(node) or node.target in _COPIES or node.target in _CONSTANTS or _is_pointwise(node)

    def keeping(self, node: torch.fx.Node) -> float:
        """Infinite for the parts of what an operator gives at once: they are kept one by one."""
        value = node.meta.get("val")
        if "recompute" in node.meta:
            return math.inf
        if not isinstance(value, torch.Tensor):
            return math.inf if isinstance(value, tuple | list) else 0.0
        size = self.bytes_of(node) or 0
        if node.op != "call_function":
            return size
        return size * (1 + (not self.in_memory(node)) + self.price * (node not in self.results))

    def computing(self, node: torch.fx.Node) -> float:
        """Once more, beside having its operands."""
        if not self.may_be_computed_again(node):
            return math.inf
        if "recompute" in node.meta or is_view(node) or node.target in _CONSTANTS:
            return 0.0
        size = self.bytes_of(node) or 0
        operations = TRANSCENDENTAL if _name(node) in _TRANSCENDENTAL else 1
        value = node.meta["val"]
        elements = size / value.element_size() if isinstance(value, torch.Tensor) else 0
        called = any(user in self.backward and not _in_a_kernel(user) for user in _readers(node))
        return elements * operations * BYTES_PER_OPERATION + 2 * size * called


def _minimum_cut(costs: _Costs) -> frozenset[torch.fx.Node]:
    """What is kept."""
    network = networkx.DiGraph()
    for node in costs.forward:
        above, below = f"{node.name}_in", f"{node.name}_out"
        network.add_edge(above, below, capacity=costs.keeping(node))
        network.add_edge(SOURCE, above, capacity=costs.computing(node) if node.op == "call_function" else math.inf)
        for user in node.users:
            if user not in costs.backward and user is not costs.end:
                network.add_edge(below, f"{user.name}_in", capacity=math.inf)
    for node in costs.needed:
        network.add_edge(f"{node.name}_out", SINK, capacity=math.inf)
    _, (_, again) = networkx.minimum_cut(network, SOURCE, SINK)
    return frozenset(node for node in costs.forward if f"{node.name}_out" in again and f"{node.name}_in" not in again)


def _readers(node: torch.fx.Node) -> Iterable[torch.fx.Node]:
    """Who reads it, also through views."""
    for user in node.users:
        if is_view(user):
            yield from _readers(user)
        else:
            yield user


def _in_a_kernel(node: torch.fx.Node) -> bool:
    """Whether a kernel of ours computes it, which may compute its neighbours, too."""
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, torch.fx.Node) and _in_a_kernel(source)
    return is_view(node) or _is_pointwise(node) or node.target in _COPIES or node.target in _CONSTANTS or node.target in _REDUCTIONS


def _is_pointwise(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags and not draws(node)


def _name(node: torch.fx.Node) -> str:
    return node.target._schema.name.partition("::")[2] if isinstance(node.target, torch._ops.OpOverload) else ""


__all__ = ["choose", "compute_again"]
