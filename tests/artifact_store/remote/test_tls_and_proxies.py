"""`https://` and `rediss://` with a certificate that is trusted or not, and the proxies that the environment names."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast.artifact_store.remote.endpoint import Denied, TimeOuts, Unreachable
from precast.artifact_store.remote.endpoints.open import open_endpoint
from tests.support.fault_proxy import FaultProxy, WireProxy
from tests.support.needs import needs
from tests.support.servers import Server

TIMEOUTS = TimeOuts(connect=1.0, stall=0.5, whole=1.0)
NAME = "v1/programs/model-1"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate for 127.0.0.1 that signs itself."""
    needs("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(text + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_https(server_side: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultProxy(tls=server_side) as server:
        endpoint = open_endpoint(f"{server.url}/x", TIMEOUTS)
        with pytest.raises(Unreachable, match="its certificate is not trusted"):
            endpoint.get(NAME, 10)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        endpoint = open_endpoint(f"{server.url}/x", TIMEOUTS)
        begun = server.connections
        for _ in range(5):
            endpoint.put(NAME, b"a" * 1_000_000)
            assert endpoint.get(NAME, 1_000_000) == b"a" * 1_000_000
        assert server.connections == begun + 1, "connections are kept"
        server.fault("hang")
        with pytest.raises(Unreachable, match=r"was silent for 0\.5 s"):
            endpoint.get(NAME, 10)
        with pytest.raises(Unreachable, match="no TLS connection"), FaultProxy() as plain:
            open_endpoint(plain.url.replace("http:", "https:"), TIMEOUTS).get(NAME, 10)
        endpoint.close()


def test_rediss(redis: Server, server_side: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WireProxy(redis.port, tls=server_side) as server:
        with pytest.raises(Unreachable, match="its certificate is not trusted"):
            open_endpoint(f"rediss://127.0.0.1:{server.port}/0/tls", TIMEOUTS).get(NAME, 10)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        endpoint = open_endpoint(f"rediss://127.0.0.1:{server.port}/0/tls", TIMEOUTS)
        endpoint.put(NAME, b"a" * 1_000_000)
        assert endpoint.get(NAME, 1_000_000) == b"a" * 1_000_000


class Tunnel:
    """A proxy that knows CONNECT: makes a tunnel to `port`, or answers `refusal`."""

    def __init__(self, port: int, refusal: bytes = b"") -> None:
        self._to, self._refusal = port, refusal
        self.heads: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self.heads.append(client.recv(10_000))
            if self._refusal:
                client.sendall(self._refusal)
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            client.sendall(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 tunnel\r\n\r\n")
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # a side is gone, and the test looks at what the endpoint said


@pytest.fixture
def plain() -> Iterator[FaultProxy]:
    with FaultProxy() as server:
        yield server


def test_a_proxy_for_http(plain: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked with the whole address, and gets its own credentials; `no_proxy` and other schemes go directly."""
    monkeypatch.setenv("http_proxy", f"http://us:hush@127.0.0.1:{plain.port}")
    endpoint = open_endpoint("http://cache.example.com/x", TIMEOUTS)
    endpoint.put(NAME, b"1")
    assert endpoint.get(NAME, 1) == b"1"
    assert all(" http://cache.example.com/x/ac/" in line for line in plain.seen) and len(plain.seen) == 2
    assert plain.headers[-1]["proxy-authorization"] == "Basic " + base64.b64encode(b"us:hush").decode()
    assert plain.headers[-1]["host"] == "cache.example.com"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    open_endpoint(plain.url, TIMEOUTS).put(NAME, b"1")
    assert plain.seen[-1].startswith("PUT /ac/") and "proxy-authorization" not in plain.headers[-1]


def test_a_tunnel_for_https(server_side: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with FaultProxy(tls=server_side) as server:
        tunnel = Tunnel(server.port)
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{tunnel.port}")
        endpoint = open_endpoint("https://127.0.0.1:4443/x", TIMEOUTS)
        endpoint.put(NAME, b"1")
        assert endpoint.get(NAME, 1) == b"1"
        assert len(tunnel.heads) == 1 and tunnel.heads[0].startswith(b"CONNECT 127.0.0.1:4443 HTTP/1.1\r\n")
        assert server.seen[-1].startswith("GET /x/ac/")
        endpoint.close()
        tunnel.close()


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", Denied),
        (b"HTTP/1.1 503 Busy\r\n\r\n", Unreachable),
        (b"nonsense\r\n\r\n", Unreachable),
        (b"HTTP/1.1 200", Unreachable),
    ],
)
def test_a_tunnel_that_is_refused(monkeypatch: pytest.MonkeyPatch, answer: bytes, wanted: type[OSError]) -> None:
    tunnel = Tunnel(0, answer)
    monkeypatch.setenv("https_proxy", f"http://us:hush@127.0.0.1:{tunnel.port}")
    with pytest.raises(wanted, match=f"the proxy 127.0.0.1:{tunnel.port}") as caught:
        open_endpoint("https://cache.example.com", TIMEOUTS).get(NAME, 1)
    assert "hush" not in str(caught.value)
    tunnel.close()


def test_a_proxy_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://us:hush@127.0.0.1:1")
    with pytest.raises(ValueError, match="the proxy socks5://127.0.0.1:1 of the environment is no http:// one") as caught:
        open_endpoint("https://cache.example.com")
    assert "hush" not in str(caught.value)
