"""functorch's partitioner: a joint graph -> a forward and a backward graph. Private to torch: imported here only."""

from __future__ import annotations

import torch.fx
from torch._functorch import config, partitioners
from torch._functorch.partitioners import min_cut_rematerialization_partition


def asks_for_a_budget(graph: torch.fx.Graph) -> bool:
    """Whether the program, or a setting, says how much the forward pass may keep: the partitioner then chooses."""
    annotation = getattr(partitioners, "_get_memory_budget_annotation", lambda node: None)  # from torch 2.14 on
    if config.activation_memory_budget != 1.0:
        return True
    return any("memory_budget" in node.meta or annotation(node) is not None for node in graph.nodes)


__all__ = ["asks_for_a_budget", "min_cut_rematerialization_partition", "partitioners"]
