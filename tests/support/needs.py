"""Packages and programs that a test needs: where one is absent the test is skipped, and fails in continuous integration, which has all."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from typing import Any

import pytest

CI = "CI"


def on_ci() -> bool:
    """Whether this is continuous integration (`.ci/run` says so), where nothing that is pinned may be absent."""
    return os.environ.get(CI, "").lower() not in ("", "0", "false")


def needs(name: str) -> Any:
    """The module `name`. Where its package is not installed the test, or the file being collected, is skipped; on CI it fails."""
    if importlib.util.find_spec(name.partition(".")[0]) is not None:
        return importlib.import_module(name)  # a package that is there and does not import is an error anywhere
    reason = f"{name} is not installed"
    if on_ci():
        pytest.fail(f"{reason}, and constraints.txt pins it: was .ci/setup run?", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def needs_program(name: str) -> str:
    """The path of the program `name`, looked for in the sbin folders, too. As `needs`: absent, the test is skipped; on CI it fails."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if found is not None:
        return found
    if on_ci():
        pytest.fail(f"{name} is not installed: was .ci/services run?", pytrace=False)
    pytest.skip(f"{name} is not installed", allow_module_level=True)


def has(name: str) -> bool:
    """Whether the package `name` is installed, where a test does more with it; on CI it has to be."""
    found = importlib.util.find_spec(name) is not None
    if not found and on_ci():
        pytest.fail(f"{name} is not installed, and constraints.txt pins it: was .ci/setup run?", pytrace=False)
    return found
