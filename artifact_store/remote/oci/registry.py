"""Requests to an OCI registry, by the client library oras: who logs in where is its business, what may come back is ours.

oras reads docker's configuration and credential helpers and answers the registry's challenges. Its own `pull` writes files by the titles
of an image's layers; nothing here does: content is asked for by digest, read up to a limit and compared, and lives in memory.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

from precast.artifact_store.remote.endpoint import Denied, EndpointError, Garbled, TimeOuts, Unreachable
from precast.artifact_store.remote.oci.reference import Reference

log = logging.getLogger("precast.store")
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_TRIES = 4
_FIRST_PAUSE = 0.2
_SLOWEST = 20_000
"""Bytes a second below which a large answer counts as none."""
_ANSWER = 1 << 20
"""Bytes of an answer that is only a status."""


class Registry:
    """One repository of a registry; safe to call from several threads. Raises EndpointError."""

    def __init__(self, reference: Reference, *, plain_http: bool = False, times: TimeOuts | None = None) -> None:
        self.reference = reference
        self.plain_http = plain_http or reference.loopback
        self._anywhere = plain_http
        self._times = times or TimeOuts(connect=5.0, stall=30.0)
        self._mine = threading.local()
        self._sessions: list[Any] = []
        self._basic: bool | None = None
        self._lock = threading.Lock()

    # -- verbs

    def manifest(self, limit: int) -> tuple[bytes, str] | None:
        """The manifest of the image that the reference names, and its digest, compared where the reference gives one."""
        data = self._request("GET", f"manifests/{self.reference.image}", limit, headers={"Accept": MANIFEST_TYPE}, missing=True)
        if data is None:
            return None
        found = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if self.reference.digest and found != self.reference.digest:
            raise Garbled(f"{self.reference}: the registry answered with another manifest, {found}")
        return data, found

    def put_manifest(self, data: bytes) -> None:
        """Give the tag to this manifest: from now on it names all that the manifest names."""
        self._request("PUT", f"manifests/{self.reference.tag}", _ANSWER, data=data, headers={"Content-Type": MANIFEST_TYPE})

    def blob(self, digest: str, size: int) -> bytes:
        """The content with this SHA-256 (in hex), exactly `size` bytes."""
        data = self._request("GET", f"blobs/sha256:{digest}", size)
        if data is None or len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            raise Garbled(f"{self.reference}: what the registry holds as sha256:{digest[:12]}… does not match its digest")
        return data

    def has_blob(self, digest: str) -> bool:
        """Whether content with this SHA-256 is there."""
        return self._request("HEAD", f"blobs/sha256:{digest}", _ANSWER, missing=True) is not None

    def put_blob(self, digest: str, data: bytes) -> None:
        """Send content; it is there once this returns, and no part of it before."""
        started = self._answered("POST", "blobs/uploads/", data=b"", headers={"Content-Type": "application/octet-stream"})
        place = urljoin(started.url, started.headers.get("Location", ""))
        if urlsplit(place)[:2] != urlsplit(started.url)[:2] or not started.headers.get("Location"):
            raise Garbled(f"{self.reference}: the registry wants content at another host ({urlsplit(place).netloc}), which is not done")
        place += f"{'&' if urlsplit(place).query else '?'}digest=sha256:{digest}"
        self._request("PUT", place, _ANSWER, data=data, headers={"Content-Type": "application/octet-stream"})

    def close(self) -> None:
        with self._lock:
            for session in self._sessions:
                session.close()
            self._sessions.clear()

    # -- inside

    def _request(self, verb: str, path: str, limit: int, *, missing: bool = False, **more: Any) -> bytes | None:
        """The body of a good answer; None for 404 where something may be `missing`."""
        answer = self._answered(verb, path, limit=limit, missing=missing, **more)
        return None if answer is None else answer.body

    def _answered(self, verb: str, path: str, *, limit: int = _ANSWER, missing: bool = False, **more: Any) -> Any:
        """A good answer with its whole body; asked again after a pause where that may help."""
        for attempt in range(_TRIES):
            try:
                return self._once(verb, path, limit, missing, **more)
            except EndpointError as error:
                if not error.again or attempt == _TRIES - 1:
                    raise
                pause = random.uniform(0, _FIRST_PAUSE * 4**attempt)
                log.info("%s; again in %.1f s", error, pause)
                time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _once(
        self, verb: str, path: str, limit: int, missing: bool, data: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Any:
        import requests

        base = f"{'http' if self.plain_http else 'https'}://{self.reference.host}/v2/"
        url = path if "://" in path else f"{base}{self.reference.name}/{path}"
        client = self._client()
        client.bounds.begin(limit, max(self._times.whole, (limit + len(data or b"")) / _SLOWEST))
        try:
            # without oras's decorator, which repeats for minutes
            answer = type(client).do_request.__wrapped__(client, url, verb, data=data, headers=dict(headers or {}), stream=True)
            with answer:
                answer.body = answer.content if verb != "HEAD" else b""
        except requests.exceptions.InvalidSchema as error:
            raise Garbled(f"{self.reference}: the registry points to an address that is not followed: {error}") from error
        except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError) as error:
            raise Unreachable(f"{self.reference}: the answer broke off: {error}") from error
        except requests.exceptions.RequestException as error:
            raise Unreachable(f"{self.reference}: no answer: {_short(error)}") from error
        except EndpointError:
            raise
        except (ValueError, AttributeError, KeyError, TypeError) as error:  # what oras makes of a challenge that it cannot answer
            raise Denied(f"{self.reference}: logging in failed ({_short(error)}): `docker login {self.reference.host}` first") from error
        return _judged(answer, f"{self.reference}: {verb} {urlsplit(url).path}", missing, self.reference.host)

    def _client(self) -> Any:
        """This thread's client, with credentials of docker's configuration."""
        if getattr(self._mine, "client", None) is None:
            self._mine.client = self._make_client()
            with self._lock:
                self._sessions.append(self._mine.client.session)
        return self._mine.client

    def _make_client(self) -> Any:
        try:
            import oras.logger
            import oras.provider
        except ImportError as error:
            raise Denied("registries need the package oras: pip install 'precast[oci]'") from error
        oras.logger.setup_logger(quiet=True)  # what it says goes into our own messages
        client = oras.provider.Registry(
            self.reference.host, insecure=self.plain_http, auth_backend="basic" if self._wants_basic() else "token"
        )
        client.bounds = _guarded(client.session, self._anywhere, self._times)
        folder = os.environ.get("DOCKER_CONFIG")
        configs = [os.path.join(folder, "config.json")] if folder else None
        client.auth.load_configs(client.get_container(f"{self.reference.host}/{self.reference.name}"), configs=configs)
        return client

    def _wants_basic(self) -> bool:
        """Whether the registry asks for a password with each request, instead of a token."""
        import requests

        with self._lock:
            if self._basic is None:
                with requests.Session() as session:
                    _guarded(session, self._anywhere, self._times).begin(_ANSWER, self._times.whole)
                    try:
                        answer = session.get(f"{'http' if self.plain_http else 'https'}://{self.reference.host}/v2/", stream=True)
                    except requests.exceptions.RequestException as error:
                        raise Unreachable(f"{self.reference}: no answer: {_short(error)}") from error
                    challenge = answer.headers.get("WWW-Authenticate", "")
                    self._basic = answer.status_code == 401 and challenge.lower().startswith("basic")
            return self._basic


def _judged(answer: Any, what: str, missing: bool, host: str) -> Any:
    """The answer where it is good, None for a 404 that may be. Raises EndpointError."""
    status = answer.status_code
    if status in (200, 201, 202, 204):
        return answer
    if status == 404 and missing:
        return None
    if status in (401, 403, 405):
        raise Denied(f"{what}: the registry does not allow it ({status}): `docker login {host}` with an account that may")
    if status in (408, 425, 429) or status >= 500:
        raise Unreachable(f"{what}: the registry answers {status}")
    raise Garbled(f"{what}: the registry answers {status}")


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}…"


class _Bounds:
    """How many bytes an answer may have, and until when it may come; for the thread that asks."""

    limit = _ANSWER
    until = float("inf")

    def begin(self, limit: int, seconds: float) -> None:
        self.limit, self.until = limit, time.monotonic() + seconds


class _Bounded:
    """The body of an answer, counted while it is read (after decompression), in place of urllib3's object."""

    def __init__(self, raw: Any, bounds: _Bounds) -> None:
        self._raw, self._bounds = raw, bounds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self, amount: int = 1 << 16, decode_content: bool | None = None) -> Iterator[bytes]:
        """Piece by piece as they come, so that one who sends a byte at a time is noticed."""
        read = 0
        while piece := self._raw.read1(1 << 16, decode_content=decode_content):
            read += len(piece)
            if read > self._bounds.limit:
                raise Garbled(f"the answer has more than the {self._bounds.limit} bytes that were allowed")
            if time.monotonic() > self._bounds.until:
                raise Unreachable("the answer comes too slowly")
            yield piece


def _guarded(session: Any, plain_http: bool, times: TimeOuts) -> _Bounds:
    """Bind a session to limits and time-outs, and to hosts that may be asked without encryption (this machine, where nothing else is
    said).
    """
    from requests.adapters import HTTPAdapter
    from requests.exceptions import InvalidSchema

    bounds = _Bounds()

    class Adapter(HTTPAdapter):
        def send(self, request: Any, *arguments: Any, **named: Any) -> Any:
            if request.url.startswith("http:") and not plain_http and not Reference(urlsplit(request.url).netloc, "", "").loopback:
                raise InvalidSchema(f"{request.url} is not encrypted (--plain-http allows it)")
            named["timeout"] = (times.connect, times.stall)
            answer = super().send(request, *arguments, **named)
            answer.raw = _Bounded(answer.raw, bounds)
            return answer

    session.auth = lambda request: request  # else a .netrc would replace what the registry's challenge asks for
    session.max_redirects = 5
    for scheme in ("http://", "https://"):
        session.mount(scheme, Adapter())
    return bounds
