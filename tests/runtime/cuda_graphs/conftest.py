"""The device on which captures are played."""

from __future__ import annotations

import pytest

from precast.runtime.native import loader
from tests.runtime.fake_cuda import FakeDevice


@pytest.fixture(params=["native", "python"])
def device(request: pytest.FixtureRequest) -> FakeDevice:
    """Calls through the native runtime, or without it."""
    if request.param == "python":
        return FakeDevice()
    request.getfixturevalue("native_store")
    return FakeDevice(loader.loaded())
