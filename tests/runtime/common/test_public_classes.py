"""Classes that users meet are `precast`'s, wherever their files are: in tracebacks, in pickles, in messages."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.runtime.common import errors


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    for inner in cls.__subclasses__():
        yield from _with_subclasses(inner)


NAMED = [value for name in (*precast.__all__, *precast._RESULTS) if isinstance(value := getattr(precast, name), type)]
ERRORS = [cls for cls in _with_subclasses(errors.PrecastError) if cls.__module__.startswith("precast")]


@pytest.mark.parametrize("cls", dict.fromkeys((*NAMED, *ERRORS)), ids=lambda cls: cls.__name__)
def test_the_class_is_found_where_it_says_that_it_is(cls: type) -> None:
    assert cls.__module__ == "precast"
    assert getattr(precast, cls.__qualname__) is cls


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_an_error_is_shown_and_pickled_by_its_public_name(cls: type[Exception]) -> None:
    (line,) = traceback.format_exception_only(cls("why"))
    assert line == f"precast.{cls.__name__}: why\n"
    again = pickle.loads(pickle.dumps(cls("why")))  # noqa: S301 - its own bytes
    assert type(again) is cls and str(again) == "why"


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_what_a_miss_and_a_build_report_is_read_in_another_process(store: Store, tmp_path: Path) -> None:
    x = torch.ones(3)
    with pytest.raises(precast.GuardMiss) as missed:
        precast.load(double, store=store)(x)
    report = precast.precompile(double, [((x,), {})], store=store)
    explained = precast.explain(double)(x)
    results: list[Any] = [missed.value, missed.value.explanation, report, precast.explain_miss(precast.compile(double, store=store), x)]
    results += [explained.frames[0], explained]
    file = tmp_path / "results"
    file.write_bytes(pickle.dumps([*results]))
    code = f"import pickle; print(*[type(x).__module__ + '.' + type(x).__name__ for x in pickle.load(open({str(file)!r}, 'rb'))])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = ["GuardMiss", "Explanation", "Report", "Explanation", "FrameReport", "GraphReport"]
    assert done.stdout.split() == [f"precast.{name}" for name in expected]
    assert str(pickle.loads(file.read_bytes())[0].explanation) == str(missed.value.explanation)  # noqa: S301 - its own bytes
