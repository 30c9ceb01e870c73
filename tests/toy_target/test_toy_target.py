"""A third family of targets is a folder and a row: its programs are captured, compiled, stored, loaded and run like any other's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from precast.artifact_store import Store

HERE = Path(__file__).parent
ROOT = next(path for path in HERE.parents if (path / "pyproject.toml").is_file())
UNREGISTERED = """
import precast
from precast.runtime import targets
print(targets.why_unfit("toy:interpreter"))
try:
    targets.resolve("toy:interpreter")
except precast.OptionError as error:
    print(error)
"""


def run(*arguments: str, expect: int = 0) -> str:
    """What `programs.py` prints in a fresh process; its errors too where failure is expected."""
    command = [sys.executable, "-W", "ignore", str(HERE / "programs.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout.strip() if expect == 0 else done.stdout + done.stderr


def targets_in(folder: Path) -> set[str]:
    store = Store.open(folder)
    return {manifest.target for key in store.programs() for manifest in store.variants(key)}


@pytest.mark.parametrize(("name", "calls"), [("block", 3), ("several", 2), ("attention", 2), ("sizes", 3)])
def test_cold_and_then_warm_in_another_process(name: str, calls: int, tmp_path: Path) -> None:
    """The second process loads without the tracer what the first one compiled; in both the interpreter computes every answer."""
    assert run(str(tmp_path), name, "compile") == f"{calls} tracer interpreter"
    assert targets_in(tmp_path) == {"toy:interpreter"}
    assert run(str(tmp_path), name, "load") == f"{calls} warm interpreter"


def test_what_its_backend_has_no_form_for_runs_eagerly(tmp_path: Path) -> None:
    assert run(str(tmp_path), "branching", "compile").startswith("0 ")
    assert targets_in(tmp_path) == set()


def test_without_the_row_there_is_no_such_family() -> None:
    done = subprocess.run([sys.executable, "-c", UNREGISTERED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "this process has no target family of that name; it has cpu, cuda"
    assert done.stdout.splitlines()[1].startswith("unknown target 'toy:interpreter'; known: cpu:native")


def test_the_library_holds_the_program_and_no_kernel_of_another_family(tmp_path: Path) -> None:
    run(str(tmp_path), "block", "compile")
    store = Store.open(tmp_path)
    (manifest,) = (manifest for key in store.programs() for manifest in store.variants(key))
    blobs = manifest.graphs["forward"].blobs
    assert "precast_toy::interpret" in store.blob(blobs["host_source"]).decode() and store.blob(blobs["kernel_source"]) == b""
    assert manifest.versions.compiler.endswith(", the oracle")


def test_nothing_outside_its_folder_names_it() -> None:
    folders = ("precast", "capture", "lowering", "codegen", "artifact_store", "runtime")
    named = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if re.search(r"\btoy\b", path.read_text("utf-8"))]
    assert named == []
