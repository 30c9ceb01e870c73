"""Every option and every mode does what it says; options of other compilers are refused by name."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.codegen.cpu import tuning
from precast.compiling import driver
from precast.runtime.api.compile import site_of
from precast.runtime.common.log import TOPICS
from precast.runtime.settings.options import (
    MODE_NOTES,
    MODES,
    OPTIONS,
    TORCHS,
    CudaGraphOptions,
    graph_options,
    key_options,
    merge_options,
)
from precast.runtime.targets import cpu

ROOT = Path(__file__).parents[3]


def linear() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(96, 96), torch.nn.GELU()).eval()


def schedule_of(compiled: Any, store: Store) -> str:
    """The scheduled program's text, as the store keeps it."""
    (program,) = site_of(compiled).programs
    (manifest,) = store.variants(program.key)
    text = store.blob(manifest.graphs["forward"].blobs["schedule"])
    assert text is not None
    return text.decode()


@pytest.mark.parametrize("fused", [True, False])
def test_epilogue_fusion(fused: bool, store: Store) -> None:
    model, x = linear(), torch.randn(32, 96)
    compiled = precast.compile(model, options={"epilogue_fusion": fused}, store=store, dynamic=False)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    text = schedule_of(compiled, store)
    assert bool(re.search(r"gemm\(.*gelu", text)) == fused
    assert ("kernel kernel0" in text) == (not fused)


def test_max_autotune_measures_anew_and_longer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    races: list[tuple[Any, ...]] = []
    real = tuning.race

    def counted(calls: Any, *limits: Any) -> Any:
        races.append(limits)
        return real(calls, *limits)

    monkeypatch.setattr(tuning, "race", counted)
    monkeypatch.setattr(tuning, "_memory", {})
    monkeypatch.setattr(tuning, "preemptions", lambda: 0)  # what is measured among other programs is not remembered
    model, x = linear(), torch.randn(32, 96)
    expected = model(x)
    for mode in ("default", "default", "max-autotune", "max-autotune-no-cudagraphs"):
        compiled = precast.compile(model, mode=mode, store=store, dynamic=False, name=f"net{len(races)}{mode}")
        torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
    assert races[0] == () and set(races[1:]) == {tuning.THOROUGH}
    assert len(races) == 3, "the second default compile found the first one's record"


def test_freeze_copies_weights_and_redoes_it_when_they_change(store: Store) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, bias=False), torch.nn.BatchNorm2d(8)).eval()
    x = torch.randn(2, 8, 12, 12)
    libraries = []
    for freeze in (False, True):
        compiled = precast.compile(model, options={"freeze": freeze}, store=store, dynamic=False)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        libraries.append(site_of(compiled).programs[0].variants[0]._executable.library)
    assert [bool(library.prepare) for library in libraries] == [False, True]
    for _ in range(3):
        with torch.no_grad():
            model[0].weight.mul_(0.5)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [True, False])
def test_store_results(kept: bool, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    compiles = []
    real = driver.build_graphs

    def counted(*args: Any) -> Any:
        compiles.append(1)
        return real(*args)

    monkeypatch.setattr(driver, "build_graphs", counted)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    x = torch.randn(4)
    for _ in range(2):  # a fresh program each, as in another process
        compiled = precast.compile(function, options={"store_results": kept}, store=store)
        torch.testing.assert_close(compiled(x), x.exp())
    assert bool(store.programs()) == kept and len(compiles) == (1 if kept else 2)


def test_target_decides_the_instructions(store: Store) -> None:
    x = torch.randn(4)
    compiled = precast.compile(lambda x: x.sin(), options={"target": "cpu:x86-64-v3"}, store=store)
    torch.testing.assert_close(compiled(x), x.sin())
    (manifest,) = store.variants(store.programs()[0])
    assert manifest.target == "cpu:x86-64-v3"


def test_another_target_is_other_machine_code(store: Store, tmp_path: Path) -> None:
    """Whether this machine can run it or not: v4 code holds 512-bit registers, v3 code 256-bit ones, v2 code neither."""
    objdump = shutil.which("objdump")
    assert objdump, "binutils, which the C++ compiler needs, has it"
    names = ("cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2")
    call = (torch.randn(4096), torch.randn(4096)), {}
    precast.precompile(lambda x, y: torch.relu(x * y + 1), [call], targets=names, store=store)
    found = {}
    for manifest in store.variants(store.programs()[0]):
        file = tmp_path / "library.so"
        file.write_bytes(store.blob(manifest.graphs["forward"].blobs["library"]))
        text = subprocess.run([objdump, "-d", file], capture_output=True, text=True, check=True).stdout
        found[manifest.target] = tuple(bool(re.search(name, text)) for name in (r"%zmm\d", r"%ymm\d"))
    assert found[names[0]][0], "512 bits"
    assert found[names[1]] == (False, True) and found[names[2]] == (False, False)


def test_code_for_another_cpu_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither loaded nor run, and the message says what this machine runs."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 2

    x = torch.randn(64)
    precast.precompile(function, [((x,), {})], targets=["cpu:x86-64-v4"], store=store)
    monkeypatch.setattr(cpu, "ladder", lambda: ("cpu:x86-64-v3", "cpu:x86-64-v2"))
    monkeypatch.setattr(cpu, "native_target", lambda: "cpu:x86-64-v3")
    why = "compiled for cpu:x86-64-v4, and this machine's CPU runs cpu:x86-64-v3, cpu:x86-64-v2"
    with pytest.raises(precast.GuardMiss, match=why):
        precast.load(function, store=store)(x)
    with pytest.warns(UserWarning, match=f"cannot be loaded: its target is {why.removeprefix('compiled for ')}"):
        torch.testing.assert_close(precast.compile(function, options={"target": "cpu:x86-64-v4"}, store=store)(x), function(x))
    torch.testing.assert_close(precast.compile(function, store=store)(x), function(x))
    assert {m.target for m in store.variants(store.programs()[0])} == {"cpu:x86-64-v4", "cpu:x86-64-v3"}
    with pytest.raises(precast.OptionError, match="unknown target 'cpu:x86-64-v9'; known: .*cpu:x86-64-v4"):
        precast.compile(function, options={"target": "cpu:x86-64-v9"}, store=store)


@pytest.mark.parametrize("mode", list(MODES))
def test_modes_are_sets_of_options(mode: str, store: Store) -> None:
    given = precast.list_mode_options(mode)
    assert given == precast.list_mode_options()[mode] and set(given) <= set(OPTIONS) and MODE_NOTES[mode]
    assert merge_options(mode) == {**merge_options(), **given}
    model, x = linear(), torch.randn(8, 96)
    torch.testing.assert_close(precast.compile(model, mode=mode, store=store)(x), model(x), rtol=1e-4, atol=1e-5)


def test_cuda_graphs_are_no_part_of_an_artifact(store: Store) -> None:
    """One artifact serves the modes that differ in them only."""
    for with_graphs, without in (("reduce-overhead", "default"), ("max-autotune", "max-autotune-no-cudagraphs")):
        assert key_options(merge_options(with_graphs)) == key_options(merge_options(without))
        assert CudaGraphOptions.of(merge_options(with_graphs)) and not CudaGraphOptions.of(merge_options(without))
    model, x = linear(), torch.randn(8, 96)
    for mode in ("default", "reduce-overhead"):
        precast.compile(model, mode=mode, store=store)(x)
    (key,) = store.programs()
    assert len(store.variants(key)) == 1


def test_random_numbers_are_those_of_eager(store: Store) -> None:
    """By default nothing else than eager's generator is drawn from, in eager's order."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.rand(7) + x.sum()
        b = torch.nn.functional.dropout(x, 0.5, training=True)
        c = torch.randint(0, 9, (5,)).float().sin()
        d = torch.bernoulli(torch.full((6,), 0.4)) * torch.randn(6)
        torch.rand_like(x)  # draws that nobody reads move the generator, too
        torch.nn.functional.dropout(x.exp(), 0.1).sum()
        torch.normal(x, 1.0)
        e = torch.nn.functional.dropout(x / 0, 1.0, training=True), torch.dropout(-x, 1, True)  # these draw nothing
        f = torch.nn.functional.dropout(x * 2, 1.0, True, True)
        return d, c, b.relu() + 1, a, torch.randperm(4), *e, f

    compiled = precast.compile(function, store=store, fullgraph=True)
    for seed in (1, 2):
        x = torch.randn(40)
        torch.manual_seed(seed)
        expected = function(x)
        after = torch.rand(1)
        torch.manual_seed(seed)
        for got, want in zip(compiled(x), expected, strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)
        assert torch.equal(torch.rand(1), after), "the generator stands where eager leaves it"


def test_whose_generators_python_and_numpy_draw_from(store: Store) -> None:
    """Python's random, and numbers of NumPy's, are eager's; arrays that traced code draws with NumPy come from torch's generator."""

    def number(x: torch.Tensor) -> torch.Tensor:
        return x * float(np.random.rand()) + random.random() + random.uniform(0, 2)

    def array(x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(np.random.randn(40)).float()

    def drawn(function: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        random.seed(3), np.random.seed(3), torch.manual_seed(3)
        return [function(torch.ones(40)) for _ in range(3)]

    torch.testing.assert_close(drawn(precast.compile(number, store=store)), drawn(number))
    found = drawn(precast.compile(array, store=store))
    torch.testing.assert_close(found, drawn(torch.compile(array, backend="eager")))
    assert not torch.allclose(found[0], drawn(array)[0]) and not torch.equal(found[0], found[1])


def test_numbers_that_are_drawn_have_the_dtype_of_numbers(store: Store) -> None:
    """Of the default dtype, beside integers and beside tensors without dimensions too; not of float64, as torch.compile has them."""

    def drawn(x: torch.Tensor) -> torch.Tensor:
        return x * random.uniform(1, 2) + random.randint(0, 9)

    compiled = precast.compile(drawn, store=store)
    for x in (torch.ones(3), torch.arange(3), torch.tensor(2.0), torch.tensor(2)):
        random.seed(3)
        expected = drawn(x)
        random.seed(3)
        torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("name", list(TORCHS))
def test_options_of_inductor_that_precast_lacks_say_why(name: str) -> None:
    with pytest.raises(precast.OptionError, match=re.escape(TORCHS[name])):
        precast.compile(lambda x: x, options={name: True})
    assert name not in OPTIONS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epilogue_fusio": True}, "did you mean 'epilogue_fusion'"),
        ({"trace.graph": True}, "did you mean 'trace.graph_diagram'"),
        ({"something": 1}, "known: accumulated_recompile_limit, "),
        ({"max_autotune": 1}, "wants bool, got int"),
        ({"memory_growth": -0.5}, "wants a number, 0 or more, got -0.5"),
        ({"memory_growth": float("nan")}, "wants a number, 0 or more, got nan"),
        ({"max_autotune_seconds": -1}, "wants a number, 0 or more, got -1"),
        ({"dynamic": "maybe"}, "'maybe' is not one of 'auto', 'no', 'yes'"),
    ],
)
def test_errors_name_what_is_near(options: dict[str, Any], message: str) -> None:
    with pytest.raises(precast.OptionError, match=message):
        precast.compile(lambda x: x, options=options)


def test_only_options_that_act_there_pass_torchs_door() -> None:
    for option in OPTIONS.values():
        value = option.default
        if option.instead:
            with pytest.raises(precast.OptionError, match="has no meaning in torch.compile"):
                graph_options(None, {option.name: value})
        elif option.default is not None:
            assert graph_options(None, {option.name: value})[option.name] == value


def test_the_table_in_the_docs_names_a_test_for_each() -> None:
    """docs/controls.md: one row for each option, mode, log topic and backend, whose test exists."""
    rows = re.findall(r"^\| `([^`]+)` \|.*\| `(tests/[^`]+)` \|$", (ROOT / "docs" / "controls.md").read_text("utf-8"), re.M)
    missing = {*OPTIONS, *MODES, *TOPICS, "inductor", "eager", "aot_eager", "cudagraphs", "precast"} - {name for name, _ in rows}
    assert not missing
    for name, test in rows:
        path, _, function = test.partition("::")
        text = (ROOT / path).read_text("utf-8")
        assert f"def {function}(" in text, f"{name}: {test} does not exist"


def test_every_public_name_has_a_row_in_the_docs_that_names_a_test() -> None:
    """docs/directives.md: names in the first column, tests in the last, each file's further tests without the file."""
    rows = [line.split(" | ") for line in (ROOT / "docs" / "directives.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([A-Za-z_]+)", row[0])}
    assert set(precast.__all__) - {"__version__"} <= told
    for first, *_, last in rows:
        tests = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(…?\w+)(?:\[[^]`]*\])?`", last)
        assert tests and tests[0][0], f"{first}: names no test"
        text = ""
        for file, test in tests:
            text = (ROOT / file).read_text("utf-8") if file else text
            assert f"{test.removeprefix('…')}(" in text, f"{first}: {test} does not exist"


def test_options_are_described() -> None:
    text = precast.describe_options()
    assert [name for name in precast.list_options() if f"{name} (" not in text] == []


def _itemed(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item() + 1


def _masked(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0] * 2


@pytest.mark.parametrize(("option", "function"), [("capture_scalar_outputs", _itemed), ("capture_dynamic_output_shape_ops", _masked)])
@torch.no_grad()
def test_what_depends_on_data_stays_in_the_graph(option: str, function: Callable[..., Any], tmp_path: Path) -> None:
    x = torch.randn(8)
    for asked in (True, False):
        store = Store.open(tmp_path / str(asked))
        compiled = precast.compile(function, store=store, options={option: asked})
        for _ in range(2):
            torch.testing.assert_close(compiled(x), function(x))
        report = precast.explain(compiled)(x)
        assert bool(report.graphs) and (not report.breaks) == asked


def _rows(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x[: n.item()] * 2


@torch.no_grad()
def test_a_size_that_torch_cannot_express_is_no_bug_of_precast(tmp_path: Path) -> None:
    options = {"capture_scalar_outputs": True}
    compiled = precast.compile(_rows, store=tmp_path, options=options)
    empty, x, n = torch.randn(0, 3), torch.randn(6, 3), torch.tensor(2)
    with pytest.warns(
        UserWarning, match="torch cannot express a size here that depends on data, as part of a tensor without elements.*test_options.py:"
    ):
        assert compiled(empty, n).shape == (0, 3)
    torch.testing.assert_close(compiled(x, n), x[:2] * 2)
    assert len(precast.explain(compiled)(x, n).graphs) == 1, "other calls are compiled"
    with pytest.raises(precast.PrecastError, match="torch cannot express a size"):
        precast.compile(_rows, store=tmp_path, options=options, fullgraph=True)(empty, n)


@pytest.mark.parametrize("given", ["no", "banana", 1])
def test_dynamic_is_a_bool_or_none(given: Any) -> None:
    """The option of that name takes words: here they would all be true."""
    with pytest.raises(precast.OptionError, match=f"dynamic takes True, False or None, not {given!r}"):
        precast.compile(torch.sin, dynamic=given)
