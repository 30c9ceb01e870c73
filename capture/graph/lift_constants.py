"""Tensors made from literals in traced code -> explicit graph inputs whose bytes the frame record carries."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.fx

from precast.artifact_store.format.records import TensorConstant
from precast.capture.adapters.fake_tensors import FakeTensor
from precast.capture.common.captured_frame import CaptureRefused


def lift_constants(graph: torch.fx.GraphModule, inputs: int) -> tuple[torch.fx.GraphModule, tuple[TensorConstant, ...]]:
    """Replace each tensor attribute of the graph by a placeholder after the `inputs` first ones. The graph is changed in place."""
    constants: list[TensorConstant] = []
    placeholders: dict[str, torch.fx.Node] = {}
    last = [n for n in graph.graph.nodes if n.op == "placeholder"]
    for node in [n for n in graph.graph.nodes if n.op == "get_attr"]:
        value = getattr(graph, str(node.target), None)
        if not isinstance(value, torch.Tensor):
            continue
        new = placeholders.get(str(node.target))
        if new is None:
            with _after(graph, last):
                new = graph.graph.placeholder(f"constant_{len(constants)}")
            new.meta["val"] = node.meta.get("val", value)
            last.append(new)
            placeholders[str(node.target)] = new
            constants.append(_constant(value, new.meta["val"].device.type))
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
    assert len(last) == inputs + len(constants)
    if constants:
        graph.recompile()
    return graph, tuple(constants)


def _after(graph: torch.fx.GraphModule, placeholders: list[torch.fx.Node]) -> AbstractContextManager[None]:
    if placeholders:
        return graph.graph.inserting_after(placeholders[-1])
    return graph.graph.inserting_before(next(iter(graph.graph.nodes)))


def _constant(value: torch.Tensor, device: str) -> TensorConstant:
    """`device`: where the graph takes it."""
    if isinstance(value, FakeTensor) or value.layout is not torch.strided:
        raise CaptureRefused("the traced code holds a tensor constant whose elements are not known")
    dense = value.detach().cpu().contiguous()
    data = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return TensorConstant(str(value.dtype).removeprefix("torch."), tuple(value.shape), data, device)


__all__ = ["lift_constants"]
