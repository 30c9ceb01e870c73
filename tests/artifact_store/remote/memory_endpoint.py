"""An endpoint in memory, with faults on demand: for tests of what is built upon endpoints."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from precast.artifact_store.remote.endpoint import Garbled, Listed, Versioned


class MemoryEndpoint:
    """`requests`: how often each verb was asked; `before(verb, name)`: called first, may sleep or raise an EndpointError."""

    kind = "memory"

    def __init__(self, url: str = "memory://test") -> None:
        self.url = url
        self.content: dict[str, tuple[bytes, float]] = {}
        self.requests: Counter[str] = Counter()
        self.sent = self.received = 0
        self.before: Callable[[str, str], None] = lambda verb, name: None
        self._lock = threading.Lock()

    def _begin(self, verb: str, name: str) -> None:
        with self._lock:
            self.requests[verb] += 1
        self.before(verb, name)

    def get(self, name: str, limit: int) -> bytes | None:
        found = self.get_versioned(name, limit)
        return None if found is None else found.data

    def get_versioned(self, name: str, limit: int) -> Versioned | None:
        self._begin("get", name)
        with self._lock:
            found = self.content.get(name)
        if found is None:
            return None
        if len(found[0]) > limit:
            raise Garbled(f"{name}: {len(found[0])} bytes, and {limit} were allowed")
        self.received += len(found[0])
        return Versioned(found[0], hashlib.sha256(found[0]).hexdigest())

    def put(self, name: str, data: bytes) -> None:
        self._begin("put", name)
        with self._lock:
            self.content[name] = (bytes(data), time.time())
            self.sent += len(data)

    def put_new(self, name: str, data: bytes) -> bool:
        self._begin("put_new", name)
        with self._lock:
            if name in self.content:
                return False
            self.content[name] = (bytes(data), time.time())
            self.sent += len(data)
            return True

    def replace(self, name: str, data: bytes, version: str) -> bool:
        self._begin("replace", name)
        with self._lock:
            found = self.content.get(name)
            if found is None or hashlib.sha256(found[0]).hexdigest() != version:
                return False
            self.content[name] = (bytes(data), time.time())
            self.sent += len(data)
            return True

    def has(self, name: str) -> bool:
        self._begin("has", name)
        with self._lock:
            return name in self.content

    def remove(self, name: str) -> None:
        self._begin("remove", name)
        with self._lock:
            self.content.pop(name, None)

    def names(self, prefix: str) -> Iterator[Listed]:
        self._begin("names", prefix)
        with self._lock:
            found = [Listed(name, len(data), when) for name, (data, when) in self.content.items() if name.startswith(prefix)]
        return iter(found)

    def close(self) -> None:
        self._begin("close", "")
