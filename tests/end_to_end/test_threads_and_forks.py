"""Programs compiled by the real compiler: nested compiled modules, threads on a cold store, forks, and calls back into Python."""

from __future__ import annotations

import os
import threading
import time
import traceback
import warnings
from pathlib import Path

import torch

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of

THREADS = 8
SIZES = (2, 3, 5, 7)
PAGE = os.sysconf("SC_PAGE_SIZE")


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Outer(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x)).sum(-1)


@torch.no_grad()
def test_a_compiled_module_inside_a_compiled_module_is_inlined(store: Store) -> None:
    model = Outer(Inner()).eval()
    x = torch.randn(3, 8)
    expected = model(x)
    model.inner = precast.compile(model.inner, store=store)
    compiled = precast.compile(model, store=store, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):  # interpreted, compiled and native checks
            torch.testing.assert_close(compiled(x), expected)
    assert len(site_of(compiled).programs[0].variants) == 1
    assert not site_of(model.inner).programs[0].variants, "the inner program was not called for itself"
    loaded = precast.load(model, store=store, options={"fullgraph": True})
    torch.testing.assert_close(loaded(x), expected)


@torch.no_grad()
def test_a_compiled_module_moved_to_another_type(store: Store) -> None:
    model, x = Outer(Inner()).eval(), torch.randn(3, 8)
    compiled = precast.compile(model, store=store)
    torch.testing.assert_close(compiled(x), model(x))
    assert compiled.to(torch.float64) is compiled and model.last.weight.dtype == torch.float64
    wide = torch.randn(3, 8, dtype=torch.float64)
    for _ in range(3):
        got = compiled(wide)
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, model(wide), rtol=1e-12, atol=1e-12)
    assert [variant.stored for variant in site_of(compiled).programs[0].variants] == [True, True]
    compiled.to(torch.float32)
    torch.testing.assert_close(compiled(x), model(x))


@torch.no_grad()
def test_threads_with_different_shapes_on_a_cold_store_and_forks(store: Store) -> None:
    model = Inner().eval()
    compiled = precast.compile(model, store=store, dynamic=False)
    inputs = [torch.randn(size, 8) for size in SIZES]
    expected = [model(x) for x in inputs]
    problems: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def work(number: int) -> None:
        try:
            start.wait()
            with torch.no_grad():
                for turn in range(40):
                    which = (number + turn // 3) % len(SIZES)
                    torch.testing.assert_close(compiled(inputs[which]), expected[which])
        except BaseException as error:  # noqa: BLE001 - carried over to the test's own thread
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert not problems
    assert len(site_of(compiled).programs[0].variants) == len(SIZES)
    new = torch.randn(11, 8)
    assert _in_child(lambda: [torch.testing.assert_close(compiled(x), y) for x, y in zip(inputs, expected, strict=True)]) == 0
    assert _in_child(lambda: torch.testing.assert_close(compiled(new), model(new))) == 0


def _in_child(action: object) -> int:
    """The exit status of a forked child that ran `action`; -1 when it hangs."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            with torch.no_grad():
                action()  # type: ignore[operator]
            status = 0
        except BaseException:  # noqa: BLE001 - shown here: the child does not return to pytest
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


@torch.library.custom_op("precast_tests::bump", mutates_args=())
def bump(x: torch.Tensor, by: int) -> torch.Tensor:
    return x + by


@bump.register_fake
def _(x: torch.Tensor, by: int) -> torch.Tensor:
    return torch.empty_like(x)


@torch.no_grad()
def test_calls_back_into_python_keep_nothing_alive(store: Store) -> None:
    compiled = precast.compile(lambda x: bump(x * 2, 3) * 2, store=store, fullgraph=True)
    x = torch.randn(256, 1024)  # 1 MiB: a kept handle shows
    for _ in range(20):
        torch.testing.assert_close(compiled(x), (x * 2 + 3) * 2)
    before = _resident()
    for _ in range(200):
        compiled(x)
    assert _resident() - before < 50 * 2**20, "200 calls with 1 MiB tensors"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
