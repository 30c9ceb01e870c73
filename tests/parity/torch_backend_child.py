"""One process of test_torch_door: torch.compile(backend="precast") on a model with a graph break; prints what was compiled as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch._dynamo.backends import registry

from precast import torch_backend

if "precast" not in registry.list_backends():  # an editable install from before the entry point
    registry.register_backend(torch_backend.precast, name="precast")

REFUSED = (
    "precast.codegen",
    "precast.compiling.compile_graph",
    "precast.compiling.build_graph",
    "precast.compiling.driver",
    "torch._inductor.compile_fx",
)


class Refuse:
    """On sys.meta_path: nothing may load what compiles."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        assert not name.startswith(REFUSED), f"{name} is imported in a warm process"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.gelu(self.first(x))
        print("a graph break")
        return torch.softmax(self.second(x), dim=-1)


def main() -> None:
    compiled = graphs = 0
    if os.environ["REFUSE"] == "1":
        sys.meta_path.insert(0, Refuse())
    else:
        from precast.compiling import compile_graph

        real = compile_graph.compile_graph

        def counted(*args: Any) -> Any:
            nonlocal compiled
            compiled += 1
            return real(*args)

        compile_graph.compile_graph = counted

    torch.manual_seed(7)
    model = Net().eval()
    x = torch.randn(3, 8)
    run = torch.compile(model, backend="precast", mode="max-autotune")
    with torch.no_grad():
        for _ in range(2):
            got = run(x)
            torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    print(json.dumps({"compiled": compiled, "graphs": graphs, "values": got.flatten().tolist()}))


main()
