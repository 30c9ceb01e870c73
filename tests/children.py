"""Fresh processes for tests: running code in one, and refusing the tracer to precast's own frames there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

REFUSE = """
import builtins
REFUSED = ("torch._dynamo", "torch._inductor", "sympy", "triton", "precast.capture", "precast.lowering", "precast.codegen")
real = builtins.__import__
def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if importer.startswith("precast") and name.startswith(REFUSED):
        raise AssertionError(f"{importer} imports {name} on the warm path")
    return real(name, globals, locals, fromlist, level)
"""
"""Source that defines `guarded`; `builtins.__import__ = guarded` puts it in force."""


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
