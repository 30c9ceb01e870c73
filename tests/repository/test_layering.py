"""The import arrows of the design, kept three ways: import-linter, who names torch's tracer, and fresh interpreters."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from precast.artifact_store import Store

ROOT = Path(__file__).parents[2]
FOLDERS = ("precast", "capture", "lowering", "codegen", "artifact_store", "runtime")
TRACER = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx.experimental")
HEAVY = ("torch", "sympy", "triton", "diskcache", "fsspec", "platformdirs", "rich", "click", "numpy")


def _sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _imports(path: Path) -> set[str]:
    """Every module that a file names in an import, also inside functions; not those under `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text("utf-8"))
    checking = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")]
    skipped = {id(inner) for node in checking for inner in ast.walk(node)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return found


def _run(code: str, **env: str) -> str:
    """Output of `code` in a fresh interpreter that sees the installed package only."""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_linter() -> None:
    done = subprocess.run(
        [ROOT / ".ci" / "arrows"], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def _modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    found = {}
    for path in _sources(*FOLDERS):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts if parts[0] == "precast" else ("precast", *parts))
        found[name.removesuffix(".__init__")] = path
    return found


def _arrows(modules: dict[str, Path]) -> dict[str, set[str]]:
    """What each module imports of the package: at its top, inside functions, and for type checkers only."""
    arrows = {}
    for module, path in modules.items():
        named: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                named.update(full if (full := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names)
        arrows[module] = {name for name in named if name in modules and name != module}
    return arrows


def test_no_circle_of_imports() -> None:
    """Not even one that imports inside functions, or under TYPE_CHECKING, would hide."""
    TopologicalSorter(_arrows(_modules())).prepare()  # a CycleError names the circle


def test_programs_are_built_in_one_file() -> None:
    """Whoever wants to know what a program consists of finds all of it in `build_program.py`."""
    made = {"Program", "ProgramHooks", "Resumes", "Callees", "Dispatcher"}
    where = {
        (path.name, node.func.id)
        for path in _sources("runtime")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in made
    }
    assert where == {("build_program.py", name) for name in made}


@pytest.mark.parametrize("folder", ["runtime", "artifact_store"])
def test_the_warm_path_never_names_the_tracer(folder: str) -> None:
    named = {(path.name, name) for path in _sources(folder) for name in _imports(path) if name.startswith((*TRACER[:3], "sympy", "triton"))}
    assert named == set()


def test_only_capture_reaches_into_the_tracer() -> None:
    named = {
        (path.as_posix(), name)
        for path in _sources("lowering", "codegen", "precast")
        for name in _imports(path)
        if name.startswith(TRACER[:2])
    }
    assert named == set()


def test_imports_inside_the_package_are_absolute_and_by_its_name() -> None:
    wrong = set()
    for path in _sources(*FOLDERS):
        wrong |= {(path.as_posix(), name) for name in _imports(path) if name.split(".")[0] in FOLDERS[1:]}
    assert wrong == set()


@pytest.mark.parametrize(
    "module",
    ["precast", "precast.artifact_store", "precast.artifact_store.local.leases", "precast.artifact_store.format.manifest"],
)
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    assert _run(code) == "[]"


def test_a_warm_start_of_the_store_is_light(tmp_path: Path) -> None:
    """Open, find, read blobs, record a use, take a lease: no database, no remote filesystems, no torch."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.artifact_store.sample import fill
store, (first,) = fill({str(tmp_path / "s")!r})
(manifest,) = store.variants("model-0123abcd")
assert manifest.guards and store.blob_path(manifest.graphs["forward"].library)
store.used(first)
with store.lease(first):
    pass
print(sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    assert _run(code) == "[]"


def test_the_store_commands_do_not_import_torch(tmp_path: Path) -> None:
    Store.open(tmp_path).check_writable()
    code = """
import sys
from click.testing import CliRunner
from precast.cli.main import main
for words in (["ls"], ["stats"], ["prune"], ["verify"], ["dir"], ["ls", "--json"], ["--help"], ["build", "--help"]):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, (words, result.output)
print(sorted({"torch", "sympy", "triton"} & set(sys.modules)))
"""
    assert _run(code, PRECAST_STORE=str(tmp_path)) == "[]"


def test_what_an_artifact_is_shows_without_torch(tmp_path: Path) -> None:
    """Its peak of memory and its steps' expected times, too: these are read from records."""
    build = """
import torch, precast
print(precast.precompile(precast.compile(lambda x: (x.t() + 1).softmax(-1), name="shown"), [((torch.ones(70, 90),), {})]).ok)
"""
    assert _run(build, PRECAST_STORE=str(tmp_path)) == "True"
    code = """
import json, sys
from click.testing import CliRunner
from precast.cli.main import main
(one,) = json.loads(CliRunner().invoke(main, ["ls", "--json"]).output)
for more, said in (([], "shown"), (["--json"], "peak"), (["--steps", "--chip", "NVIDIA H200"], "kernel")):
    result = CliRunner().invoke(main, words := ["show", one["id"], *more])
    assert result.exit_code == 0 and said in result.output, (words, result.output)
print(sorted({"torch", "sympy", "triton"} & set(sys.modules)))
"""
    assert _run(code, PRECAST_STORE=str(tmp_path)) == "[]"


def test_importing_torch_and_the_runtime_brings_no_tracer() -> None:
    code = f"""
import sys, torch
before = set(sys.modules)
import precast.runtime.programs.program, precast.runtime.targets.ladder
print(sorted(name for name in set(sys.modules) - before if name.startswith({(*TRACER[:3], "sympy", "triton")!r})))
"""
    assert _run(code) == "[]"
