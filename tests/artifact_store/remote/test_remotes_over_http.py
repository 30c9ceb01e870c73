"""The remotes of a store over a real HTTP cache, with a proxy that misbehaves: a call waits for its budget, and nothing wrong comes in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precast.artifact_store.remote.attach import open_tier
from precast.artifact_store.remote.settings import from_url
from tests.artifact_store.remote.machine import KEY, Machine
from tests.artifact_store.sample import make
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import Server

BUDGET = 0.5
SLACK = 2.0
"""Seconds that a busy machine may add."""
FAULTS: dict[str, dict[str, Any]] = {
    "hang": {},
    "reset": {},
    "status": {"status": 500},
    "status 403": {"status": 403},
    "status 429": {"status": 429, "retry_after": "30"},
    "garbage": {},
    "half": {},
    "long": {},
    "drip": {"rate": 200.0},
    "lose": {"only": "/cas/"},
    "flip": {"only": "/cas/"},
    "flip an index": {"only": "/ac/"},
    "login": {},
}


@pytest.fixture
def proxy(nginx: Server) -> Iterator[FaultProxy]:
    with FaultProxy(nginx.port) as proxy:
        yield proxy


@pytest.mark.parametrize("kind", FAULTS)
def test_nothing_wrong_comes_in_and_nobody_waits_longer(kind: str, proxy: FaultProxy, nginx: Server, tmp_path: Path) -> None:
    folder = kind.replace(" ", "-")
    direct = open_tier(from_url(f"http://127.0.0.1:{nginx.port}/{folder}?trust=any", "test"))
    manifest, blobs = make(size=4096)
    direct.publish(manifest, blobs.__getitem__)
    direct.endpoint.close()
    url = f"{proxy.url}/{folder}?trust=any&budget={BUDGET}s"
    proxy.fault(kind.split(" ")[0], **FAULTS[kind])  # type: ignore[arg-type]
    ill = Machine(tmp_path / "ill", open_tier(from_url(url, "test")))
    began = time.monotonic()
    ill.look()
    ill.look("another-program")
    assert time.monotonic() - began < 2 * BUDGET + SLACK
    assert ill.store.variants(KEY) == []
    assert ill.remotes.said(KEY)
    proxy.heal()
    well = Machine(tmp_path / "well", open_tier(from_url(f"{proxy.url}/{folder}?trust=any&budget=20s", "test")))
    well.look()
    (found,) = well.store.variants(KEY)
    assert found.to_bytes() == manifest.to_bytes() and well.store.complete(found)
    for machine in (ill, well):
        machine.remotes.close(0)
