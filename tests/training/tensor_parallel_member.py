"""One of several processes with sharded weights: `python -m tests.training.tensor_parallel_member RANK WORLD FOLDER CASE…`.

Each case has a store of its own: several call the same function. For each: whether results are eager's, in values and in what their specs
say, precast's warnings, how many variants there are, and whether the tracer has been imported by then; as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional as F

import precast
from precast.runtime.api.compile import site_of
from tests.support.refuse_tracer import refuse_tracer
from tests.training.ddp_member import group

Case = tuple[Callable[..., Any], list[tuple[Any, ...]]]
"""What is called, and with what: each of these is called twice."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.down(F.gelu(self.up(x))))


class Up(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x)


class Words(nn.Module):
    """Each rank has a part of the vocabulary, and masks the words of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x) * 2


def drawn(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(len(size) + size[0]))


def parallel(plan: dict[str, Any], mesh: DeviceMesh, module: type[nn.Module] = Net) -> nn.Module:
    torch.manual_seed(0)
    return parallelize_module(module(), mesh, plan)


def plain(mesh: DeviceMesh) -> Case:
    """Tensors go in and come out; only weights are sharded."""
    return parallel({"up": ColwiseParallel(), "down": RowwiseParallel()}, mesh), [(drawn(4, 8),)]


def sequence(mesh: DeviceMesh) -> Case:
    """Activations are sharded between the products, too: gathered and scattered in the graph."""
    plan = {
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        "norm": SequenceParallel(sequence_dim=0),
    }
    return parallel(plan, mesh), [(drawn(2, 8) + dist.get_rank(),)]


def given_back(mesh: DeviceMesh) -> Case:
    """The result's mesh is that of a weight, which no argument brings."""
    plan = {"up": ColwiseParallel(use_local_output=False)}
    return parallel(plan, mesh, Up), [(drawn(4, 8),)]


def product(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x @ y
    return z.relu(), z.sum()


def arguments(mesh: DeviceMesh) -> Case:
    x, y = drawn(4, 8), drawn(8, 6)
    return product, [(distribute_tensor(x, mesh, [Replicate()]), distribute_tensor(y, mesh, [Shard(1)]))]


def other_placements(mesh: DeviceMesh) -> Case:
    """Each way to lie on the mesh is another program: the results of one would be wrong for the others."""
    x, y = drawn(4, 8), drawn(8, 6)
    ways: list[tuple[Any, Any]] = [
        (Replicate(), Shard(1)),
        (Shard(0), Replicate()),
        (Shard(1), Shard(0)),
        (Replicate(), Replicate()),
        (Replicate(), Shard(1)),
    ]
    args: list[tuple[Any, ...]] = [(distribute_tensor(x, mesh, [a]), distribute_tensor(y, mesh, [b])) for a, b in ways]
    pending = DTensor.from_local(x + dist.get_rank(), mesh, [Partial()], run_check=False)
    return product, [*args, (pending, distribute_tensor(y, mesh, [Replicate()]))]


def cut(x: DTensor) -> Tensor:
    return x.redistribute(placements=[Shard(0)]).to_local() * 2


def own_rows(mesh: DeviceMesh) -> Case:
    """Which rows of a replicated tensor are this rank's is a constant of the graph."""
    return cut, [(distribute_tensor(drawn(4, 8), mesh, [Replicate()]),)]


def doubled(x: Tensor) -> Tensor:
    return x * 2


def uneven(mesh: DeviceMesh) -> Case:
    """Five rows for two ranks: the shards differ in size."""
    return doubled, [(distribute_tensor(drawn(5, 8), mesh, [Shard(0)]),)]


def words(mesh: DeviceMesh) -> Case:
    net = parallel({"table": RowwiseParallel(input_layouts=Replicate())}, mesh, Words)
    return net, [(torch.arange(10).view(2, 5),)]


def equal_mesh(mesh: DeviceMesh) -> Case:
    """Another mesh of the same kind: the result lies on the mesh of the call's own arguments."""
    again = init_device_mesh("cpu", (dist.get_world_size(),))
    return doubled, [(distribute_tensor(drawn(4, 8), m, [Shard(0)]),) for m in (mesh, again)]


def named_mesh(mesh: DeviceMesh) -> Case:
    """A mesh with a name for its dimension is another one."""
    named = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    return doubled, [(distribute_tensor(drawn(4, 8), m, [Shard(0)]),) for m in (mesh, named)]


def trained_plain(mesh: DeviceMesh) -> Case:
    net, _ = plain(mesh)
    return net, [(drawn(4, 8),), (drawn(4, 8).requires_grad_(),)]


def trained_sequence(mesh: DeviceMesh) -> Case:
    return sequence(mesh)


def trained_given_back(mesh: DeviceMesh) -> Case:
    return given_back(mesh)


def trained_arguments(mesh: DeviceMesh) -> Case:
    """Gradients of the arguments, and of results that lie on the mesh in several ways."""
    ways: list[tuple[Any, Any]] = [(Replicate(), Shard(1)), (Shard(0), Replicate()), (Shard(1), Shard(0))]
    given = [(distribute_tensor(drawn(4, 8), mesh, [a]), distribute_tensor(drawn(8, 6), mesh, [b])) for a, b in ways]
    return product, [(x.requires_grad_(), y.requires_grad_()) for x, y in given]


def trained_words(mesh: DeviceMesh) -> Case:
    return words(mesh)


CASES: dict[str, Callable[[DeviceMesh], Case]] = {
    case.__name__: case
    for case in (
        plain, sequence, given_back, arguments, other_placements, own_rows, uneven, words, equal_mesh, named_mesh,
        trained_plain, trained_sequence, trained_given_back, trained_arguments, trained_words,
    )
}  # fmt: skip


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for held in value:
            yield from leaves(held)
    else:
        yield value


def same(got: Any, wanted: Any) -> bool:
    """In values, and in all that a DTensor's spec says."""
    if type(got) is not type(wanted):
        return False
    if got is None:
        return True
    if not isinstance(got, DTensor):
        return torch.allclose(got, wanted, rtol=1e-4, atol=1e-5)
    parts = [got.to_local(), wanted.to_local()], [got.full_tensor(), wanted.full_tensor()]  # collectives: on all ranks, whatever is found
    told = got.placements == wanted.placements and got._spec == wanted._spec and got.requires_grad == wanted.requires_grad
    shown = got.shape == wanted.shape and got.stride() == wanted.stride() and got.dtype == wanted.dtype
    return told and shown and all(same(*pair) for pair in parts)


def placed(got: Any, called: Any, args: tuple[Any, ...], mesh: DeviceMesh) -> bool:
    """Whether a DTensor lies on the very mesh of an argument, or on one of a module."""
    weights = [*called.parameters()] if isinstance(called, nn.Module) else []
    meshes = [x.device_mesh for x in (*args, *weights) if isinstance(x, DTensor)] + [mesh] * bool(weights)
    return not isinstance(got, DTensor) or any(got.device_mesh is other for other in meshes)


def gradients(called: Any, results: list[Any], args: tuple[Any, ...]) -> list[Tensor | None]:
    """Those of the weights and the arguments, for a loss that weighs all elements differently."""
    wanted = [x for x in (*args, *(called.parameters() if isinstance(called, nn.Module) else ())) if x.requires_grad]
    for x in wanted:
        x.grad = None
    for result in results:
        whole = result.full_tensor() if isinstance(result, DTensor) else result
        if whole.requires_grad:
            (whole * torch.arange(1.0, whole.numel() + 1).view(whole.shape) / whole.numel()).sum().backward(retain_graph=True)
    return [x.grad for x in wanted]


def of_case(name: str) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    called, calls = CASES[name](mesh)
    compiled = precast.compile(called, store=f"{os.environ['PRECAST_STORE']}-{name}")
    recording = name.startswith("trained_")
    right = True
    with torch.set_grad_enabled(recording):
        for args in (given for given in calls for _ in range(3)):
            got, wanted = [*leaves(compiled(*args))], [*leaves(called(*args))]
            if recording:
                got, wanted = [got + gradients(called, got, args), wanted + gradients(called, wanted, args)]
            right &= all([same(*pair) for pair in zip(got, wanted, strict=True)])
            right &= all(placed(made, called, args, mesh) for made in got)
    return {"right": right, "variants": sum(len(program.variants) for program in site_of(compiled).programs)}


def main() -> None:
    rank, world, folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    told: dict[str, Any] = {}
    if os.environ.get("PRECAST_MEMBER_SERVES"):
        refuse_tracer()
    with group(int(rank), int(world), folder):
        for name in names:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = of_case(name)
            said = [str(w.message) for w in caught if "precast" in str(w.message)]
            traced = any(module.startswith("precast.capture") for module in sys.modules)
            told[name] = {**found, "said": said, "traced": traced}
        print(json.dumps(told), flush=True)
        os._exit(0)  # gloo's threads hang now and then while Python ends; without precast, too


if __name__ == "__main__":
    main()
