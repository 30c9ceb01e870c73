"""Servers that answer anything at all: only an EndpointError comes out, or an answer within the limit. Random bytes and bent answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precast.artifact_store.remote.endpoint import Endpoint, EndpointError, Garbled, TimeOuts
from precast.artifact_store.remote.endpoints.open import open_endpoint
from precast.artifact_store.remote.endpoints.webdav import listed
from tests.support.servers import S3_ENVIRONMENT

TIMEOUTS = TimeOuts(connect=1.0, stall=0.3, whole=1.0)
LIMIT = 64
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class Parrot:
    """Answers every request with `answer`, and closes."""

    def __init__(self) -> None:
        self.answer = b""
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1.0)
                try:
                    connection.recv(1 << 16)
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass
                except OSError:
                    continue  # the client had enough

    def close(self) -> None:
        """Stop."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture(scope="module")
def parrot() -> Iterator[Parrot]:
    made = Parrot()
    yield made
    made.close()


def verbs(endpoint: Endpoint) -> list[Callable[[], object]]:
    return [
        lambda: endpoint.get("v1/x", LIMIT),
        lambda: endpoint.get_versioned("v1/x", LIMIT),
        lambda: endpoint.put("v1/x", b"1"),
        lambda: endpoint.put_new("v1/x", b"1"),
        lambda: endpoint.replace("v1/x", b"1", '"1"'),
        lambda: endpoint.has("v1/x"),
        lambda: endpoint.remove("v1/x"),
        lambda: list(endpoint.names("v1/objects/")),
    ]


def holds(parrot: Parrot, url: str, answer: bytes, which: int) -> None:
    """One verb against one answer: an EndpointError or a small answer, and soon."""
    parrot.answer = answer
    endpoint = open_endpoint(url, TIMEOUTS)
    began = time.monotonic()
    try:
        found = verbs(endpoint)[which]()
    except EndpointError as error:
        assert len(str(error)) < 2000
    else:
        if isinstance(found, bytes):
            assert len(found) <= LIMIT
    finally:
        endpoint.close()
    assert time.monotonic() - began < 3.0


HEADERS = st.sampled_from(
    [
        b"Content-Length: 5",
        b"Content-Length: -5",
        b"Content-Length: 99999999999999999999",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: x",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip",
        b"Content-Encoding: gzip",
        b"Location: /v1/x",
        b"Location: http://[",
        b"Location: \xff\x00",
        b"Content-Type: text/html",
        b"Content-Type: ;;;=",
        b'ETag: W/"1"',
        b"ETag: \xff",
        b"Retry-After: 99999999999999",
        b"Retry-After: -1",
        b"Connection: close",
        b"Last-Modified: yesterday",
        b" folded: header",
        b"no colon",
        b"=?utf-8?q?=00?=: x",
    ]
)
STATUS = st.sampled_from(
    [b"100", b"200", b"204", b"206", b"207", b"301", b"302", b"304", b"307", b"404", b"412", b"429", b"503", b"999", b"-1", b"2", b"\xff"]
)
BODIES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([b"5\r\nhello\r\n0\r\n\r\n", b"-1\r\n", b"ffffffffffffffff\r\n", b"zz\r\n", b"hello", b"a" * 1000]),
)
HTTP = st.builds(
    lambda status, headers, body: b"HTTP/1.1 " + status + b" X\r\n" + b"".join(each + b"\r\n" for each in headers) + b"\r\n" + body,
    STATUS,
    st.lists(HEADERS, max_size=4),
    BODIES,
)


@many
@given(answer=st.one_of(st.binary(max_size=300), HTTP), which=st.integers(0, 7))
def test_http(parrot: Parrot, answer: bytes, which: int) -> None:
    holds(parrot, f"http://127.0.0.1:{parrot.port}", answer, which)


@many
@given(answer=st.one_of(st.binary(max_size=300), HTTP), which=st.integers(0, 7))
def test_s3(parrot: Parrot, answer: bytes, which: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in S3_ENVIRONMENT.items():
            patched.setenv(name, value)
        holds(parrot, f"s3://bucket?endpoint=http://127.0.0.1:{parrot.port}&region=x", answer, which)


RESP = st.recursive(
    st.one_of(
        st.binary(max_size=20).map(lambda data: b"$%d\r\n%b\r\n" % (len(data), data)),
        st.integers(-(10**20), 10**20).map(lambda number: b":%d\r\n" % number),
        st.integers(-3, 10**12).map(lambda number: b"$%d\r\n" % number),
        st.integers(-3, 10**12).map(lambda number: b"*%d\r\n" % number),
        st.sampled_from(
            [b"+OK\r\n", b"-ERR no\r\n", b"-\r\n", b"\r\n", b"$-1\r\n", b"*-1\r\n", b"$5\r\nhellooo", b":\r\n", b"%1\r\n", b"_\r\n"]
        ),
    ),
    lambda inner: st.lists(inner, max_size=4).map(lambda parts: b"*%d\r\n" % len(parts) + b"".join(parts)),
    max_leaves=6,
)


@many
@given(answer=st.one_of(st.binary(max_size=200), RESP), which=st.integers(0, 7))
def test_redis(parrot: Parrot, answer: bytes, which: int) -> None:
    holds(parrot, f"redis://127.0.0.1:{parrot.port}", answer, which)


ENTRY = """<D:response><D:href>{href}</D:href><D:propstat><D:prop><D:getcontentlength>{size}</D:getcontentlength>
<D:getlastmodified>{when}</D:getlastmodified><D:resourcetype>{kind}</D:resourcetype></D:prop></D:propstat></D:response>"""
ENTRIES = st.builds(
    lambda href, size, when, kind: ENTRY.format(href=href, size=size, when=when, kind=kind),
    st.sampled_from(
        ["/x/v1/a", "/x/../a", "/x/v1/..%2f..", "http://other/x/v1/b", "/x/v1/%00", "/x//", "", "/y/v1/a", "http://[/", "/x/v1/.hidden"]
    ),
    st.sampled_from(["5", "-5", "1e9", "9" * 30, ""]),
    st.sampled_from(["Thu, 26 Nov 2026 12:56:55 GMT", "", "yesterday", "Thu, 99 Nov 99999 12:56:55 GMT", "0" * 50]),
    st.sampled_from(["", "<D:collection/>"]),
)
XML = st.builds(
    lambda parts: ('<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">' + "".join(parts) + "</D:multistatus>").encode(),
    st.lists(ENTRIES, max_size=4),
)


@many
@given(answer=st.one_of(st.binary(max_size=300), XML))
def test_webdav_listings(answer: bytes) -> None:
    try:
        found = list(listed(answer, "/x/", "http://cache"))
    except EndpointError:
        return
    for each in found:
        assert ".." not in each.name and not each.name.startswith("/") and each.size >= 0


def test_a_listing_with_entities_is_refused() -> None:
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><D:multistatus xmlns:D="DAV:">&b;</D:multistatus>'
    with pytest.raises(Garbled, match="a document type"):
        list(listed(bomb, "/", "http://cache"))
    with pytest.raises(Garbled, match="too much text"):
        list(listed(b"<a>" + b"a" * 5000 + b"</a>", "/", "http://cache"))
