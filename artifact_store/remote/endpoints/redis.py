"""redis and what speaks like it, over `redis://` and `rediss://`: a value is eight bytes of time, in milliseconds, and then the content.

Every verb is one request: a small script where the server has to compare. The protocol (RESP2) is spoken here, not through redis-py, which
reads an answer of any length into memory and has a time-out for each `recv`, none for the whole. Clusters that redirect are not followed.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import time
from collections.abc import Iterator
from typing import BinaryIO, NoReturn, TypeAlias, cast

from precast.artifact_store.remote.endpoint import Denied, EndpointError, Garbled, Listed, TimeOuts, Unreachable, Unsupported, Versioned
from precast.artifact_store.remote.endpoints.credentials import REDIS_PASSWORD, login_for, secret_for
from precast.artifact_store.remote.endpoints.url import EndpointURL, checked, checked_prefix
from precast.artifact_store.remote.endpoints.wire import IdleWires, Wire

OPTIONS = ("max_value",)
MAX_VALUE = 256 << 20
"""Bytes of one value, for redis keeps all of them in memory; `?max_value=` says otherwise. Its own limit is 512 MiB."""
SMALL = 1 << 16
PAGE = 1000
"""Names that one step of a listing looks at."""
STAMP = 8

_NOW = "local t=redis.call('TIME') local v=struct.pack('>I8',t[1]*1000+math.floor(t[2]/1000))..ARGV[1] "
PUT = _NOW + "redis.call('SET',KEYS[1],v) return 1"
PUT_NEW = _NOW + "if redis.call('SET',KEYS[1],v,'NX') then return 1 end return 0"
REPLACE = (
    _NOW + "local old=redis.call('GET',KEYS[1]) "
    "if old and redis.sha1hex(string.sub(old,9))==ARGV[2] then redis.call('SET',KEYS[1],v) return 1 end return 0"
)
GET = "local n=redis.call('STRLEN',KEYS[1]) if n>tonumber(ARGV[1]) then return n end return redis.call('GET',KEYS[1])"
SCAN = (
    "local p=redis.call('SCAN',ARGV[1],'MATCH',ARGV[2],'COUNT',ARGV[3],'TYPE','string') local r={p[1]} "
    "for _,k in ipairs(p[2]) do r[#r+1]=k r[#r+1]=redis.call('STRLEN',k) r[#r+1]=redis.call('GETRANGE',k,0,7) end return r"
)

Reply: TypeAlias = "bytes | int | str | None | list[Reply]"


class RedisError(Exception):
    """An error that the server answered with: its text."""


class _Connection:
    """One connection that has logged in and chosen its database."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._reader = cast(BinaryIO, wire.makefile())

    def ask(self, parts: tuple[bytes, ...], limit: int, deadline: float) -> Reply:
        """One request and its answer, of at most `limit` bytes."""
        self.wire.begin(limit + SMALL, deadline)
        head = b"*%d\r\n" % len(parts)
        for part in parts:
            if len(part) > SMALL:
                self.wire.sendall(head + b"$%d\r\n" % len(part))
                self.wire.sendall(part)
                head = b"\r\n"
            else:
                head += b"$%d\r\n%b\r\n" % (len(part), part)
        self.wire.sendall(head)
        return self._reply(limit, 0)

    def _reply(self, limit: int, depth: int) -> Reply:
        mark = self._reader.read(1)
        if not mark:
            raise Unreachable(f"{self.wire.place} closed the connection without an answer")
        if mark not in b"+-:$*":
            raise self._garbled()
        line = self._reader.readline(SMALL)
        if not line.endswith(b"\r\n"):
            raise self._garbled()
        rest = line[:-2]
        if mark == b"+":
            return rest.decode("latin-1")
        if mark == b"-":
            raise RedisError(rest[:500].decode("latin-1"))
        if not re.fullmatch(rb"-?[0-9]{1,18}", rest):
            raise self._garbled()
        number = int(rest)
        if mark == b":":
            return number
        if mark == b"$" and number >= 0:
            return self._bulk(number, limit)
        if mark == b"*" and 0 <= number <= SMALL and depth < 2:
            return [self._reply(limit, depth + 1) for _ in range(number)]
        if mark in (b"$", b"*") and number == -1:
            return None
        raise self._garbled()

    def _bulk(self, size: int, limit: int) -> bytes:
        if size > limit:
            raise Garbled(f"{self.wire.place} answers with {size} bytes, and {limit} were allowed")
        data = self._reader.read(size + 2)
        if len(data) != size + 2:
            raise Unreachable(f"{self.wire.place} broke off after {len(data)} of {size} bytes")
        if data[-2:] != b"\r\n":
            raise self._garbled()
        return data[:-2]

    def _garbled(self) -> Garbled:
        return Garbled(f"{self.wire.place} does not speak redis's protocol: is another service there, or does it want rediss://?")


class RedisEndpoint:
    """A redis database. The URL's path is its number, or a prefix for all names, or `number/prefix`."""

    def __init__(self, url: EndpointURL, timeouts: TimeOuts) -> None:
        url.only(*OPTIONS)
        found = re.fullmatch(r"/?(?P<number>[0-9]{0,4})(/(?P<prefix>.*))?|/(?P<only>[^0-9].*)", url.path)
        if not url.host or found is None:
            raise ValueError(f"{url.text}: write {url.scheme}://HOST:PORT/NUMBER/PREFIX, of which all but the host may be left out")
        prefix = (found["prefix"] or found["only"] or "").strip("/")
        self.kind, self.url = "redis", url.text
        self._prefix = f"{checked(prefix)}/" if prefix else ""
        self._database = int(found["number"] or 0)
        self._host, self._port = url.host, url.port or 6379
        self._tls = ssl.create_default_context() if url.scheme == "rediss" else None
        self._login = self._credentials(url)
        self._timeouts = timeouts
        text = url.options.get("max_value", str(MAX_VALUE))
        if not re.fullmatch(r"[0-9]{1,10}", text):
            raise ValueError(f"{url.text}: `max_value` is a number of bytes, not {text!r}")
        self._max_value = int(text)
        self._idle: IdleWires[_Connection] = IdleWires()

    @staticmethod
    def _credentials(url: EndpointURL) -> tuple[bytes, ...] | None:
        password = secret_for(url, REDIS_PASSWORD)
        if password is not None:
            return (password.encode(),)
        login = login_for(url)
        if login is None:
            return None
        return (login.user.encode(), login.password.encode()) if login.user else (login.password.encode(),)

    def get(self, name: str, limit: int) -> bytes | None:
        """As the protocol says; see there for all of these."""
        reply = self._eval(GET, name, str(limit + STAMP).encode(), limit=limit + STAMP)
        if isinstance(reply, int):
            raise Garbled(f"{self.url}: {name} has {reply - STAMP} bytes, and {limit} were allowed")
        if reply is None or reply == b"":
            return None
        if not isinstance(reply, bytes):
            self._wrong(reply)
        if len(reply) < STAMP:
            raise Garbled(f"{self.url}: what lies under {name} was not put there by precast")
        return reply[STAMP:]

    def get_versioned(self, name: str, limit: int) -> Versioned | None:
        found = self.get(name, limit)
        return None if found is None else Versioned(found, hashlib.sha1(found, usedforsecurity=False).hexdigest())

    def put(self, name: str, data: bytes) -> None:
        self._true(self._eval(PUT, name, self._fitting(name, data)))

    def put_new(self, name: str, data: bytes) -> bool:
        return self._true(self._eval(PUT_NEW, name, self._fitting(name, data)))

    def replace(self, name: str, data: bytes, version: str) -> bool:
        return self._true(self._eval(REPLACE, name, self._fitting(name, data), version.encode()))

    def has(self, name: str) -> bool:
        return self._true(self._ask(b"EXISTS", self._key(name)))

    def remove(self, name: str) -> None:
        self._true(self._ask(b"DEL", self._key(name)))

    def names(self, prefix: str) -> Iterator[Listed]:
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", self._prefix + checked_prefix(prefix)).encode() + b"*"
        return self._listed(pattern)

    def _listed(self, pattern: bytes) -> Iterator[Listed]:
        cursor, seen = b"0", set[str]()
        while True:
            page = self._ask(b"EVAL", SCAN.encode(), b"0", cursor, pattern, str(PAGE).encode(), limit=PAGE * 2048)
            if not isinstance(page, list) or len(page) % 3 != 1 or not isinstance(page[0], bytes):
                self._wrong(page)
            for key, size, stamp in zip(page[1::3], page[2::3], page[3::3], strict=True):
                if not isinstance(key, bytes) or not isinstance(size, int) or not isinstance(stamp, bytes):
                    self._wrong(page)
                name = key.decode("latin-1").removeprefix(self._prefix)
                if len(stamp) == STAMP and name not in seen:
                    seen.add(name)  # a name may come twice while the table grows
                    yield Listed(name, size - STAMP, int.from_bytes(stamp, "big") / 1000)
            cursor = page[0]
            if cursor == b"0":
                return

    def close(self) -> None:
        while (connection := self._idle.take()) is not None:
            connection.wire.close()

    def _key(self, name: str) -> bytes:
        return (self._prefix + checked(name)).encode()

    def _fitting(self, name: str, data: bytes) -> bytes:
        if len(data) > self._max_value:
            raise Unsupported(f"{self.url} keeps no value of more than {self._max_value} bytes ({name}: {len(data)}): see ?max_value=")
        return bytes(data)

    def _true(self, reply: Reply) -> bool:
        if not isinstance(reply, int):
            self._wrong(reply)
        return bool(reply)

    def _wrong(self, reply: Reply) -> NoReturn:
        raise Garbled(f"{self.url} answers with {type(reply).__name__}, which is no answer to what was asked")

    def _eval(self, script: str, name: str, *arguments: bytes, limit: int = SMALL) -> Reply:
        return self._ask(b"EVAL", script.encode(), b"1", self._key(name), *arguments, limit=limit)

    def _ask(self, *parts: bytes, limit: int = SMALL) -> Reply:
        deadline = time.monotonic() + self._timeouts.whole
        while (kept := self._idle.take()) is not None:
            if kept.wire.quiet:
                return self._over(kept, parts, limit, deadline)
            kept.wire.close()
        return self._over(self._connect(deadline), parts, limit, deadline)

    def _connect(self, deadline: float) -> _Connection:
        connection = _Connection(Wire(self._host, self._port, self._timeouts, deadline, self._tls))
        try:
            if self._login is not None:
                connection.ask((b"AUTH", *self._login), SMALL, deadline)
            if self._database:
                connection.ask((b"SELECT", str(self._database).encode()), SMALL, deadline)
        except RedisError as error:
            connection.wire.close()
            raise self._meaning(error) from None
        except EndpointError:
            connection.wire.close()
            raise
        return connection

    def _over(self, connection: _Connection, parts: tuple[bytes, ...], limit: int, deadline: float) -> Reply:
        keep = False
        try:
            reply = connection.ask(parts, limit, deadline)
            keep = True
            return reply
        except RedisError as error:
            keep = True
            raise self._meaning(error) from None
        finally:
            if not keep or self._idle.give(connection) is not None:
                connection.wire.close()

    def _meaning(self, error: RedisError) -> EndpointError:
        text = str(error)
        code = text.partition(" ")[0]
        if code in ("NOAUTH", "WRONGPASS", "NOPERM") or "AUTH" in text.partition(":")[0]:
            return Denied(f"{self.url}: {text}: give the password as {REDIS_PASSWORD}=HOST=PASSWORD or in ~/.netrc")
        if code in ("READONLY", "DENIED", "-DENIED"):
            return Denied(f"{self.url}: {text}")
        if code in ("LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN", "OOM", "MISCONF", "NOREPLICAS"):
            return Unreachable(f"{self.url}: {text}")
        if code in ("MOVED", "ASK"):
            return Unsupported(f"{self.url} is part of a cluster, which is not followed: name a redis that keeps everything")
        if "unknown command" in text.lower():
            return Unsupported(f"{self.url}: {text}")
        return Garbled(f"{self.url}: {text}")
