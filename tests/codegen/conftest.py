"""What all tests of the code generator share."""

from __future__ import annotations

import pytest

from precast.codegen.cpu import tuning


@pytest.fixture(autouse=True)
def calm_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements count, whatever else the machine does."""
    monkeypatch.setattr(tuning, "preemptions", lambda: 0)
