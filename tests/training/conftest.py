"""Every test of training records gradients, which the others do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from precast.capture.aten import aot_autograd


@pytest.fixture(autouse=True)
def recording() -> Iterator[None]:
    with torch.enable_grad():
        yield


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.Node]:
    """What the forward graph keeps for the backward graph, inputs and results apart."""
    found: list[torch.fx.Node] = []
    cut = aot_autograd.cut

    def seen(joint: torch.fx.GraphModule, metadata: Any, memory: str) -> Any:
        forward, backward = cut(joint, metadata, memory)
        values: Any = next(iter(forward.graph.find_nodes(op="output"))).args[0]
        results = set(values[: metadata.num_forward])
        found.extend(n for n in values[metadata.num_forward :] if n.op != "placeholder" and n not in results)
        return forward, backward

    monkeypatch.setattr(aot_autograd, "cut", seen)
    return found
