"""Fresh processes for tests: running code in one, and refusing the tracer to precast's own frames there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

REFUSE = (Path(__file__).parent / "refuse_tracer.py").read_text().replace("from __future__ import annotations\n", "")
"""Source that defines `refuse_tracer`, for code that is run by `child`; `refuse_tracer()` puts it in force."""


def selected(request: pytest.FixtureRequest, function: str, argument: str = "name") -> list[str]:
    """With which values of `argument` this run calls a test of the same file: for a test that needs what that one left.

    Where it calls none, that is said, instead of a look at nothing that then agrees with everything.
    """
    items: list[Any] = [item for item in request.session.items if item.path == request.path]
    found = [item.callspec.params[argument] for item in items if getattr(item, "originalname", "") == function]
    assert found, f"this test looks at what {function} leaves: select that one, too"
    return found


def child(folder: Path, code: str, *arguments: str, expect: int = 0) -> str:
    """What `code` prints in a fresh process that runs in `folder`, which it can import from; its errors too where failure is expected."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *arguments],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout if expect == 0 else done.stdout + done.stderr


def cold_then_warm(folder: Path, name: str, source: str) -> list[list[str]]:
    """The words that the module `name` prints when it is imported in two fresh processes; its argument is one store for both."""
    (folder / f"{name}.py").write_text(source)
    return [child(folder, f"import {name}", str(folder / "store")).split() for _ in range(2)]
