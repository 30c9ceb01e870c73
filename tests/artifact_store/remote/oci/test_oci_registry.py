"""Images in a registry: a real one (docker-registry), with a proxy before it that answers what it likes."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precast.artifact_store import Store, StoreError
from precast.artifact_store.moving.place import Place
from precast.artifact_store.moving.places import any_place, local_place, remote_place
from precast.artifact_store.moving.plan import plan
from precast.artifact_store.moving.selection import Selection
from precast.artifact_store.moving.transfer import Report, transfer
from precast.artifact_store.remote.endpoint import EndpointError, Garbled, TimeOuts, Unreachable
from precast.artifact_store.remote.oci.reference import parse_reference
from precast.artifact_store.remote.oci.registry import Registry
from tests.artifact_store.sample import fill, make, snapshot
from tests.support.fault_proxy import FaultProxy
from tests.support.needs import needs, needs_program
from tests.support.servers import HOST, Server, answers, registry, running

needs("oras")
__all__ = ["registry"]

PASSWORD = "builder:$2b$04$zE88jDfAxt9Bof6j8EChteoIY0EAGB9ARpvuYo.QgAhmlF12NAkty"
"""docker-registry's file for the user `builder` with the password `wall-5`."""


@pytest.fixture
def url(registry: Server) -> str:
    return f"{registry.url}/team/models:{time.time_ns()}"


def move(source: Place, destination: Place) -> Report:
    return transfer(source, destination, plan(source, destination, Selection()), jobs=2)


def image(registry: Server, url: str) -> tuple[dict[str, Any], str]:
    """The manifest as the registry has it, and its digest."""
    reference = parse_reference(url)
    connection = http.client.HTTPConnection(HOST, registry.port)
    headers = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    connection.request("GET", f"/v2/{reference.name}/manifests/{reference.image}", headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    return json.loads(body), str(answer.headers["Docker-Content-Digest"])


def test_a_store_comes_out_of_a_registry_as_it_went_in(url: str, registry: Server, tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "a", 3)
    store.put_record("tuning", "cpu", {"choices": {"mm": "onednn"}})
    sent = move(local_place(store), remote_place(url))
    assert sent.good and len(sent.moved) == 3 and len(sent.records) == 1
    found, digest = image(registry, url)
    assert found["artifactType"] == "application/vnd.precast.store.v1"
    assert found["config"]["mediaType"] == "application/vnd.oci.empty.v1+json" and found["annotations"]["vnd.precast.artifacts"] == "3"
    assert (
        len(found["layers"]) == 1 + 1 + 3 + 3 + 2
    )  # the program's index, the record, manifests, libraries, the two sources that all share
    came = move(remote_place(url, trust="any"), local_place(Store.open(tmp_path / "b")))
    assert came.good and snapshot(tmp_path / "a") == snapshot(tmp_path / "b")
    again = move(local_place(store), remote_place(url))
    assert (again.moved, again.sent) == ([], 0) and image(registry, url)[1] == digest
    exactly = f"{url.rpartition(':')[0]}@{digest}"
    store.put(*make(7))
    assert len(move(local_place(store), remote_place(url)).moved) == 1
    assert len(list(any_place(url).holdings())) == 4 and len(list(any_place(exactly).holdings())) == 3
    store.remove(ids[0])
    move(local_place(store), remote_place(url, fresh=True))
    assert len(list(any_place(url).holdings())) == 3
    with pytest.raises(StoreError, match="push to a tag"):
        remote_place(exactly, writing=True)


def test_a_tag_that_is_not_there_holds_nothing(url: str) -> None:
    assert list(any_place(url).holdings()) == [] and list(any_place(url).records()) == []


def test_an_image_of_something_else_is_left_alone(url: str, registry: Server, tmp_path: Path) -> None:
    reference = parse_reference(url)
    client = Registry(reference)
    config = b"{}"
    client.put_blob(hashlib.sha256(config).hexdigest(), config)
    layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{hashlib.sha256(config).hexdigest()}", "size": 2}
    client.put_manifest(
        json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {**layer, "mediaType": "application/vnd.oci.image.config.v1+json"},
                "layers": [layer],
            }
        ).encode()
    )
    before = image(registry, url)[1]
    store, _ = fill(tmp_path / "a", 1)
    for there in (any_place(url), remote_place(url, trust="any")):
        with pytest.raises(StoreError, match="holds no artifacts of precast"):
            move(there, local_place(Store.open(tmp_path / "b")))
    with pytest.raises(StoreError, match="holds no artifacts of precast"):
        move(local_place(store), remote_place(url))
    assert image(registry, url)[1] == before and not (tmp_path / "b").exists()


# -- a registry that answers otherwise


@pytest.fixture
def filled(registry: Server, tmp_path: Path) -> str:
    """An image with one artifact: what follows the host in its URL."""
    path = f"/faults/models:{time.time_ns()}"
    move(local_place(fill(tmp_path / "source", 1, size=4000)[0]), remote_place(registry.url + path))
    return path


@pytest.fixture
def proxy(registry: Server) -> Iterator[FaultProxy]:
    with FaultProxy(registry.port) as made:
        yield made


def answer(body: bytes, head: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{head}Connection: close\r\n\r\n".encode() + body


def titled(manifest: dict[str, Any]) -> bytes:
    """The image with layers whose titles are paths, and a layer that is an archive to be unpacked, as oras does it for files."""
    for layer in manifest["layers"]:
        layer.setdefault("annotations", {})["org.opencontainers.image.title"] = "../../../../tmp/precast-evil"
        layer["annotations"]["io.deis.oras.content.unpack"] = "true"
    return json.dumps(manifest).encode()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "garbage"}, "no answer"),
        ({"kind": "reset"}, "no answer"),
        ({"kind": "half", "only": "manifests"}, "broke off"),
        ({"kind": "long", "only": "manifests"}, "bytes that were allowed"),
        ({"kind": "login", "only": "manifests"}, "is no JSON"),
        ({"kind": "status", "status": 503}, "503"),
        ({"kind": "status", "status": 403, "only": "manifests"}, "docker login|does not allow"),
        ({"kind": "status", "status": 418, "only": "manifests"}, "418"),
        ({"kind": "redirect", "location": "http://192.0.2.7/elsewhere", "only": "manifests"}, "is not encrypted"),
        ({"kind": "redirect", "location": "file:///etc/passwd", "only": "manifests"}, "not followed"),
        ({"kind": "raw", "only": "manifests", "body": answer(b'{"artifactType": 7}')}, "holds no artifacts"),
        ({"kind": "raw", "only": "manifests", "body": answer(b"\x1f\x8b" + b"\0" * 90, "Content-Encoding: gzip\r\n")}, "broke off"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value['kind']}-{value.get('status', '')}{value.get('location', '')}",
)
def test_what_comes_instead_of_an_image_is_an_error_in_words(
    proxy: FaultProxy, filled: str, tmp_path: Path, settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precast.artifact_store.remote.oci.registry._TRIES", 2)
    proxy.fault(**settings)
    with pytest.raises(StoreError, match=said):
        move(remote_place(f"oci://{HOST}:{proxy.port}{filled}", trust="any"), local_place(Store.open(tmp_path / "b")))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("kind", ["flip", "half", "long", "lose", "garbage", "login"])
def test_a_blob_that_comes_otherwise_is_not_kept(
    proxy: FaultProxy, filled: str, tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precast.artifact_store.remote.oci.registry._TRIES", 2)
    there = remote_place(f"oci://{HOST}:{proxy.port}{filled}", trust="any")
    here = local_place(Store.open(tmp_path / "b"))
    todo = plan(there, here, Selection())
    proxy.fault(kind, only="GET .*blobs")
    report = transfer(there, here, todo)
    assert not report.good and report.moved == [] and list(here.store.manifests()) == []
    assert list((tmp_path / "b" / "objects").rglob("*")) == [] if (tmp_path / "b").exists() else True
    proxy.heal()
    assert transfer(there, here, todo).good


def test_titles_are_never_paths(proxy: FaultProxy, filled: str, registry: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, _ = image(registry, registry.url + filled)
    proxy.fault("raw", only="GET .*manifests", body=answer(titled(found)))
    report = move(remote_place(f"oci://{HOST}:{proxy.port}{filled}", trust="any"), local_place(Store.open(tmp_path / "b")))
    assert report.good and len(report.moved) == 1
    assert not Path("/tmp/precast-evil").exists() and {path.name for path in tmp_path.iterdir()} == {"source", "b"}


def test_a_digest_names_exactly_one_image(proxy: FaultProxy, filled: str, registry: Server) -> None:
    found, digest = image(registry, registry.url + filled)
    exact = f"oci://{HOST}:{proxy.port}{filled.rpartition(':')[0]}@{digest}"
    assert len(list(any_place(exact).holdings())) == 1
    proxy.fault("raw", only="GET .*manifests", body=answer(titled(found)))
    with pytest.raises(StoreError, match="another manifest"):
        any_place(exact).holdings()


def test_content_is_not_sent_to_another_host(proxy: FaultProxy, tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "a", 1)
    moved = b"HTTP/1.1 202 Accepted\r\nLocation: http://192.0.2.7/uploads/1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    proxy.fault("raw", only="POST", body=moved)
    report = move(local_place(store), remote_place(f"oci://{HOST}:{proxy.port}/faults/models:v1"))
    assert not report.good and "192.0.2.7" in report.troubles[0].reason


def test_a_registry_that_comes_round_is_asked_again(proxy: FaultProxy, filled: str, tmp_path: Path) -> None:
    proxy.fault("status", status=503, times=2, only="blobs|manifests")
    assert move(remote_place(f"oci://{HOST}:{proxy.port}{filled}", trust="any"), local_place(Store.open(tmp_path / "b"))).good


def test_an_answer_that_drips_ends_in_time(proxy: FaultProxy, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.artifact_store.remote.oci.registry._TRIES", 1)
    monkeypatch.setattr("precast.artifact_store.remote.oci.registry._SLOWEST", 1 << 30)
    client = Registry(parse_reference(f"oci://{HOST}:{proxy.port}{filled}"), times=TimeOuts(connect=2, stall=2, whole=0.5))
    proxy.fault("drip", rate=40, only="manifests")
    began = time.monotonic()
    with pytest.raises(Unreachable, match="too slowly"):
        client.manifest(1 << 20)
    assert time.monotonic() - began < 5


def test_nobody_is_asked_without_encryption_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.artifact_store.remote.oci.registry._TRIES", 1)
    assert not Registry(parse_reference("oci://registry.example.org/models")).plain_http
    assert Registry(parse_reference("oci://registry.example.org/models"), plain_http=True).plain_http
    assert Registry(parse_reference("oci://localhost:5000/models")).plain_http


# -- who may


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A registry with a password."""
    place = tmp_path_factory.mktemp("guarded")
    (place / "passwords").write_text(PASSWORD)
    program = needs_program("docker-registry")

    def command(port: int) -> list[str]:
        (place / "config.yml").write_text(
            f"version: 0.1\nlog: {{level: warn}}\nstorage:\n  filesystem: {{rootdirectory: {place}/registry}}\n"
            f'http: {{addr: "{HOST}:{port}"}}\nauth:\n  htpasswd: {{realm: models, path: {place}/passwords}}\n'
        )
        return [program, "serve", str(place / "config.yml")]

    with running(command, place, lambda port: answers(port, "/v2/")) as (port, pid):
        yield Server(f"oci://{HOST}:{port}", port, place / "registry", pid)


def test_credentials_are_dockers(guarded: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = fill(tmp_path / "a", 1)
    url = f"{guarded.url}/team/models:v1"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "home" / ".docker").mkdir(parents=True)
    (tmp_path / "docker").mkdir()
    with pytest.raises(StoreError, match="docker login"):
        move(local_place(store), remote_place(url))
    right, wrong = (base64.b64encode(f"builder:{word}".encode()).decode() for word in ("wall-5", "wall-6"))
    for auth, good in ((wrong, False), (right, True)):
        (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": {f"{HOST}:{guarded.port}": {"auth": auth}}}))
        if good:
            assert move(local_place(store), remote_place(url)).good
        else:
            with pytest.raises(StoreError, match="docker login") as caught:
                move(local_place(store), remote_place(url))
            assert "wall" not in str(caught.value) and wrong not in str(caught.value)
    shutil.copytree(tmp_path / "docker", tmp_path / "home" / ".docker", dirs_exist_ok=True)
    monkeypatch.delenv("DOCKER_CONFIG")
    assert move(remote_place(url, trust="any"), local_place(Store.open(tmp_path / "b"))).good


def test_the_registrys_errors_are_of_an_endpoint(registry: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.artifact_store.remote.oci.registry._TRIES", 1)
    client = Registry(parse_reference(f"{registry.url}/nobody/has:this"))
    assert client.manifest(1 << 20) is None and not client.has_blob("ab" * 32)
    with pytest.raises(Garbled):
        client.blob("ab" * 32, 10)
    with pytest.raises(EndpointError):
        client.put_manifest(b"{}")
