"""Every test of training records gradients, which the others do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def recording() -> Iterator[None]:
    with torch.enable_grad():
        yield
