"""Object stores by obstore: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, and what speaks S3 with `?endpoint=`.

obstore's own retries are off (`transport.py` has them), its time-outs are ours, and its errors are told apart by their classes and by the
status that stands in their text. Credentials come from the environment and the chains that obstore knows; for S3 also from `~/.aws`.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, TypeVar

from precast.artifact_store.remote.endpoint import Denied, EndpointError, Garbled, Listed, TimeOuts, Unreachable, Unsupported, Versioned
from precast.artifact_store.remote.endpoints import aws_profile
from precast.artifact_store.remote.endpoints.url import EndpointURL, checked, checked_prefix

OPTIONS = {
    "s3": ("endpoint", "region", "allow_http", "anonymous", "profile", "virtual_hosted"),
    "gs": ("endpoint", "allow_http", "anonymous"),
    "az": ("account", "endpoint", "allow_http", "anonymous"),
}
STATUS = re.compile(r"Server returned (?:non-2xx status code|error response): (\d{3})")
PROBE = "v1/probe"
PAGE = 1000
"""Names of one step of a listing."""
LOOPBACK = re.compile(r"http://(127\.[0-9.]+|localhost|\[::1\])(:\d+)?(/.*)?")
T = TypeVar("T")

_first_pid: int | None = None
"""The process in which obstore's threads were started, which do not survive a fork."""


def is_forked() -> bool:
    """Whether obstore was used before this process was forked, so that a request here would wait for ever. `forked.py` knows a way."""
    return _first_pid is not None and _first_pid != os.getpid()


class ObjectStoreEndpoint:
    """A bucket, or what lies in it below a prefix."""

    def __init__(self, url: EndpointURL, timeouts: TimeOuts) -> None:
        url.only(*OPTIONS[url.scheme])
        if not url.host:
            raise ValueError(f"{url.text} names no bucket: write {url.scheme}://BUCKET/PREFIX")
        if url.user is not None or url.password is not None:
            raise ValueError(f"{url.text}: credentials do not stand in the URL of an object store, but in its environment variables")
        self.kind, self.url = url.scheme, url.text
        prefix = url.path.strip("/")
        self._prefix = f"{checked(prefix)}/" if prefix else ""
        self._timeouts = timeouts
        self._foreign = "endpoint" in url.options
        self._honours: bool | None = None
        self._url = url
        self._obstore = _imported("obstore")
        self._errors = _imported("obstore.exceptions")
        self._store = self._opened()

    def get(self, name: str, limit: int) -> bytes | None:
        """As the protocol says; see there for all of these."""
        found = self.get_versioned(name, limit)
        return None if found is None else found.data

    def get_versioned(self, name: str, limit: int) -> Versioned | None:
        def verb() -> Versioned | None:
            answer = self._obstore.get(self._store, self._key(name))
            size = answer.meta["size"]
            if size > limit:
                raise Garbled(f"{self.url}: {name} has {size} bytes, and {limit} were allowed")
            self._no_page(answer)
            data = bytes(answer.bytes())
            if len(data) != size:
                raise Unreachable(f"{self.url}: {name} ended after {len(data)} of {size} bytes")
            return Versioned(data, answer.meta["e_tag"] or "")

        return self._asked(f"get {name}", verb, absent=None)

    def put(self, name: str, data: bytes) -> None:
        self._put(name, data, "overwrite")

    def put_new(self, name: str, data: bytes) -> bool:
        self._needs_conditions()
        return self._put(name, data, "create")

    def replace(self, name: str, data: bytes, version: str) -> bool:
        if not version:
            raise Unsupported(f"{self.url} marks no versions")
        self._needs_conditions()
        return self._put(name, data, {"e_tag": version})

    def has(self, name: str) -> bool:
        def verb() -> bool:
            self._no_page(self._obstore.get(self._store, self._key(name), options={"head": True}))
            return True

        return self._asked(f"head {name}", verb, absent=False)

    def remove(self, name: str) -> None:
        self._asked(f"delete {name}", lambda: self._obstore.delete(self._store, self._key(name)), absent=None)

    def names(self, prefix: str) -> Iterator[Listed]:
        # obstore lists below folders: what the last segment begins with is compared here
        folder = (self._prefix + checked_prefix(prefix)).rpartition("/")[0]
        pages: Iterator[list[dict[str, Any]]] = iter(self._obstore.list(self._store, folder or None, chunk_size=PAGE))
        empty = True
        while True:
            page = self._asked(f"list {prefix}", lambda: next(pages, None), absent=None)
            if page is None:
                # obstore reads any web page as an empty listing: who has that has everything
                if empty and self.has(f"v1/absent-{secrets.token_hex(8)}"):
                    raise Garbled(f"{self.url} lists nothing and has whatever it is asked for: that is no object store")
                return
            empty = False
            for each in page:
                name = str(each["path"]).removeprefix(self._prefix)
                if name != PROBE and name.startswith(prefix) and str(each["path"]).startswith(self._prefix):
                    yield Listed(name, int(each["size"]), each["last_modified"].timestamp())

    def close(self) -> None:
        """obstore's connections are given back when nothing refers to the store any more."""

    def _key(self, name: str) -> str:
        return self._prefix + checked(name)

    def _no_page(self, answer: Any) -> None:
        if str(answer.attributes.get("Content-Type", "")).lower().startswith("text/html"):
            raise Garbled(f"{self.url} answers with a web page: is there a proxy in between that wants a login?")

    def _put(self, name: str, data: bytes, mode: object) -> bool:
        def verb() -> bool:
            try:
                self._obstore.put(self._store, self._key(name), bytes(data), mode=mode, use_multipart=False)
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
                return False
            return True

        return bool(self._asked(f"put {name}", verb, absent=False))

    def _needs_conditions(self) -> None:
        """The clouds' own services know conditions. Others may ignore them silently, and are asked once, by a small name that stays."""
        if self._honours is None:
            again = not self._foreign or not self._put(PROBE, b"precast asks whether this service knows conditions", "create")
            self._honours = again or not self._put(PROBE, b"precast asks whether this service knows conditions", "create")
        if not self._honours:
            raise Unsupported(f"{self.url} ignores conditions, so of two writers both would be told that they were first")

    def _asked(self, what: str, verb: Callable[[], T], absent: T) -> T:
        """What `verb` returns, `absent` where the service says that there is nothing, else an EndpointError."""
        global _first_pid
        if is_forked():
            raise Unreachable(f"{self.url}: obstore's threads are those of the process that this one was forked from")
        _first_pid = os.getpid()
        try:
            return verb()
        except EndpointError:
            raise
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise Denied(f"{self.url}: there is no such bucket") from None
            return absent
        except (self._errors.BaseError, OSError, ValueError, RuntimeError) as error:
            raise self._meaning(what, error) from None  # obstore's text is pages long, and repeats headers

    def _meaning(self, what: str, error: Exception) -> EndpointError:
        text = str(error)
        where = f"{self.url} ({what})"
        found = STATUS.search(text)
        status = int(found[1]) if found else None
        if isinstance(error, (self._errors.PermissionDeniedError, self._errors.UnauthenticatedError)) or status in (401, 403):
            code = re.search(r"<Code>(\w{1,60})</Code>", text)
            return Denied(f"{where}: access is denied{f' ({code[1]})' if code else ''}: look at the credentials and their rights")
        if isinstance(error, self._errors.NotSupportedError) or status in (405, 501):
            return Unsupported(f"{where}: the service has no such verb")
        if status is not None and (status in (408, 409, 425, 429) or status >= 500):
            return Unreachable(f"{where}: the service answers {status}")
        if status is not None or "Header missing" in text or "Unable to extract" in text or "XML" in text or "Invalid" in text:
            return Garbled(f"{where}: the answer is none of an object store{f' ({status})' if status else ''}")
        if "imeout" in text or "TimedOut" in text:
            return Unreachable(
                f"{where}: no answer within {self._timeouts.stall:g} s, or none that was whole within {self._timeouts.whole:g} s"
            )
        if "redential" in text:
            return Denied(f"{where}: no credentials were found: set the environment variables of {self.kind}://, or ?anonymous=1")
        first = text.splitlines()[0][:200] if text else type(error).__name__
        return Unreachable(f"{where}: {first}")

    def _opened(self) -> Any:
        options = self._url.options
        stores = _imported("obstore.store")
        endpoint = options.get("endpoint")
        # a server on this machine needs no permission to go without TLS
        plain = self._url.flag("allow_http") or (endpoint is not None and LOOPBACK.fullmatch(endpoint) is not None)
        if endpoint is not None and endpoint.startswith("http://") and not plain:
            raise ValueError(f"{self.url}: the endpoint {endpoint} is not encrypted: use https://, or allow it with allow_http=1")
        client = {
            "connect_timeout": timedelta(seconds=self._timeouts.connect),
            "read_timeout": timedelta(seconds=self._timeouts.stall),
            "timeout": timedelta(seconds=self._timeouts.whole),
            "allow_http": plain,
            "user_agent": "precast",
        }
        shared: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0, "retry_timeout": timedelta(0)}}
        if self._url.flag("anonymous"):
            shared["skip_signature"] = True
        try:
            if self.kind == "s3":
                return stores.S3Store(self._url.host, **shared, **self._s3(options, endpoint))
            if self.kind == "gs":
                if endpoint is not None:
                    shared["base_url"] = endpoint
                return stores.GCSStore(self._url.host, **shared)
            if endpoint is not None:
                shared["endpoint"] = endpoint
            if "account" in options:
                shared["account_name"] = options["account"]
            return stores.AzureStore(self._url.host, **shared)
        except (self._errors.BaseError, ValueError, TypeError, OSError) as error:
            first = (str(error).splitlines() or [""])[0][:200]
            raise ValueError(f"{self.url} cannot be opened: {first}") from None

    def _s3(self, options: Mapping[str, str], endpoint: str | None) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        if endpoint is not None:
            settings["endpoint"] = endpoint
        if self._url.flag("virtual_hosted"):
            settings["virtual_hosted_style_request"] = True
        profile = aws_profile.read(options.get("profile"), wanted=not self._url.flag("anonymous"))
        region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or profile.region
        if region:
            settings["region"] = region
        if profile.key:
            settings["access_key_id"], settings["secret_access_key"] = profile.key, profile.secret
            if profile.token:
                settings["session_token"] = profile.token
        return settings


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"s3://, gs:// and az:// need the package obstore: pip install 'precast[remote]' ({error})") from error
