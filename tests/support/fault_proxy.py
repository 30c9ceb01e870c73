"""A proxy that misbehaves on command: `FaultProxy` in front of an HTTP server, or alone as a small one; `WireProxy` in front of anything.

    with FaultProxy(server.port) as proxy:
        proxy.fault("status", status=503, retry_after="1", times=2)
        proxy.fault("drip", rate=1000, only="GET")
        ... talk to proxy.url ...
        assert proxy.requests["GET"] == 3

It runs in threads of the test process. For measurements, `python -m tests.support.fault_proxy PORT --delay 0.02` is a process of its own,
which prints its port and ends with its standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import re
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

HOST = "127.0.0.1"
Kind = Literal["hang", "reset", "status", "garbage", "half", "long", "drip", "delay", "lose", "forget", "flip", "login", "redirect", "raw"]


@dataclass
class Fault:
    """What goes wrong, for requests whose "METHOD /path" contains `only` (a regular expression), `times` times (None: until removed).

    hang: no answer until the proxy stops. reset: the connection is closed without an answer. status: answers `status`, with Retry-After if
    given. garbage: bytes that are no HTTP. half: the head, half of the body, end. long: a body of 64 MiB with no stated length. drip: the
    body at `rate` bytes a second. delay: `seconds` before the request is passed on. lose: what is there is answered 404. forget: a PUT is
    answered 200 and not kept. flip: one bit of the body is another. login: 200 with a web page. redirect: 302 to `location`. raw: `body` as
    the whole answer.
    """

    kind: Kind
    only: str = ""
    times: int | None = None
    status: int = 500
    retry_after: str = ""
    rate: float = 1000.0
    seconds: float = 0.0
    location: str = ""
    body: bytes = b""

    def applies(self, request: str) -> bool:
        """Whether it applies to this request; counts it."""
        if self.times == 0 or not re.search(self.only, request):
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass
class Answer:
    """An HTTP answer, whole."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""


class _Listener:
    """Accepts connections on a free port of loopback, each in a thread, until it is closed."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._socket = socket.create_server((HOST, 0), backlog=256)
        self.port = int(self._socket.getsockname()[1])
        self.closed = threading.Event()
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                self._open.add(connection)
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self.serve(connection)
        except (OSError, ValueError, http.client.HTTPException):
            pass  # the other side went away: the test's business
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def serve(self, connection: socket.socket) -> None:
        """Talk over one connection."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop listening and cut every connection."""
        self.closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class FaultProxy(_Listener):
    """In front of the HTTP server at `upstream`; without one it keeps what is put in memory, and honours If-Match and If-None-Match.

    `requests` counts by method, `seen` holds "METHOD /path" of each; `received` and `sent` count bytes of bodies. `delay`: seconds added to
    every request. `tls`: it is an `https://` server.
    """

    def __init__(
        self, upstream: int | None = None, *, delay: float = 0.0, conditional: bool = True, tls: ssl.SSLContext | None = None
    ) -> None:
        self.upstream, self.delay, self.conditional = upstream, delay, conditional
        self.faults: list[Fault] = []
        self.content: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.seen: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.received = self.sent = 0
        self._state = threading.Lock()
        super().__init__(tls)
        self.url = f"{'http' if tls is None else 'https'}://{HOST}:{self.port}"

    def fault(self, kind: Kind, **settings: object) -> Fault:
        """Misbehave from now on; the first fault that applies to a request is the one that happens."""
        made = Fault(kind, **settings)  # type: ignore[arg-type]
        self.faults.append(made)
        return made

    def heal(self) -> None:
        """Behave again."""
        self.faults.clear()

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of one client."""
        upstream: http.client.HTTPConnection | None = None
        reader = connection.makefile("rb")
        while not self.closed.is_set():
            request = _read_request(reader, connection)
            if request is None:
                break
            method, path, headers, body = request
            line = f"{method} {path}"
            with self._state:
                self.requests[method] += 1
                self.seen.append(line)
                self.headers.append(headers)
                self.received += len(body)
                fault = next((each for each in self.faults if each.applies(line)), None)
            if self.delay:
                self.closed.wait(self.delay)
            if fault is not None and fault.kind == "delay":
                self.closed.wait(fault.seconds)
            if fault is not None and not self._before(fault, connection, method):
                break
            if fault is not None and fault.kind in ("status", "login", "redirect", "lose", "forget"):
                answer = _made_up(fault)
            elif self.upstream is None:
                answer = self._own(method, path, headers, body)
            else:
                upstream = upstream or http.client.HTTPConnection(HOST, self.upstream, timeout=600)
                answer = _pass_on(upstream, method, path, headers, body)
            if not self._send(connection, answer, fault, head=method == "HEAD"):
                break
            if headers.get("connection", "").lower() == "close":
                break
        if upstream is not None:
            upstream.close()

    def _before(self, fault: Fault, connection: socket.socket, method: str) -> bool:
        """Faults that leave no answer; whether there is to be one."""
        if fault.kind == "hang":
            self.closed.wait()
        elif fault.kind == "garbage":
            connection.sendall(fault.body or hashlib.sha512(method.encode()).digest() * 20)
        elif fault.kind == "raw":
            connection.sendall(fault.body)
        return fault.kind not in ("hang", "garbage", "raw", "reset")

    def _send(self, connection: socket.socket, answer: Answer, fault: Fault | None, *, head: bool) -> bool:
        """Send an answer, well or badly; whether the connection goes on."""
        kind = fault.kind if fault is not None else ""
        body = b"" if head else answer.body
        if kind == "flip" and body:
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        bare = head or answer.status in (204, 304)
        length = [] if kind == "long" or bare else [("Content-Length", str(len(body)))]
        kept = [(name, value) for name, value in answer.headers if bare or name.lower() != "content-length"]
        lines = [f"HTTP/1.1 {answer.status} {http.client.responses.get(answer.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in [*kept, *length]]
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if fault is not None and kind == "drip":
            step = max(1, int(fault.rate / 20))
            for at in range(0, len(body), step):
                connection.sendall(body[at : at + step])
                if self.closed.wait(step / fault.rate):
                    return False
            return True
        if kind == "half":
            body = body[: len(body) // 2]
        connection.sendall(body)
        with self._state:
            self.sent += len(body)
        if kind == "long":
            for _ in range(64):
                connection.sendall(bytes(1 << 20))
        return kind not in ("half", "long")

    def _own(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """The small server: a dictionary."""
        with self._state:
            found = self.content.get(path)
            etag = None if found is None else f'"{hashlib.sha256(found).hexdigest()[:32]}"'
            if method == "PUT":
                if self.conditional and headers.get("if-none-match") == "*" and found is not None:
                    return Answer(412, [])
                if self.conditional and "if-match" in headers and headers["if-match"] != etag:
                    return Answer(412, [])
                self.content[path] = body
                return Answer(201, [("ETag", f'"{hashlib.sha256(body).hexdigest()[:32]}"')])
            if found is None:
                return Answer(404, [])
            if method == "DELETE":
                del self.content[path]
                return Answer(204, [])
            if method not in ("GET", "HEAD"):
                return Answer(405, [])
            about = [("ETag", str(etag)), ("Content-Type", "application/octet-stream")]
            return Answer(200, [*about, ("Content-Length", str(len(found)))], b"" if method == "HEAD" else found)


def _made_up(fault: Fault) -> Answer:
    """The answer of a fault that the server behind is not asked for."""
    if fault.kind == "login":
        return Answer(200, [("Content-Type", "text/html")], fault.body or b"<!doctype html><html><body>Please sign in</body></html>")
    if fault.kind == "redirect":
        return Answer(302, [("Location", fault.location)])
    if fault.kind == "lose":
        return Answer(404, [])
    if fault.kind == "forget":
        return Answer(200, [("ETag", '"forgotten"')])
    return Answer(fault.status, [("Retry-After", fault.retry_after)] if fault.retry_after else [], fault.body)


def _read_request(reader: object, connection: socket.socket) -> tuple[str, str, dict[str, str], bytes] | None:
    """One request: method, path, headers by lower-case name, body; None where the client is done."""
    first = reader.readline(65536)  # type: ignore[attr-defined]
    if not first.strip():
        return None
    method, path, _ = first.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while True:
        line = reader.readline(65536)  # type: ignore[attr-defined]
        if line in (b"\r\n", b"\n", b""):
            break
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.pop("expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int(reader.readline().split(b";")[0], 16):  # type: ignore[attr-defined]
            body += reader.read(size)  # type: ignore[attr-defined]
            reader.readline()  # type: ignore[attr-defined]
        reader.readline()  # type: ignore[attr-defined]
        del headers["transfer-encoding"]
    else:
        body = reader.read(int(headers.get("content-length", "0")))  # type: ignore[attr-defined]
    return method, path, headers, body


def _pass_on(upstream: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
    """What the server behind answers."""
    sent = {name: value for name, value in headers.items() if name not in ("connection", "content-length", "expect")}
    for attempt in (1, 2):
        try:
            upstream.putrequest(method, path, skip_host="host" in sent, skip_accept_encoding=True)
            for name, value in sent.items():
                upstream.putheader(name, value)
            if body or method in ("PUT", "POST"):
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            content = answer.read()
            break
        except (OSError, http.client.HTTPException):
            upstream.close()
            if attempt == 2:
                return Answer(502, [])
    skipped = ("connection", "keep-alive", "transfer-encoding")
    return Answer(answer.status, [(name, value) for name, value in answer.getheaders() if name.lower() not in skipped], content)


class WireProxy(_Listener):
    """In front of any server at `upstream`: bytes in both directions. `delay`: seconds that the server's answers are late. `mode`: "pass",
    "hang" (nothing goes through any more), "reset" (connections are cut), or "garbage" (the answers are random bytes).
    """

    def __init__(self, upstream: int, *, delay: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        self.upstream, self.delay = upstream, delay
        self.mode: Literal["pass", "hang", "reset", "garbage"] = "pass"
        self.received = self.sent = 0
        super().__init__(tls)

    def serve(self, connection: socket.socket) -> None:
        """Pass on what one client says, and what it is answered."""
        if self.mode == "reset":
            return
        with socket.create_connection((HOST, self.upstream)) as upstream:
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._back, args=(upstream, connection), daemon=True).start()
            while data := connection.recv(1 << 16):
                if self.mode == "hang":
                    self.closed.wait()
                if self.mode == "reset" or self.closed.is_set():
                    return
                self.received += len(data)
                upstream.sendall(data)

    def _back(self, upstream: socket.socket, connection: socket.socket) -> None:
        due: list[tuple[float, bytes]] = []
        arrived = threading.Condition()

        def send() -> None:
            while True:
                with arrived:
                    arrived.wait_for(lambda: bool(due))
                    at, data = due.pop(0)
                self.closed.wait(max(0.0, at - time.monotonic()))
                with contextlib.suppress(OSError):
                    if not data:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    connection.sendall(data)

        threading.Thread(target=send, daemon=True).start()
        data = b"-"
        while data:
            try:
                data = upstream.recv(1 << 16)
            except OSError:
                data = b""
            if self.mode == "hang":
                self.closed.wait()
            if self.mode == "garbage" and data:
                data = hashlib.sha512(data).digest()
            self.sent += len(data)
            with arrived:
                due.append((time.monotonic() + self.delay, data))
                arrived.notify()


def main() -> None:
    """A proxy as a process, for measurements: prints its port, and ends when its standard input does."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("upstream", type=int)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--wire", action="store_true")
    given = parser.parse_args()
    proxy: _Listener = WireProxy(given.upstream, delay=given.delay) if given.wire else FaultProxy(given.upstream, delay=given.delay)
    print(proxy.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
