"""A connection on which nothing takes longer than it may: each read and write ends after `stall` seconds, all of them at one deadline.

Python's own clients bound a single `recv`, so a server that sends a byte a second holds them for ever, in the head of an answer as well.
"""

from __future__ import annotations

import io
import os
import select
import socket
import ssl
import time
from collections import deque
from typing import Any, Generic, TypeVar

from precast.artifact_store.remote.endpoint import Denied, EndpointError, Garbled, TimeOuts, Unreachable
from precast.artifact_store.remote.endpoints.proxy import Proxy

W = TypeVar("W")
HEAD = 1 << 14
"""Bytes that the head of a proxy's answer may have."""
PIECE = 1 << 18
"""Bytes that are handed to the socket at a time, so that a write that makes progress is told from one that does not."""


class Wire(io.RawIOBase):
    """One TCP or TLS connection to `host`. Raises Unreachable for whatever the network does."""

    def __init__(
        self, host: str, port: int, timeouts: TimeOuts, deadline: float, tls: ssl.SSLContext | None = None, proxy: Proxy | None = None
    ) -> None:
        super().__init__()
        self.place = f"{host}:{port}"
        self._timeouts = timeouts
        self._deadline = deadline
        self._allowed = 0
        self.answered = False
        address = (host, port) if proxy is None else (proxy.host, proxy.port)
        left = max(0.01, min(timeouts.connect, deadline - time.monotonic()))
        try:
            self._socket: socket.socket = socket.create_connection(address, timeout=left)
        except (OSError, UnicodeError) as error:
            through = "" if proxy is None else f" through the proxy {proxy.host}:{proxy.port}"
            raise Unreachable(f"no connection to {self.place}{through}: {_reason(error)}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                if proxy is not None:
                    self._tunnel(proxy, host, port)
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except EndpointError:
            self._socket.close()
            raise
        except (OSError, ValueError) as error:
            self._socket.close()
            raise Unreachable(f"no TLS connection to {self.place}: {_reason(error)}") from error

    def _tunnel(self, proxy: Proxy, host: str, port: int) -> None:
        """Ask a proxy to connect us. Its answer has no body, so it is read byte by byte: what follows is the other side's."""
        self._allowed = HEAD
        self.sendall(proxy.connect(host, port))
        head, byte = bytearray(), bytearray(1)
        while not head.endswith(b"\r\n\r\n"):
            if not self.readinto(byte):
                raise Unreachable(f"the proxy {proxy.host}:{proxy.port} closed the connection")
            head += byte
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            code = status[0][:3].decode("latin-1") if status else "nothing"
            kind = Denied if code in ("403", "407") else Unreachable
            raise kind(f"the proxy {proxy.host}:{proxy.port} answers {code} when asked for {self.place}")

    def begin(self, allowed: int, deadline: float) -> None:
        """A new request: when (`time.monotonic`) it has to be done, and how many bytes its answer may have in all."""
        self._deadline = deadline
        self._allowed = allowed
        self.answered = False

    def _bound(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Unreachable(f"{self.place} did not finish its answer within {self._timeouts.whole:g} s")
        self._socket.settimeout(min(left, self._timeouts.stall))

    def _failed(self, error: OSError) -> Unreachable:
        if isinstance(error, TimeoutError):
            if time.monotonic() >= self._deadline:
                return Unreachable(f"{self.place} did not finish its answer within {self._timeouts.whole:g} s")
            return Unreachable(f"{self.place} was silent for {self._timeouts.stall:g} s")
        return Unreachable(f"the connection to {self.place} broke off: {_reason(error)}")

    def readinto(self, buffer: Any) -> int:
        """Read what is there."""
        self._bound()
        try:
            count = self._socket.recv_into(buffer)
        except OSError as error:
            raise self._failed(error) from error
        self.answered = self.answered or count > 0
        self._allowed -= count
        if self._allowed < 0:
            raise Garbled(f"{self.place} answers with more bytes than were allowed")
        return count

    def sendall(self, data: bytes | memoryview) -> None:
        """Write all of it."""
        view = memoryview(data)
        for at in range(0, len(view), PIECE):
            self._bound()
            try:
                self._socket.sendall(view[at : at + PIECE])
            except OSError as error:
                raise self._failed(error) from error

    def readable(self) -> bool:
        return True

    def makefile(self, mode: str = "rb", *unused: object) -> io.BufferedReader:
        """What `http.client` reads an answer through; closing it leaves the connection open."""
        return io.BufferedReader(_Reader(self), 1 << 16)

    @property
    def quiet(self) -> bool:
        """Whether an idle connection can be used again: the other side has neither closed it nor said anything."""
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._socket.close()


class _Reader(io.RawIOBase):
    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.readinto(buffer)


class IdleWires(Generic[W]):
    """Connections that wait for their next request: at most `size`. After a fork the child begins with none, for they are the parent's."""

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._idle: deque[W] = deque()
        self._pid = os.getpid()

    def take(self) -> W | None:
        """One that is idle, the one used last."""
        if self._pid != os.getpid():
            self._idle, self._pid = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def give(self, wire: W) -> W | None:
        """Keep one for later; what has to be closed instead is given back."""
        if self._pid != os.getpid() or len(self._idle) >= self._size:
            return wire
        self._idle.append(wire)
        return None


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
