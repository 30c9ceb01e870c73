"""Operators: custom ones, decompositions, lazily written graph modules. Private to torch: imported here only."""

from __future__ import annotations

from torch._decomp import core_aten_decompositions
from torch._decomp.decompositions import upsample_compute_output_size
from torch._decomp.decompositions_for_rng import PhiloxStateTracker
from torch._library import custom_ops, simple_registry, utils
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

__all__ = [
    "PhiloxStateTracker",
    "_make_graph_module",
    "_use_lazy_graph_module",
    "core_aten_decompositions",
    "custom_ops",
    "simple_registry",
    "upsample_compute_output_size",
    "utils",
]
