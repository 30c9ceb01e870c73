"""Storage aliasing in an ATen graph: which nodes are views of one storage, and how far each reaches into it."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from precast.runtime.paths.fake_tensors import storage_of


def is_strided(node: torch.fx.Node) -> bool:
    """Whether the node's value is a tensor with sizes and strides over a storage."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def shown_storage(node: torch.fx.Node) -> int:
    """The identity of a strided node's storage; equal for nodes that share one."""
    return storage_of(node.meta["val"])


def shared_storages(values: list[Any]) -> dict[int, torch.fx.Node]:
    """Storage -> the node to return as a raw output, for each storage that several output nodes are views of."""
    groups: dict[int, list[torch.fx.Node]] = {}
    for value in values:
        if isinstance(value, torch.fx.Node) and is_strided(value) and value not in (group := groups.setdefault(shown_storage(value), [])):
            group.append(value)
    shared = {key: group for key, group in groups.items() if len(group) > 1}
    return {key: owner(group, key) for key, group in shared.items()}


def owner(group: list[torch.fx.Node], storage: int) -> torch.fx.Node:
    """The first node that made the storage: walking views (parts of a split too) back to what they are views of."""
    node = group[0]
    while True:
        sources = node.all_input_nodes
        if node.target is operator.getitem:
            sources = sources[0].all_input_nodes
        back = [n for n in sources if is_strided(n) and shown_storage(n) == storage]
        if not back:
            return node
        node = back[0]


def reach(node: torch.fx.Node) -> Any:
    """One past the last byte of the storage that the tensor uses. It tells a part made by unsafe_split, which counts as memory of its own,
    from the part at the front of the storage."""
    value = node.meta["val"]
    last = value.storage_offset() + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return (last + 1) * value.element_size() if not bool(value.numel() == 0) else 0


__all__ = ["is_strided", "owner", "reach", "shared_storages", "shown_storage"]
