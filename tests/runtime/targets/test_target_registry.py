"""The registry of target families: nothing else tests what a target is called, and a process imports only what its own targets need."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precast.codegen import Backend, backend_of
from precast.lowering.targets.scheduling import Scheduling
from precast.runtime.common.errors import OptionError
from precast.runtime.targets import ladder
from precast.runtime.targets.rules import DeviceLoader, TargetRules
from precast.target_registry import (
    CPU,
    CUDA,
    Family,
    UnknownFamily,
    computes_on,
    families,
    family_of,
    family_of_symbol,
    family_on,
    find_family,
    load,
    register_target,
    unregister_target,
)

ROOT = Path(next(path for path in Path(__file__).parents if (path / "pyproject.toml").is_file()))
FOLDERS = ("capture", "lowering", "codegen", "runtime", "artifact_store", "precast")
A_TEST_OF_A_TARGET = re.compile(
    r"""startswith\(\(?["']cuda|\bis_cuda\b|device\.type\s*[!=]=\s*["']cuda|["']cuda:?["']\s+in\s|==\s*["']cuda["']"""
)
A_FAMILY_S_OWN = re.compile(r"(^|/)(target_registry\.py|[a-z_]*cuda[a-z_]*\.py|cuda/|cuda_graphs/)")


def test_only_the_registry_and_a_family_s_own_files_test_for_a_target() -> None:
    """A new family must not need an edit of every such line."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not A_FAMILY_S_OWN.search(path.relative_to(ROOT).as_posix())
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if A_TEST_OF_A_TARGET.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    ['if target.startswith("cuda:"):', "if is_cuda(target):", 'if tensor.device.type == "cuda":', "x.is_cuda", "kind == 'cuda'"],
)
def test_such_a_line_is_found(line: str) -> None:
    assert A_TEST_OF_A_TARGET.search(line)


def test_every_row_s_doors_lead_somewhere() -> None:
    for family in families():
        assert isinstance(load(family.runtime), TargetRules)
        assert isinstance(load(family.lowering), Scheduling)
        assert isinstance(load(family.codegen), Backend) and backend_of(family) is load(family.codegen)
        assert not family.loader or isinstance(load(family.loader), DeviceLoader)
        assert all(find_family(name) == family for name in load(family.runtime).names())


def test_which_family_a_target_is_of() -> None:
    assert family_of("cpu:x86-64") == CPU and family_of("cuda:sm_90") == CUDA
    assert [find_family(name) for name in ("cuda", "", "nosuch:1", "cud:a")] == [None] * 4
    with pytest.raises(UnknownFamily, match=r"registered for 'nosuch:1'; there are cpu, cuda"):
        family_of("nosuch:1")


def test_which_family_a_graph_s_devices_decide_for() -> None:
    assert family_on(["cpu", "cuda"]) == CUDA and family_on(["cpu"]) is family_on([]) is family_on(["mps"]) is None
    assert computes_on("cuda") and not computes_on("cpu") and not computes_on("meta")


def test_whose_symbols_they_are() -> None:
    assert [family_of_symbol(name) for name in ("cuLaunchKernel", "cublasCreate", "aoti_torch_clone", "")] == [CUDA, None, None, None]


def test_a_row_is_added_once_and_taken_out_again() -> None:
    row = replace(CPU, name="toy")
    register_target(row)
    try:
        register_target(row)  # the same once more is no other
        assert family_of("toy:1") == row and families() == (CPU, CUDA, row)
        with pytest.raises(ValueError, match="a target family 'toy' already"):
            register_target(replace(row, images=True))
    finally:
        unregister_target("toy")
    with pytest.raises(UnknownFamily, match="no target family is named 'toy'"):
        unregister_target("toy")


def test_an_artifact_of_a_family_that_is_not_registered_here_is_a_miss_with_a_reason() -> None:
    assert ladder.rank("nosuch:1") is None and not ladder.serves("cpu:x86-64", "nosuch:1") and not ladder.runs("cpu:x86-64", "nosuch:1")
    assert ladder.why_unfit("nosuch:1") == "this process has no target family of that name; it has cpu, cuda"


GPU_MODULE = r"(^|[._])(cuda|gpu|triton(?!_launches|_kernels|_launch)|cubin|ptx|nvidia)([._]|$)"
"""What looks for launches of users' own Triton kernels (`triton_launches`, `triton_kernels`, `triton_launch`) does so in every graph, for
any target.
"""
COLD = f"""
import re, sys

class Watch:
    '''Notes every module of Triton's that a file of precast asks for. torch's own tracer imports Triton, where it is installed.'''
    asked = []
    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if name.split(".")[0] == "triton" and frame is not None and frame.f_globals.get("__name__", "").startswith("precast"):
            self.asked.append((name, frame.f_globals["__name__"]))

sys.meta_path.insert(0, Watch())
import torch
from torch import nn
import precast
model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()).eval()
x = torch.randn(4, 32)
with torch.no_grad():
    compiled = precast.compile(model, store=sys.argv[1])
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
names = sorted(name for name in sys.modules if name.startswith("precast."))
print([name for name in names if re.search({GPU_MODULE!r}, name)])
print(Watch.asked)
print(any(name.endswith(".toolchain") for name in names))
"""


BACKGROUND = """
import sys, threading, time

class Watch:
    late = []
    def find_spec(self, name, path=None, target=None):
        if name.startswith("precast.") and threading.current_thread().name.startswith("precast-background-compile"):
            self.late.append(name)

sys.meta_path.insert(0, Watch())
import torch
import precast
def work(x):
    return torch.softmax(x @ x, -1) + 1
compiled = precast.compile(work, store=sys.argv[1], options={"background_compile": True})
x = torch.randn(8, 8)
with torch.no_grad():
    compiled(x)
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("precast-background-compile")]
    for thread in threading.enumerate():
        if thread.name.startswith("precast-background-compile"):
            thread.join()
    torch.testing.assert_close(compiled(x), work(x))
print(names, Watch.late)
"""


def test_a_background_compile_imports_nothing_of_ours_in_its_thread(tmp_path: Path) -> None:
    """A child that is forked meanwhile would wait for ever for a module that the thread was importing."""
    done = subprocess.run([sys.executable, "-P", "-c", BACKGROUND, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names, late = done.stdout.strip().split("] ")
    assert "precast-background-compile" in names and late == "[]"


def test_a_cold_call_on_the_cpu_imports_no_module_of_the_gpu(tmp_path: Path) -> None:
    """In a fresh interpreter: Linear, LayerNorm and GELU are captured, lowered, compiled, stored and run."""
    done = subprocess.run([sys.executable, "-P", "-c", COLD, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ours, triton, compiled = done.stdout.splitlines()
    assert compiled == "True", "nothing was compiled"
    assert ours == "[]" and triton == "[]"


GOOD = {"name": "toy", "runtime": "toy.rules:RULES", "lowering": "toy.passes:PASSES", "codegen": "toy.backend:BACKEND"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": ""}, "its name"),
        ({"name": "a:b"}, "its name"),
        ({"runtime": ""}, "runtime=''"),
        ({"codegen": "os.path"}, "codegen='os.path'"),
        ({"loader": "nothing"}, "loader='nothing'"),
        ({"driver_symbols": "(", "loader": "toy.loader:LOADER"}, "is no pattern"),
        ({"driver_symbols": "toy[A-Z].*"}, "needs a loader"),
        ({"driver_symbols": ".*", "loader": "toy.loader:LOADER"}, "functions of torch's"),
    ],
)
def test_a_row_that_cannot_be_right_is_refused(wrong: dict[str, str], said: str) -> None:
    before = families()
    with pytest.raises(ValueError, match=said):
        register_target(Family(**{**GOOD, **wrong}))
    assert families() == before


@pytest.mark.parametrize("row", ["cpu", None])
def test_what_is_no_row_is_refused(row: Any) -> None:
    with pytest.raises(ValueError, match="described by a Family"):
        register_target(row)


def test_a_door_that_leads_nowhere_is_named() -> None:
    with pytest.raises(ImportError, match="'no.such.module:RULES'"):
        load("no.such.module:RULES")


def test_a_target_is_a_name() -> None:
    with pytest.raises(OptionError, match="not 7"):
        ladder.resolve(7)  # type: ignore[arg-type]
