"""Jobs that run for long, are killed and go on, or meet an error in a backward pass: memory stays flat, and the next step is right."""

from __future__ import annotations

import copy
import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precast
from tests.support.processes import REFUSE


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Dropout(0.2), nn.Linear(256, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(F.gelu(self.norm(self.first(x)))))


def step(model: Callable[[Tensor], Tensor], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    return F.cross_entropy(model(torch.randn(32, 64, generator=generator)), torch.randint(0, 8, (32,), generator=generator))


def resident() -> int:
    """Bytes of this process's memory that are in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def live() -> int:
    gc.collect()
    return sum(issubclass(type(value), Tensor) for value in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True], ids=["once", "graph kept for a second pass"])
def test_memory_is_flat_over_200_steps(kept: bool, tmp_path: Path) -> None:
    """Neither tensors nor bytes grow: a batch of activations is 100 kB here, so that 200 of them would show."""
    net = Net()
    compiled = precast.compile(net, store=tmp_path, fullgraph=True)
    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.step = precast.compile(optimizer.step, store=tmp_path)  # type: ignore[method-assign]
    found = []
    for number in range(240):
        loss = step(compiled, number)
        if kept:
            loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number in (39, 139, 239):
            found.append((live(), resident()))
    counts, sizes = zip(*found, strict=True)
    assert counts[0] >= counts[1] == counts[2], found
    assert max(sizes) - sizes[0] < 8 << 20, found


JOB = """
import os, signal, sys
import torch
import precast
from torch import nn
from pathlib import Path
{net}

folder, kill_at, compiled = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "compiled"
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
called = model
if compiled:
    called = precast.compile(model, store=folder / "store", fullgraph=True)
    optimizer.step = precast.compile(optimizer.step, store=folder / "store")
saved, start = folder / f"{{sys.argv[3]}}.pt", 0
if saved.exists():
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
for number in range(start, 6):
    generator = torch.Generator().manual_seed(number)
    torch.manual_seed(number)
    x, y = torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)
    loss = nn.functional.cross_entropy(called(x), y)
    if number == kill_at:
        model.first.weight.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number + 1}}
    torch.save(state, folder / "part")
    os.replace(folder / "part", saved)
    print(number, loss.item(), flush=True)
"""
SMALL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))
"""


def job(folder: Path, *arguments: str, warm: bool = False) -> tuple[int, list[tuple[int, float]]]:
    """The job's exit status, and the steps that it reports. `warm`: with the tracer refused to precast."""
    (folder / "job.py").write_text(JOB.format(net=SMALL))
    code = REFUSE + "\nattempts = refuse_tracer()\nimport job\nassert not attempts, attempts\n" if warm else "import job"
    command = [sys.executable, "-W", "ignore", "-c", code, str(folder), *arguments]
    done = subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, [(int(number), float(loss)) for number, loss in lines]


@pytest.mark.slow
def test_a_job_that_is_killed_in_a_backward_pass_goes_on_warm(tmp_path: Path) -> None:
    """The losses are those of an eager job that ran through; after the restart nothing is traced, of the model and of the optimiser."""
    status, before = job(tmp_path, "2", "compiled")
    assert status == -signal.SIGKILL and [number for number, _ in before] == [0, 1]
    status, after = job(tmp_path, "-1", "compiled", warm=True)
    assert status == 0 and [number for number, _ in after] == [2, 3, 4, 5]
    _, eager = job(tmp_path, "-1", "eager")
    assert [loss for _, loss in (*before, *after)] == pytest.approx([loss for _, loss in eager], rel=1e-4)


def raised(kind: type[BaseException]) -> Callable[[Tensor], None]:
    def stop(gradient: Tensor) -> None:
        raise kind("stop")

    return stop


def interrupted(gradient: Tensor) -> None:
    signal.raise_signal(signal.SIGINT)


FAULTS: dict[str, tuple[str, Callable[[Tensor], None], type[BaseException]]] = {
    "an exception in a hook on a result": ("result", raised(ValueError), ValueError),
    "an exception in a hook on a parameter": ("parameter", raised(ValueError), ValueError),
    "an interrupt in a hook on a result": ("result", interrupted, KeyboardInterrupt),
    "an interrupt in a hook on a parameter": ("parameter", interrupted, KeyboardInterrupt),
    "no memory in a hook on a result": ("result", raised(MemoryError), MemoryError),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_in_a_backward_pass_leaves_what_eager_leaves(fault: str, store: Path) -> None:
    """The gradients that are there after it, and those of the next steps."""
    place, hook, kind = FAULTS[fault]
    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net)
    compiled = precast.compile(net, store=store, fullgraph=True)
    for module, called in ((net, compiled), (twin, twin)):
        step(called, 0).backward()
        if place == "parameter":
            handle = module.first.weight.register_hook(hook)
            loss = step(called, 1)
        else:
            torch.manual_seed(1)
            result = called(torch.ones(32, 64))
            handle = result.register_hook(hook)
            loss = result.sum()
        with pytest.raises(kind):
            loss.backward()
        handle.remove()
        del loss
        module.zero_grad()
        for number in (2, 3):
            step(called, number).backward()
    torch.testing.assert_close([p.grad for p in net.parameters()], [p.grad for p in twin.parameters()], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(net.named_buffers()), dict(twin.named_buffers()))


SHORT = """
import resource, sys
import torch
import precast

def program(x, y):
    return (x.sin() * y).exp() @ y

def inputs():
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(3000, 3000, generator=generator) * 0.01).requires_grad_() for _ in range(2)]

compiled = precast.compile(program, store=sys.argv[1], fullgraph=True)
given = inputs()
compiled(*given).sum().backward()  # library calls have set themselves up
want = [t.grad.clone() for t in given]
for t in given:
    t.grad = None
unlimited = resource.getrlimit(resource.RLIMIT_AS)
for where in ("backward", "forward"):
    if where == "backward":
        loss = compiled(*given).sum()
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), unlimited[1]))
    try:
        if where == "forward":
            loss = compiled(*given)
        else:
            loss.backward()
    except (RuntimeError, MemoryError) as error:
        print(type(error).__name__, "memory" in str(error))
    else:
        print("no error")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
    assert all(t.grad is None for t in given), where
    compiled(*given).sum().backward()
    for t, gradient in zip(given, want):
        torch.testing.assert_close(t.grad, gradient)
        t.grad = None
"""


@pytest.mark.slow
def test_memory_that_is_not_there(tmp_path: Path) -> None:
    """A limit on this process's memory: the call, or the backward pass, raises as torch does, and the next one is right."""
    command = [sys.executable, "-W", "ignore", "-c", SHORT, str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and done.stdout == "RuntimeError True\n" * 2, done.stdout + done.stderr
