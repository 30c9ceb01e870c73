"""`precast push` and `pull` over real services: object store, HTTP cache, redis, a registry."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from precast.artifact_store import Store
from precast.cli.main import main
from tests.artifact_store.sample import complete, make, snapshot
from tests.support.needs import needs
from tests.support.servers import S3_ENVIRONMENT, Server, nginx, redis, registry, s3

needs("zstandard")
__all__ = ["nginx", "redis", "registry", "s3"]

SERVICES = ("s3", "nginx", "redis", "registry")


def answer(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*(str(word) for word in words), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def place_of(server: Server, service: str) -> str:
    """A place of its own on a server."""
    name = secrets.token_hex(6)
    if service == "registry":
        return f"{server.url}/{name}/models:v1"
    base, mark, query = server.url.partition("?")
    return f"{base.rstrip('/')}/{'7' if service == 'redis' else name}{mark}{query}"


@pytest.mark.parametrize("service", SERVICES)
def test_there_and_back(service: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    url = place_of(request.getfixturevalue(service), service)
    store = Store.open(tmp_path / "a")
    for number in range(4):
        store.put(*make(number, size=3000, program_key=f"model-{number % 2}"))
    first = answer("push", url, "--store", store.root)
    assert len(first["moved"]) == 4 and first["sent"] > 0 and first["not_moved"] == []
    again = answer("push", url, "--store", store.root)
    assert (len(again["moved"]), again["sent"], again["there_already"]) == (0, 0, 4)
    which = ("--program", "model-0", "--program", "model-1") if service == "nginx" else ()
    if service == "nginx":
        refused = CliRunner().invoke(main, ["pull", url, "--store", str(tmp_path / "b"), "--trust", "any"])
        assert refused.exit_code == 1 and "lists nothing" in refused.stderr and "--build FILE" in refused.stderr
    part = answer("pull", url, "--store", tmp_path / "b", "--trust", "any", "--program", "model-1")
    assert {row["program_key"] for row in part["moved"]} == {"model-1"}
    rest = answer("pull", url, "--store", tmp_path / "b", "--trust", "any", *which)
    assert len(rest["moved"]) == 2 and rest["there_already"] == 2
    came = Store.open(tmp_path / "b")
    assert all(complete(came, manifest) for manifest in came.manifests()) and snapshot(tmp_path / "a") == snapshot(tmp_path / "b")
