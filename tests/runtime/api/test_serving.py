"""Servers: everything is loaded before the first request, better artifacts are taken up without a restart, and wrong ones are found out."""

from __future__ import annotations

import gc
import os
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from precast.runtime.dispatch.refresher import refresher
from precast.runtime.programs.canary import Canary
from precast.runtime.programs.variant import Variant

X = torch.randn(4, 8)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Broken(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        torch._dynamo.graph_break()
        return self.linear(y) * 2


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def variants(model: Any) -> list[Variant]:
    return [v for program in site_of(model).all_programs for v in program.variants if isinstance(v, Variant)]


# -- warm_up


@pytest.mark.parametrize(("make", "pieces"), [(Net, 1), (Broken, 2)])
def test_the_first_call_finds_everything_loaded(make: Callable[[], Any], pieces: int, tmp_path: Path) -> None:
    net = make().eval()
    wanted = precast.compile(net, store=tmp_path)(X)
    precast.reset()
    served = precast.load(net, store=tmp_path)
    done = precast.warm_up(served)
    assert (done.problems, len(done.artifacts), done.programs) == ([], pieces, pieces)
    loaded = variants(served)
    assert done.seconds > 0 and all(v._executable is not None for v in loaded) and loaded[0]._bindings
    made = list(loaded[0]._bindings)
    torch.testing.assert_close(served(X), wanted)
    assert variants(served) == loaded and loaded[0]._bindings == made  # bound before the call, for its very objects


def test_what_cannot_be_loaded_is_reported_and_the_rest_serves(tmp_path: Path) -> None:
    net = Net().eval()
    precast.compile(net, store=tmp_path, options={"dynamic": "no"})(X)
    precast.compile(net, store=tmp_path, options={"dynamic": "no"})(X[:2])
    precast.reset()
    store = Store.open(tmp_path)
    first = next(store.manifests())
    path = store.path(f"objects/{first.graphs['forward'].library[:2]}/{first.graphs['forward'].library}")
    path.unlink()
    served = precast.load(net, store=tmp_path, require="any", options={"dynamic": "no"})
    done = precast.warm_up(served)
    assert len(done.artifacts) == 1 and len(done.problems) == 1 and first.artifact_id[:12] in done.problems[0]
    torch.testing.assert_close(served(X), net(X))


def test_only_what_precast_made_is_warmed_up() -> None:
    with pytest.raises(precast.PrecastError, match="was not made by"):
        precast.warm_up(Net())


# -- refresh


def test_a_static_artifact_that_comes_later_is_preferred(tmp_path: Path) -> None:
    """Built elsewhere while the server runs: its calls go on, and from the refresh on they take the better one."""
    net = Net().eval()
    symbolic = precast.compile(net, store=tmp_path / "a", dynamic=True)
    symbolic(X)
    shutil.copytree(tmp_path / "a", tmp_path / "served")
    served = precast.load(net, store=tmp_path / "served", options={"dynamic": "yes"})
    for _ in range(4):
        served(X)
    (before,) = variants(served)
    assert before.symbolic and precast.refresh(served) == []
    rebuilt = _with_other_evidence(Store.open(tmp_path / "a"))
    store = Store.open(tmp_path / "served")
    store.put(rebuilt, {blob: store.blob(blob) or b"" for blob in rebuilt.blobs})
    assert precast.refresh(served) == [before.artifact_id]
    (after,) = variants(served)
    assert after is not before and after.manifest.evidence["made"] == "anew"
    torch.testing.assert_close(served(X), net(X))
    assert after.hits == 1 and before.hits >= 2


def _with_other_evidence(store: Store) -> Any:
    (manifest,) = store.manifests()
    return manifest.completed(graphs=manifest.graphs, blobs=manifest.blobs, evidence={"made": "anew"}, provenance=manifest.provenance)


def test_a_thread_looks_at_intervals_and_ends_with_its_models(tmp_path: Path) -> None:
    net = Net().eval()
    precast.compile(net, store=tmp_path)(X)
    precast.reset()
    served = precast.load(net, store=tmp_path, refresh_seconds=0.05)
    served(X)
    (before,) = variants(served)
    store = Store.open(tmp_path)
    rebuilt = _with_other_evidence(store)
    store.put(rebuilt, {blob: store.blob(blob) or b"" for blob in rebuilt.blobs})
    deadline = time.monotonic() + 20
    while variants(served) == [before] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert variants(served) != [before]
    torch.testing.assert_close(served(X), net(X))
    if (child := os.fork()) == 0:
        os._exit(0 if refresher._thread is not None and refresher._thread.is_alive() else 1)
    assert os.waitpid(child, 0)[1] == 0  # the child of a fork has a thread of its own
    del served, before
    deadline = time.monotonic() + 20
    while refresher._sites and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert not refresher._sites


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_an_interval_is_above_zero(seconds: float) -> None:
    with pytest.raises(precast.OptionError, match="above 0"):
        precast.load(doubled, refresh_seconds=seconds)


# -- canary


def _wrong(store: Path) -> None:
    """`doubled`'s artifact gets the code of `tripled`."""
    precast.compile(doubled, store=store)(X)
    other = Store.open(store.parent / "other")
    precast.compile(tripled, store=store.parent / "other")(X)
    precast.reset()
    (right,), (wrong,) = Store.open(store).manifests(), other.manifests()
    made = right.completed(graphs=wrong.graphs, blobs=wrong.blobs, evidence={}, provenance={})
    Store.open(store).put(made, {blob: other.blob(blob) or b"" for blob in wrong.blobs})


def test_a_wrong_artifact_is_found_out_by_its_first_call(tmp_path: Path) -> None:
    _wrong(tmp_path / "store")
    torch.testing.assert_close(precast.load(doubled, store=tmp_path / "store")(X), tripled(X))  # nobody looks
    precast.reset()
    served = precast.load(doubled, store=tmp_path / "store", canary=True)
    with pytest.warns(UserWarning, match=r"failed its canary: value 0 of its answer is off by"):
        torch.testing.assert_close(served(X), doubled(X))
    with pytest.raises(precast.GuardMiss, match="failed its canary"):
        served(X)


def test_a_right_one_serves_and_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net().eval()
    precast.compile(net, store=tmp_path)(X)
    precast.reset()
    tried: list[Any] = []
    trial = Canary.trial
    monkeypatch.setattr(Canary, "trial", lambda self, *args: tried.append(self.tolerance) or trial(self, *args))
    served = precast.load(net, store=tmp_path, canary=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            torch.testing.assert_close(served(X), net(X))
    assert tried == [1e-4]


def test_what_the_eager_run_changes_is_put_back(tmp_path: Path) -> None:
    net = torch.nn.BatchNorm1d(8)
    owner, state = net, torch.random.get_rng_state()
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}

    def eager(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        torch.rand(3)
        return module(x)

    x = X.clone()
    ran = Canary().trial(eager, lambda module, x: x, (owner,), lambda difference: None)
    ran(owner, x)
    assert torch.equal(x, X) and torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())


NAN = float("nan")


@pytest.mark.parametrize(
    ("want", "have", "says"),
    [
        (torch.ones(3), torch.ones(3) * 1.0001, ""),
        (torch.ones(3), torch.ones(3) * 1.01, "off by 0.01"),
        (torch.tensor([1000.0, 0.0]), torch.tensor([1000.0, 0.5]), ""),
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), ""),
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, 2.0]), "NaN or infinity at other places"),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, NAN]), "NaN or infinity at other places"),
        (torch.ones(3), torch.ones(3, 1), "eager's torch.float32 (3,)"),
        (torch.ones(3), torch.ones(3).double(), "is torch.float64"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "differs at 1 of 2 places"),
        (torch.ones(3), None, "is a NoneType, eager's a Tensor"),
        ([torch.ones(3)], (torch.ones(3),), "the structure"),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64) * 2, "off by 1"),
        (torch.empty(0), torch.empty(0), ""),
    ],
)
def test_what_counts_as_another_answer(want: Any, have: Any, says: str) -> None:
    found = Canary().difference(want, have)
    assert (says in found) if says else found == ""


def test_a_call_whose_arguments_cannot_be_copied_is_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn:
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("one of a kind")

    ran = Canary().trial(lambda x: 1, lambda x: 2, (), lambda difference: pytest.fail(difference))
    assert ran(Stubborn()) == 2 and "one of a kind" in caplog.text


@pytest.mark.parametrize("canary", [0, -1.0, "yes"])
def test_a_tolerance_is_above_zero(canary: Any) -> None:
    with pytest.raises(precast.OptionError, match="tolerance"):
        precast.load(doubled, canary=canary)
