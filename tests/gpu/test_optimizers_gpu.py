"""Compiled steps of optimisers on a GPU: all parameters of a group in one launch, against eager's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast

STEPS = 5
SIZES = [(), (1,), (7,), (1024,), (1025,), (64, 3), (300, 513), (2_000_003,)]


def parameters(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(size, device="cuda", dtype=dtype)) for size in SIZES]


def gradients(params: list[torch.nn.Parameter], step: int) -> None:
    torch.manual_seed(step)
    for p in params:
        p.grad = torch.randn(p.shape, device="cuda").to(p.dtype)


def launches(call: Callable[[], Any]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum("Memcpy" not in e.name for e in events)


def compared(make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer], dtype: torch.dtype, store: Path) -> torch.optim.Optimizer:
    ours, theirs, exact = parameters(dtype), parameters(dtype), [p.detach().double().requires_grad_() for p in parameters(dtype)]
    optimizers = [make(ours), make(theirs), make(exact)]
    optimizers[0].step = precast.compile(optimizers[0].step, store=str(store))  # type: ignore[method-assign]
    for step in range(STEPS):
        for params in (ours, theirs):
            gradients(params, step)
        for p, q in zip(exact, theirs, strict=True):
            assert q.grad is not None
            p.grad = q.grad.double()
        for optimizer in optimizers:
            optimizer.step()
    for a, b, c in zip(ours, theirs, exact, strict=True):
        error, eager = ((x.double() - c).abs().max() for x in (a, b))
        assert error <= 2 * eager + 4 * torch.finfo(dtype).eps * c.abs().max()  # of one element rounding is luck
    return optimizers[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("capturable", [False, True])
def test_adamw(dtype: torch.dtype, capturable: bool, tmp_path: Path) -> None:
    optimizer = compared(lambda params: torch.optim.AdamW(params, 1e-2, capturable=capturable, foreach=True), dtype, tmp_path)
    assert launches(optimizer.step) <= (1 if not capturable else 4)


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adagrad", "Adadelta"])
def test_others(name: str, tmp_path: Path) -> None:
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    compared(lambda params: getattr(torch.optim, name)(params, lr=1e-2, **options), torch.float32, tmp_path)


def test_a_tensor_that_is_not_aligned(tmp_path: Path) -> None:
    """Rows are launched one by one where kernels cannot read one of them as it lies."""
    values = [torch.randn(4097, device="cuda")[1:], torch.randn(64, device="cuda")]
    ours, theirs = ([torch.nn.Parameter(v.clone() if copied else v) for v in values] for copied in (False, True))
    assert ours[0].data_ptr() % 16
    optimizers = [torch.optim.AdamW(params, 1e-2) for params in (ours, theirs)]
    optimizers[0].step = precast.compile(optimizers[0].step, store=str(tmp_path))  # type: ignore[method-assign]
    for step in range(3):
        for params in (ours, theirs):
            gradients(params, step)
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_groups_and_streams(tmp_path: Path) -> None:
    """Two groups share a kernel and have tables of their own, on whatever stream the step runs."""
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    made = [torch.optim.AdamW([{"params": p[:4], "weight_decay": 0.0}, {"params": p[4:]}], 1e-2) for p in (ours, theirs)]
    made[0].step = precast.compile(made[0].step, store=str(tmp_path))  # type: ignore[method-assign]
    side = torch.cuda.Stream()
    for step in range(8):
        for params in (ours, theirs):
            gradients(params, step)
        torch.cuda.synchronize()
        with torch.cuda.stream(side if step % 2 else torch.cuda.current_stream()):
            for optimizer in made:
                optimizer.step()
        torch.cuda.synchronize()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_in_a_cuda_graph(tmp_path: Path) -> None:
    """A graph that captures a step reads no table at its replays."""
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    made = [torch.optim.AdamW(params, 1e-2, capturable=True) for params in (ours, theirs)]
    made[0].step = precast.compile(made[0].step, store=str(tmp_path))  # type: ignore[method-assign]
    for params in (ours, theirs):
        gradients(params, 0)
    for optimizer in made:
        optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made[0].step()
    for _ in range(3):
        graph.replay()
        made[1].step()
    torch.cuda.synchronize()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
