"""CUDA graphs on the device: kept outputs, weights and inputs that change, random numbers, streams, threads, sizes, failing captures."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import precast
from precast.artifact_store.format.records import GraphInput
from precast.runtime.cuda_graphs.device import device_of
from precast.runtime.cuda_graphs.graphs import RING, WARM_UPS, Capturable, CudaGraphs
from precast.runtime.executable.calling_convention import GraphSpec
from precast.runtime.settings.options import CudaGraphOptions
from tests.gpu.device import DEVICE
from tests.support.processes import child

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(DEVICE == "cpu", reason="the CPU has no CUDA graphs")]


class Mlp(torch.nn.Module):
    def __init__(self, width: int = 256, layers: int = 2, p: float = 0.0) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
            if self.p:
                x = F.dropout(x, self.p, self.training)
        return x


class Made:
    """What one `precast.compile` captured."""

    def __init__(self) -> None:
        self._before = {id(item) for item in self._all()}

    @staticmethod
    def _all() -> list[CudaGraphs]:
        return [item for item in gc.get_objects() if type(item) is CudaGraphs]

    @property
    def graphs(self) -> list[CudaGraphs]:
        return [item for item in self._all() if id(item) not in self._before]

    @property
    def plays(self) -> int:
        return sum(item.player.plays for item in self.graphs)

    @property
    def refused(self) -> list[str]:
        return [item.refused for item in self.graphs if item.refused]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., Any]:
    def make(model: Any, **settings: Any) -> Any:
        return precast.compile(model, mode="reduce-overhead", store=tmp_path, **{"dynamic": False, **settings})

    return make


def model(**settings: Any) -> Mlp:
    return Mlp(**settings).to(DEVICE).eval()


def rows(count: int = 32) -> torch.Tensor:
    return torch.randn(count, 256, device=DEVICE)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


def test_outputs_and_their_views_are_kept(compiled: Callable[..., Any]) -> None:
    net, made = model(), Made()
    call = compiled(net)
    kept = [(call(x), net(x)) for x in (rows() for _ in range(10))]
    for got, want in kept:
        close(got, want)
    assert made.plays == 10 - WARM_UPS and not made.refused
    assert len({got.data_ptr() for got, _ in kept}) == 10
    view = call(rows())[3:5]
    want = view.clone()
    for _ in range(RING + 2):
        call(rows())
    assert torch.equal(view, want)


def test_weights_written_and_moved(compiled: Callable[..., Any]) -> None:
    net, x, made = model(), rows(), Made()
    call = compiled(net)
    for _ in range(4):
        call(x)
    net.load_state_dict(model().state_dict())
    close(call(x), net(x))
    net.to("cpu").to(DEVICE)
    for _ in range(4):
        close(call(x), net(x))
    for parameter in net.parameters():
        parameter.data = parameter.data * 2
    close(call(x), net(x))
    assert not made.refused


def test_inputs_written_in_place_and_moving(compiled: Callable[..., Any]) -> None:
    net, x, made = model(), rows(), Made()
    call = compiled(net)
    for _ in range(6):
        close(call(x.normal_()), net(x))
    for _ in range(6):
        other = rows()
        close(call(other), net(other))
    assert made.plays == 12 - WARM_UPS


def test_random_numbers_are_eagers(compiled: Callable[..., Any]) -> None:
    net, x, made = model(p=0.5).train(), rows(), Made()
    call = compiled(net)
    call(x)
    torch.manual_seed(3)
    got = [call(x).clone() for _ in range(6)]
    torch.manual_seed(3)
    for output in got:
        close(output, net(x))
    assert made.plays == 7 - WARM_UPS and not made.refused


def drawing_late(x: torch.Tensor) -> torch.Tensor:
    """Numbers that are drawn some time after the graph has begun."""
    y = x
    for _ in range(200):
        y = y @ y * 1e-4
    return torch.bernoulli(torch.sigmoid(y))


@pytest.mark.parametrize("busy", ("captures", "calls"))
def test_a_capture_and_replays_that_draw_do_not_overtake_one_another(busy: str, compiled: Callable[..., Any]) -> None:
    """Captures and replays write the numbers that graphs draw from, each on its own stream: here one of the two is late."""
    x = torch.randn(2048, 2048, device=DEVICE)
    calls = [compiled(lambda x, k=k: drawing_late(x) * k) for k in (2, 3)]
    for _ in range(WARM_UPS + 1):
        calls[0](x)
    calls[1](x)
    for _ in range(3):
        torch.manual_seed(3)
        torch.rand(8, device=DEVICE)  # a capture begins with the offset 0
        wants = [drawing_late(x) * k for k in (2, 3, 2, 3)]
        torch.cuda.synchronize()
        torch.manual_seed(3)
        torch.rand(8, device=DEVICE)
        capturer = device_of({"x": x})._capturer
        assert capturer is not None
        if busy == "captures":
            with torch.cuda.stream(capturer._stream):
                torch.cuda._sleep(300_000_000)
        got = [call(x) for call in (*calls, *calls)]
        for output, want in zip(got, wants, strict=True):
            close(output, want)


def test_several_streams(compiled: Callable[..., Any]) -> None:
    net, made = model(), Made()
    call = compiled(net)
    streams = [torch.cuda.Stream() for _ in range(3)]
    pairs = []
    for i in range(30):
        stream = streams[i % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x = rows()
            pairs.append((call(x), x))
    torch.cuda.synchronize()
    for got, x in pairs:
        close(got, net(x))
    assert made.plays == 30 - WARM_UPS


def test_several_threads(compiled: Callable[..., Any]) -> None:
    net = model()
    call = compiled(net)
    call(rows())
    wrong: list[Any] = []

    def work(number: int) -> None:
        stream = torch.cuda.Stream() if number % 2 else torch.cuda.current_stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for step in range(50):
                x = rows()
                got, want = call(x), net(x)
                stream.synchronize()
                if not torch.allclose(got, want, rtol=2e-3, atol=2e-3):
                    wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads) and not wrong


def test_symbolic_sizes(compiled: Callable[..., Any]) -> None:
    net, made = model(), Made()
    call = compiled(net, dynamic=True)
    for _ in range(4):
        for count in (8, 17, 32, 100):
            x = rows(count)
            close(call(x), net(x))
    assert made.plays == 4 * (4 - WARM_UPS)


def test_a_cache_that_is_written(compiled: Callable[..., Any]) -> None:
    def step(x: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, position, x)
        return (cache * 2).sum(0)

    made = Made()
    call = compiled(step)
    for _ in range(3):  # requests with a cache each
        ours, theirs = (torch.zeros(16, 64, device=DEVICE) for _ in range(2))
        for i in range(12):
            x, position = torch.randn(1, 64, device=DEVICE), torch.tensor([i], device=DEVICE)
            close(call(x, ours, position), step(x, theirs, position))
            assert torch.equal(ours, theirs)
    assert made.plays == 36 - WARM_UPS and not made.refused


WORKSPACES = """
import gc, sys, tempfile, threading, torch, precast
from precast.artifact_store import Store
torch.set_grad_enabled(False)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).half().cuda()
x = torch.randn(64, 512, dtype=torch.half, device="cuda")
wanted = model(x)
torch._C._cuda_clearCublasWorkspaces()
mine, own = None, torch.randn(512, 512, dtype=torch.half, device="cuda")
if "graph" in sys.argv:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        product = own @ own  # the workspace of this stream lies in ordinary memory
    mine = torch.cuda.CUDAGraph()
    with torch.cuda.graph(mine, stream=stream):
        product = own @ own
if "thread" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
torch.cuda.synchronize()
before = torch.cuda.memory_allocated()
compiled = precast.compile(model, mode="reduce-overhead", store=Store.open(tempfile.mkdtemp()))
for _ in range(5):
    torch.testing.assert_close(compiled(x), wanted, rtol=1e-2, atol=1e-2)
gc.collect()
taken = torch.cuda.memory_allocated() - before
if mine is not None:
    others = [torch.ones(1 << 20, device="cuda") for _ in range(64)]
    for _ in range(3):
        mine.replay()
    assert all(bool((other == 1).all()) for other in others)
    torch.testing.assert_close(product, own @ own, rtol=1e-2, atol=1e-2)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), wanted, rtol=1e-2, atol=1e-2)
print(taken)
"""


def test_workspaces_are_given_back_where_nobody_else_may_use_them(tmp_path: Path) -> None:
    """In processes of their own: a test runner has threads."""
    alone, threads, graphs = (int(child(tmp_path, WORKSPACES, *words)) for words in ((), ("thread",), ("graph",)))
    assert alone < 4 << 20
    assert threads > 2 * alone
    assert graphs > 2 * alone


def test_inside_a_capture_of_the_users_own(compiled: Callable[..., Any]) -> None:
    net, x = model(), rows()
    call = compiled(net)
    for _ in range(4):
        call(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call(x)
    x.normal_()
    graph.replay()
    close(output, net(x))
    close(call(x), net(x))


def test_inference_mode_and_autocast(compiled: Callable[..., Any]) -> None:
    net, x = model(), rows()
    call = compiled(net)
    with torch.inference_mode():
        for _ in range(5):
            output = call(x)
        assert output.is_inference()
        close(output, net(x))
    with torch.autocast("cuda", torch.bfloat16):
        for _ in range(5):
            output = call(x)
        torch.testing.assert_close(output, net(x), rtol=3e-2, atol=3e-2)


def test_a_capture_that_fails_leaves_the_device_as_it_was(compiled: Callable[..., Any]) -> None:
    """A graph that waits for the device is given up; random numbers and other captures go on."""
    made = Made()
    spec = GraphSpec((GraphInput((("local", "x"),), False, 0),), "t", None)
    waiting = CudaGraphs(Capturable("waiting", lambda x: (x * x.sum().item(),), spec, ()), CudaGraphOptions(), device_of)
    x = torch.randn(64, device=DEVICE)
    for _ in range(6):
        close(waiting(x)[0], x * x.sum())
    assert "cannot be captured" in waiting.refused
    torch.randn(8, device=DEVICE)
    net, y = model(p=0.5).train(), rows()
    call = compiled(net)
    for _ in range(5):
        call(y)
    assert made.plays == 3
