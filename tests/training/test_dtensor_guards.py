"""What a stored program on DTensors is valid for: one process, in a group of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import precast
from precast.artifact_store import Store
from precast.artifact_store.format.tagged_constants import tag, untag

pytestmark = [
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"),
    pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.11 pins the objects of process groups"),
    pytest.mark.usefixtures("fresh_tracer", "native_store"),
]


@pytest.fixture(autouse=True)
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def doubled(x: Tensor) -> Tensor:
    return x * 2


def sharded(placement: Any = None, *size: int, name: str | None = None, dtype: torch.dtype = torch.float32) -> DTensor:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=None if name is None else (name,))
    return DTensor.from_local(torch.ones(size or (4, 2), dtype=dtype), mesh, [placement or Shard(0)], run_check=False)


def of_another_shape() -> DTensor:
    """Locally as the others, but a part of a longer tensor."""
    mesh = init_device_mesh("cpu", (1,))
    return DTensor.from_local(torch.ones(4, 2), mesh, [Shard(0)], run_check=False, shape=torch.Size((3, 2)), stride=(2, 1))


def of_another_stride() -> DTensor:
    mesh = init_device_mesh("cpu", (1,))
    return DTensor.from_local(torch.ones(4, 2), mesh, [Shard(0)], run_check=False, shape=torch.Size((4, 2)), stride=(1, 4))


OTHERS: dict[str, Callable[[], Any]] = {
    "another dimension is sharded": lambda: sharded(Shard(1)),
    "replicated": lambda: sharded(Replicate()),
    "pending": lambda: sharded(Partial()),
    "pending otherwise": lambda: sharded(Partial("avg")),
    "a mesh with names": lambda: sharded(name="tp"),
    "another size": lambda: sharded(None, 6, 2),
    "another global size": of_another_shape,
    "another global stride": of_another_stride,
    "another dtype": lambda: sharded(dtype=torch.float64),
    "requires gradients": lambda: sharded().requires_grad_(),
    "a plain tensor": lambda: torch.ones(4, 2),
}


def test_whatever_a_dtensor_says_otherwise_is_a_miss(store: Store) -> None:
    with torch.no_grad():
        compiled = precast.compile(doubled, store=store, fullgraph=True)
        for _ in range(4):
            assert isinstance(compiled(sharded()), DTensor)
        loaded = precast.load(doubled, store=store, options={"fullgraph": True})
        x = sharded()
        made = loaded(x)
        assert made._spec == doubled(x)._spec and made.device_mesh is x.device_mesh  # type: ignore[attr-defined]
        for other in OTHERS.values():
            with pytest.raises(precast.GuardMiss):
                loaded(other())
        assert isinstance(loaded(sharded()), DTensor)


@pytest.mark.parametrize("placement", [Shard(1), Replicate(), Partial(), Partial("max"), _StridedShard(0, split_factor=2)], ids=str)
def test_placements_are_told_to_other_processes(placement: Any) -> None:
    again = untag(tag(placement))
    assert again == placement and type(again) is type(placement)
    assert tag(placement) != tag(Shard(0))


def written(x: Any) -> Any:
    return x.mul_(2)


def viewed(x: Any) -> Any:
    return x[0]


def local(x: Any) -> Any:
    return x.to_local()


def transposed(x: Any) -> Any:
    return x.t(), x + 1


@pytest.mark.parametrize("function", [written, viewed, local, transposed])
def test_what_is_not_compiled_runs_eagerly_with_the_reason(function: Callable[[Any], Any], store: Store) -> None:
    """Views have a history that no backward graph holds."""

    def gradient(call: Callable[[Any], Any]) -> Tensor:
        x = sharded().requires_grad_()
        made = call(x * 1 if function is written else x)
        for result in made if isinstance(made, tuple) else (made,):
            (result.to_local() if isinstance(result, DTensor) else result).square().sum().backward()
        assert isinstance(x.grad, DTensor)
        return x.grad.to_local()

    with torch.enable_grad():
        with pytest.warns(UserWarning, match="records gradients of DTensors|a view of a tensor subclass"):
            found = gradient(precast.compile(function, store=store))
        assert torch.equal(found, gradient(function))
