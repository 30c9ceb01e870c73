"""Leases on every service that keeps them, with real servers: one of several processes has it, and who lets go or dies is succeeded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast.artifact_store.remote.endpoint import Endpoint, Unsupported
from precast.artifact_store.remote.endpoints.open import open_endpoint
from precast.artifact_store.remote.leases import RemoteLease
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import S3_ENVIRONMENT, nginx_server, redis_server, s3_server

ROOT = str(Path(__file__).parents[3])
HOLDER = """
import sys, time
from precast.artifact_store.remote.endpoints.open import open_endpoint
from precast.artifact_store.remote.leases import RemoteLease
lease = RemoteLease(open_endpoint(sys.argv[1]), "turn")
deadline = time.monotonic() + 60
while not lease.attempt():
    assert time.monotonic() < deadline
    time.sleep(0.02)
with open(sys.argv[2], "a") as log:
    log.write("begin\\n")
    log.flush()
    time.sleep(0.05)
    assert lease.beat()
    log.write("end\\n")
lease.release()
if sys.argv[3] == "dies":
    assert lease.attempt()
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["folder", "redis", "s3", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A remote of each kind that keeps leases; "http": a server that honours If-Match and If-None-Match."""
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    match request.param:
        case "folder":
            (tmp_path / "shared").mkdir()
            yield str(tmp_path / "shared")
        case "redis":
            with redis_server() as server:
                yield server.url
        case "s3":
            with s3_server() as server:
                yield server.url
        case "http":
            with FaultProxy() as proxy:
                yield proxy.url


@pytest.fixture
def endpoint(url: str) -> Iterator[Endpoint]:
    opened = open_endpoint(url)
    yield opened
    opened.close()


def start(url: str, log: Path, then: str = "ends") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, url, str(log), then]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": ROOT}, stdout=subprocess.PIPE, text=True)


def test_processes_take_turns_and_the_dead_are_succeeded(url: str, endpoint: Endpoint, tmp_path: Path) -> None:
    log = tmp_path / "log"
    members = [start(url, log) for _ in range(3)]
    for member in members:
        member.communicate(timeout=120)
        assert member.returncode == 0
    assert log.read_text().split() == ["begin", "end"] * 3
    assert endpoint.get("v1/leases/turn", 4096) is None  # nothing is left

    last = start(url, log, "dies")
    assert last.stdout is not None and last.stdout.readline() == "held\n"
    waiter = RemoteLease(endpoint, "turn")
    assert not waiter.attempt()
    last.send_signal(signal.SIGKILL)
    last.communicate()
    deadline = time.monotonic() + 10
    while not waiter.attempt():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert waiter.released == 0 and waiter.beat()
    waiter.release()


def test_a_server_without_conditional_writes_keeps_no_leases() -> None:
    with nginx_server() as server:
        endpoint = open_endpoint(server.url)
        with pytest.raises(Unsupported):
            RemoteLease(endpoint, "turn").attempt()
        endpoint.close()
