"""Endpoints in front of which a proxy misbehaves: which error comes out, within what time, and that a later request is as good as ever."""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from precast.artifact_store.remote.endpoint import Denied, Endpoint, EndpointError, Garbled, TimeOuts, Unreachable, Unsupported
from precast.artifact_store.remote.endpoints.forked import ForkSafeObjectStore
from precast.artifact_store.remote.endpoints.object_store import is_forked
from precast.artifact_store.remote.endpoints.open import open_endpoint
from tests.support.fault_proxy import FaultProxy, Kind, WireProxy
from tests.support.servers import BUCKET, S3_ENVIRONMENT, Server

TIMEOUTS = TimeOuts(connect=1.0, stall=0.4, whole=1.0)
NAME = "v1/programs/model-1"
LIMIT = 300_000
CONTENT = bytes(range(256)) * 1000


@pytest.fixture(params=["http", "s3"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FaultProxy, Endpoint]]:
    """A proxy that behaves, and an endpoint that knows it; behind it NAME is there."""
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    server: Server = request.getfixturevalue({"http": "nginx", "s3": "s3"}[request.param])
    with FaultProxy(server.port) as proxy:
        url = f"{proxy.url}/faults" if request.param == "http" else f"s3://{BUCKET}/faults?endpoint={proxy.url}&region=us-east-1"
        endpoint = open_endpoint(url, TIMEOUTS)
        endpoint.put(NAME, CONTENT)
        assert endpoint.get(NAME, LIMIT) == CONTENT
        yield proxy, endpoint
        endpoint.close()


FAULTS: list[tuple[str, Kind, dict[str, Any], type[EndpointError], type[EndpointError] | None, float]] = [
    # what it is called, the fault, its settings, what get raises, what put raises (None: nothing), within which time
    ("hangs", "hang", {}, Unreachable, Unreachable, 0.4),
    ("closes", "reset", {}, Unreachable, Unreachable, 0.0),
    ("500", "status", {"status": 500}, Unreachable, Unreachable, 0.0),
    ("503 later", "status", {"status": 503, "retry_after": "7"}, Unreachable, Unreachable, 0.0),
    ("429 later", "status", {"status": 429, "retry_after": "7"}, Unreachable, Unreachable, 0.0),
    ("401", "status", {"status": 401}, Denied, Denied, 0.0),
    ("403", "status", {"status": 403}, Denied, Denied, 0.0),
    ("405", "status", {"status": 405}, Unsupported, Unsupported, 0.0),
    ("418", "status", {"status": 418}, Garbled, Garbled, 0.0),
    ("too long", "long", {"only": "GET"}, Garbled, None, 0.0),
    ("half", "half", {"only": "GET"}, Unreachable, None, 0.0),
    ("drips", "drip", {"rate": 20_000, "only": "GET"}, Unreachable, None, 1.0),
    ("drips slowly", "drip", {"rate": 21, "only": "GET"}, Unreachable, None, 1.0),
    ("login page", "login", {}, Garbled, Garbled, 0.0),
]


@pytest.mark.parametrize(("fault", "settings", "of_get", "of_put", "seconds"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_faults(
    place: tuple[FaultProxy, Endpoint],
    fault: Kind,
    settings: dict[str, Any],
    of_get: type[EndpointError],
    of_put: type[EndpointError] | None,
    seconds: float,
) -> None:
    proxy, endpoint = place
    proxy.fault(fault, **settings)
    verbs: list[tuple[Callable[[], object], type[EndpointError] | None]] = [
        (lambda: endpoint.get(NAME, LIMIT), of_get),
        (lambda: endpoint.put("v1/programs/model-2", b"1"), of_put),
    ]
    for verb, wanted in verbs:
        began = time.monotonic()
        if wanted is None:
            verb()
            continue
        with pytest.raises(EndpointError) as caught:
            verb()
        took = time.monotonic() - began
        assert type(caught.value) is wanted, caught.value
        assert caught.value.again == (wanted is Unreachable)
        assert seconds * 0.9 <= took < seconds + 0.7, f"{took:.2f} s"
        if "retry_after" in settings and endpoint.kind == "http":
            assert isinstance(caught.value, Unreachable) and caught.value.after == 7.0
    proxy.heal()
    assert endpoint.get(NAME, LIMIT) == CONTENT


@pytest.mark.parametrize("verb", ["has", "remove", "names", "put_new", "replace"])
@pytest.mark.parametrize(("fault", "wanted"), [("hang", Unreachable), ("garbage", EndpointError), ("status", Unreachable)])
def test_the_other_verbs(place: tuple[FaultProxy, Endpoint], verb: str, fault: Kind, wanted: type[EndpointError]) -> None:
    proxy, endpoint = place
    proxy.fault(fault)
    verbs: dict[str, Callable[[], object]] = {
        "has": lambda: endpoint.has(NAME),
        "remove": lambda: endpoint.remove(NAME),
        "names": lambda: list(endpoint.names("v1/objects/")),
        "put_new": lambda: endpoint.put_new("v1/leases/x", b"1"),
        "replace": lambda: endpoint.replace(NAME, b"1", '"version"'),
    }
    began = time.monotonic()
    with pytest.raises(wanted):
        verbs[verb]()
    assert time.monotonic() - began < 1.1


def test_a_lost_object_is_absent_and_a_flipped_bit_passes(place: tuple[FaultProxy, Endpoint]) -> None:
    """What is not there is None; whether bytes are the right ones is for those who know digests."""
    proxy, endpoint = place
    proxy.fault("lose", times=2)
    assert endpoint.get(NAME, LIMIT) is None and not endpoint.has(NAME)
    proxy.fault("flip", times=1)
    found = endpoint.get(NAME, LIMIT)
    assert found is not None and len(found) == len(CONTENT) and found != CONTENT
    assert endpoint.get(NAME, LIMIT) == CONTENT


def test_a_login_page_is_neither_an_object_nor_an_empty_listing(place: tuple[FaultProxy, Endpoint]) -> None:
    proxy, endpoint = place
    proxy.fault("login")
    for verb in (lambda: endpoint.has(NAME), lambda: list(endpoint.names("v1/objects/")), lambda: endpoint.get(NAME, LIMIT)):
        with pytest.raises(Garbled):
            verb()


@pytest.fixture
def alone() -> Iterator[tuple[FaultProxy, Endpoint]]:
    """A small HTTP cache, and an endpoint."""
    with FaultProxy() as proxy:
        endpoint = open_endpoint(f"{proxy.url}/x", TIMEOUTS)
        yield proxy, endpoint
        endpoint.close()


@pytest.mark.parametrize(
    "location",
    ["http://localhost:1/steal", "https://127.0.0.1/x", "ftp://127.0.0.1/", "//other.example.com/x", "http://[bad/", "/a b\x01", "ü"],
)
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_to_elsewhere_is_not_followed(
    alone: tuple[FaultProxy, Endpoint], monkeypatch: pytest.MonkeyPatch, location: str, status: int
) -> None:
    proxy, _ = alone
    monkeypatch.setenv("PRECAST_HTTP_TOKEN", f"127.0.0.1:{proxy.port}=hush")
    endpoint = open_endpoint(f"{proxy.url}/x", TIMEOUTS)
    proxy.fault("raw", body=f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
    for verb in (lambda: endpoint.get(NAME, 10), lambda: endpoint.put(NAME, b"1")):
        with pytest.raises(Garbled) as caught:
            verb()
        assert "hush" not in str(caught.value)


def test_redirects_within_the_server_are_followed_three_times(alone: tuple[FaultProxy, Endpoint]) -> None:
    proxy, endpoint = alone
    proxy.content["/new?part=1"] = b"moved"
    proxy.fault("redirect", location="/y", only="GET /x/", times=1)
    proxy.fault("redirect", location=f"{proxy.url}/new?part=1", only="GET /y", times=1)
    assert endpoint.get(NAME, 10) == b"moved"
    proxy.fault("redirect", location="/x/again")
    with pytest.raises(Garbled, match="in a circle"):
        endpoint.get(NAME, 10)
    with pytest.raises(Garbled, match="answers PUT with a redirect"):
        endpoint.put(NAME, b"1")


def test_connections_are_kept_and_a_closed_one_is_replaced(alone: tuple[FaultProxy, Endpoint]) -> None:
    proxy, endpoint = alone
    for _ in range(20):
        endpoint.put(NAME, b"1")
        assert endpoint.get(NAME, 1) == b"1" and endpoint.get("v1/none", 1) is None and endpoint.has(NAME)
    assert proxy.connections == 1
    # the server closes it right after an answer; the next request finds out only when it is sent
    proxy.fault("raw", body=b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1", times=1)
    assert endpoint.get(NAME, 1) == b"1"
    assert endpoint.get(NAME, 1) == b"1"
    assert proxy.connections == 2


def test_an_early_refusal_of_a_large_body_is_heard(alone: tuple[FaultProxy, Endpoint]) -> None:
    """A server that answers 413 and closes, without reading what we still send."""
    server = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        connection, _ = server.accept()
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.3)
        connection.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    endpoint = open_endpoint(f"http://127.0.0.1:{server.getsockname()[1]}", TIMEOUTS)
    with pytest.raises(EndpointError) as caught:
        endpoint.put(NAME, bytes(30_000_000))
    thread.join()
    server.close()
    assert isinstance(caught.value, (Denied, Unreachable))


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"],
)
def test_an_endless_answer_is_cut(head: bytes) -> None:
    """A head or chunks without end: what is read stays within the limit, whatever the framing says."""
    server = socket.create_server(("127.0.0.1", 0))
    sent = [0]

    def endless() -> None:
        connection, _ = server.accept()
        connection.recv(10_000)
        try:
            connection.sendall(head)
            while True:
                sent[0] += connection.send(head if head.endswith(b"Continue\r\n\r\n") else b"a" * 65536)
        except OSError:
            connection.close()

    thread = threading.Thread(target=endless)
    thread.start()
    endpoint = open_endpoint(f"http://127.0.0.1:{server.getsockname()[1]}", TIMEOUTS)
    with pytest.raises(Garbled):
        endpoint.get(NAME, 1000)
    thread.join()
    server.close()
    assert sent[0] < 20 << 20  # what the sockets' buffers take; the limit is 1,000 bytes


@pytest.mark.parametrize(("mode", "wanted"), [("hang", Unreachable), ("reset", Unreachable), ("garbage", Garbled)])
def test_faults_of_redis(redis: Server, mode: Any, wanted: type[EndpointError]) -> None:
    with WireProxy(redis.port) as proxy:
        endpoint = open_endpoint(f"redis://127.0.0.1:{proxy.port}/0/faults", TIMEOUTS)
        endpoint.put(NAME, CONTENT)
        proxy.mode = mode
        for verb in (lambda: endpoint.get(NAME, LIMIT), lambda: endpoint.put("v1/other", b"1"), lambda: list(endpoint.names("v1/"))):
            began = time.monotonic()
            with pytest.raises(wanted):
                verb()
            assert time.monotonic() - began < 0.9
        proxy.mode = "pass"
    with WireProxy(redis.port) as proxy:
        assert open_endpoint(f"redis://127.0.0.1:{proxy.port}/0/faults", TIMEOUTS).get(NAME, LIMIT) == CONTENT


def test_redis_refusals(redis: Server) -> None:
    """What the server answers in words, told apart."""
    from precast.artifact_store.remote.endpoints.redis import RedisEndpoint, RedisError

    endpoint = open_endpoint(redis.url)
    assert isinstance(endpoint, RedisEndpoint)
    table = {
        "READONLY You can't write against a read only replica.": Denied,
        "NOAUTH Authentication required.": Denied,
        "WRONGPASS invalid username-password pair or user is disabled.": Denied,
        "ERR AUTH <password> called without any password configured": Denied,
        "NOPERM this user has no permissions": Denied,
        "LOADING Redis is loading the dataset in memory": Unreachable,
        "OOM command not allowed when used memory > 'maxmemory'.": Unreachable,
        "MOVED 3999 127.0.0.1:6381": Unsupported,
        "ERR unknown command 'EVAL'": Unsupported,
        "WRONGTYPE Operation against a key holding the wrong kind of value": Garbled,
    }
    for text, wanted in table.items():
        assert type(endpoint._meaning(RedisError(text))) is wanted, text


def ended(child: int) -> int | str:
    """The exit code of a forked child."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "it hung"


def in_a_child(endpoint: Endpoint) -> None:
    """What a worker does, from several threads; and what is denied or absent there, is."""
    assert endpoint.get("v1/forked", 7) == b"content"
    assert endpoint.get("v1/none", 7) is None and not endpoint.has("v1/none")
    with pytest.raises(Garbled, match="7 bytes, and 6 were allowed"):
        endpoint.get("v1/forked", 6)
    assert endpoint.put_new("v1/by-child", b"1") and not endpoint.put_new("v1/by-child", b"2")
    found = endpoint.get_versioned("v1/by-child", 1)
    assert found is not None and endpoint.replace("v1/by-child", b"3", found.version)
    assert [each.name for each in endpoint.names("v1/by-")] == ["v1/by-child"]
    endpoint.remove("v1/by-child")
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: endpoint.get("v1/forked", 7), range(32))) == {b"content"}


def test_object_stores_work_after_a_fork(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore itself would wait for ever there."""
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    url = s3.url.replace("?", "/forks?")
    endpoint = open_endpoint(url)
    endpoint.put("v1/forked", b"content")
    assert not is_forked()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert is_forked()
            in_a_child(endpoint)
            in_a_child(open_endpoint(url))
            grandchild = os.fork()
            if grandchild == 0:
                in_a_child(endpoint)
                os._exit(0)
            code = 0 if ended(grandchild) == 0 else 2
        except BaseException:  # noqa: BLE001 - nothing may get out of the child
            traceback.print_exc()
        finally:
            os._exit(code)
    assert ended(child) == 0
    assert endpoint.get("v1/forked", 7) == b"content"


def test_a_helper_that_dies_is_replaced(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("precast.artifact_store.remote.endpoints.forked.is_forked", lambda: True)
    endpoint = open_endpoint(s3.url.replace("?", "/helped?"))
    assert isinstance(endpoint, ForkSafeObjectStore)
    endpoint.put("v1/x", b"1")
    assert endpoint._helper is not None
    endpoint._helper._process.kill()
    with pytest.raises(Unreachable, match="the helper process that asks it after a fork has ended"):
        for _ in range(100):
            endpoint._helper.get("v1/x", 1)
    assert endpoint.get("v1/x", 1) == b"1"
    process = endpoint._helper._process
    endpoint.close()
    assert process.wait(10) == 0
