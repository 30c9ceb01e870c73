"""A third family of targets is a folder and a row: its programs are captured, compiled, stored, loaded and run like any other's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from precast.artifact_store import Manifest, Store

HERE = Path(__file__).parent
ROOT = next(path for path in HERE.parents if (path / "pyproject.toml").is_file())
UNREGISTERED = """
import precast
from precast.runtime.targets import ladder as targets
print(targets.why_unfit("toy:interpreter"))
try:
    targets.resolve("toy:interpreter")
except precast.OptionError as error:
    print(error)
"""


CALLS = {"block": 3, "several": 2, "attention": 2, "sizes": 3}


def run(*arguments: str) -> list[str]:
    """The lines that `programs.py` prints in a fresh process."""
    command = [sys.executable, "-W", "ignore", str(HERE / "programs.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A store that one process has filled, and what that process says."""
    folder = tmp_path_factory.mktemp("toy")
    return folder, run(str(folder), "compile", *CALLS, "branching")


def stored(folder: Path) -> list[Manifest]:
    store = Store.open(folder)
    return [manifest for key in store.programs() for manifest in store.variants(key)]


def test_cold_and_then_warm_in_another_process(cold: tuple[Path, list[str]]) -> None:
    """The second process loads without the tracer what the first one compiled; in both the interpreter computes every answer."""
    folder, said = cold
    lines = [f"{name} {count}" for name, count in CALLS.items()]
    assert said == [*lines, "branching 0", "tracer"]
    assert {manifest.target for manifest in stored(folder)} == {"toy:interpreter"}
    assert run(str(folder), "load", *CALLS) == [*lines, "warm"]


def test_what_its_backend_has_no_form_for_is_not_stored(cold: tuple[Path, list[str]]) -> None:
    """It runs eagerly, as the line "branching 0" says."""
    assert {manifest.program_name.partition(":")[2] for manifest in stored(cold[0])} == {"Block", "several", "attention", "<lambda>"}


def test_the_library_holds_the_program_and_no_kernel_of_another_family(cold: tuple[Path, list[str]]) -> None:
    store = Store.open(cold[0])
    for manifest in stored(cold[0]):
        blobs = manifest.graphs["forward"].blobs
        assert "precast_toy::interpret" in store.blob(blobs["host_source"]).decode() and store.blob(blobs["kernel_source"]) == b""
        assert manifest.versions.compiler.endswith(", the oracle")


def test_without_the_row_there_is_no_such_family() -> None:
    done = subprocess.run([sys.executable, "-c", UNREGISTERED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "this process has no target family of that name; it has cpu, cuda"
    assert done.stdout.splitlines()[1].startswith("unknown target 'toy:interpreter'; known: cpu:native")


def test_nothing_outside_its_folder_names_it() -> None:
    folders = ("precast", "capture", "lowering", "codegen", "artifact_store", "runtime")
    named = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if re.search(r"\btoy\b", path.read_text("utf-8"))]
    assert named == []
