"""One table of cases over every endpoint, with real servers: what the protocol says holds for all, or Unsupported is raised."""

from __future__ import annotations

import errno
import hashlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from precast.artifact_store.remote.endpoint import Denied, Endpoint, EndpointError, Garbled, TimeOuts, Unreachable, Unsupported
from precast.artifact_store.remote.endpoints import object_store
from precast.artifact_store.remote.endpoints.open import open_endpoint
from precast.artifact_store.remote.endpoints.shared_folder import SharedFolderEndpoint
from precast.artifact_store.remote.transport.transport import Transport
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint
from tests.artifact_store.remote.races import race
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import S3_ENVIRONMENT, Server, nginx_server, redis_server, require_keys

NUMBERS = itertools.count()
OBJECT = f"v1/objects/ab/ab{'12' * 31}"
LIMIT = 1 << 20
SHORT = TimeOuts(connect=1.0, stall=0.5, whole=1.5)


def with_prefix(url: str) -> str:
    """The same server, and a part of it that no other test uses."""
    base, mark, options = url.partition("?")
    return f"{base}/part-{next(NUMBERS)}{mark}{options}"


KINDS = ["memory", "transport", "shared", "s3", "redis", "conditional", "nginx", "nginx-listing", "webdav-names"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL of this kind behind which nothing is; for "memory" none."""
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    match kind:
        case "shared":
            (tmp_path / "mounted").mkdir()
            return f"shared://{tmp_path}/mounted"
        case "s3" | "redis":
            return with_prefix(request.getfixturevalue(kind).url)
        case "nginx":
            return with_prefix(request.getfixturevalue("nginx").url)
        case "nginx-listing":
            return with_prefix(request.getfixturevalue("nginx_listing").url)
        case "webdav-names":
            return f"{with_prefix(request.getfixturevalue('nginx_listing').url)}?layout=names"
        case "conditional":
            return str(request.getfixturevalue("conditional").url)
    return ""


@pytest.fixture
def conditional() -> Iterator[FaultProxy]:
    """A small HTTP cache that honours conditions."""
    with FaultProxy() as server:
        yield server


@pytest.fixture
def endpoint(kind: str, url: str) -> Iterator[Endpoint]:
    made: Endpoint = MemoryEndpoint() if not url else open_endpoint(url)
    if kind == "transport":
        made = Transport(made)
    yield made
    made.close()


def conditions(kind: str) -> bool:
    return not kind.startswith(("nginx", "webdav"))


def test_what_is_put_is_there(endpoint: Endpoint) -> None:
    assert endpoint.get("v1/programs/model-1", LIMIT) is None
    assert endpoint.get_versioned("v1/programs/model-1", LIMIT) is None
    assert not endpoint.has("v1/programs/model-1")
    endpoint.put("v1/programs/model-1", b"one")
    assert endpoint.get("v1/programs/model-1", 3) == b"one"
    assert endpoint.has("v1/programs/model-1")
    endpoint.put("v1/programs/model-1", b"another")
    found = endpoint.get_versioned("v1/programs/model-1", LIMIT)
    assert found is not None and found.data == b"another"
    endpoint.remove("v1/programs/model-1")
    assert endpoint.get("v1/programs/model-1", LIMIT) is None
    endpoint.remove("v1/programs/model-1")


@pytest.mark.parametrize(
    "name", ["v1/records/native/cp311-a+b_c.d", "v1/usage/host.example-1", "v1/leases/_x", OBJECT, "v1/pins/" + "a" * 64]
)
@pytest.mark.parametrize("data", [b"", b"\x00\xff" * 70_000], ids=["empty", "140 kB"])
def test_names_and_contents(endpoint: Endpoint, name: str, data: bytes) -> None:
    endpoint.put(name, data)
    assert endpoint.get(name, len(data)) == data
    assert endpoint.has(name)


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "v1/../../x", "v1//x", "v1/x/", "v1/.hidden", "v1/a b", "v1/x\n", "v1/ü", "v1/%2e", "a" * 600]
)
@pytest.mark.parametrize("kind", [each for each in KINDS if each != "memory"], indirect=True)
def test_what_is_no_name_is_refused(endpoint: Endpoint, name: str) -> None:
    verbs: list[Callable[[], object]] = [
        lambda: endpoint.get(name, 1),
        lambda: endpoint.get_versioned(name, 1),
        lambda: endpoint.put(name, b""),
        lambda: endpoint.has(name),
        lambda: endpoint.remove(name),
    ]
    for verb in verbs:
        with pytest.raises(Garbled, match="is no name that an endpoint has"):
            verb()


def test_no_more_than_the_limit_is_taken(endpoint: Endpoint) -> None:
    endpoint.put(OBJECT, bytes(1000))
    for limit in (0, 999):
        with pytest.raises(Garbled, match=str(limit)):
            endpoint.get(OBJECT, limit)
    assert endpoint.get(OBJECT, 1000) == bytes(1000)


def test_put_new_and_replace(kind: str, endpoint: Endpoint) -> None:
    name = "v1/programs/model-2"
    if not conditions(kind):
        endpoint.put(name, b"theirs")
        with pytest.raises(Unsupported, match="ignores the header If-None-Match"):
            endpoint.put_new(name, b"mine")
        with pytest.raises(Unsupported):
            endpoint.replace(name, b"mine", '"some-version"')
        assert endpoint.get(name, LIMIT) == b"theirs"
        return
    assert endpoint.put_new(name, b"one")
    assert not endpoint.put_new(name, b"two")
    before = endpoint.get_versioned(name, LIMIT)
    assert before is not None and before.data == b"one"
    assert endpoint.replace(name, b"three", before.version)
    assert not endpoint.replace(name, b"four", before.version)
    assert endpoint.get(name, LIMIT) == b"three"
    after = endpoint.get_versioned(name, LIMIT)
    assert after is not None
    endpoint.remove(name)
    assert not endpoint.replace(name, b"five", after.version)
    assert endpoint.get(name, LIMIT) is None
    assert endpoint.put_new(name, b"six")


LISTED = ["v1/programs/a-1", "v1/programs/a-2", "v1/programs/b", "v1/programsx", "v1/records/native/x", OBJECT]


@pytest.mark.parametrize(
    "prefix", ["", "v1/", "v1/programs/", "v1/programs/a-", "v1/programs", "v1/objects/", "v1/objects/ab/ab1", "v1/none/"]
)
def test_names(kind: str, endpoint: Endpoint, prefix: str) -> None:
    began = time.time()
    for name in LISTED:
        endpoint.put(name, name.encode())
    if kind in ("nginx", "conditional") or (kind == "nginx-listing" and not prefix.startswith("v1/objects/")):
        with pytest.raises(Unsupported):
            list(endpoint.names(prefix))
        return
    found = sorted(endpoint.names(prefix))
    assert [each.name for each in found] == sorted(name for name in LISTED if name.startswith(prefix))
    for each in found:
        assert each.size == len(each.name)
        assert began - 2 < each.modified < time.time() + 2


@pytest.mark.parametrize("kind", [each for each in KINDS if each not in ("nginx", "nginx-listing", "conditional")], indirect=True)
def test_many_names(kind: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a page of any of them."""
    monkeypatch.setattr(object_store, "PAGE", 50)
    wanted = [f"v1/usage/machine-{number}" for number in range(2100 if kind == "redis" else 120)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: endpoint.put(name, b"x"), wanted))
    assert sorted(each.name for each in endpoint.names("v1/usage/")) == sorted(wanted)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Four processes."""
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("forkserver")) as pool:
        yield pool


@pytest.mark.parametrize("kind", ["shared", "s3", "redis", "conditional"], indirect=True)
def test_of_several_processes_one_is_first_and_no_count_is_lost(url: str, processes: ProcessPoolExecutor) -> None:
    results = list(processes.map(race, [url] * 4, ["v1/leases/race"] * 4, [b"%d" % number for number in range(4)]))
    endpoint = open_endpoint(url)
    winners = [number for number, (first, _) in enumerate(results) if first]
    assert len(winners) == 1
    assert endpoint.get("v1/leases/race", 100) == b"%d" % winners[0]
    assert endpoint.get("v1/leases/race-count", 100) == b"20"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x", "redis://127.0.0.1:1", "s3://bucket?endpoint=http://127.0.0.1:1&region=x", "shared:///not/mounted/here"]
)
def test_a_dead_server_is_unreachable_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    endpoint = open_endpoint(url, SHORT)
    verbs: list[Callable[[], object]] = [
        lambda: endpoint.get("v1/x", 10),
        lambda: endpoint.put("v1/x", b"1"),
        lambda: endpoint.put_new("v1/x", b"1"),
        lambda: endpoint.has("v1/x"),
        lambda: list(endpoint.names("v1/objects/")),
        lambda: endpoint.remove("v1/x"),
    ]
    began = time.monotonic()
    for verb in verbs:
        with pytest.raises(Unreachable) as caught:
            verb()
        assert caught.value.again and endpoint.url in str(caught.value) or "127.0.0.1:1" in str(caught.value)
    assert time.monotonic() - began < 1.5


def refuses(endpoint: Endpoint) -> None:
    """Reading and writing are Denied, and the message holds no secret."""
    for verb in (lambda: endpoint.get("v1/x", 10), lambda: endpoint.put("v1/x", b"1"), lambda: endpoint.has("v1/x")):
        with pytest.raises(Denied) as caught:
            verb()
        assert not caught.value.again
        assert "hush" not in str(caught.value) and "hush" not in endpoint.url and "hush" not in repr(vars(caught.value))


def test_wrong_credentials_of_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with nginx_server(tmp_path / "nginx", password=True) as server:
        refuses(open_endpoint(server.url))
        host = f"127.0.0.1:{server.port}"
        refuses(open_endpoint(f"http://builder:hush@{host}"))
        right = open_endpoint(f"http://builder:wall-5@{host}/x")
        right.put("v1/x", b"1")
        assert right.get("v1/x", 1) == b"1" and right.url == f"http://{host}/x"
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login builder password wall-5\ndefault login builder password hush\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        open_endpoint(server.url).put("v1/x", b"1")
        (tmp_path / "netrc").write_text("default login builder password wall-5\n")  # which would go to any host
        refuses(open_endpoint(server.url))
        monkeypatch.setenv("PRECAST_HTTP_TOKEN", f"other.example.com=hush {host}=hush")  # as a bearer token: wrong here, but sent
        refuses(open_endpoint(server.url))


def test_a_token_goes_to_its_host_only(monkeypatch: pytest.MonkeyPatch, conditional: FaultProxy) -> None:
    monkeypatch.setenv("PRECAST_HTTP_TOKEN", f"cache.example.com=hush {conditional.url.removeprefix('http://')}=token-1=")
    open_endpoint(conditional.url).put("v1/x", b"1")
    assert conditional.headers[-1]["authorization"] == "Bearer token-1="
    monkeypatch.setenv("PRECAST_HTTP_TOKEN", "cache.example.com=hush")
    open_endpoint(conditional.url).put("v1/x", b"1")
    assert "authorization" not in conditional.headers[-1]
    monkeypatch.setenv("PRECAST_HTTP_TOKEN", "hush")
    with pytest.raises(ValueError, match="entry 1 is not of the form host=secret") as caught:
        open_endpoint(conditional.url)
    assert "hush" not in str(caught.value)


def test_wrong_credentials_of_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with redis_server(tmp_path / "redis", password="wall-5") as server:
        refuses(open_endpoint(server.url))
        refuses(open_endpoint(f"redis://:hush@127.0.0.1:{server.port}"))
        refuses(open_endpoint(f"redis://somebody:hush@127.0.0.1:{server.port}/4"))
        monkeypatch.setenv("PRECAST_REDIS_PASSWORD", "127.0.0.1=wall-5")
        endpoint = open_endpoint(f"{server.url}/2")
        endpoint.put("v1/x", b"1")
        assert endpoint.get("v1/x", 1) == b"1"


def test_wrong_credentials_of_s3(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    require_keys(s3, True)
    try:
        endpoint = open_endpoint(s3.url)
        refuses_s3 = [lambda: endpoint.get("v1/x", 10), lambda: endpoint.put("v1/x", b"1"), lambda: list(endpoint.names("v1/"))]
        for verb in refuses_s3:
            with pytest.raises(Denied, match="InvalidAccessKeyId") as caught:
                verb()
            assert "hush" not in str(caught.value) and "nobody" not in str(caught.value)
    finally:
        require_keys(s3, False)


def test_no_such_bucket(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    endpoint = open_endpoint(s3.url.replace("precast-tests", "no-such-bucket"))
    for verb in (lambda: endpoint.get("v1/x", 10), lambda: endpoint.put("v1/x", b"")):
        with pytest.raises(Denied, match="there is no such bucket"):
            verb()


def test_an_aws_profile(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id = a\naws_secret_access_key = b\n[empty]\nregion = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    endpoint = open_endpoint(f"{with_prefix(s3.url)}&profile=team")
    endpoint.put("v1/x", b"1")
    assert endpoint.get("v1/x", 1) == b"1"
    for name in ("empty", "missing"):
        with pytest.raises(ValueError, match=f"the AWS profile '{name}' is not there or holds no keys"):
            open_endpoint(f"{s3.url}&profile={name}")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://x/y", "there are no remotes of the kind ftp://"),
        ("bucket/prefix", "is no URL: write for example s3://bucket/prefix"),
        ("s3://", "names no bucket"),
        ("s3://b?regoin=x", "has no option `regoin`; its options are"),
        ("s3://b?endpoint=http://cache.example.com", "is not encrypted: use https://, or allow it with allow_http=1"),
        ("s3://key:secret@b", "credentials do not stand in the URL"),
        ("http://h?layout=flat", "`layout` is bazel or names, not 'flat'"),
        ("http://h:99999", "is no number from 1 to 65535"),
        ("http://h?layout=names&layout=bazel", "given twice"),
        ("redis://h/1/a b", "contains a space"),
        ("redis://h?max_value=much", "`max_value` is a number of bytes"),
        ("shared://host/path", "with three slashes"),
        ("shared:///x?anyone=maybe", "`anyone` is 1 or 0"),
    ],
)
def test_what_is_no_url_is_refused_with_the_right_form(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        open_endpoint(url)
    assert said in str(caught.value) and "secret" not in str(caught.value)


def test_clouds_are_opened_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aGVsbG8=")
    assert open_endpoint("az://container/team?account=name").url == "az://container/team"
    assert open_endpoint("gs://bucket/team?anonymous=1").url == "gs://bucket/team"


def test_what_clouds_are_asked(monkeypatch: pytest.MonkeyPatch, conditional: FaultProxy) -> None:
    """Only that the right places are asked, for no emulator of these is here: the server knows neither."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aGVsbG8=")
    azure = open_endpoint(f"az://container/team?account=name&endpoint={conditional.url}/name", SHORT)
    azure.put("v1/x", b"1")
    assert conditional.seen[-1] == "PUT /name/container/team/v1/x"
    assert open_endpoint(f"gs://bucket/team?anonymous=1&endpoint={conditional.url}", SHORT).get("v1/x", 10) is None
    assert conditional.seen[-1] == "GET /bucket/team%2Fv1%2Fx"


def shared(folder: Path, options: str = "") -> SharedFolderEndpoint:
    endpoint = open_endpoint(f"shared://{folder}{options}")
    assert isinstance(endpoint, SharedFolderEndpoint)
    return endpoint


def test_a_shared_folder_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"elsewhere")
    root = tmp_path / "root"
    (root / "v1").mkdir(parents=True)
    (root / "v1/file").symlink_to(tmp_path / "secret")
    (root / "v1/folder").symlink_to(tmp_path)
    (root / "v1/pipe").mkdir()
    endpoint = shared(root)
    for name in ("v1/file", "v1/folder/secret", "v1/pipe"):
        with pytest.raises(Garbled):
            endpoint.get(name, 100)
    with pytest.raises(Garbled):
        endpoint.put("v1/folder/new", b"1")
    endpoint.put("v1/file", b"mine")  # replaces the link, not what it leads to
    assert (tmp_path / "secret").read_bytes() == b"elsewhere" and endpoint.get("v1/file", 4) == b"mine"
    assert [each.name for each in endpoint.names("")] == ["v1/file"]


def test_a_shared_folder_that_anyone_may_write_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(Denied, match="`chmod o-w` it, or write .anyone=1"):
        shared(tmp_path).put("v1/x", b"1")
    shared(tmp_path, "?anyone=1").put("v1/x", b"1")


def test_a_claim_left_behind_counts_for_a_while_only(tmp_path: Path) -> None:
    endpoint = open_endpoint(f"shared://{tmp_path}", SHORT)
    endpoint.put("v1/x", b"one")
    version = hashlib.sha256(b"one").hexdigest()
    (tmp_path / ".writing/.claims").mkdir()
    claim = tmp_path / ".writing/.claims" / hashlib.sha256(b"v1/x").hexdigest()
    claim.write_bytes(b"")
    with pytest.raises(Unreachable, match="is being replaced by others"):
        endpoint.replace("v1/x", b"two", version)
    os.utime(claim, (time.time() - 31, time.time() - 31))
    assert endpoint.replace("v1/x", b"two", version)
    assert not claim.exists() and endpoint.get("v1/x", 3) == b"two"
    assert not [path for path in (tmp_path / ".writing").iterdir() if path.is_file()]


def test_a_stale_handle_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = shared(tmp_path)
    endpoint.put("v1/x", b"1")
    left = [2]
    real = os.open

    def stale(path: str, *arguments: int, **keywords: int) -> int:
        if path == "x" and left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path, *arguments, **keywords)

    monkeypatch.setattr(os, "open", stale)
    assert endpoint.get("v1/x", 1) == b"1"
    left[0] = 3
    with pytest.raises(Unreachable, match="Stale file handle"):
        endpoint.get("v1/x", 1)


def test_a_full_or_read_only_folder_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = shared(tmp_path)
    for code in (errno.ENOSPC, errno.EROFS, errno.EACCES):

        def refuse(*unused: object, code: int = code) -> int:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", refuse)
            with pytest.raises(Denied, match=os.strerror(code)):
                endpoint.put("v1/x", b"1")
        assert endpoint.get("v1/x", 1) is None
        assert not list((tmp_path / ".writing").iterdir())


def test_values_of_redis_are_bounded(redis: Server) -> None:
    endpoint = open_endpoint(f"{with_prefix(redis.url)}?max_value=10")
    with pytest.raises(Unsupported, match=r"keeps no value of more than 10 bytes"):
        endpoint.put("v1/x", bytes(11))
    endpoint.put("v1/x", bytes(10))


def test_every_error_is_an_oserror() -> None:
    assert all(issubclass(each, EndpointError) and issubclass(each, OSError) for each in (Unreachable, Denied, Garbled, Unsupported))
