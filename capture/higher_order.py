"""Higher-order operators in an ATen graph: which are expanded into plain ops, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from precast.capture import mutating_ops


def expand_higher_order(module: torch.fx.GraphModule, fake_mode: Any, decompositions: Mapping[Any, Any]) -> None:
    """Replaces in place the higher-order operators that are plain ops in another form. Those that are left are lowered or refused."""
    found = True
    while found:
        found = False
        for node in list(module.graph.nodes):
            if node.op == "call_function" and node.target in (mutating_ops.V1, mutating_ops.V2):
                mutating_ops.unwrap_mutation(module, node, fake_mode, decompositions)
                found = True
    module.graph.lint()
