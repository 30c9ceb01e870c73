"""Without a device one test is collected, which is skipped with the reason; with one, all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gpu.device import MISSING

collect_ignore_glob = ["test_[!d]*.py", "test_d[!e]*.py"] if MISSING else []
"""All but test_device.py."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Failures as they come, into the file of `PRECAST_GPU_FAILURES`: a run that is cut off tells what it found."""
    file = os.environ.get("PRECAST_GPU_FAILURES")
    if file and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        errors = [line.removeprefix("E").strip() for line in report.longreprtext.splitlines() if line.startswith("E  ")]
        said = " ".join(errors) or report.longreprtext.strip().splitlines()[-1]
        with Path(file).open("a") as lines:
            lines.write(f"FAILED {report.nodeid} - {' '.join(said.split())[:1500]}\n")
