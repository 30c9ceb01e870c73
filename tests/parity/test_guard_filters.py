"""Guard filters against torch.compile's: the same entries, and the same changes that recompile or do not; what is waived is on record."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from click.testing import CliRunner
from torch._dynamo.testing import CompileCounter

import precast
from precast.artifact_store import Store
from precast.cli.main import main
from precast.runtime.api.compile import site_of
from precast.runtime.settings.guard_filters import content

FILTERS = (
    "skip_guard_on_inbuilt_nn_modules_unsafe",
    "skip_guard_on_all_nn_modules_unsafe",
    "keep_tensor_guards_unsafe",
    "skip_guard_on_globals_unsafe",
    "keep_portable_guards_unsafe",
    "skip_all_guards_unsafe",
)
SCALE = 2.0


pytestmark = pytest.mark.usefixtures("fresh_tracer")


class Mine(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4, eps=0.1)  # of nearly equal numbers, a smaller one makes rounding errors large
        self.factor = 3.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) * self.factor * SCALE


def _factor(module: Mine) -> None:
    module.factor = 5.0


def _epsilon(module: Mine) -> None:
    module.norm.eps = 0.5


def _scale(module: Mine) -> None:
    global SCALE
    SCALE = 7.0


CHANGES: dict[str, Callable[[Mine], None]] = {"own attribute": _factor, "attribute of a torch module": _epsilon, "global": _scale}


def compiles(compiled: Any, count: Callable[[], int], module: Mine, change: Callable[[Mine], None], x: torch.Tensor) -> list[int]:
    """The number of compiles after a first call, after a change, and after a call of another size."""
    global SCALE
    SCALE = 2.0
    seen = []
    for act in (lambda: None, lambda: change(module)):
        act()
        for _ in range(3):
            compiled(x)
        seen.append(count())
    compiled(torch.randn(3, 4))
    return [*seen, count()]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FILTERS)
def test_the_same_changes_recompile(name: str, change: str, store: Store) -> None:
    theirs, ours = Mine(), Mine()
    counter = CompileCounter()
    x = torch.randn(2, 4)
    torch_options: Any = {"guard_filter_fn": getattr(torch.compiler, name)}
    reference = torch.compile(theirs, backend=counter, dynamic=False, options=torch_options)
    expected = compiles(reference, lambda: counter.frame_count, theirs, CHANGES[change], x)
    compiled = precast.compile(ours, store=store, dynamic=False, options={"guard_filter_fn": getattr(precast, name)})
    found = compiles(compiled, lambda: len(site_of(compiled).programs[0].variants), ours, CHANGES[change], x)
    if name == "skip_all_guards_unsafe":  # those on what generated code reads stay: another size is compiled for
        expected[-1] += 1
    assert found == expected


def recording(log: Any) -> Callable[[Sequence[Any]], list[bool]]:
    def keep_all(entries: Sequence[Any]) -> list[bool]:
        log.append(list(entries))
        return [True] * len(entries)

    return keep_all


def test_the_entries_are_torchs(store: Store) -> None:
    module, x = Mine(), torch.randn(2, 4)
    theirs: list[Any] = []
    torch.compile(module, backend="eager", options={"guard_filter_fn": recording(theirs)})(x)
    torch._dynamo.reset()

    def keep_all(entries: Sequence[Any]) -> list[bool]:
        SEEN.append(list(entries))
        return [True] * len(entries)

    SEEN.clear()
    compiled = precast.compile(module, store=store, options={"guard_filter_fn": keep_all})
    compiled(x)
    ours = SEEN
    assert len(ours) == len(theirs) == 1
    fields = [f.name for f in dataclasses.fields(ours[0][0])]
    assert fields == [f.name for f in dataclasses.fields(theirs[0][0])]  # torch 2.15 has one more than earlier ones
    assert fields[:7] == ["name", "has_value", "value", "guard_type", "derived_guard_types", "is_global", "orig_guard"]

    def plain(entries: list[Any]) -> set[Any]:
        return {(e.name, e.has_value, e.guard_type, e.derived_guard_types, e.is_global) for e in entries if "___" not in e.name}

    assert plain(ours[0]) == plain(theirs[0])
    assert site_of(compiled).programs[0].variants[0].manifest.waived == ()


SEEN: list[Any] = []


def skip_factor(entries: Sequence[Any]) -> list[bool]:
    return ["factor" not in entry.name for entry in entries]


def test_what_is_waived_is_on_record_and_part_of_the_artifact(store: Store) -> None:
    x = torch.randn(2, 4)
    module = Mine()
    plain = precast.compile(module, store=store)
    filtered = precast.compile(module, store=store, options={"guard_filter_fn": skip_factor})
    plain(x), filtered(x)
    manifests = [site_of(f).programs[0].variants[0].manifest for f in (plain, filtered)]
    assert manifests[0].waived == () and "guard_filter_fn" not in manifests[0].options
    assert manifests[1].waived == ("CONSTANT_MATCH on self.factor",)
    assert manifests[1].options["guard_filter_fn"] == content(skip_factor)
    assert manifests[0].artifact_id != manifests[1].artifact_id and manifests[0].program_key != manifests[1].program_key
    assert len(manifests[0].guard_rows) > len(manifests[1].guard_rows)
    shown = CliRunner().invoke(main, ["show", manifests[1].artifact_id[:16], "--store", str(store.root)])
    assert shown.exit_code == 0, shown.output
    assert "waived     CONSTANT_MATCH on self.factor" in shown.output
    module.factor = 11.0
    torch.testing.assert_close(filtered(x), module(x) * 3 / 11)  # unsafe, as asked for
    torch.testing.assert_close(plain(x), module(x))


def test_a_stored_artifact_is_served_to_the_same_filter_only(store: Store) -> None:
    x = torch.randn(2, 4)
    module = Mine()
    wanted = module(x)
    report = precast.precompile(module, [((x,), {})], options={"guard_filter_fn": skip_factor}, store=store)
    assert report.ok and report.signatures[0].outcome == "compiled"
    served = precast.load(module, store=store, options={"guard_filter_fn": skip_factor})
    for _ in range(4):
        torch.testing.assert_close(served(x), wanted)
    with pytest.raises(precast.GuardMiss, match="guard_filter_fn"):
        precast.load(module, store=store)(x)
    with pytest.raises(precast.GuardMiss):
        precast.load(module, store=store, options={"guard_filter_fn": precast.keep_tensor_guards_unsafe})(x)


def test_what_the_graph_reads_is_always_checked(store: Store) -> None:
    """Even a filter that keeps nothing: another shape of a weight compiles anew, and a missing weight is a miss, not a crash."""

    def nothing(entries: Sequence[Any]) -> list[bool]:
        return [False] * len(entries)

    module = torch.nn.Linear(4, 4)
    compiled = precast.compile(module, store=store, dynamic=False, options={"guard_filter_fn": nothing})
    for size in (4, 6, 4):
        module.weight = torch.nn.Parameter(torch.randn(size, 4))
        module.bias = torch.nn.Parameter(torch.randn(size))
        for _ in range(4):
            x = torch.randn(2, 4)
            torch.testing.assert_close(compiled(x), torch.nn.functional.linear(x, module.weight, module.bias))
    assert len(site_of(compiled).programs[0].variants) == 2
    del module.bias
    with pytest.raises(AttributeError, match="bias"):
        compiled(torch.randn(2, 4))


def test_filters_that_answer_wrongly(store: Store) -> None:
    wrong: dict[str, Callable[[Any], Any]] = {
        "answers for": lambda entries: [True],
        "one bool per guard": lambda entries: [1] * len(entries),
        "ZeroDivisionError": lambda entries: 1 / 0,
    }
    for text, keep in wrong.items():
        with pytest.raises(AssertionError, match=text):
            precast.compile(lambda x: x + 1, store=store, options={"guard_filter_fn": keep})(torch.zeros(2))
    with pytest.raises(precast.OptionError, match="wants a function"):
        precast.compile(lambda x: x, options={"guard_filter_fn": 3})
    with pytest.raises(precast.OptionError, match="captures what cannot be part of a key"):
        precast.compile(lambda x: x, options={"guard_filter_fn": recording(object())})


def named(prefix: str) -> Callable[[Sequence[Any]], list[bool]]:
    return lambda entries: [not entry.name.startswith(prefix) for entry in entries]


def test_the_key_of_a_filter_is_its_content() -> None:
    assert content(named("a")) == content(named("a")) != content(named("b"))
    assert content(functools.partial(skip_factor)) == content(functools.partial(skip_factor))
    assert content(precast.keep_tensor_guards_unsafe).startswith("torch.compiler:keep_tensor_guards_unsafe#")
    by_name = precast.runtime.settings.options.merge_options(options={"guard_filter_fn": "keep_tensor_guards_unsafe"})
    assert by_name["guard_filter_fn"] is precast.keep_tensor_guards_unsafe
    with pytest.raises(precast.OptionError, match="cannot be found"):
        precast.runtime.settings.options.merge_options(options={"guard_filter_fn": "nowhere:nothing"})


WARM = """
import sys, torch, precast
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
x = torch.randn(2, 4)
with torch.no_grad():
    for name in {filters!r}:
        served = precast.compile(net, store=sys.argv[1], options={{"guard_filter_fn": getattr(precast, name)}})
        torch.testing.assert_close(served(x), net(x))
print("warm" if "torch._dynamo" not in sys.modules else "cold")
"""


def test_filters_do_not_import_the_tracer(tmp_path: Path) -> None:
    for expected in ("cold", "warm"):
        done = subprocess.run(
            [sys.executable, "-c", WARM.format(filters=FILTERS), str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.strip() == expected


@pytest.mark.filterwarnings("ignore:precast. what the backend")
def test_a_filter_with_another_backend(store: Store) -> None:
    module, x = Mine(), torch.randn(2, 4)
    compiled = precast.compile(module, backend="eager", store=store, options={"guard_filter_fn": skip_factor})
    wanted = module(x)
    torch.testing.assert_close(compiled(x), wanted)
    module.factor = 9.0
    torch.testing.assert_close(compiled(x), wanted)
    assert len(site_of(compiled).programs[0].variants) == 1
