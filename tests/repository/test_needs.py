"""What is absent is skipped with its reason, and fails where nothing may be absent."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.outcomes import Failed, Skipped

from tests.support.needs import has, needs

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("ci", "outcome"), [("", Skipped), ("0", Skipped), ("1", Failed), ("true", Failed)])
@pytest.mark.parametrize("name", ["no_such_package", "no_such_package.inside"])
def test_an_absent_package(name: str, ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no_such_package.* is not installed"):
        needs(name)


@pytest.mark.parametrize("ask", [needs, has])
def test_a_package_that_is_there(ask: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    assert ask("json")


def test_more_is_done_only_with_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "")
    assert not has("no_such_package")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(Failed):
        has("no_such_package")


def test_reasons_of_skips_are_printed_and_ci_says_that_it_is() -> None:
    assert "-rs" in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    assert "\nexport CI=" in (ROOT / ".ci" / "run").read_text()
    pinned = (ROOT / "constraints.txt").read_text()
    assert all(f"\n{name}==" in pinned for name in ("torch", "triton", "transformers"))


def test_packages_are_asked_for_here_only() -> None:
    """`pytest.importorskip` would skip on CI as well; parts of torch that differ from version to version are another matter."""
    asked = (line for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__) for line in path.read_text().splitlines())
    assert not [line for line in asked if "importorskip(" in line and 'importorskip("torch.' not in line]
