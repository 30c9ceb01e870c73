"""Looking after a remote on every service that lists its names, with real servers: figures, pins, pruning, uses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast.artifact_store.local.machine_uses import Uses
from precast.artifact_store.maintenance import remote_list
from precast.artifact_store.maintenance.pins import Pin
from precast.artifact_store.maintenance.policy import Policy
from precast.artifact_store.maintenance.remote_sweep import prune
from precast.artifact_store.remote import usage_report
from precast.artifact_store.remote.attach import open_tier
from precast.artifact_store.remote.remote import Remote
from precast.artifact_store.remote.settings import from_url
from tests.artifact_store.sample import make
from tests.support.servers import S3_ENVIRONMENT, Server, empty_s3

KEY = "model-0123abcd"


@pytest.fixture(params=["folder", "redis", "s3", "webdav"])
def tier(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if request.param == "folder":
        (tmp_path / "shared").mkdir()
        url = f"shared://{tmp_path / 'shared'}"
    else:
        server: Server = request.getfixturevalue({"redis": "redis", "s3": "s3", "webdav": "nginx_listing"}[request.param])
        if request.param == "s3":
            empty_s3(server)
        url = server.url
    url += "/?layout=names" if request.param == "webdav" else ""
    url += f"{'&' if '?' in url else '?'}trust=any"
    remote = open_tier(from_url(url, "here"))
    yield remote
    for name in list(remote.endpoint.names("v1/")):
        remote.endpoint.remove(name.name)
    remote.endpoint.close()


def test_what_goes_and_what_stays(tier: Remote) -> None:
    made, now = [], time.time() + 10
    for number in range(4):
        manifest, blobs = make(number, program_key="other" if number == 3 else KEY)
        tier.publish(manifest, blobs.__getitem__)
        made.append(manifest)
    before = remote_list.stats(tier)
    assert (before.artifacts, before.objects, before.unnamed, before.missing) == (4, 10, 0, 0) and before.objects_size > 0
    remote_list.pin(tier, Pin(made[0].artifact_id, "", "release 42", "me", 1.0))
    usage_report.tell(tier.endpoint, "web1", {made[1].artifact_id: Uses(2, 9e9)})
    usage_report.tell(tier.endpoint, "web1", {made[1].artifact_id: Uses(1, 8e9)})
    assert remote_list.uses(tier) == {made[1].artifact_id: Uses(2, 9e9)}
    first = prune(tier, Policy(program=KEY, unused_for=0.0), now=now)
    assert [removal.entry.artifact_id for removal in first.removed] == [made[2].artifact_id]
    assert (first.objects, first.waiting) == (0, 2)
    second = prune(tier, Policy(), now=now + 3601)
    assert second.objects == 2 and second.freed > 0
    for key in (KEY, "other"):
        index = tier.index(key)
        assert index is not None
        for entry in index.entries:
            tier.fetch(key, entry)
    after = remote_list.stats(tier)
    assert (after.artifacts, after.objects, after.unnamed, after.missing, after.pins, after.hits) == (3, 8, 0, 0, 1, 2)
    assert [(pin.artifact_id, pin.note) for pin in remote_list.pins(tier)] == [(made[0].artifact_id, "release 42")]
