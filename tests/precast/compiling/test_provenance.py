"""Where an artifact comes from: only what is asked for, no secrets, no paths; and never a part of the id."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import precast
from precast.artifact_store import Manifest, Store
from precast.compiling import provenance
from precast.compiling.provenance import Asked, asked, asked_by, ci_run, provenance_of, without_user

GITHUB = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "7"}
AZURE = {"SYSTEM_COLLECTIONURI": "https://dev.azure.com/o/", "SYSTEM_TEAMPROJECT": "p", "BUILD_BUILDID": "12"}


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for parts in provenance._CI.values():
        for name in parts:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(provenance.ENVIRONMENT, raising=False)
    monkeypatch.setattr(provenance.wish, "asked", None)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's in a repository of git."""
    (tmp_path / "models_of_test_provenance.py").write_text("X = 1\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.email=a@b", "-c", "user.name=n", "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "remote", "add", "origin", "https://me:token@example.com/m.git"], check=True)
    made = ModuleType("models_of_test_provenance")
    made.__file__ = str(tmp_path / "models_of_test_provenance.py")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    provenance._git.cache_clear()
    return made


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        (GITHUB, ("GitHub Actions", "https://github.com/o/r/actions/runs/7")),
        ({**GITHUB, "GITHUB_RUN_ID": ""}, None),
        ({"CI_JOB_URL": "https://gitlab-ci-token:secret@gitlab.com/j/1"}, ("GitLab CI", "https://gitlab.com/j/1")),
        ({"BUILD_URL": "https://jenkins/job/4/"}, ("Jenkins", "https://jenkins/job/4/")),
        (AZURE, ("Azure Pipelines", "https://dev.azure.com/o/p/_build/results?buildId=12")),
        ({"CIRCLE_BUILD_URL": "https://circleci.com/1"}, ("CircleCI", "https://circleci.com/1")),
        ({"BUILDKITE_BUILD_URL": "https://buildkite.com/1"}, ("Buildkite", "https://buildkite.com/1")),
    ],
)
def test_the_run_of_known_systems(environment: dict[str, str], found: tuple[str, str] | None) -> None:
    assert ci_run(environment) == found


@pytest.mark.parametrize(("value", "wanted"), [(None, None), ("", None), ("0", None), ("1", Asked()), ("nightly 3", Asked("nightly 3"))])
def test_the_environment_asks(value: str | None, wanted: Asked | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv(provenance.ENVIRONMENT, value)
    assert asked() == wanted


def test_what_a_job_of_a_farm_carries() -> None:
    for wanted in (Asked(), Asked("a", ("GitHub Actions", "https://x"))):
        assert Asked.from_data(wanted.to_data()) == wanted


def test_nothing_but_packages_unless_asked(module: ModuleType) -> None:
    assert provenance_of(False, [module.__name__]) == {"packages": {"python": sys.version.split()[0], "torch": torch.__version__}}


def test_all_of_it_where_asked(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GITHUB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(provenance.wish, "asked", asked_by("team a"))
    found = provenance_of(False, [module.__name__, "torch.nn.functional", "json", "not_imported"])
    assert found["builder"] | {"cpu": ""} == {
        "system": "Linux x86_64",
        "cpu": "",
        "id": "team a",
        "ci": "GitHub Actions",
        "run": "https://github.com/o/r/actions/runs/7",
    }
    assert set(found["sources"]) == {module.__name__} and len(found["sources"][module.__name__]) == 64
    assert found["git"]["dirty"] is False and len(found["git"]["revision"]) == 40
    assert found["git"]["repository"] == "https://example.com/m.git"
    assert module.__file__ is not None and str(Path(module.__file__).parent) not in str(found) and "token" not in str(found)


def test_an_edit_is_dirty_and_no_repository_is_said(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.__file__ is not None
    monkeypatch.setattr(provenance.wish, "asked", Asked())
    file = Path(module.__file__)
    file.write_text("X = 2\n")
    assert provenance_of(False, [module.__name__])["git"]["dirty"] is True
    subprocess.run(["rm", "-rf", str(file.parent / ".git")], check=True)
    provenance._git.cache_clear()
    assert "not a git repository" in provenance_of(False, [module.__name__])["git"]["unknown"]


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://me:token@example.com/m.git", "https://example.com/m.git"),
        ("https://example.com/m.git", "https://example.com/m.git"),
        ("git@example.com:m.git", "git@example.com:m.git"),
        ("ssh://git@example.com/m.git", "ssh://example.com/m.git"),
    ],
)
def test_no_password_of_a_repository_is_kept(url: str, clean: str) -> None:
    assert without_user(url) == clean


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 3


def built(store: Store) -> Manifest:
    with torch.no_grad():
        report = precast.precompile(scaled, [((torch.ones(4),), {})], targets=["cpu:x86-64-v2"], store=store)
    found = store.get(report.signatures[0].artifact_id)
    assert found is not None
    return found


def test_it_is_no_part_of_the_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = built(Store.open(tmp_path / "a"))
    monkeypatch.setenv(provenance.ENVIRONMENT, "nightly")
    told = built(Store.open(tmp_path / "b"))
    assert set(plain.provenance) == {"seconds", "packages"}
    assert set(told.provenance) == {"seconds", "packages", "builder", "sources", "git"}
    assert __name__ in told.provenance["sources"]
    assert plain._sections[:3] == told._sections[:3] and plain.artifact_id == told.artifact_id
