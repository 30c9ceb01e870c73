"""HTTP and HTTPS caches: Bazel's remote-cache layout (`/ac/`, `/cas/`), or with `?layout=names` plain names on any WebDAV server.

Only GET, PUT, HEAD and DELETE are needed. Conditional requests are probed once, since servers that know none ignore them silently. The
client is written on `http.client`'s parser and `wire.py`, not taken from a library: none bounds a whole exchange, its bytes and its time.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import ssl
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from precast.artifact_store.remote.endpoint import Denied, Garbled, Listed, TimeOuts, Unreachable, Unsupported, Versioned
from precast.artifact_store.remote.endpoints.credentials import HTTP_TOKEN, http_authorization
from precast.artifact_store.remote.endpoints.proxy import proxy_for
from precast.artifact_store.remote.endpoints.url import EndpointURL, checked, checked_prefix
from precast.artifact_store.remote.endpoints.webdav import PROPFIND, listed
from precast.artifact_store.remote.endpoints.wire import IdleWires, Wire

OPTIONS = ("layout",)
HEAD_BYTES = 1 << 18
"""What the head of an answer, and the chunks' marks, may have beyond the body."""
SMALL = 1 << 16
"""What the body of an answer may have in which nothing is looked for."""
LISTING = 1 << 28
"""What a listing may have: some 500,000 names."""
REDIRECTS = 3
OBJECT = re.compile(r"v1/objects/[0-9a-f]{2}/([0-9a-f]{64})")
PROBE = "v1/probe"
NO_VERSION = '"precast-no-such-version"'


class Answer(NamedTuple):
    """An answer, its body within the limit."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def is_page(self) -> bool:
        """Whether it is a web page: of a proxy that wants a login, most likely."""
        return self.headers.get_content_type() in ("text/html", "application/xhtml+xml")


class HttpEndpoint:
    """A cache behind `http://` or `https://`, with its connections kept between requests."""

    def __init__(self, url: EndpointURL, timeouts: TimeOuts) -> None:
        url.only(*OPTIONS)
        layout = url.options.get("layout", "bazel")
        if layout not in ("bazel", "names"):
            raise ValueError(f"{url.text}: `layout` is bazel or names, not {layout!r}")
        if not url.host:
            raise ValueError(f"{url.text} names no host: write {url.scheme}://HOST/PATH")
        self.kind, self.url = "http", url.text
        self._plain_names = layout == "names"
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._host, self._port = url.host, url.port or (443 if self._tls else 80)
        self._authority, self._base = url.authority, url.path.rstrip("/")
        self._origin = (url.scheme, url.host, self._port)
        self._authorization = http_authorization(url)
        self._proxy = proxy_for(url)
        self._timeouts = timeouts
        self._wires: IdleWires[Wire] = IdleWires()
        self._honours: dict[str, bool] = {}
        self._lists = False

    def get(self, name: str, limit: int) -> bytes | None:
        """As the protocol says; see there for all of these."""
        found = self.get_versioned(name, limit)
        return None if found is None else found.data

    def get_versioned(self, name: str, limit: int) -> Versioned | None:
        answer = self._ask("GET", self._path(name), limit=limit)
        if answer.status in (404, 410):
            return None
        self._expect(answer, (200, 203), f"GET {name}")
        return Versioned(answer.body, answer.headers.get("ETag", ""))

    def put(self, name: str, data: bytes) -> None:
        self._put(name, data, {})

    def put_new(self, name: str, data: bytes) -> bool:
        self._needs("If-None-Match", "*")
        return self._put(name, data, {"If-None-Match": "*"})

    def replace(self, name: str, data: bytes, version: str) -> bool:
        if not version or version.startswith("W/"):
            raise Unsupported(f"{self.url} marks no versions that can be compared (an ETag that is not weak)")
        self._needs("If-Match", NO_VERSION)
        return self._put(name, data, {"If-Match": version})

    def has(self, name: str) -> bool:
        answer = self._ask("HEAD", self._path(name))
        if answer.status in (404, 410):
            return False
        self._expect(answer, (200, 203, 204), f"HEAD {name}")
        return True

    def remove(self, name: str) -> None:
        answer = self._ask("DELETE", self._path(name))
        self._expect(answer, (200, 202, 204, 404, 410), f"DELETE {name}")

    def names(self, prefix: str) -> Iterator[Listed]:
        folder = checked_prefix(prefix).rpartition("/")[0]
        if self._plain_names:
            return (each for each in self._listed(folder) if each.name.startswith(prefix) and each.name != PROBE)
        if not prefix.startswith("v1/objects/"):
            raise Unsupported(f"{self.url} keeps names as digests, which cannot be listed: with ?layout=names a WebDAV server lists them")
        objects = (each._replace(name=f"v1/objects/{each.name[4:6]}/{each.name[4:]}") for each in self._listed("cas"))
        return (each for each in objects if OBJECT.fullmatch(each.name) and each.name.startswith(prefix))

    def close(self) -> None:
        while (wire := self._wires.take()) is not None:
            wire.close()

    def _path(self, name: str) -> str:
        checked(name)
        if self._plain_names:
            return name
        found = OBJECT.fullmatch(name)
        return f"cas/{found[1]}" if found else f"ac/{hashlib.sha256(name.encode()).hexdigest()}"

    def _put(self, name: str, data: bytes, condition: dict[str, str]) -> bool:
        answer = self._ask("PUT", self._path(name), data, condition)
        if answer.status == 409 and not answer.is_page and self._make_folders(self._path(name)):
            answer = self._ask("PUT", self._path(name), data, condition)
        if condition and (answer.status == 412 or (answer.status in (404, 410) and "If-Match" in condition)):
            return False
        self._expect(answer, (200, 201, 202, 204), f"PUT {name}")
        return True

    def _make_folders(self, path: str) -> bool:
        """For servers that make no folders by themselves, which is what 409 means to WebDAV; whether one was made."""
        made = False
        segments = path.split("/")[:-1]
        for count in range(1, len(segments) + 1):
            made = self._ask("MKCOL", "/".join(segments[:count]) + "/").status == 201 or made
        return made

    def _needs(self, header: str, value: str) -> None:
        """Raises Unsupported where the server ignores this condition. Asked once: the probe is one small name that stays."""
        if header not in self._honours:
            refused = False
            for _ in range(2 if header == "If-None-Match" else 1):
                refused = refused or not self._put(PROBE, b"precast asks whether this server knows conditions", {header: value})
            self._honours[header] = refused
        if not self._honours[header]:
            raise Unsupported(f"{self.url} ignores the header {header}, so of two writers both would be told that they were first")

    def _listed(self, folder: str) -> Iterator[Listed]:
        """Everything below a folder, by one PROPFIND where the server lets it go deep, else by one a folder."""
        waiting, depth = [folder], "infinity"
        while waiting:
            here = waiting.pop()
            path = f"{here}/" if here else ""
            answer = self._ask("PROPFIND", path, PROPFIND, {"Depth": depth, "Content-Type": "application/xml"}, limit=LISTING)
            if answer.status in (404, 410):
                self._check_that_folders_are_listed()
                continue
            if depth == "infinity" and answer.status in (400, 403, 501, 507):
                waiting, depth = [folder], "1"
                continue
            self._expect(answer, (207,), f"PROPFIND /{path}")
            for each in listed(answer.body, f"{self._base}/", self.url):
                if not each.folder:
                    yield Listed(each.name, each.size, each.modified)
                elif depth == "1" and each.name != here:
                    waiting.append(each.name)

    def _check_that_folders_are_listed(self) -> None:
        """Raises Unsupported where the answer 404 meant that the server has no PROPFIND, and not that there is no such folder."""
        if not self._lists:
            for base in dict.fromkeys((self._base, "")):
                answer = self._exchange("PROPFIND", quote(f"{base}/", safe="/+-_.~"), PROPFIND, {"Depth": "0"}, SMALL)
                self._lists = self._lists or answer.status == 207
        if not self._lists:
            raise Unsupported(f"{self.url} answers PROPFIND as if nothing was there: it lists nothing")

    def _ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, limit: int = SMALL) -> Answer:
        """One request, and where the server moved it within itself those to the places that it names."""
        target = quote(f"{self._base}/{path}", safe="/+-_.~")
        for _ in range(REDIRECTS + 1):
            answer = self._exchange(method, target, body, headers or {}, limit)
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            if answer.status in (301, 302, 303) and method not in ("GET", "HEAD"):
                raise Garbled(f"{self.url} answers {method} with a redirect ({answer.status}): name where it leads as the remote")
            target = self._moved(target, answer.headers.get("Location", ""))
        raise Garbled(f"{self.url} redirects in a circle")

    def _moved(self, target: str, location: str) -> str:
        """The path on this server that it redirects to."""
        try:
            parts = urlsplit(urljoin(f"{self._origin[0]}://{self._authority}{target}", location))
            origin = (parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        except ValueError as error:
            raise Garbled(f"{self.url} redirects to what is no address") from error
        moved = f"{parts.path}?{parts.query}" if parts.query else parts.path
        if origin != self._origin or not re.fullmatch(r"/[!-~]*", moved):
            shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"[:200]
            raise Garbled(f"{self.url} redirects to {shown!r}, where nothing is sent to: name that place as the remote if it is yours")
        return moved

    def _exchange(self, method: str, target: str, body: bytes, headers: dict[str, str], limit: int) -> Answer:
        """One request over a connection that was kept, or a new one. A kept one that the server had closed meanwhile costs a second try."""
        deadline = time.monotonic() + self._timeouts.whole
        while (wire := self._wires.take()) is not None:
            if not wire.quiet:
                wire.close()
                continue
            try:
                return self._over(wire, deadline, method, target, body, headers, limit)
            except Unreachable as error:
                if wire.answered or headers or not isinstance(error.__cause__, ConnectionError):
                    raise  # the server had the request; a condition that it may have met already must not be tried again here
                break
        wire = Wire(self._host, self._port, self._timeouts, deadline, self._tls, self._proxy)
        return self._over(wire, deadline, method, target, body, headers, limit)

    def _over(self, wire: Wire, deadline: float, method: str, target: str, body: bytes, headers: dict[str, str], limit: int) -> Answer:
        asked = target if self._proxy is None or self._tls is not None else f"http://{self._authority}{target}"
        lines = [f"{method} {asked} HTTP/1.1", f"Host: {self._authority}", "User-Agent: precast", "Accept-Encoding: identity"]
        if asked is not target and self._proxy is not None and self._proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {self._proxy.authorization}")
        if body or method == "PUT":
            lines.append(f"Content-Length: {len(body)}")
        if self._authorization is not None:
            lines.append(f"Authorization: {self._authorization}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        keep = False
        try:
            wire.begin(max(limit, SMALL) + HEAD_BYTES, deadline)
            wire.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            try:
                wire.sendall(body)
            except Unreachable:
                if not wire.quiet:  # an answer came before the body was through: a refusal of it
                    return self._answer(wire, method, limit)[0]
                raise
            answer, keep = self._answer(wire, method, limit)
            return answer
        finally:
            if not keep or self._wires.give(wire) is not None:
                wire.close()

    def _answer(self, wire: Wire, method: str, limit: int) -> tuple[Answer, bool]:
        """The answer, and whether the connection can be used again."""
        response = http.client.HTTPResponse(wire, method=method)  # type: ignore[arg-type]
        try:
            response.begin()
            body = self._body(response, limit)
        except http.client.RemoteDisconnected as error:
            raise Unreachable(f"{self.url} closed the connection without an answer") from error
        except http.client.IncompleteRead as error:
            raise Unreachable(f"{self.url} broke off in the middle of its answer") from error
        except (http.client.HTTPException, ValueError, UnicodeError, LookupError, TypeError, AttributeError) as error:
            raise Garbled(f"{self.url} does not speak HTTP: {type(error).__name__}") from error
        keep = not response.will_close and response.isclosed()
        return Answer(response.status, response.headers, body), keep

    def _body(self, response: http.client.HTTPResponse, limit: int) -> bytes:
        if response.status >= 300:
            limit = max(limit, SMALL)  # an error's page may be longer than what was asked for
        expected = response.length
        if expected is not None and expected > limit:
            raise Garbled(f"{self.url} answers with {expected} bytes, and {limit} were allowed")
        parts, count = [], 0
        while piece := response.read(min(1 << 20, limit + 1 - count)):
            parts.append(piece)
            count += len(piece)
            if count > limit:
                raise Garbled(f"{self.url} answers with more than the {limit} bytes that were allowed")
        if expected is not None and count != expected:
            raise Unreachable(f"{self.url} broke off after {count} of {expected} bytes")
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
            raise Garbled(f"{self.url} sends its content encoded, which was not asked for")
        return b"".join(parts)

    def _expect(self, answer: Answer, wanted: tuple[int, ...], what: str) -> None:
        """Raises what an answer other than the wanted means."""
        status = answer.status
        if status in wanted:
            if status in (200, 203) and answer.is_page:
                raise Garbled(f"{self.url} answers {what} with a web page: is there a proxy in between that wants a login?")
            return
        where = f"{self.url} answers {what} with {status}"
        if status in (401, 403, 407):
            raise Denied(f"{where}: {_rights(self._authorization)}")
        if status in (405, 501):
            raise Unsupported(f"{where}: it has no such verb")
        if status == 413:
            raise Denied(f"{where}: it takes no body of that size")
        if status in (408, 423, 425, 429) or status >= 500:
            raise Unreachable(where, after=_seconds(answer.headers.get("Retry-After")))
        raise Garbled(f"{where}, which is no answer of a cache")


def _rights(authorization: str | None) -> str:
    if authorization is None:
        return f"it wants credentials: give them as {HTTP_TOKEN}=HOST=TOKEN or in ~/.netrc, or it is read-only"
    return "these credentials do not allow it, or it is read-only"


def _seconds(text: str | None) -> float | None:
    """What Retry-After says, where it says seconds; its dates are another machine's clock, and count as nothing said."""
    return float(text) if text is not None and re.fullmatch(r"[0-9]{1,5}", text.strip()) else None
