"""What is installed: one import package, all of it, and nothing else at the top of site-packages."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from precast.runtime.common.supported_torch import SUPPORTED_TORCH

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PARTS = ("capture", "lowering", "codegen", "artifact_store", "runtime")
FOLDERS = {"precast": "precast", **{f"precast.{name}": name for name in PARTS}}


def test_precast_is_the_whole_package() -> None:
    """precast/ holds the facade and a link to each folder beside it, so that installers, editors and type checkers see one package."""
    links = {path.name: os.readlink(path) for path in (ROOT / "precast").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in PARTS}


def test_every_folder_of_sources_is_a_package_with_a_sentence() -> None:
    """What has no `__init__.py` works from a checkout and is missing from the wheel."""
    folders = {path.parent for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py")}
    assert [folder for folder in sorted(folders) if not ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))] == []


def test_no_room_is_crowded() -> None:
    """At most 15 files beside the `__init__`: a folder that grows beyond that is two."""
    counts: dict[str, int] = {}
    for folder in FOLDERS.values():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".c") and path.name not in ("__init__.py", "__main__.py"):
                name = path.parent.relative_to(ROOT).as_posix()
                counts[name] = counts.get(name, 0) + 1
    assert {name: count for name, count in counts.items() if count > 15 and name != "runtime/native/src"} == {}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout.decode().split("\0")
    names = [name for name in listed if name] or [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
    for name in names:  # a copy, so that building leaves nothing in the checkout
        if (ROOT / name).is_symlink():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).symlink_to(os.readlink(ROOT / name))
        elif (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(folder), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next(folder.glob("precast-*.whl")))


def test_nothing_leaks_to_the_top(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0] for name in wheel.namelist()} == {"precast", f"precast-{PROJECT['project']['version']}.dist-info"}
    assert "py3-none-any" in str(wheel.filename)


def test_the_wheel_holds_every_file(wheel: zipfile.ZipFile) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    wanted = set()
    for package, folder in FOLDERS.items():
        for name in tracked:
            if name.startswith(f"{folder}/") and not name.endswith(".md") and not (ROOT / name).is_symlink():
                wanted.add(f"{package.replace('.', '/')}/{name.removeprefix(folder + '/')}")
    assert wanted and wanted - set(wheel.namelist()) == set()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_it_runs_from_an_unpacked_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    code = "import precast, precast.artifact_store; print(precast.__file__)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "site" / "precast" / "__init__.py")
    command = [sys.executable, "-P", "-m", "precast.cli", "dir", "--store", str(tmp_path / "store")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "store")


def test_versions_agree() -> None:
    tree = ast.parse((ROOT / "precast" / "__init__.py").read_text("utf-8"))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    values = {target.id: node.value for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    assert ast.literal_eval(values["__version__"]) == PROJECT["project"]["version"]


def test_entry_points_exist() -> None:
    for group in (PROJECT["project"].get("scripts", {}), *PROJECT["project"].get("entry-points", {}).values()):
        for target in group.values():
            module, _, name = target.partition(":")
            assert callable(getattr(importlib.import_module(module), name))


def test_every_dependency_is_pinned_and_explained() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {re.split("[=<>]", line)[0].lower().replace("_", "-") for line in lines if not line.startswith("#")}
    table = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    extras = [need for needs in PROJECT["project"]["optional-dependencies"].values() for need in needs]
    for need in PROJECT["project"]["dependencies"] + extras:
        name = re.split(r"[\[<>=; ]", need)[0]
        if name != "precast":
            assert name in pinned, f"{name} is not pinned in constraints.txt"
            assert name in table, f"{name} is not explained in docs/dependencies.md"


def test_every_dependency_is_imported() -> None:
    sources = [path.read_text("utf-8") for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py")]
    for need in PROJECT["project"]["dependencies"]:
        name = re.split(r"[\[<>=; ]", need)[0]
        imports = re.compile(rf"^\s*(import|from) {name}\b", re.MULTILINE)
        assert any(map(imports.search, sources)), f"nothing imports {name}: drop it from pyproject.toml"


def test_every_environment_variable_is_in_the_table() -> None:
    table = (ROOT / "docs" / "controls.md").read_text("utf-8")
    sources = [path.read_text("utf-8") for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py")]
    read = {name for text in sources for name in re.findall(r"""["'](PRECAST_[A-Z_]+)["']""", text)}
    assert "PRECAST_STORE" in read
    assert sorted(name for name in read if f"| `{name}`" not in table) == []


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert text.lstrip().startswith("Apache License\n") and "END OF TERMS AND CONDITIONS" in text and len(text) > 11000


def test_the_hooks_of_a_commit_are_the_checks_of_make_check() -> None:
    """Each names a tool that the development set-up installs in a pinned version, or a script that is here; and `make check` runs it."""
    text = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    ids, entries = (re.findall(rf"^ +(?:- )?{key}: (.+)$", text, re.MULTILINE) for key in ("id", "entry"))
    assert len(ids) == len(set(ids)) == len(entries) == 4 and re.findall("repo: (.+)", text) == ["local"]
    check = (ROOT / "Makefile").read_text("utf-8").replace("$(VENV)", ".venv").partition("\ncheck:")[2].partition("\n\n")[0]
    pinned = (ROOT / "constraints.txt").read_text("utf-8")
    for entry in entries:
        command = entry.split()[0]
        tool = command.removeprefix(".venv/bin/")
        if tool == command:
            assert os.access(ROOT / command, os.X_OK), f"{command} is no program"
        else:
            assert tool in PROJECT["project"]["optional-dependencies"]["dev"] and re.search(rf"^{tool}==", pinned, re.MULTILINE)
        subcommand = " ".join(word for word in entry.split()[:2] if not word.startswith("-"))
        assert subcommand in check, f"make check does not run {subcommand}"


@pytest.mark.parametrize(("file", "minor"), [("constraints.txt", "2.13"), ("constraints-oldest.txt", SUPPORTED_TORCH[0])])
def test_the_pinned_torch_is_a_supported_one(file: str, minor: str) -> None:
    pinned = dict(line.split("==") for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#"))
    (torch,) = (item for item in PROJECT["project"]["dependencies"] if item.startswith("torch"))
    assert torch == f"torch>={SUPPORTED_TORCH[0]}", "no upper bound: a torch that is newer than precast works as far as its probes pass"
    assert minor in SUPPORTED_TORCH and pinned["torch"].startswith(f"{minor}.")
    assert {"triton", "transformers", "pytest", "hypothesis", "numpy"} <= set(pinned)


def test_each_supported_torch_has_a_row_that_make_test_torch_installs() -> None:
    rows = [line.split() for line in (ROOT / ".ci" / "torch-releases").read_text("utf-8").splitlines() if line and not line.startswith("#")]
    assert [minor for minor, *_ in rows] == list(SUPPORTED_TORCH)
    assert all(pins[0].startswith(f"torch=={minor}.") for minor, *pins in rows)
