"""pytest over one copy of the tree, in a process forked from one that has torch imported already (two seconds less a mutant)."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.mutation.tree import EDITABLE

PRELOADED = ("numpy", "scipy", "sympy", "hypothesis", "torch", "torch._dynamo", "torch._functorch.aot_autograd", "msgpack")
"""Imported once, before any fork; nothing of precast and nothing of the tests."""


def preload() -> None:
    """Imports what all tests import. Only what is not installed is left out: a test that needs it says so itself."""
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue


@dataclass
class Outcome:
    """What one run of pytest came to."""

    code: int | None
    """pytest's exit status; negative: the signal that ended the process; None: it was stopped after its time."""
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Node id -> the error's last line."""
    skipped: list[str] = field(default_factory=list)
    running: str = ""
    """The test that was running when the process ended."""
    seconds: float = 0.0
    log: str = ""


class _Events:
    """A pytest plugin that writes one line of JSON an event, so that a process that dies has said how far it came."""

    def __init__(self, out: TextIO, root: Path) -> None:
        self.out, self.root = out, root

    def write(self, **event: Any) -> None:
        self.out.write(json.dumps(event) + "\n")
        self.out.flush()

    def pytest_sessionstart(self) -> None:
        where = Path(importlib.import_module("precast.runtime").__file__ or "").resolve()
        self.write(source=str(where), own=where.is_relative_to(self.root.resolve()))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(start=nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(broken=report.nodeid, why=_last_line(report.longreprtext))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.write(failed=report.nodeid, why=_last_line(report.longreprtext, report))
        elif report.skipped:
            self.write(skipped=report.nodeid)
        elif report.when == "call":
            self.write(passed=report.nodeid)


def _last_line(text: str, report: pytest.TestReport | None = None) -> str:
    crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
    if crash is not None:
        return str(crash.message).strip().splitlines()[0][:200]
    lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines() or [""]
    return lines[0].removeprefix("E ").strip()[:200]


class Run:
    """One forked pytest; `poll` until it gives its outcome."""

    def __init__(self, tree: Path, scratch: Path, nodes: Sequence[str], seconds: float, stop_at_first: bool = True) -> None:
        self.scratch, self.began = scratch, time.monotonic()
        self.until = self.began + seconds
        scratch.mkdir(parents=True, exist_ok=True)
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark", *(["-x"] if stop_at_first else [])]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _in_child(tree, scratch, [*options, *nodes])

    def poll(self) -> Outcome | None:
        """None while it runs. What outlasts its time is stopped, with all that it started."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if ended:
            self.end_group()
            return self.outcome(os.waitstatus_to_exitcode(status))
        if time.monotonic() < self.until:
            return None
        self.stop()
        return self.outcome(None)

    def stop(self) -> None:
        self.end_group()
        os.waitpid(self.pid, 0)

    def end_group(self) -> None:
        """Ends the processes that the test began; they are of the group that the forked process leads."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return  # none is left

    def outcome(self, code: int | None) -> Outcome:
        said = Outcome(code, seconds=time.monotonic() - self.began, log=str(self.scratch / "log"))
        events = self.scratch / "events"
        for line in events.read_text().splitlines() if events.exists() else ():
            event = json.loads(line)
            if "own" in event and not event["own"]:
                raise RuntimeError(f"the copy imports precast from {event['source']}, not its own sources")
            if "start" in event:
                said.running = event["start"]
            elif "passed" in event:
                said.passed.append(event["passed"])
            elif "skipped" in event:
                said.skipped.append(event["skipped"])
            elif "failed" in event or "broken" in event:
                said.failed.setdefault(event.get("failed") or event["broken"], event["why"])
        return said


def _in_child(tree: Path, scratch: Path, arguments: list[str]) -> None:
    """Runs pytest in the forked process and ends it: the copy's modules, folders of its own, nothing inherited but the imports."""
    code = 70
    try:
        os.setpgid(0, 0)
        _redirect(scratch / "log")
        _settings(tree, scratch)
        with (scratch / "events").open("w") as out:
            code = int(pytest.main(arguments, plugins=[_Events(out, tree)]))
    except BaseException:  # noqa: BLE001  the parent must never go on in the child
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


def _settings(tree: Path, scratch: Path) -> None:
    """Environment and import path of the copy, for this process and for those that it starts."""
    root = str(tree)
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    for name in [name for name in os.environ if name.startswith(("PRECAST_", "PYTEST_", "CI"))]:
        del os.environ[name]
    os.environ |= {
        "PYTHONPATH": root,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PRECAST_STORE": str(scratch / "store"),
        "PRECAST_TEST_SEED": "20261121",
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    os.chdir(tree)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "precast")]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not (getattr(finder, "__module__", None) or "").startswith(EDITABLE)]
    sys.path[:] = [root, *(entry for entry in sys.path if entry not in ("", root) and not (Path(entry) / "lowering").is_dir())]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    sys.argv = ["pytest"]
    sys.modules["__main__"] = types.ModuleType("__main__")  # processes that tests spawn import nothing of this runner
