"""CUDA graphs of calls that record gradients on the device: traps for memory that is used twice, losses of loops, streams, memory."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precast
from precast.runtime.cuda_graphs.graphs import WARM_UPS
from tests.gpu.device import DEVICE
from tests.gpu.test_cuda_graphs_gpu import Made
from tests.support.processes import child
from tests.training.graph_traps import TRAPS, Block, Called, Convolutions, Trap, batches, compared, curve, gradients, mlp

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(DEVICE == "cpu", reason="the CPU has no CUDA graphs")]
Compile = Callable[..., Called]


@pytest.fixture(autouse=True)
def recording() -> Iterator[None]:
    with torch.enable_grad():
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def compiled(store: Path) -> Compile:
    def make(model: nn.Module, mode: str = "reduce-overhead") -> Called:
        return precast.compile(model, mode=mode, store=store, dynamic=False)

    return make


def replayed(made: Made) -> None:
    """Both halves were captured and replayed."""
    assert {graphs.name.rpartition(" ")[2] for graphs in made.graphs} >= {"(forward)", "(backward)"}
    assert all(graphs.player.plays > 0 for graphs in made.graphs) and not made.refused


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_as_eager_and_as_launched(trap: Trap, compiled: Compile) -> None:
    """As eager within rounding, and as the same artifact in the default mode, which runs the same kernels."""
    made = Made()
    compared(trap, compiled, lambda model: model, DEVICE, rtol=1e-2, atol=2e-3)
    replayed(made)
    compared(trap, compiled, lambda model: compiled(model, "default"), DEVICE, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["Block", "Block with dropout", "Convolutions"])
def test_losses_of_a_loop(name: str, dtype: torch.dtype, compiled: Compile) -> None:
    """Twenty steps; a loss lives on until the next step, and what is kept for the backward pass has memory once all the same."""
    torch.manual_seed(0)
    model: nn.Module = Convolutions() if name == "Convolutions" else Block(0.1 if "dropout" in name else 0.0)
    model = model.to(DEVICE, dtype)
    if name == "Convolutions":
        data = [torch.randn(6, 3, 8, 8, device=DEVICE, dtype=dtype) for _ in range(3)]
    else:
        data = [torch.randint(0, 50, (2, 8), device=DEVICE) for _ in range(3)]
    ours, launched = copy.deepcopy(model), copy.deepcopy(model)
    made = Made()
    got = curve(ours, compiled(ours), data)
    replayed(made)
    for graphs in made.graphs:
        assert graphs.player.plays == 20 - WARM_UPS
        assert sum(len(size.recordings) for size in graphs._sizes.values()) == 1
    torch.testing.assert_close(got, curve(launched, compiled(launched, "default"), data), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got, curve(model, model, data), rtol=5e-2 if dtype is torch.bfloat16 else 1e-2, atol=1e-3)
    for a, b, c in zip(ours.buffers(), launched.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a, c, rtol=5e-2, atol=1e-2)


def test_autocast_and_a_gradient_scaler(compiled: Compile) -> None:
    torch.manual_seed(0)
    eager = mlp().to(DEVICE)
    curves = []
    for model, called in ((eager, eager), (ours := copy.deepcopy(eager), compiled(ours))):
        optimizer, scaler, losses = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda"), []
        for x in batches(DEVICE, 12):
            with torch.autocast("cuda", torch.float16):
                loss = called(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        curves.append(losses)
    torch.testing.assert_close(curves[1], curves[0], rtol=2e-2, atol=1e-3)


def test_several_streams(compiled: Compile) -> None:
    """Steps on streams that change: each waits for what was enqueued on the one before."""
    torch.manual_seed(0)
    eager = mlp().to(DEVICE)
    ours = copy.deepcopy(eager)
    called, made = compiled(ours), Made()
    streams = [torch.cuda.Stream() for _ in range(3)]
    for step, x in enumerate(batches(DEVICE, 15)):
        stream = streams[step % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            called(x).square().mean().backward()
            got = gradients(ours)
        torch.cuda.current_stream().wait_stream(stream)
        eager(x).square().mean().backward()
        torch.cuda.synchronize()
        torch.testing.assert_close(got, gradients(eager), rtol=1e-2, atol=1e-4)
    assert not made.refused


def test_memory_of_a_long_run_is_flat(compiled: Compile) -> None:
    """Two hundred steps with calls whose backward pass never comes, results and gradients that are kept for a while."""
    torch.manual_seed(0)
    model = mlp().to(DEVICE)
    called, made = compiled(model), Made()
    kept: list[Any] = []
    sizes = []
    for step in range(200):
        x = torch.randn(4, 16, device=DEVICE)
        out = called(x)
        if step % 5 == 0:
            kept.append(called(x))
        out.square().mean().backward()
        if step % 7 == 0:
            kept.append([p.grad for p in model.parameters()])
        model.zero_grad(set_to_none=step % 3 != 0)
        if step % 20 == 19:
            kept.clear()
            del out
            model.zero_grad()
            gc.collect()
            sizes.append(torch.cuda.memory_allocated())
    assert not made.refused
    assert max(sizes[6:]) <= sizes[6], sizes


MEMORY = """
import gc, json, sys, tempfile, torch, precast
from torch import nn
from precast.artifact_store import Store
kind, mode = sys.argv[1:3]
torch.manual_seed(0)
if kind == "convolutions":
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())]
    model, x = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10)).cuda(), torch.randn(32, 32, 64, 64, device="cuda")
    model(x)
else:
    layers = [nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True) for _ in range(4)]
    model, x = nn.Sequential(*layers).cuda(), torch.randn(16, 256, 256, device="cuda")
called = precast.compile(model, mode=mode, store=Store.open(tempfile.mkdtemp()), dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
own = {p.untyped_storage().data_ptr() for p in [*model.parameters(), x]}
kept = {}
def pack(tensor):
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in own:
        kept[storage.data_ptr()] = storage.nbytes()
    return tensor
def step():
    out = called(x)
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return out
out = None
for i in range(12):
    if i == 6:
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
    out = step()
peak = torch.cuda.max_memory_allocated()
with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
    step()
torch.cuda.synchronize()
print(json.dumps({"peak": peak, "reserved": torch.cuda.max_memory_reserved(), "kept": sum(kept.values()), "loss": float(out.sum())}))
"""


@pytest.mark.parametrize("kind", ["convolutions", "transformer"])
def test_memory(kind: str, tmp_path: Path) -> None:
    """At the peak, no more than in the default mode and what is kept; a result lives on until the next step."""
    launched, graphs = (json.loads(child(tmp_path, MEMORY, kind, mode).splitlines()[-1]) for mode in ("default", "reduce-overhead"))
    print(kind, launched, graphs)
    assert graphs["kept"] == pytest.approx(launched["kept"], rel=0.05)
    assert graphs["peak"] <= launched["peak"] + launched["kept"], (launched, graphs)
