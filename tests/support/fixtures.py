"""Fixtures that tests of several rooms share: an empty store, the native runtime built once per session, a compile callable that counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from precast.artifact_store import Store
from precast.runtime.native import loader
from precast.runtime.programs import compile_hook
from tests.runtime.hand_made_artifacts import Counting


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    """Inference, without gradients: for folders whose conftest imports it."""
    with torch.no_grad():
        yield


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store.open(tmp_path)


@pytest.fixture
def fresh_tracer() -> None:
    """torch.compile starts from nothing, too."""
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def native_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that holds the native runtime of this Python."""
    store = Store.open(tmp_path_factory.mktemp("native"))
    if loader.ensure(store) is None:
        if os.environ.get(loader.ENVIRONMENT) == "0":
            pytest.skip(f"{loader.ENVIRONMENT}=0 turns the native runtime off")
        pytest.fail(f"the native runtime of a supported Python and torch: {loader._state.failed}", pytrace=False)
    return store


@pytest.fixture
def set_compiler() -> Iterator[Callable[[Callable[..., Any]], None]]:
    """Replaces the compile callable for one test."""
    before = compile_hook._compiler
    yield compile_hook.set_compiler
    compile_hook.set_compiler(before)


@pytest.fixture
def counter(set_compiler: Callable[[Any], None]) -> Counting:
    """Counts what the real compile callable is asked for."""
    counted = Counting(compile_hook.compiler())
    set_compiler(counted)
    return counted
