"""What an endpoint is: a service beyond this machine that keeps named bytes, reduced to the few verbs that every such service has.

An endpoint knows nothing of artifacts. It neither retries nor waits longer than its time-outs: `transport.py` does, for all of them.
Names are relative, forward-slash paths of `layout.py`, made of letters, digits and `_.+-/`. A name appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class EndpointError(OSError):
    """An endpoint did not do what was asked. `again`: whether the same request may succeed when it is repeated."""

    again = False


class Unreachable(EndpointError):
    """No answer, an answer that broke off, a time-out, or one that says to come back later (429, 5xx), maybe `after` so many seconds."""

    again = True

    def __init__(self, *parts: object, after: float | None = None) -> None:
        super().__init__(*parts)
        self.after = after


class Denied(EndpointError):
    """The endpoint answered that this may not be done: no or wrong credentials, a read-only place."""


class Garbled(EndpointError):
    """The answer is not what the protocol says: another service, a login page of a proxy, a longer body than was allowed."""


class Unsupported(EndpointError):
    """The service has no such verb (a plain HTTP cache lists nothing): the caller has to do without."""


@dataclass(frozen=True)
class TimeOuts:
    """Seconds: until a connection stands, between two pieces of an answer, and for one request in all."""

    connect: float = 2.0
    stall: float = 5.0
    whole: float = 60.0


class Versioned(NamedTuple):
    """Content and the service's mark for this version of it (an ETag, a revision, a digest), for `replace`."""

    data: bytes
    version: str


class Listed(NamedTuple):
    """One name that is there; `modified` in seconds since 1970 by the service's clock."""

    name: str
    size: int
    modified: float


class Endpoint(Protocol):
    """Verbs over named bytes; safe to call from several threads. Each raises EndpointError; what is not there is None, False or empty."""

    @property
    def kind(self) -> str:
        """The URL's scheme: "s3", "gs", "az", "http", "redis", "shared"."""

    @property
    def url(self) -> str:
        """As people know it, without credentials."""

    def get(self, name: str, limit: int) -> bytes | None:
        """The bytes under this name. Raises Garbled as soon as they are found to be more than `limit` bytes."""

    def get_versioned(self, name: str, limit: int) -> Versioned | None:
        """The same, with the version that `replace` compares."""

    def put(self, name: str, data: bytes) -> None:
        """Keep `data` under this name, in place of what was there."""

    def put_new(self, name: str, data: bytes) -> bool:
        """Keep `data` where nothing has this name; False where something has. Atomic: of two callers one gets True. Raises Unsupported."""

    def replace(self, name: str, data: bytes, version: str) -> bool:
        """Keep `data` where the content still has this version; False where it changed or is gone. Raises Unsupported where the service
        cannot compare.
        """

    def has(self, name: str) -> bool:
        """Whether something has this name; its content is not fetched."""

    def remove(self, name: str) -> None:
        """Take a name out, if it is there."""

    def names(self, prefix: str) -> Iterator[Listed]:
        """All names that begin with `prefix`, in any order. Raises Unsupported where the service lists nothing."""

    def close(self) -> None:
        """Give back connections and threads; nothing is called afterwards."""
