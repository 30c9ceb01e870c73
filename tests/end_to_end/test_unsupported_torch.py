"""On a torch that precast does not support, or lacks a name that it uses: calls run eagerly, one warning says why, builds fail."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from precast.runtime.common.supported_torch import RANGE

PROGRAM = """
import sys, warnings, torch
{prelude}
import precast

def f(x):
    return x * 2 + 1

def g(x):
    return x - 1

net = torch.nn.Linear(3, 2)
x = torch.ones(2, 3)
with warnings.catch_warnings(record=True) as caught, torch.no_grad():
    warnings.simplefilter("always")
    for program, given in ((f, {{}}), (g, {{}}), (net, {{}}), (f, {{"dynamic": True}}), (g, {{"backend": "eager"}})):
        compiled = precast.compile(program, store=sys.argv[1], **given)
        for _ in range(3):
            assert torch.equal(compiled(x), program(x))
    precast.reset()
    assert torch.equal(precast.compile(precast.disable(f), store=sys.argv[1])(x), f(x))
    assert torch.equal(torch.compile(f, backend="precast")(x), f(x)) or {no_dynamo}
for w in caught:
    print(w.category.__name__, w.message)
try:
    precast.compile(f, store=sys.argv[1], fullgraph=True)(x)
except precast.PrecastError as error:
    print("fullgraph", error)
try:
    precast.precompile(f, [((x,), {{}})], store=sys.argv[1])
except precast.PrecastError as error:
    print("precompile", error)
print(precast.explain_miss(precast.compile(f, store=sys.argv[1]), x))
"""

OLD_VERSION = "torch.__version__ = torch.torch_version.TorchVersion('2.10.0+cpu')"
NO_HOOK = "import torch._C; del torch._C._dynamo.eval_frame._load_precompile_entry"
NO_NAME = "import torch._dynamo.side_effects; del torch._dynamo.side_effects.SideEffects"


def run(store: Path, prelude: str, code: str = PROGRAM, **env: str) -> subprocess.CompletedProcess[str]:
    text = textwrap.dedent(code).format(prelude=prelude, no_dynamo=prelude is not OLD_VERSION)
    whole = {name: value for name, value in os.environ.items() if not name.startswith("PRECAST_")} | env
    return subprocess.run([sys.executable, "-c", text, str(store)], capture_output=True, text=True, env=whole, check=False)


@pytest.mark.parametrize(
    "prelude, says",
    [
        (OLD_VERSION, f"this is torch 2.10.0+cpu, and precast supports torch {RANGE}"),
        (NO_HOOK, "lacks what precast calls of it: torch._C._dynamo.eval_frame._load_precompile_entry"),
        (NO_NAME, "the compiler cannot be imported with torch"),
    ],
    ids=["an older version", "no frame hook", "a moved name"],
)
def test_calls_run_eagerly_and_one_warning_says_why(prelude: str, says: str, tmp_path: Path) -> None:
    done = run(tmp_path, prelude)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    told = [line for line in lines if line.startswith("UserWarning precast")]
    assert len(told) == 1, done.stdout
    assert says in told[0] and "run as they are written (eagerly)" in told[0]
    assert next(line for line in lines if line.startswith("fullgraph")).count(says) == 1
    assert next(line for line in lines if line.startswith("precompile")).count(says) == 1
    assert not list(tmp_path.glob("programs/**/*.msgpack"))


ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())


def command(tmp_path: Path, prelude: str, *words: str) -> subprocess.CompletedProcess[str]:
    text = f"import sys, torch\n{prelude}\nfrom precast.cli.main import main\nmain({list(words)!r})"
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    "prelude, says", [(OLD_VERSION, "this is torch 2.10.0+cpu"), (NO_NAME, "the compiler cannot be imported with torch")]
)
def test_a_build_fails_with_the_sentence(prelude: str, says: str, jobs: str, tmp_path: Path) -> None:
    done = command(tmp_path, prelude, "build", "tests.precast.cli.app:sine", "--jobs", jobs, "--store", str(tmp_path / "store"))
    assert done.returncode == 1
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "prelude, says",
    [
        (OLD_VERSION, f"2.10.0+cpu, {{threads}} threads; precast supports {RANGE}: nothing is compiled or loaded"),
        (NO_HOOK, "lacks what precast calls of it: torch._C._dynamo.eval_frame._load_precompile_entry"),
        (NO_NAME, "does not fit precast.capture.adapters.variables, so that nothing can be compiled: ImportError"),
    ],
)
def test_doctor_says_it(prelude: str, says: str, tmp_path: Path) -> None:
    done = command(tmp_path, prelude, "doctor", "--store", str(tmp_path / "store"))
    assert done.returncode == 1
    assert any(line.startswith("problem") and says.partition(", {threads}")[0] in line for line in done.stdout.splitlines())


def test_doctor_has_nothing_to_say_of_the_torch_of_these_tests(tmp_path: Path) -> None:
    done = command(tmp_path, "", "doctor", "--store", str(tmp_path / "store"))
    assert not [line for line in done.stdout.splitlines() if line.split()[1:2] == ["torch"] and not line.startswith("ok")]


MISSING = """
import sys, warnings, torch
import precast, precast.compiling.driver
{prelude}

def f(x):
    return x + 2

x = torch.ones(2)
with warnings.catch_warnings(record=True) as caught, torch.no_grad():
    warnings.simplefilter("always")
    for _ in range(2):
        assert torch.equal(precast.compile(f, store=sys.argv[1])(x), x + 2)
for w in caught:
    print("warning", w.message)
try:
    precast.compile(f, store=sys.argv[1], fullgraph=True)(x)
except precast.PrecastError as error:
    print("fullgraph", error)
print("precompile", precast.precompile(f, [((x,), {{}})], store=sys.argv[1]))
"""
A_PATCH = "del torch._dynamo.symbolic_convert.InstructionTranslatorBase.call_function"
WHAT = "precast uses torch._dynamo.symbolic_convert.InstructionTranslatorBase.call_function, which torch"


def test_a_name_that_is_missing_in_the_middle_of_a_trace_is_a_refusal(tmp_path: Path) -> None:
    done = run(tmp_path, A_PATCH, MISSING, PRECAST_LOGS="runtime")
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert [line for line in told if line.startswith("warning")] and all(WHAT in line for line in told if line.startswith("warning"))
    assert sum(WHAT in line for line in told if line.startswith("fullgraph")) == 1
    assert "1 for" in done.stdout.partition("precompile")[2] and WHAT in done.stdout.partition("precompile")[2]
    assert "Traceback" in done.stderr and "has no attribute 'call_function'" in done.stderr


def test_strict_processes_see_the_error_itself(tmp_path: Path) -> None:
    done = run(tmp_path, A_PATCH, MISSING, PRECAST_STRICT="1")
    assert done.returncode == 1 and "AttributeError" in done.stderr
