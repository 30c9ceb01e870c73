"""A call that misses and remotes: what they have serves it, and where they are dead, slow or hang they are in nobody's way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Manifest
from precast.artifact_store.remote.endpoint import Unreachable
from precast.artifact_store.remote.remote import Remote
from precast.runtime.api.compile import open_store, site_of
from precast.runtime.common.errors import OptionError
from tests.artifact_store.remote.judges import Anything, Signed
from tests.artifact_store.remote.machine import Machine, memory, tier
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint

X = torch.arange(12.0).reshape(3, 4)


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2 + 1


def broken_program(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if y.sum() > 0:
        y = y * 3
    return torch.cos(y)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> MemoryEndpoint:
    """A remote that another machine filled."""
    shared = tier(budget=10.0)
    builder = Machine(tmp_path_factory.mktemp("builder"), shared)
    for function in (program, broken_program):
        with torch.no_grad():
            assert precast.precompile(function, [((X,), {})], store=builder.store).ok
    assert builder.sent(60)
    precast.reset()
    return memory(shared)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def reader(built: MemoryEndpoint, tmp_path: Path) -> Iterator[Any]:
    """Makes a machine with an empty store, behind which that remote is."""
    made: list[Machine] = []

    def machine(**settings: Any) -> Machine:
        made.append(Machine(tmp_path / f"reader-{len(made)}", Remote(built, **{"judge": Anything(), "budget": 10.0, **settings})))
        return made[-1]

    yield machine
    built.before = lambda verb, name: None
    for one in made:
        one.sent(5)
    precast.reset()


def test_a_server_warms_up_from_a_remote(reader: Any, built: MemoryEndpoint) -> None:
    machine = reader()
    loaded = precast.load(program, store=machine.store)
    done = precast.warm_up(loaded)
    assert (done.problems, len(done.artifacts)) == ([], 1)
    asked = built.requests.total()
    torch.testing.assert_close(loaded(X), program(X))
    assert built.requests.total() == asked  # the call itself asks nobody


@pytest.mark.parametrize("function", [program, broken_program])
def test_a_second_machine_is_served_by_what_the_first_compiled(reader: Any, built: MemoryEndpoint, function: Any) -> None:
    machine = reader()
    loaded = precast.load(function, store=machine.store)
    torch.testing.assert_close(loaded(X), function(X))
    loaded(X)  # the second call of each part writes its guard table
    assert machine.sent(20)  # what it sends of its own is no part of a hit
    asked = built.requests.total()
    for _ in range(50):
        loaded(X)
    assert built.requests.total() == asked  # a hit asks nobody


def test_what_is_compiled_here_is_not_fetched(reader: Any, built: MemoryEndpoint) -> None:
    machine = reader()
    report = precast.precompile(program, [((X,), {})], store=machine.store)
    assert [item.outcome for item in report.signatures] == ["hit"]
    assert machine.store.made == set()


def test_a_miss_says_what_the_remote_said(reader: Any) -> None:
    machine = reader()
    loaded = precast.load(program, store=machine.store)
    with pytest.raises(precast.GuardMiss, match=r"Beyond the store: memory://near has 1 artifact of it"):
        loaded(X.to(torch.float64))
    assert "Beyond the store: memory://near has 1 artifact of it" in str(precast.explain_miss(loaded, X.to(torch.float64)))


@pytest.mark.parametrize("field, cause", [("torch", "torch version"), ("python", "python version"), ("lowering", "lowering version")])
def test_a_remote_with_artifacts_of_other_versions_only_is_named_as_the_cause(field: str, cause: str, reader: Any, tmp_path: Path) -> None:
    other = tier(budget=10.0)
    builder = Machine(tmp_path / "builder", other)
    assert precast.precompile(program, [((X,), {})], store=open_store(tmp_path / "built")).ok
    built = next(open_store(tmp_path / "built").manifests())
    versions = replace(built.versions, **{field: "2.12"})
    kept = {name: getattr(built, name) for name in ("program_key", "program_name", "target", "options", "guards", "graphs", "blobs")}
    made = Manifest.make(**kept, versions=versions, frames=built.frames, digests=built.digests)
    builder.store.put(made, {blob: open_store(tmp_path / "built").blob(blob) or b"" for blob in made.blobs})
    assert builder.sent(60)
    machine = Machine(tmp_path / "server", Remote(memory(other), judge=Anything(), budget=10.0))
    loaded = precast.load(program, store=machine.store)
    with pytest.raises(precast.GuardMiss, match=r"Beyond the store: .* of which 0 can run here.*2\.12"):
        loaded(X)
    explained = precast.explain_miss(loaded, X)
    assert explained.cause == cause and explained.detail.startswith("2.12, here ")
    assert not machine.store.programs()  # nothing that cannot serve is fetched


def test_what_nobody_trusts_is_a_miss_that_says_so(reader: Any) -> None:
    machine = reader(judge=Signed())
    with pytest.raises(precast.GuardMiss, match="it is not signed"):
        precast.load(program, store=machine.store)(X)


def test_a_dead_remote_is_a_miss_that_says_so(reader: Any, built: MemoryEndpoint) -> None:
    machine = reader()
    built.before = _gone
    began = time.monotonic()
    with pytest.raises(precast.GuardMiss, match="could not be asked: no route"):
        precast.load(program, store=machine.store)(X)
    assert time.monotonic() - began < 5


def _gone(verb: str, name: str) -> None:
    raise Unreachable("no route to host")


def test_a_call_waits_for_the_budget_and_the_next_one_takes_what_came(reader: Any, built: MemoryEndpoint) -> None:
    machine = reader(budget=0.2)
    gate = threading.Event()
    built.before = lambda verb, name: gate.wait(30) and None
    loaded = precast.load(program, store=machine.store, require="any")
    began = time.monotonic()
    torch.testing.assert_close(loaded(X), program(X))  # eagerly
    first = time.monotonic() - began
    began = time.monotonic()
    loaded(X)
    again = time.monotonic() - began
    gate.set()
    assert 0.2 <= first < 5 and again < 0.2
    until = time.monotonic() + 20
    while not machine.store.programs() and time.monotonic() < until:
        time.sleep(0.02)
    torch.testing.assert_close(loaded(X), program(X))
    assert [variant.stored for part in site_of(loaded).programs for variant in part.variants] == [True]


def test_names_of_remotes_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="remote=: .*no remotes of the kind foo"):
        precast.compile(program, store=tmp_path, remote="foo://bar")
    with pytest.raises(TypeError, match="remote="):
        precast.compile(program, store=tmp_path, remote=[7])  # type: ignore[list-item]
    with pytest.raises(OptionError, match="Store.open"):
        precast.compile(program, store=open_store(tmp_path), remote="/mnt/x")


def test_a_hit_imports_and_asks_nothing_of_remotes(reader: Any) -> None:
    machine = reader()
    precast.load(program, store=machine.store)(X)
    child = (
        "import sys, torch\n"
        "import tests.runtime.programs.test_remote_lookup as here\n"
        "for name in [name for name in sys.modules if name.startswith('precast.artifact_store.remote')]: del sys.modules[name]\n"
        "import precast\n"
        "with torch.no_grad():\n"
        "    torch.testing.assert_close(precast.load(here.program, store=sys.argv[1])(here.X), here.program(here.X))\n"
        "print([name for name in sys.modules if name.startswith('precast.artifact_store.remote')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", child, str(machine.store.root)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PRECAST_REMOTE": "http://127.0.0.1:9/nobody"},
    )
    assert done.stdout.strip() == "[]", done.stderr
