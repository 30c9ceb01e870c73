"""Where and when a compiled program runs: torch's current stream, several threads, another device than the current one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import precast
from precast.artifact_store import Store
from tests.gpu.device import DEVICE, poison

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(DEVICE == "cpu", reason="streams are a GPU's")]
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device here")
MODES = (None, "reduce-overhead")


class Net(torch.nn.Module):
    """Products, a row reduction and pointwise work: library calls, own kernels and a workspace in one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
        self.norm = torch.nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 64) -> (n, 64)"""
        hidden = torch.nn.functional.gelu(self.first(x))
        return self.norm(self.second(hidden) + x).softmax(-1)


def net(device: str = "cuda") -> Net:
    torch.manual_seed(0)
    return Net().to(device).eval().requires_grad_(False)


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_work_is_ordered_on_the_current_stream(mode: str | None, tmp_path: Path) -> None:
    """The input is written late on a side stream, and the output read there: only that stream's order makes the answer right."""
    model = net()
    stream = torch.cuda.Stream()
    with torch.no_grad():
        call = precast.compile(model, store=tmp_path, mode=mode)
        x = torch.randn(32, 64, device="cuda")
        for _ in range(3):
            call(x)
        torch.cuda.synchronize()
        for number in range(5):
            source = torch.randn(32, 64, device="cuda")
            want = model(source)
            late = torch.zeros(32, 64, device="cuda")
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                late.copy_(source)
                got = call(late).clone()
                late.fill_(float("nan"))
            stream.synchronize()
            near(got, want)
            assert number >= 0


def test_two_streams_at_once_do_not_share_a_workspace(tmp_path: Path) -> None:
    model = net()
    streams = [torch.cuda.Stream() for _ in range(4)]
    with torch.no_grad():
        call = precast.compile(model, store=tmp_path)
        inputs = [torch.randn(512, 64, device="cuda") for _ in streams]
        wants = [model(x) for x in inputs]
        torch.cuda.synchronize()
        for _ in range(20):
            outputs = []
            for stream, x in zip(streams, inputs, strict=True):
                with torch.cuda.stream(stream):
                    outputs.append(call(x))
            torch.cuda.synchronize()
            for got, want in zip(outputs, wants, strict=True):
                near(got, want)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_threads_with_streams_of_their_own(mode: str | None, tmp_path: Path) -> None:
    """Eight threads begin at once, with a cold program: one compiles, all answer right, whatever the others do."""
    model = net()
    call = precast.compile(model, store=tmp_path, mode=mode)
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        try:
            generator = torch.Generator(device="cuda").manual_seed(seed)
            stream = torch.cuda.Stream()
            start.wait()
            with torch.no_grad(), torch.cuda.stream(stream):
                for _ in range(30):
                    x = torch.randn(64, 64, device="cuda", generator=generator)
                    got = call(x).clone()
                    want = model(x)
                    stream.synchronize()
                    near(got, want)
        except BaseException as failure:  # noqa: BLE001 - shown by the test
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert not failures, failures[0]


@two_devices
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_two_devices_share_an_artifact(mode: str | None, tmp_path: Path) -> None:
    """The tensors' device counts, whichever is current; what is compiled for one serves the other."""
    models = [net(f"cuda:{index}") for index in range(2)]
    with torch.no_grad():
        for current in range(2):
            with torch.cuda.device(current):
                for index, model in enumerate(models):
                    call = precast.compile(model, store=tmp_path, mode=mode)
                    for _ in range(4):
                        x = torch.randn(32, 64, device=f"cuda:{index}")
                        got = call(x)
                        assert got.device == x.device
                        near(got, model(x))
                    assert torch.cuda.current_device() == current
    store = Store.open(tmp_path)
    stored = [m for place in (tmp_path / "programs").glob("*") for m in store.variants(place.name)]
    assert len(stored) == 1, [m.program_name for m in stored]


@two_devices
def test_a_program_on_two_devices_in_two_threads(tmp_path: Path) -> None:
    models = [net(f"cuda:{index}") for index in range(2)]
    calls = [precast.compile(model, store=tmp_path) for model in models]
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(50):
                    x = torch.randn(32, 64, device=f"cuda:{index}")
                    near(calls[index](x), models[index](x))
        except BaseException as failure:  # noqa: BLE001 - shown by the test
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures[0]


def test_inside_a_captured_graph_of_the_users_own(tmp_path: Path) -> None:
    """The default mode's program can be recorded by `torch.cuda.graph`, as eager can."""
    model = net()
    with torch.no_grad():
        call = precast.compile(model, store=tmp_path)
        x = torch.randn(16, 64, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call(x)
        for _ in range(3):
            x.normal_()
            poison(8)
            graph.replay()
            near(out, model(x))
