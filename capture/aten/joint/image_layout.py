"""One layout of images for the forward and the backward pass: convolutions of a joint graph take and give channels-last tensors.

The layout of what lies between the two halves is part of both, so it is chosen before the graph is cut. Each two-dimensional convolution,
and its gradient, gets channels-last operands, and fake tensors are propagated anew: what is computed from channels-last images is so, too,
and the conversions that are left stand where an image comes from outside or goes there. An operator that cannot take the layout, or whose
meaning depends on it, gets its operands as they were: views, random numbers (drawn in the order of memory), operators that are not torch's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from precast.capture.aten.joint.recomputation import compute_again
from precast.capture.graph.higher_order_ops import bodies
from precast.capture.graph.recorded_outputs import is_view, viewed
from precast.capture.graph.triton_launches import is_launch

aten = torch.ops.aten
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_OPERANDS = {aten.convolution.default: (0, 1), aten.convolution_backward.default: (0, 1, 2)}
_BY_OFFSET = (aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default)


def channels_last_images(joint: torch.fx.GraphModule, fake_mode: Any) -> None:
    """Lays out images so; in place. The graph is left as it is where no convolution gains by it, or where it holds bodies of its own."""
    convolutions = [n for n in joint.graph.nodes if n.target in _CONVOLUTIONS and _is_planar(n)]
    if not convolutions or list(bodies(joint)) or any(_unknown(n) or is_launch(n) for n in joint.graph.nodes):
        return
    if all(_is_last(n.args[0].meta["val"]) for n in convolutions):
        return
    _Propagation(joint, fake_mode).run()
    joint.graph.lint()
    joint.recompile()


def _is_planar(node: torch.fx.Node) -> bool:
    """Whether it is a convolution over images of more than one channel, not transposed."""
    value: Any = node.args[1 if node.target is aten.convolution_backward.default else 0]
    transposed = node.args[7 if node.target is aten.convolution_backward.default else 6]
    return value.meta["val"].dim() == 4 and not transposed


def _unknown(node: torch.fx.Node) -> bool:
    """Whether a size of its value depends on data."""
    leaves = [n for t in _tensors(node) for n in t.shape]
    return any(isinstance(n, torch.SymInt) and n.node.hint is None for n in leaves)


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]


def _is_last(value: torch.Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


class _Propagation:
    """`before`: the value of each node whose strides changed, as it was traced."""

    def __init__(self, joint: torch.fx.GraphModule, fake_mode: Any) -> None:
        self.graph, self.mode = joint.graph, fake_mode
        self.before: dict[torch.fx.Node, Any] = {}
        self.copies: dict[tuple[torch.fx.Node, str], torch.fx.Node] = {}
        self.made: set[torch.fx.Node] = set()

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "output":
                self._as_they_were(node)
            elif node.op == "call_function":
                if node.target in _CONVOLUTIONS and _is_planar(node):
                    for position in _OPERANDS[node.target]:
                        self._take_last(node, position)
                if any(source in self.before or source in self.made for source in node.all_input_nodes):
                    self._anew(node)

    def _take_last(self, node: torch.fx.Node, position: int) -> None:
        source = node.args[position]
        assert isinstance(source, torch.fx.Node)
        if _is_last(source.meta["val"]):
            return
        made = self.copies.get((source, "last"))
        if made is None:
            with self.graph.inserting_before(node), self.mode:
                made = self._call(aten.clone.default, (source,), {"memory_format": torch.channels_last})
            if source.op == "placeholder":  # such as a weight, which is there anyway: the backward pass copies it again
                compute_again(made)
            self._known(source, "last", made)
        node.update_arg(position, made)

    def _as_traced(self, source: torch.fx.Node, user: torch.fx.Node) -> torch.fx.Node:
        """The tensor with the strides that it was traced with: a copy, made once and before its first user; of a view, that view of a copy
        of what it shows, so that results share memory as they did.
        """
        made = self.copies.get((source, "traced"))
        if made is None:
            if is_view(source):
                base = source.args[0]
                assert isinstance(base, torch.fx.Node)
                base = self._as_traced(base, user)
                with self.graph.inserting_before(user), self.mode:
                    made = self._call(source.target, (base, *source.args[1:]), dict(source.kwargs))
            else:
                with self.graph.inserting_before(user), self.mode:
                    made = self._in_order(source, self.before[source])
            self._known(source, "traced", made)
        return made

    def _known(self, source: torch.fx.Node, layout: str, made: torch.fx.Node) -> None:
        self.copies[source, layout] = made
        self.made.add(made)

    def _call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        values, named = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta["val"] = target(*values, **named)
        return node

    def _in_order(self, source: torch.fx.Node, wanted: torch.Tensor) -> torch.fx.Node:
        """A copy with the order of dimensions in memory of `wanted`, which is dense."""
        order = sorted(range(wanted.dim()), key=lambda d: (-_hint(wanted.stride(d)), d))
        back = [order.index(d) for d in range(len(order))]
        node = self._call(aten.permute.default, (source, order), {})
        node = self._call(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
        return self._call(aten.permute.default, (node, back), {})

    def _as_they_were(self, node: torch.fx.Node) -> None:
        """Lets the node read its operands with the strides that they were traced with."""
        for source in node.all_input_nodes:
            if viewed(source) in self.before:
                node.replace_input_with(source, self._as_traced(source, node))

    def _anew(self, node: torch.fx.Node) -> None:
        """Propagates fake tensors through the node."""
        traced = node.meta.get("val")
        made = None if self._fixed(node) else self._value(node, traced)
        if made is None:
            self._as_they_were(node)
            if is_view(node):  # of a copy, whose memory its value shows
                node.meta["val"] = self._value(node, traced)
        elif is_view(node) or not _laid_out_alike(made, traced):
            node.meta["val"] = made
            self.before[node] = traced

    def _fixed(self, node: torch.fx.Node) -> bool:
        """Whether what it computes depends on how its operands lie, or how it lies itself could not be restored."""
        if not is_view(node) and not all(map(_is_dense, _tensors(node))):
            return True
        target = node.target
        if target.__module__ == "_operator":  # an element of a tuple
            return False
        if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
            return True
        return target in _BY_OFFSET or target is aten.copy_.default or torch.Tag.nondeterministic_seeded in target.tags

    def _value(self, node: torch.fx.Node, traced: Any) -> Any:
        """What the node gives now; None where it cannot take its operands so, or gives something else."""
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        try:
            with self.mode:
                made = node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, ValueError):  # such as a view that would need a copy
            return None
        new, old = (pytree.tree_leaves(value) for value in (made, traced))
        same = len(new) == len(old) and all(
            not isinstance(b, torch.Tensor) or isinstance(a, torch.Tensor) and a.shape == b.shape and a.dtype is b.dtype
            for a, b in zip(new, old, strict=True)
        )
        return made if same else None


def _laid_out_alike(new: Any, old: Any) -> bool:
    pairs = zip(pytree.tree_leaves(new), pytree.tree_leaves(old), strict=True)
    return all(not isinstance(a, torch.Tensor) or _same_strides(a, b) for a, b in pairs)


def _same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(n == 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True))


def _is_dense(value: torch.Tensor) -> bool:
    """Whether its elements fill a piece of memory, in whatever order."""
    step = 1
    for size, stride in sorted(((_hint(n), _hint(s)) for n, s in zip(value.shape, value.stride(), strict=True)), key=lambda d: d[1]):
        if size != 1 and stride != step:
            return size == 0
        step *= size
    return True


def _hint(number: Any) -> int:
    return int(number) if isinstance(number, int) else int(number.node.hint)


__all__ = ["channels_last_images"]
