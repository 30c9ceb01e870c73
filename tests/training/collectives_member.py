"""One of several processes that compile what they do together: `python -m tests.training.collectives_member RANK WORLD FOLDER CASE…`.

For each case: whether results and gradients are eager's, precast's warnings, and whether the tracer has been imported by then; as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor

import precast
from tests.training.ddp_member import group


def by_group(x: Tensor, weight: Tensor) -> Tensor:
    """Two independent collectives, whose order has to be the same on all ranks, and one that takes the results of both."""
    world = dist.group.WORLD
    first = collectives.all_reduce(x @ weight, "sum", world)
    second = collectives.all_gather_tensor((x * 2)[:2], 0, world)
    return collectives.reduce_scatter_tensor(torch.cat((first, second)).sin(), "sum", 0, world)


def by_ranks(x: Tensor, weight: Tensor) -> Tensor:
    return collectives.all_reduce(x @ weight, "sum", [0, 1])


def with_gradients(x: Tensor, weight: Tensor) -> Tensor:
    world = dist.group.WORLD
    gathered = collectives.all_gather_tensor_autograd(x @ weight, 0, world)
    return collectives.reduce_scatter_tensor_autograd(gathered.sin(), "sum", 0, world).tanh()


def in_place(x: Tensor, weight: Tensor) -> Tensor:
    y = x @ weight
    dist.all_reduce(y)
    return y * 2


def asks_for_its_rank(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight) * (dist.get_rank() + 1) + dist.get_world_size()


def asks_its_group(x: Tensor, weight: Tensor) -> Tensor:
    world = dist.group.WORLD
    assert world is not None
    return (x @ weight) * (world.rank() + 1) + world.size()


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    f.__name__: f for f in (by_group, by_ranks, with_gradients, in_place, asks_for_its_rank, asks_its_group)
}


def of_function(name: str) -> bool:
    function, rank = FUNCTIONS[name], dist.get_rank()
    compiled = precast.compile(function)
    recording = name == "with_gradients"
    results = []
    for call in (function, compiled, compiled):
        x = torch.arange(16.0).view(4, 4) / 10 + rank
        weight = (torch.eye(4) * 2).requires_grad_(recording)
        with torch.set_grad_enabled(recording):
            result = call(x, weight)
            if recording:
                result.sum().backward()
        results.append((result.detach(), weight.grad))
    eager, *ours = results
    return all(torch.allclose(a, b) for mine in ours for a, b in zip(mine, eager, strict=True) if a is not None and b is not None)


def main() -> None:
    rank, world, folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    told: dict[str, Any] = {}
    with group(int(rank), int(world), folder):
        for name in names:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                right = of_function(name)
            said = [str(w.message) for w in caught if "precast" in str(w.message)]
            traced = any(module.startswith("precast.capture") for module in sys.modules)
            told[name] = {"right": right, "said": said, "traced": traced}
        print(json.dumps(told), flush=True)
        os._exit(0)  # gloo's threads hang now and then while Python ends; without precast, too


if __name__ == "__main__":
    main()
