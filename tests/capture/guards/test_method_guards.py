"""Guards on what has no name of its own: a method in C of an object in a module, and a compiled regular expression."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import precast
from precast.artifact_store.format.import_names import Untaggable, find_object, object_name, same_object

PATTERN = re.compile(r"a(\d)")


def matched(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if PATTERN.match("a1") else x - 1


def drawn(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) * random.random()


def numpy_drawn(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) * int(np.random.randint(1, 2))


@pytest.mark.parametrize(
    ("program", "module", "name", "same", "others"),
    [
        (
            matched,
            "",
            "PATTERN",
            [re.compile(r"a(\d)")],
            [re.compile(r"b(\d)"), re.compile(r"a(\d)", re.IGNORECASE), re.compile(rb"a"), None],
        ),
        (drawn, "random", "random", [], [random.Random(1).random, lambda: random.Random(1).random()]),
        (numpy_drawn, "numpy.random", "randint", [], [np.random.RandomState(3).randint, lambda low, high: 1]),
    ],
)
def test_what_is_put_in_its_place_misses(
    program: Callable[..., Any], module: str, name: str, same: list[Any], others: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(door: Callable[..., Any], **options: Any) -> None:
        random.seed(1)  # so that what resumes gets the same number
        door(program, store=tmp_path, **options)(torch.ones(3))

    holder = find_object(module or __name__)
    with torch.no_grad():
        run(precast.compile)
        for value in [getattr(holder, name), *same]:
            monkeypatch.setattr(holder, name, value)
            run(precast.load, require="hit")
        for value in others:
            monkeypatch.setattr(holder, name, value)
            with pytest.raises(precast.GuardMiss):
                run(precast.load, require="hit")


def test_methods_are_named_through_the_object_that_a_module_holds() -> None:
    for method, name in ((random.random, "random:_inst.random"), (np.random.rand, "numpy.random.mtrand:_rand.rand")):
        assert object_name(method) == name and same_object(find_object(name), method)
    for method in (random.Random(3).random, [].append):
        with pytest.raises(Untaggable):
            object_name(method)
