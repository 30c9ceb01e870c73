"""Code that knows of other processes: collectives in compiled code, and ranks that it asks for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import precast
from precast.artifact_store import Store
from precast.artifact_store.format.guards import Guard
from precast.capture import capture
from tests.training.test_ddp import together

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo")
MEMBER = "tests.training.collectives_member"
FOR_ALL = ("by_group", "by_ranks", "with_gradients", "in_place")
"""One artifact for all ranks."""
FOR_EACH = ("asks_for_its_rank", "asks_its_group")
"""One for each rank."""
groups_have_guards = pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.11 pins the objects of process groups")


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The store, and what each rank has to tell of all cases."""
    folder = tmp_path_factory.mktemp("collectives")
    return folder / "store", together(folder / "cold", folder / "store", *FOR_ALL, *FOR_EACH, member=MEMBER)


@pytest.mark.slow
@groups_have_guards
def test_collectives_are_eager_s_on_every_rank(cold: tuple[Path, list[dict[str, Any]]]) -> None:
    for told in cold[1]:
        assert all(case["right"] for case in told.values()), told
        assert not any(told[name]["said"] for name in (*FOR_ALL, *FOR_EACH)), told


@pytest.mark.slow
@groups_have_guards
def test_one_artifact_for_all_ranks_and_one_for_each_where_code_asks(cold: tuple[Path, list[dict[str, Any]]]) -> None:
    names = [manifest.program_name.rpartition(":")[2] for manifest in Store.open(cold[0]).manifests()]
    assert sorted(names) == sorted((*FOR_ALL, *FOR_EACH, *FOR_EACH))


@pytest.mark.slow
@groups_have_guards
def test_fresh_processes_trace_nothing(cold: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    for told in together(tmp_path / "warm", cold[0], *FOR_ALL, *FOR_EACH, member=MEMBER):
        assert all(case["right"] and not case["traced"] for case in told.values()), told


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def guards_of(function: Any) -> set[str]:
    """What the frame of the function is valid under, of process groups."""
    frame = capture(function, (torch.ones(2),))
    assert not frame.uncacheable, frame.uncacheable
    return {
        f"{step_names(guard)} {guard.constant}" for guard in frame.guards if "distributed" in str(guard.path) or "GROUP" in str(guard.path)
    }


def step_names(guard: Guard) -> str:
    return ".".join(str(step[-1]) for step in guard.path[1:]) or str(guard.path[0][-1])


def plain(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def times_rank(x: torch.Tensor) -> torch.Tensor:
    return x * (dist.get_rank() + 1)


def is_met(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if dist.is_initialized() else x * 3


def test_ranks_are_guarded_where_code_asks_for_them(one_process: None) -> None:
    """The answer is asked again at each call, and nothing of it is in the guards of other code."""
    assert not guards_of(plain)
    asked = (("global", "torch.distributed.distributed_c10d", "get_rank"), ("call",))
    found = [guard for guard in capture(times_rank, (torch.ones(2),)).guards if guard.path == asked]
    assert [guard.constant for guard in found] == [("int", 0)]


@pytest.mark.slow
def test_what_is_asked_again_misses_where_the_answer_is_another(one_process: None, tmp_path: Path) -> None:
    ranked, met = (precast.compile(function, store=tmp_path / "store") for function in (times_rank, is_met))
    assert torch.equal(ranked(torch.ones(2)), torch.ones(2)) and torch.equal(met(torch.ones(2)), torch.ones(2) * 2)
    dist.destroy_process_group()
    assert torch.equal(met(torch.ones(2)), torch.ones(2) * 3)
    with pytest.raises(ValueError, match="Default process group"):  # as eager does
        ranked(torch.ones(2))


GROUP: Any = None


def of_group(x: torch.Tensor) -> torch.Tensor:
    return x * (GROUP.rank() + 1) + GROUP.size()


@groups_have_guards
def test_a_group_is_asked_again(one_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "GROUP", dist.group.WORLD)
    found = {step_names(guard): guard.constant for guard in capture(of_group, (torch.ones(2),)).guards if "GROUP" in str(guard.path)}
    assert found["rank"] == ("int", 0) and found["size"] == ("int", 1) and "group_name" in found


def test_what_is_sharded_first_gets_a_warning(one_process: None) -> None:
    """Of the module itself, and of one that has it; what was compiled first gets none."""
    fully_shard, mesh = pytest.importorskip("torch.distributed.fsdp").fully_shard, dist.device_mesh.init_device_mesh("cpu", (1,))
    block = torch.nn.Linear(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        precast.compile(block)
        block.forward = precast.compile(block.forward)  # type: ignore[method-assign]
        fully_shard(block, mesh=mesh)
    with pytest.warns(UserWarning, match="Linear is compiled after fully_shard was called on it"):
        precast.compile(block)
    model = torch.nn.Sequential(block)
    with pytest.warns(UserWarning, match="fully_shard was called on its module 0: .* then fully_shard"):
        precast.compile_module(model)
