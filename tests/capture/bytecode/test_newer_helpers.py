"""What newer releases of torch emit and 2.13 does not: helpers that bytecode calls, sources, guards. newer_programs.py has the programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from tests.capture.bytecode import newer_programs
from tests.capture.bytecode.newer_programs import PROGRAMS, UNSTORED, is_missing

SCRIPT = Path(newer_programs.__file__)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What a process that compiles and one that loads say of each program."""
    found = {}
    store = tmp_path_factory.mktemp("store")
    names = [name for name, (_, _, needed) in PROGRAMS.items() if needed == UNSTORED or not is_missing(needed)]
    for how in ("build", "load"):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), how, str(store), *names],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[3])},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found[how] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_stored_and_served_as_in_eager(name: str, told: dict[str, dict[str, str]]) -> None:
    if PROGRAMS[name][2] == UNSTORED:
        assert " where eager has " not in told["build"][name]
        return
    if is_missing(PROGRAMS[name][2]):
        pytest.skip(f"this torch has no {PROGRAMS[name][2]}")
    assert (told["build"][name], told["load"][name]) == ("same", "same")


def _compiles(compiled: Any) -> int:
    return len(site_of(compiled).programs[0].variants)


@pytest.mark.skipif(is_missing("torch._dynamo.source:ContextVarGetSource"), reason="this torch ends the graph at a context variable")
def test_another_value_of_a_context_variable_misses(store: Store) -> None:
    x = torch.arange(3.0)
    with torch.no_grad():
        compiled = precast.compile(newer_programs.context, store=store)
        for value, variants in ((4, 1), (4, 1), (6, 2), (4, 2)):
            token = newer_programs.SET.set(value)
            try:
                torch.testing.assert_close(compiled(x), x * value)
            finally:
                newer_programs.SET.reset(token)
            assert _compiles(compiled) == variants
        defaulting = precast.compile(newer_programs.context_default, store=store)
        torch.testing.assert_close(defaulting(x), x * 5)
        token = newer_programs.UNSET.set(11)
        try:
            torch.testing.assert_close(defaulting(x), x * 11)
        finally:
            newer_programs.UNSET.reset(token)
        torch.testing.assert_close(defaulting(x), x * 5)
        assert _compiles(defaulting) == 2


@pytest.mark.skipif(is_missing("torch._dynamo.utils:list_reverseiterator_setstate"), reason="this torch ends the graph at such an iterator")
def test_a_reversed_iterator_of_another_length_or_list_misses(store: Store) -> None:
    x = torch.arange(3.0)
    with torch.no_grad():
        compiled = precast.compile(newer_programs.reversed_argument, store=store)
        for items, taken in (([2, 3], 0), ([2, 3, 4], 0), ([2, 3, 9], 0), ([2, 3, 4], 1), ([2, 3], 0)):
            mine, theirs = reversed(items), reversed(items)
            for _ in range(taken):
                next(mine), next(theirs)
            result, rest = compiled(x, mine)
            torch.testing.assert_close(result, x * next(theirs))
            assert rest is mine and list(rest) == list(theirs)
