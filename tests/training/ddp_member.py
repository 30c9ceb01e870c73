"""One of several processes that train together: `python -m tests.training.ddp_member RANK WORLD FOLDER CASE…`; prints JSON.

On CPUs, with gloo; where PRECAST_MEMBER_DEVICE is cuda, on a GPU each, with NCCL.

For each case: the losses of this rank's steps, compiled and eager, precast's warnings, and whether the tracer has been imported by then.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import precast
from precast.runtime.programs import compile_hook

STEPS = 10
KIND = os.environ.get("PRECAST_MEMBER_DEVICE", "cpu")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(F.gelu(self.first(x))))


class Deep(nn.Module):
    """Not of a class of torch's own, into which Dynamo does not look within DDP."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512), nn.Linear(512, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def inside(model: nn.Module, compiled: bool) -> nn.Module:
    return DistributedDataParallel(precast.compile(model) if compiled else model)


def in_place(model: nn.Module, compiled: bool) -> nn.Module:
    if compiled:
        precast.compile_module(model)
    return DistributedDataParallel(model)


def around(model: nn.Module, compiled: bool) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    return precast.compile(wrapped) if compiled else wrapped


def by_torch(model: nn.Module, compiled: bool) -> nn.Module:
    """torch.compile splits the graph where a bucket of gradients ends, so that each is exchanged while the next part runs backward."""
    deep = Deep().to(own_device())
    wrapped = DistributedDataParallel(deep, bucket_cap_mb=1)  # a bucket for each of the larger layers
    return torch.compile(wrapped, backend="precast") if compiled else wrapped  # type: ignore[return-value]


def sharded(model: nn.Module, compiled: bool) -> nn.Module:
    """Each block's `forward` is compiled, and torch's hooks around it run as they are."""
    if compiled:
        model.forward = precast.compile(model.forward)  # type: ignore[method-assign]
    fully_shard(model, mesh=init_device_mesh(KIND, (dist.get_world_size(),)))
    return model


def flat(model: nn.Module, compiled: bool) -> nn.Module:
    """FSDP of the first kind: parameters are views of one flat parameter while a block runs."""
    if compiled:
        precast.compile_module(model)
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=own_device())


def flat_around(model: nn.Module, compiled: bool) -> nn.Module:
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, device_id=own_device())
    return precast.compile(wrapped) if compiled else wrapped


class Synchronised(Net):
    """Its activations are centred over the batches of all ranks: a collective inside of the graph, forward and backward."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.first(x)
        gathered = collectives.all_gather_tensor_autograd(rows, 0, dist.group.WORLD)
        return self.second(self.norm(F.gelu(rows - gathered.mean(0))))


def with_collectives(model: nn.Module, compiled: bool) -> nn.Module:
    centred = Synchronised().to(own_device())
    return DistributedDataParallel(precast.compile(centred) if compiled else centred)


def sharded_around(model: nn.Module, compiled: bool) -> nn.Module:
    """What is not meant to be done: the hooks are traced, break the graph, and can be stored by nobody."""
    fully_shard(model, mesh=init_device_mesh(KIND, (dist.get_world_size(),)))
    return precast.compile(model) if compiled else model


def failing(model: nn.Module, compiled: bool) -> nn.Module:
    """The last rank cannot compile; each has a store of its own, so that it finds nothing that another one compiled."""
    if not compiled:
        return DistributedDataParallel(model)
    rank = dist.get_rank()
    if rank == dist.get_world_size() - 1:
        compile_hook.set_compiler(_broken)
    return DistributedDataParallel(precast.compile(model, store=f"{os.environ['PRECAST_STORE']}-{rank}"))


def _broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("the disk is on fire")


CASES: dict[str, Callable[[nn.Module, bool], nn.Module]] = {
    case.__name__: case
    for case in (inside, in_place, around, by_torch, sharded, sharded_around, flat, flat_around, with_collectives, failing)
}


def own_device() -> torch.device:
    return torch.device("cuda", dist.get_rank()) if KIND == "cuda" else torch.device("cpu")


def losses(case: Callable[[nn.Module, bool], nn.Module], compiled: bool) -> list[float]:
    torch.manual_seed(0)
    device = own_device()
    model = case(Net().to(device), compiled)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    found = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())  # each rank has batches of its own
        x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        found.append(loss.item())
    return found


@contextmanager
def group(rank: int, world: int, folder: str) -> Iterator[None]:
    given: dict[str, Any] = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": world}
    if KIND == "cuda":
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank), **given)
    else:
        dist.init_process_group("gloo", **given)
    try:
        yield
    finally:
        dist.destroy_process_group()


def main() -> None:
    rank, world, folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    told = {}
    with group(int(rank), int(world), folder):
        for name in names:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ours, eager = (losses(CASES[name], compiled) for compiled in (True, False))
            said = [str(w.message) for w in caught if "precast" in str(w.message)]
            traced = any(module.startswith("precast.capture") for module in sys.modules)
            told[name] = {"losses": ours, "eager": eager, "said": said, "traced": traced}
    print(json.dumps(told), flush=True)
    os._exit(0)  # gloo's threads hang now and then while Python ends, after a device mesh and DDP in one process; without precast, too


if __name__ == "__main__":
    main()
