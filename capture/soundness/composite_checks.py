"""Checks of arguments that eager makes inside of composite operators, and leaves out where tensors have no data, as while tracing."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

QUANTILES = (torch.quantile, torch.nanquantile, "quantile", "nanquantile")
OUTSIDE = "quantile() q values must be in the range [0, 1]"


def quantiles_tested(gm: torch.fx.GraphModule) -> None:
    """Quantiles that are a tensor on the CPU have to lie between 0 and 1; on a GPU eager does not look, so as not to wait for it."""
    for node in [n for n in gm.graph.nodes if n.op in ("call_function", "call_method") and n.target in QUANTILES]:
        shares: Any = node.kwargs.get("q", node.args[1] if len(node.args) > 1 else None)
        value = shares.meta.get("example_value") if isinstance(shares, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            continue
        with gm.graph.inserting_before(node):
            inside = [_call(gm, value, compare, shares, end) for compare, end in ((torch.ge, 0), (torch.le, 1))]
            both = _call(gm, value, torch.logical_and, *inside)
            _call(gm, value, torch._assert_async, _call(gm, value, torch.all, both), OUTSIDE)
    gm.recompile()


def _call(gm: torch.fx.GraphModule, like: torch.Tensor, function: Any, *args: Any) -> torch.fx.Node:
    node: torch.fx.Node = gm.graph.call_function(function, args)
    if function is not torch._assert_async:
        shown = [a.meta["example_value"] if isinstance(a, torch.fx.Node) else a for a in args]
        with like.fake_mode:  # type: ignore[attr-defined]
            node.meta["example_value"] = function(*shown)
    return node


__all__ = ["quantiles_tested"]
