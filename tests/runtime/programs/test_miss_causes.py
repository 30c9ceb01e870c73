"""Causes of a miss, each made for real: `explain_miss`, the statistics and `precast diff` name the cause, where it is, and the cure."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import precast
from precast.artifact_store import Manifest, Store
from precast.artifact_store.remote.settings import from_url
from precast.artifact_store.statistics import series
from precast.artifact_store.statistics.causes import WORDS, Cause
from precast.artifact_store.statistics.summary import summary_of
from precast.artifact_store.trust.trusted import Policy
from precast.cli.main import main
from precast.report.artifact_diff import artifact_differences, lines
from precast.runtime.counting.write_counts import write
from precast.runtime.fingerprint import validate

SOURCE = """
import torch

def attention(x):
    return torch.softmax(x, -1) {operator} 1

def f(x, scale=2):
    return attention(x) * scale{more}
"""
X = torch.ones(4, 8)
NO_SIZES = {"dynamic": "no"}


@pytest.fixture(autouse=True)
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PRECAST_STATS", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    series.forget_all()
    with torch.no_grad():
        yield
    series.forget_all()


@dataclass
class World:
    """A module on disk, a store with one artifact of its function for `X`, and what a case makes of them."""

    folder: Path
    store: Store
    first: Manifest

    def module(self, operator: str = "+", more: str = "") -> Any:
        """The program as it is written now."""
        (self.folder / "ten_causes.py").write_text(SOURCE.format(operator=operator, more=more))
        importlib.invalidate_caches()
        sys.modules.pop("ten_causes", None)
        validate.forget()
        sys.dont_write_bytecode = True
        return importlib.import_module("ten_causes")

    def build(self, function: Any, *args: Any, store: Store | None = None, **settings: Any) -> Manifest:
        """The artifact that a build makes."""
        where = self.store if store is None else store
        options = {**NO_SIZES, **settings.pop("options", {})}
        report = precast.precompile(function, [(args, {})], store=where, options=options, **settings)
        assert report.ok, report
        found = where.get(report.signatures[0].artifact_id, report.key)
        assert found is not None
        return found

    def remade(self, name: str, **changes: Any) -> tuple[Store, Manifest]:
        """A store whose artifact differs from the first in what another machine or version would have made otherwise."""
        first = self.first
        made = Manifest.make(
            **{
                "program_key": first.program_key,
                "program_name": first.program_name,
                "target": first.target,
                "versions": first.versions,
                "options": first.options,
                "guards": first.guards,
                "graphs": first.graphs,
                "blobs": first.blobs,
                "frames": first.frames,
                "digests": first.digests,
                **changes,
            }
        )
        store = Store.open(self.folder / name)
        store.put(made, {blob: self.store.blob(blob) or b"" for blob in made.blobs})
        return store, made


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("causes")
    sys.path.insert(0, str(folder))
    world = World(folder, Store.open(folder / "store"), None)  # type: ignore[arg-type]
    with torch.no_grad():
        world.first = world.build(world.module().f, X)
    yield world
    sys.path.remove(str(folder))
    sys.modules.pop("ten_causes", None)


@dataclass
class Case:
    """`store`: where the call is served from; `call`: makes it; `other`: the artifact that would have served, for `diff`."""

    store: Store
    call: Callable[[], Any]
    function: Any
    args: tuple[Any, ...] = (X,)
    other: Manifest | None = None
    said: str = ""


def served(world: World, store: Store | None = None, function: Any = None, args: tuple[Any, ...] = (X,), **more: Any) -> Case:
    """A call from the store that raises where it misses."""
    store = world.store if store is None else store
    f = world.module().f if function is None else function
    loaded = precast.load(f, store=store, options={**NO_SIZES, **more.pop("options", {})})

    def call() -> None:
        with pytest.raises(precast.GuardMiss):
            loaded(*args)

    return Case(store, call, loaded, args, **more)


def no_artifact(world: World) -> Case:
    store = Store.open(world.folder / "empty")
    store.check_writable()
    return served(world, store)


def tensor_size(world: World) -> Case:
    f = world.module().f
    other = world.build(f, torch.ones(5, 8), store=Store.open(world.folder / "sizes"))
    return served(world, function=f, args=(torch.ones(5, 8),), other=other, said="size=[5, 8]")


def scalar(world: World) -> Case:
    f = world.module().f
    other = world.build(f, X, 3, store=Store.open(world.folder / "scalars"))
    return served(world, function=f, args=(X, 3), other=other, said="scale")


def state(world: World) -> Case:
    case = served(world)
    loaded = case.function

    def call() -> None:
        with torch.inference_mode(), pytest.raises(precast.GuardMiss):
            loaded(X)

    case.call = call
    return case


def helper_edited(world: World) -> Case:
    f = world.module("-").f
    other = world.build(f, X, store=Store.open(world.folder / "helper"))
    return served(world, function=f, other=other, said="function `attention` in `ten_causes.py` changed")


def function_edited(world: World) -> Case:
    f = world.module(more=" + 1").f
    other = world.build(f, X, store=Store.open(world.folder / "function"))
    return served(world, function=f, other=other, said="the code of function `f` in `ten_causes.py` itself changed")


def options(world: World) -> Case:
    f = world.module().f
    other = world.build(f, X, store=Store.open(world.folder / "options"), options={"epilogue_fusion": False})
    return served(world, function=f, options={"epilogue_fusion": False}, other=other, said="option epilogue_fusion: True != False")


def of_version(name: str, said: str) -> Callable[[World], Case]:
    def make(world: World) -> Case:
        store, other = world.remade(name, versions=replace(world.first.versions, **{name: "2.12" if name == "torch" else "1"}))
        return served(world, store, other=other, said=said)

    return make


def target(world: World) -> Case:
    store, other = world.remade("target", target="cpu:native-000000000000")
    return served(world, store, other=other, said="!= cpu:native-000000000000")


def damaged(world: World) -> Case:
    store, _ = world.remade("damaged")
    path = store.path(f"objects/{world.first.graphs['forward'].library[:2]}/{world.first.graphs['forward'].library}")
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    return served(world, Store.open(store.root))


def manifest_damaged(world: World) -> Case:
    store, made = world.remade("cut")
    path = store.path(f"programs/{made.program_key}/{made.artifact_id}.msgpack")
    path.write_bytes(path.read_bytes()[:-9])
    return served(world, Store.open(store.root))


def untrusted(world: World) -> Case:
    return served(world, Store(world.store.root, policy=Policy(frozenset())))


def limit(world: World) -> Case:
    store = Store.open(world.folder / "limit")
    compiled = precast.compile(world.module().f, store=store, options={**NO_SIZES, "recompile_limit": 1})

    def call() -> None:
        compiled(X)
        with pytest.warns(UserWarning, match="reached recompile_limit"):
            compiled(torch.ones(5, 8))

    return Case(store, call, compiled, (torch.ones(5, 8),))


def refused(world: World) -> Case:
    store = Store.open(world.folder / "refused")
    compiled = precast.compile(world.module().f, store=store)
    argument = torch.ones(4, 8, device="meta")

    def call() -> None:
        with pytest.warns(UserWarning, match="meta"):
            compiled(argument)

    return Case(store, call, compiled, (argument,))


def remote(world: World) -> Case:
    store = Store.open(world.folder / "behind", remote=(from_url("http://127.0.0.1:1/cache?trust=any&budget=200ms", "the test"),))
    store.check_writable()
    return served(world, store)


CASES: dict[str, tuple[Callable[[World], Case], Cause, str]] = {
    "nothing stored": (no_artifact, Cause.NO_ARTIFACT, ""),
    "another size": (tensor_size, Cause.GUARDS, "tensor size of x"),
    "another number": (scalar, Cause.GUARDS, "equals of scale"),
    "another mode": (state, Cause.GUARDS, "state: "),
    "a helper was edited": (helper_edited, Cause.CODE, "attention"),
    "the function was edited": (function_edited, Cause.CODE, "the function itself"),
    "other options": (options, Cause.OPTIONS, "epilogue_fusion=True"),
    "another torch": (of_version("torch", "torch "), Cause.TORCH, "2.12, here "),
    "another Python": (of_version("python", "Python "), Cause.PYTHON, "1, here "),
    "another lowering": (of_version("lowering", "lowering version "), Cause.LOWERING, "1, here "),
    "another target": (target, Cause.TARGET, "cpu:native-000000000000"),
    "a damaged library": (damaged, Cause.DAMAGED, ""),
    "a damaged manifest": (manifest_damaged, Cause.DAMAGED, "its manifest was set aside"),
    "not trusted": (untrusted, Cause.UNTRUSTED, "folder"),
    "a dead remote": (remote, Cause.REMOTE, "127.0.0.1:1"),
    "the limit": (limit, Cause.LIMIT, ""),
    "refused": (refused, Cause.REFUSED, ""),
}
LATER = (Cause.LIMIT, Cause.REFUSED)
"""Causes that lie in the process and not in the store: `explain_miss` names what the store lacks."""


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_each_cause_is_named_with_its_cure(name: str, built: World) -> None:
    make, cause, detail = CASES[name]
    case = make(built)
    case.call()
    write()
    causes = {(item, where): outcomes for item, where, outcomes in summary_of(case.store.root).misses()}
    mine = [(where, outcomes) for (item, where), outcomes in causes.items() if item == cause]
    assert mine and any(detail in where for where, _ in mine), f"statistics name another cause: {causes}"
    said = json.loads(CliRunner().invoke(main, ["stats", "--by", "cause", "--json", "--store", str(case.store.root)]).stdout)["causes"]
    assert any(item["cause"] == cause and item["fix"] == WORDS[cause].fix for item in said)
    if cause not in LATER:
        explanation = precast.explain_miss(case.function, *case.args)
        if name != "another mode":  # which is over
            assert explanation.cause == cause and detail in explanation.detail
            assert f"cause: {cause}" in str(explanation) and WORDS[cause].fix in str(explanation)
            assert explanation.to_dict()["fix"] == WORDS[cause].fix
    if case.other is not None:
        differences = artifact_differences(built.first, case.other)
        told = "\n".join(lines(differences))
        assert case.said in told and WORDS[cause].fix in told, told
        assert any(difference.cause == cause for difference in differences)


def test_a_call_that_hits_has_no_cause(built: World) -> None:
    f = built.module().f
    explanation = precast.explain_miss(precast.load(f, store=built.store, options=NO_SIZES), X)
    assert explanation.hits and explanation.cause == explanation.fix == "" and "cause:" not in str(explanation)


def test_two_artifacts_that_are_the_same_have_no_difference(built: World) -> None:
    assert artifact_differences(built.first, built.first) == [] and lines([]) == ["no difference"]
