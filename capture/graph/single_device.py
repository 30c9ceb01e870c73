"""A graph that works on a GPU and on the CPU -> one that computes on the GPU only.

What is on the CPU enters it as an input and leaves it by a copy at its end; literals and what is made on the way are on the GPU at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from precast.capture.common.captured_frame import CaptureRefused
from precast.target_registry import computes_on

_COPY = torch.ops.aten._to_copy.default
_CPU = torch.device("cpu")


def on_one_device(graph: torch.fx.GraphModule, fake_mode: Any, mutated: frozenset[int]) -> None:
    """Changes `graph` (functional ATen ops) in place where its tensors are on a GPU and on the CPU. `mutated`: inputs that it writes.

    Inputs of no dimension stay where they are: kernels read them there. Raises CaptureRefused for what has to stay on the CPU.
    """
    nodes = list(graph.graph.nodes)
    devices = {tensor.device for node in nodes for tensor in _tensors(node)}
    gpus = [device for device in devices if computes_on(device.type)]
    if _CPU not in devices or len(gpus) != 1:
        return
    if any(isinstance(module, torch.fx.GraphModule) for module in graph.children()):
        raise CaptureRefused("a branch or loop works on the CPU and on a GPU")
    _Mover(graph, fake_mode, gpus[0], [n for n in nodes if n.op == "placeholder"], mutated).run(nodes)
    graph.graph.lint()


def _tensors(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    yield from (leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor))


class _Mover:
    def __init__(
        self,
        graph: torch.fx.GraphModule,
        fake_mode: Any,
        device: torch.device,
        placeholders: list[torch.fx.Node],
        mutated: frozenset[int],
    ) -> None:
        self.graph = graph
        self.fake_mode = fake_mode
        self.device = device
        self.placeholders = placeholders
        self.mutated = mutated

    def run(self, nodes: list[torch.fx.Node]) -> None:
        output = nodes[-1]
        wanted = [_on_cpu(node) for node in output.all_input_nodes]
        for number, node in enumerate(self.placeholders):
            if _on_cpu(node) and number in self.mutated:
                raise CaptureRefused("a graph on a GPU writes a tensor that is on the CPU", hint="move it to the GPU before the call")
            if _on_cpu(node) and any(tensor.dim() for tensor in _tensors(node)):
                self._copied_in(node, output)
        for node in nodes:
            if node.op == "get_attr" and _on_cpu(node):
                node.meta["val"] = self._moved(node.meta["val"])
            elif node.op == "call_function" and (_on_cpu(node) or self._names_cpu(node)):
                self._computed_there(node)
        for node, stays in zip(output.all_input_nodes, wanted, strict=True):
            if stays and not _on_cpu(node):
                self._copied_out(node, output)

    def _copied_in(self, node: torch.fx.Node, output: torch.fx.Node) -> None:
        users = [user for user in node.users if user is not output]
        if users:
            with self.graph.graph.inserting_after(self.placeholders[-1]):
                made = self._copy(node, self.device)
            for user in users:
                user.replace_input_with(node, made)

    def _copied_out(self, node: torch.fx.Node, output: torch.fx.Node) -> None:
        with self.graph.graph.inserting_before(output):
            output.replace_input_with(node, self._copy(node, _CPU))

    def _copy(self, node: torch.fx.Node, device: torch.device) -> torch.fx.Node:
        made = self.graph.graph.call_function(_COPY, (node,), {"device": device})
        with self.fake_mode:
            made.meta["val"] = torch.empty_like(node.meta["val"], device=device)
        return made

    def _moved(self, value: torch.Tensor) -> torch.Tensor:
        with self.fake_mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=self.device)

    def _names_cpu(self, node: torch.fx.Node) -> bool:
        return node.kwargs.get("device") == _CPU

    def _computed_there(self, node: torch.fx.Node) -> None:
        """The same operator on the GPU."""
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise CaptureRefused(f"a graph on a GPU draws random numbers on the CPU ({node.target})", hint="draw them on the GPU")
        if not _on_cpu(node):
            return
        if self._names_cpu(node):
            node.update_kwarg("device", self.device)
        args, kwargs = pytree.tree_map(self._value, (node.args, node.kwargs))
        with self.fake_mode:
            node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
        if _on_cpu(node):
            raise CaptureRefused(f"a graph on a GPU computes {node.target} on the CPU", hint="move its operands to the GPU")

    def _value(self, leaf: Any) -> Any:
        """An argument's fake value; what stays on the CPU as if it were on the GPU."""
        if not isinstance(leaf, torch.fx.Node):
            return leaf
        value = leaf.meta["val"]
        return self._moved(value) if isinstance(value, torch.Tensor) and value.device == _CPU else value


def _on_cpu(node: torch.fx.Node) -> bool:
    return any(tensor.device == _CPU for tensor in _tensors(node))


__all__ = ["on_one_device"]
