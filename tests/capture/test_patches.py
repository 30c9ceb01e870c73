"""The tables of patches: complete, named as torch names things, each row with a test, and seen by the tracing thread only."""

from __future__ import annotations

import ast
import fnmatch
import inspect
import re
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from precast.capture import CaptureOptions, capture
from precast.capture.adapters.variables import asked_for_methods, user_defined
from precast.capture.aten import keep_attention
from precast.capture.aten import patches as aten_patches
from precast.capture.common import patching
from precast.capture.common.patching import Patch, named, patched, replaced
from precast.capture.dynamo import patches as dynamo_patches
from precast.capture.soundness.tensor_metadata import NOTED
from precast.runtime.common.supported_torch import SUPPORTED_TORCH

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
TABLES: dict[str, tuple[Patch[Any], ...]] = {
    "dynamo": dynamo_patches.PATCHES,
    "around a capture": dynamo_patches.AROUND,
    "ATen": aten_patches.PATCHES,
    "absent device": aten_patches.ABSENT_DEVICE,
    "copies": aten_patches.COPIES,
}
ROWS = [pytest.param(row, id=f"{table}-{number}") for table, rows in TABLES.items() for number, row in enumerate(rows)]


def _sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / "capture").rglob("*.py")):
        yield path, ast.parse(path.read_text("utf-8"))


@pytest.mark.parametrize("row", ROWS)
def test_a_row_says_why_for_which_torch_and_names_its_test(row: Patch[Any]) -> None:
    assert row.why.endswith(".") and row.names and set(row.versions) <= set(SUPPORTED_TORCH)
    assert bool(row.test) != bool(row.untested)
    if row.test:
        file, _, node = row.test.partition("::")
        function, _, case = node.partition("[")
        text = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^def {function}\(", text, re.MULTILINE), row.test
        if case:
            assert f"{function}[{case}" in row.test and case.endswith("]")


@pytest.mark.parametrize("row", [param for param in ROWS if param.values[0].is_needed])
def test_what_a_row_patches_is_there(row: Patch[Any]) -> None:
    missing = []
    for name in row.names:
        module, _, path = name.partition(":")
        if module.startswith("triton") or "*" in name:
            continue
        try:
            named(name)
        except AttributeError:
            owner = named(f"{module}:{path.rpartition('.')[0]}") if "." in path else None
            if path.rpartition(".")[2] not in getattr(owner, "__dict__", {}) and not name.endswith(INSTANCES):
                missing.append(name)
        except ImportError:
            missing.append(name)
    assert missing == []


INSTANCES = ("EffectHolder._effect", "OpOverload.py_kernels", *(f"TensorVariable.{name}" for name in NOTED))
"""Set by `__init__`."""


def test_whatever_patches_is_the_patch_of_a_row() -> None:
    """`patched`, `replaced` and assignments to torch's attributes stand in functions that rows apply, or in those that these call."""
    wrong, calls = [], {}
    for path, tree in _sources():
        if path.name == "patching.py":
            continue
        for function in tree.body:
            inside = {node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
            calls[f"{path.stem}.{getattr(function, 'name', '')}"] = inside
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and "mock" in ast.unparse(node):
                wrong.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
            if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
                targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Attribute) and ast.unparse(target).startswith(("torch.", "sys.modules")):
                        wrong.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    patching_functions = {name for name, inside in calls.items() if inside & {"patched", "replaced", "_around", "_made", "_kernels"}}
    table_text = "".join((Path(module.__file__ or "")).read_text() for module in (dynamo_patches, aten_patches))
    helpers = ("_around", "_made", "_kernels", "_proxy_call", "_take_over", "_keep_out_empty")
    for name in sorted(patching_functions):
        function = name.partition(".")[2]
        if function not in helpers and not re.search(rf"\b{function}\b", table_text):
            wrong.append(name)
    assert wrong == []


def _installs(row: Patch[Any], given: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names that a row patches when it is applied, as the table writes them."""
    seen: list[tuple[Any, str]] = []
    layer = patching._Layer

    class Noting(layer):  # type: ignore[misc, valid-type]
        def __init__(self, owner: Any, name: str, value: Any) -> None:
            seen.append((owner, name))
            super().__init__(owner, name, value)

    monkeypatch.setattr(patching, "_Layer", Noting)
    with row.apply(given):
        pass
    monkeypatch.undo()
    return {
        f"{getattr(owner, '__module__', None) or owner.__name__}:{owner.__qualname__}.{name}"
        if isinstance(owner, type)
        else f"{owner.__name__}:{name}"
        for owner, name in seen
    }


GIVEN = dynamo_patches.Tracing({}, dynamo_patches.TraceRecord(), dynamo_patches.Dynamic(), lambda source: False, lambda name, tx: None)


@pytest.mark.parametrize("row", [row for row in ROWS if row.id and row.id.startswith(("dynamo", "around")) and row.values[0].is_needed])
def test_a_row_patches_what_it_names(row: Patch[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = _installs(row, GIVEN, monkeypatch)
    names = [name.replace("torch._dynamo.variables:", "torch._dynamo.variables.*:") for name in row.names]
    assert [name for name in found if not any(fnmatch.fnmatch(name, pattern) for pattern in names)] == []
    assert found or row.others, "the row has no effect with this torch"
    by_torch = [name for name in row.names if name.startswith("torch._dynamo") and not ("*" in name or row.others or name.endswith(LATER))]
    assert [n for n in by_torch if not any(fnmatch.fnmatch(name, n.replace("variables:", "variables.*:")) for name in found)] == []


LATER = ("OutputGraph.graphargs", "UserFunctionVariable.get_source")
"""Patched by another patch of the row, around a call."""


def _mro_owner(name: str) -> tuple[Any, str]:
    module, _, path = name.partition(":")
    return named(f"{module}:{path.rpartition('.')[0]}"), path.rpartition(".")[2]


METHODS = [
    pytest.param(name, id=f"{row.id}-{name.rpartition(':')[2]}")
    for row in ROWS
    if row.values[0].is_needed and str(row.id).startswith("dynamo")
    for name in row.values[0].names
    if name.endswith(".call_method") and name.startswith("torch._dynamo") and "*" not in name
]


@pytest.mark.parametrize("name", METHODS)
def test_no_subclass_answers_before_a_method_that_is_patched(name: str) -> None:
    """Whoever overrides `call_method` asks the one that is patched: otherwise its calls of methods pass the patch by, without a word."""
    cls, method = _mro_owner(name)
    asked = asked_for_methods(cls)
    passed_by = []
    for other in (c for c in vars(user_defined).values() if isinstance(c, type) and issubclass(c, cls)):
        first = next(c for c in other.__mro__ if method in vars(c) or c in asked)
        if first not in asked and "super().call_method" not in inspect.getsource(vars(first)[method]):
            passed_by.append(other.__name__)
    assert passed_by == []


# -- seen by one thread


class Thing:
    def method(self) -> str:
        return "before"

    @property
    def value(self) -> str:
        return "before"

    @staticmethod
    def static() -> str:
        return "before"


class Below(Thing):
    pass


def _in_thread(ask: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(ask()))
    thread.start()
    thread.join()
    return found[0]


def test_other_threads_see_what_was_there() -> None:
    before = dict(vars(Thing))
    with (
        patched(Thing, "method", lambda self: "inside"),
        patched(Thing, "value", property(lambda self: "inside")),
        patched(Thing, "static", staticmethod(lambda: "inside")),
        patched(Below, "method", lambda self: "below"),
        patched(torch.nn.functional, "relu", lambda x: "inside"),
    ):

        def ask() -> tuple[str, ...]:
            asked = torch.nn.functional.relu(torch.ones(1))
            return Thing().method(), Thing.method(Thing()), Thing().value, Thing.static(), Below().method(), str(asked)

        assert ask() == ("inside", "inside", "inside", "inside", "below", "inside")
        assert _in_thread(ask) == ("before", "before", "before", "before", "before", "tensor([1.])")
        assert _in_thread(lambda: Thing.method) is before["method"]
    assert {name: value for name, value in vars(Thing).items() if name in before} == before
    assert "method" not in vars(Below)


def test_patches_of_one_name_nest_and_leave_in_any_order() -> None:
    first, second = patched(Thing, "method", lambda self: "first"), patched(Thing, "method", lambda self: "second")
    original = vars(Thing)["method"]
    first.__enter__()
    _in_thread(second.__enter__)
    first.__exit__(None, None, None)
    assert Thing().method() == "before"
    _in_thread(lambda: second.__exit__(None, None, None))
    assert vars(Thing)["method"] is original


def test_what_is_replaced_for_all_comes_back_with_the_last_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    thing: Any = Thing()
    thing.number = 1
    first, second = replaced(thing, "number", 2), replaced(thing, "number", 2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert thing.number == 2
    second.__exit__(None, None, None)
    assert thing.number == 1


def test_another_thread_sees_torch_as_it_is_while_one_traces() -> None:
    """But for what the rows say: functions of modules are other objects that do the same, and settings that are no functions."""
    names = [name for row in dynamo_patches.PATCHES if row.is_needed and not row.others for name in row.names if "*" not in name]
    methods = [name for name in names if isinstance(named(name.rpartition(".")[0]) if "." in name.partition(":")[2] else None, type)]
    before = {name: named(name) for name in methods}
    seen: list[Any] = []

    def look() -> tuple[Any, ...]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("of another thread", UserWarning, stacklevel=1)
        others = [name for name in methods if named(name) != before[name]]
        return others, [(w.filename, str(w.message)) for w in caught], str(torch.nn.functional.relu(torch.ones(1)))

    capture(lambda x: x + 1, (torch.ones(2),), options=CaptureOptions({}, trace=lambda gm: seen.append((_in_thread(look), look()[0]))))
    ((others, caught, result), here) = seen[0]
    assert (others, caught, result) == ([], [(__file__, "of another thread")], "tensor([1.])")
    assert len(here) > 20 and len(methods) > 30
    assert {name: named(name) for name in methods} == before


def test_attention_of_another_thread_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs, seen = torch.nn.functional.scaled_dot_product_attention, []
    monkeypatch.setattr(keep_attention, "attention", lambda *given, **named: seen.append("replaced") or torchs(*given, **named))
    q = torch.ones(1, 1, 2, 2)
    with keep_attention.whole_attention(torch.fx.symbolic_trace(torch.nn.Identity())):
        assert torch.equal(_in_thread(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)), torchs(q, q, q))
        assert seen == []
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert seen == ["replaced"] and torch.nn.functional.scaled_dot_product_attention is torchs
