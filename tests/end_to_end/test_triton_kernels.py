"""Users' Triton kernels in traced code: launched by name, equal to eager, stored, keyed by their source. Triton's interpreter runs them."""

from __future__ import annotations

import copy
import functools
import importlib.util
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.artifact_store.format.tagged_constants import tag
from precast.capture.capture import CaptureOptions, capture
from precast.lowering.decompositions import DECOMPOSITIONS
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from precast.lowering.verify.interpret import run
from precast.runtime.api.compile import site_of
from precast.runtime.executable import triton_launch
from precast.runtime.fingerprint.triton_kernels import find_kernel, kernel_digest, layers, unreadable
from precast.runtime.programs.variant import Variant
from precast.torch_backend import precast as torch_backend
from tests.support.needs import needs
from tests.support.processes import REFUSE, child

triton = needs("triton")
tl = needs("triton.language")
ROOT = Path(__file__).parents[2]
from tests.end_to_end import kernel_programs as programs  # noqa: E402


def interpreted(path: Path) -> Any:
    """The module once more, with kernels that Triton interprets; it registers no operators again."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_interpreted", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.knobs.runtime, "interpret", True)
        patch.setattr(torch.library, "triton_op", lambda *args, **kwargs: lambda function: function)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run in the interpreter; their autotuners are those of the program."""
    twins: dict[str, Any] = {}

    def executable(kernel: Any) -> Any:
        function = layers(kernel)[-1].fn
        path = function.__code__.co_filename
        twin = twins.get(path) or twins.setdefault(path, interpreted(Path(path)))
        found = layers(getattr(twin, function.__qualname__))[-1]
        for layer in reversed(layers(kernel)[:-1]):
            outer = copy.copy(layer)
            outer.fn, found = found, outer
            outer.__dict__["do_bench"] = getattr(layer, "_do_bench", None) or programs.first_time
        return found

    monkeypatch.setattr(triton_launch, "executable", executable)
    monkeypatch.setattr(triton_launch, "_tuners", {})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_one_graph_equal_to_eager_and_stored(name: str, shared: Path) -> None:
    compiled = precast.compile(programs.PROGRAMS[name][0], store=shared, fullgraph=True)
    for _ in range(3):
        result = programs.check(name, compiled)
    (variant,) = site_of(compiled).programs[0].variants
    assert variant.stored and len(variant.manifest.graphs) == 1
    assert any(key.startswith("kernel tests.end_to_end.kernel_programs:") for key in variant.manifest.digests)
    if name == "aliased":
        assert result[0].data_ptr() == result[1].data_ptr()


def test_warm_without_the_tracer(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (program, _, _) in programs.PROGRAMS.items():
        programs.check(name, precast.compile(program, store=shared, fullgraph=True))
    code = f"""
    import torch, precast
    from tests.end_to_end import kernel_programs as programs
    refuse_tracer()
    with torch.no_grad():
        for name, (program, _, _) in programs.PROGRAMS.items():
            programs.check(name, precast.compile(program, store={str(shared)!r}, fullgraph=True))
    """
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    child(ROOT, REFUSE + "import sys\n" + textwrap.dedent(code))


@pytest.mark.parametrize("name", [n for n in programs.PROGRAMS if n != "guided"])  # torch wants constants of its heuristics
def test_sizes_that_vary(name: str, tmp_path: Path) -> None:
    compiled = precast.compile(programs.PROGRAMS[name][0], store=tmp_path, dynamic=True, fullgraph=True)
    for n in (40, 8, 100, 33):
        programs.check(name, compiled, n)
    variants = site_of(compiled).programs[0].variants
    assert all(variant.stored for variant in variants)
    # one for each power of two, where that is a constexpr; one for each size, where only plain sizes show that columns are apart
    assert len(variants) == {"layouts": 3, "columns": 4}.get(name, 1)


def test_columns_beside_one_another_stay_compiled_when_sizes_vary(tmp_path: Path) -> None:
    """Only plain sizes show that they are apart: where sizes would become symbolic, they do not."""
    compiled = precast.compile(programs.columns, store=tmp_path, fullgraph=True)
    for n in (40, 33, 20, 40):
        programs.check("columns", compiled, n)


def test_other_configurations_are_another_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People trim an autotuner's list while a process runs: grids were computed for the configurations of before."""
    compiled = precast.compile(programs.guided, store=tmp_path, fullgraph=True)
    for _ in range(4):
        programs.check("guided", compiled)
    monkeypatch.setattr(programs.guided_kernel, "configs", [triton.Config({"BLOCK": 16})])
    for _ in range(4):
        programs.check("guided", compiled)
    programs.guided_kernel.configs[:] = [triton.Config({"BLOCK": 32})]
    for _ in range(4):
        programs.check("guided", compiled)
    assert len(site_of(compiled).programs[0].variants) == 3


SOURCE = """
import torch, triton, triton.language as tl, constants
FACTOR = 2

@triton.jit
def helper(x):
    return x + 1

@triton.autotune([triton.Config({"BLOCK": 64})], key=[])
@triton.heuristics({"LARGE": lambda args: FACTOR > 1})
@triton.jit
def kernel(x_ptr, out_ptr, n, LARGE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, helper(tl.load(x_ptr + at, mask=at < n)) * constants.SHIFT, mask=at < n)

def unused():
    return 1

def program(x):
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out
"""
EDITS = {
    "nothing": ("", "", True),
    "other lines": ("def unused():\n    return 1", "# moved\n\n", True),
    "a comment": ("    at = tl", "    # where\n    at = tl", True),
    "the kernel": ("* constants.SHIFT", "- constants.SHIFT", False),
    "an annotation": ("BLOCK: tl.constexpr):\n    at", "BLOCK: 'tl.constexpr'):\n    at", False),
    "what a heuristic reads": ("FACTOR = 2", "FACTOR = 3", False),
    "a helper": ("return x + 1", "return x + 2", False),
    "a configuration": ('{"BLOCK": 64}', '{"BLOCK": 128}', False),
    "a configuration's option": ('{"BLOCK": 64}', '{"BLOCK": 64}, num_warps=8', False),
}


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program and a store that holds its artifact."""
    folder = tmp_path_factory.mktemp("edited")
    (folder / "edited_kernel.py").write_text(SOURCE)
    (folder / "constants.py").write_text("import triton.language as tl\nSHIFT = tl.constexpr(3)\n")
    code = """
    import torch, precast, edited_kernel
    with torch.no_grad():
        try:
            precast.compile(edited_kernel.program, store="store")(torch.zeros(100))
        except RuntimeError as error:  # stored; there is no GPU to run it
            assert "0 active drivers" in str(error), error
    """
    child(folder, code)
    return folder


def hit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a fresh process gets from the store alone: the first element, or the reason of the miss."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    code = """
    import torch, precast, edited_kernel
    with torch.no_grad():
        try:
            print("hit", precast.load(edited_kernel.program, store="store")(torch.zeros(100))[0].item())
        except precast.GuardMiss as miss:
            print("miss", miss)
    """
    return child(folder, code)


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_what_the_kernel_is_made_of_is_a_miss(edit: str, edited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, hits = EDITS[edit]
    assert before in SOURCE
    (edited / "edited_kernel.py").write_text(SOURCE.replace(before, after))
    said = hit(edited, monkeypatch)
    assert said.startswith("hit 3.0") if hits else "the Triton kernel kernel of edited_kernel has changed since" in said, said


def test_an_edit_of_a_constant_in_another_module_is_a_miss(edited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (edited / "edited_kernel.py").write_text(SOURCE)
    constants = (edited / "constants.py").read_text()
    (edited / "constants.py").write_text(constants.replace("3", "4"))
    assert "has changed since" in hit(edited, monkeypatch)
    (edited / "constants.py").write_text(constants)
    assert hit(edited, monkeypatch).startswith("hit 3.0")


def test_a_kernel_without_a_name_is_refused() -> None:
    @triton.jit
    def local_kernel(x_ptr):
        tl.store(x_ptr, 1.0)

    def program(x: torch.Tensor) -> torch.Tensor:
        local_kernel[(1,)](x)
        return x + 1

    with pytest.raises(
        precast.PrecastError, match=r"local_kernel cannot be found again by that name .*\(define it at the top of a module\)"
    ):
        precast.compile(program, fullgraph=True)(torch.ones(4))


def test_kernels_without_names_do_not_pass_for_one_another(tmp_path: Path) -> None:
    """Autotuners that are made of one kernel and stand under other names than its own: what is made for one is not used for another."""
    tuners = [triton.autotune([triton.Config({"BLOCK": block})], key=[])(programs.block_kernel) for block in (32, 64, 128)]
    compiled = precast.compile(programs.given_kernel, store=tmp_path)
    for _ in range(2):
        for tuner, block in zip(tuners, (32, 64, 128), strict=True):
            torch.testing.assert_close(compiled(torch.zeros(100), tuner), torch.full((100,), float(block)))
    variants = site_of(compiled).programs[0].variants
    assert len(variants) == 3 and all(isinstance(variant, Variant) and not variant.stored for variant in variants)


def test_what_is_not_written_is_not_copied_and_nothing_twice(tmp_path: Path) -> None:
    """Inputs that a kernel only reads are no outputs; memory that is overwritten needs no copy."""
    compiled = precast.compile(programs.several, store=tmp_path, fullgraph=True)
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    version = x._version
    compiled(x, y)
    (variant,) = site_of(compiled).programs[0].variants
    assert x._version == version
    assert not any(item["mutated"] for item in variant.manifest.frames[0]["inputs"])


def test_through_torch_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The door that torch traces for: the kernel's digest is part of the graph's name."""
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path))
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda **_: True)
    compiled = torch.compile(programs.several, backend=torch_backend)
    x, y = torch.randn(40, 6), torch.randn(40, 6)
    torch.testing.assert_close(compiled(x, y), programs.PROGRAMS["several"][1](x, y))


@pytest.mark.parametrize("name", ["several", "input in place", "tuned", "operators", "on a branch"])
def test_built_for_a_gpu_that_is_not_here(name: str, tmp_path: Path) -> None:
    """The same guards and digests as here; what a kernel writes is known without a device."""
    program, _, arguments = programs.PROGRAMS[name]
    report = precast.precompile(program, [(arguments(40), {})], targets=["cuda:sm_90", "cpu:native"], store=tmp_path)
    assert report.ok
    there, here = sorted(Store.open(tmp_path).variants(report.key), key=lambda m: m.target, reverse=True)
    assert there.target == "cuda:sm_90" and there.digests == here.digests
    inputs = [[item["mutated"] for item in m.frames[0]["inputs"]] for m in (there, here)]
    assert inputs[0] == inputs[1] == ([True, False] if name == "input in place" else [False] * len(inputs[0]))


BEGINNING = """
import torch, triton, triton.language as tl
"""
KERNEL = """
@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)
"""
STEP = """
@triton.jit
def step(x):
    return x + 1
"""
REST = """
@triton.jit
def apply_kernel(x_ptr, n, F: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, F(tl.load(x_ptr + at, mask=at < n)), mask=at < n)

@torch.library.triton_op("precast_redefined::increase_", mutates_args={"x"})
def increase_(x: torch.Tensor) -> None:
    torch.library.wrap_triton(kernel)[(triton.cdiv(x.numel(), 64),)](x, x.numel(), BLOCK=64)

def launched(x):
    made = x * 2
    kernel[(triton.cdiv(x.numel(), 64),)](made, x.numel(), BLOCK=64)
    return made

def tuned_here(x):
    made = x * 2
    kernel[(triton.cdiv(x.numel(), 64),)](made, x.numel(), BLOCK=64, num_warps=8)
    return made

def in_an_operator(x):
    made = x * 2
    increase_(made)
    return made

@torch.library.triton_op("precast_redefined::apply_", mutates_args={"x"})
def apply_(x: torch.Tensor) -> None:
    torch.library.wrap_triton(apply_kernel)[(triton.cdiv(x.numel(), 64),)](x, x.numel(), F=step, BLOCK=64)

def as_a_constant(x):
    made = x * 2
    apply_(made)
    return made
"""


def from_its_file(kernel: Any) -> Any:
    """The kernel, interpreted, as its file says now."""
    path = Path(layers(kernel)[-1].fn.__code__.co_filename)
    space: dict[str, Any] = {"__name__": "interpreted"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.knobs.runtime, "interpret", True)
        patch.setattr(torch.library, "triton_op", lambda *args, **kwargs: lambda function: function)
        exec(compile(path.read_text(), str(path), "exec"), space)
    return layers(space[layers(kernel)[-1].fn.__qualname__])[-1]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("launched", "reload"),
        ("tuned_here", "reload"),
        *((name, "cell") for name in ("launched", "tuned_here", "in_an_operator", "as_a_constant")),
    ],
)
def test_a_kernel_that_is_defined_anew_is_compiled_anew(name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is loaded again, or the cell of a notebook runs again: under the same name there is another kernel."""
    monkeypatch.setattr(triton_launch, "executable", from_its_file)
    monkeypatch.syspath_prepend(tmp_path)
    module_name = f"redefined_{name}_{how}"
    path = tmp_path / f"{module_name}.py"
    source = BEGINNING + KERNEL + STEP + REST
    path.write_text(source)
    module = importlib.import_module(module_name)
    x = torch.ones(100)
    compiled = precast.compile(getattr(module, name), store=tmp_path / "store", fullgraph=True)
    for _ in range(6):
        torch.testing.assert_close(compiled(x), x * 2 + 1)
    if how == "reload":
        path.write_text(source.replace("+ 1", "+ 20"))
        importlib.reload(module)
    else:
        cell = tmp_path / "cell.py"
        cell.write_text(BEGINNING + (STEP if name == "as_a_constant" else KERNEL).replace("+ 1", "+ 20"))
        exec(compile(cell.read_text(), str(cell), "exec"), module.__dict__)
    for _ in range(6):
        torch.testing.assert_close(compiled(x), x * 2 + 20)
    (program,) = site_of(compiled).programs
    assert len(program.variants) == 2  # what was read of the old kernel (which arguments it writes) is not said of the new one
    another = precast.compile(getattr(module, name), store=tmp_path / "store", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(another(x), x * 2 + 20)
    assert len(Store.open(tmp_path / "store").variants(program.key)) == 2


@pytest.mark.parametrize("name", ["two_views", "two_views_of_an_input"])
def test_a_kernel_that_writes_memory_under_two_views_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(precast.PrecastError, match=r"both_kernel writes a_ptr, which shares memory with b_ptr"):
        precast.compile(getattr(programs, name), store=tmp_path, fullgraph=True)(torch.ones(8, 6))


def test_heuristics_that_are_no_plain_functions_are_refused() -> None:
    """Their parts cannot be told from one another in another process."""
    guided = triton.heuristics({"BLOCK": functools.partial(dict.get, "BLOCK")})(programs.block_kernel)
    assert unreadable(guided).startswith("the heuristic BLOCK is no plain function")
    pruned = triton.autotune(programs.CONFIGS, key=[], prune_configs_by={"early_config_prune": functools.partial(sorted)})
    assert unreadable(pruned(programs.block_kernel)).startswith("early_config_prune is no plain function")
    assert not unreadable(programs.guided_kernel)


def test_a_module_that_fails_on_import_holds_no_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_kernels.py").write_text("raise ZeroDivisionError")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_kernel("broken_kernels:kernel") is None and kernel_digest("broken_kernels:kernel") == ""


def test_a_tuner_for_one_launch_measures_as_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = (({"num_warps": 8, "BLOCK": 64},), (("n",), (), ()))
    tagged = (tuple(tag(config) for config in layer[0]), layer[1])
    made = triton_launch.chosen("tests.end_to_end.kernel_programs:tuned_kernel", tagged)
    assert made is not programs.tuned_kernel and made._do_bench is programs.first_time
    assert made is triton_launch.chosen("tests.end_to_end.kernel_programs:tuned_kernel", tagged)
    monkeypatch.setattr(triton_launch, "_TUNERS_LIMIT", 1)
    triton_launch.chosen("tests.end_to_end.kernel_programs:add_kernel", tagged)
    assert len(triton_launch._tuners) == 1


@pytest.mark.parametrize("name", ["several", "halves", "onto itself"])
def test_lowered_programs_are_checked_and_interpreted(name: str) -> None:
    """Memory that only a kernel writes may be given to it before anything wrote it."""
    program, reference, arguments = programs.PROGRAMS[name]
    given = arguments(40)
    frame = capture(program, given, options=CaptureOptions(DECOMPOSITIONS))
    assert frame.graph is not None
    lowered = lower(frame.graph, name)
    expected = reference(*(t.clone() for t in given))

    def launch(kernel: str, where: tuple[Any, ...], named: dict[str, Any]) -> None:
        text, grids = where
        triton_launch.Launch(kernel, text)([tuple(sizes) for sizes in grids], named)

    for found in (lowered, schedule(lowered, "cpu:x86-64-v3", check=True)):
        got = run(found, [t.clone() for t in given], launch=launch)
        wants = expected if isinstance(expected, tuple) else (expected,)
        for want in wants:
            assert any(g.shape == want.shape and torch.allclose(g, want, atol=1e-5) for g in got)
