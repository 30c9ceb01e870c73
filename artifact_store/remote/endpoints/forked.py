"""An object store in a process that may be forked: fork servers load artifacts, fork their workers, and these ask for more.

In the process that used obstore first, requests go straight to it. In a child of that one they go through a helper process
(`helper.py`), which is started with the first of them: one more Python of some 30 MB, and nothing where a worker asks for nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, BinaryIO, cast

from precast.artifact_store.remote.endpoint import Endpoint, EndpointError, Listed, TimeOuts, Unreachable, Versioned
from precast.artifact_store.remote.endpoints import helper
from precast.artifact_store.remote.endpoints.object_store import ObjectStoreEndpoint, is_forked
from precast.artifact_store.remote.endpoints.url import EndpointURL, checked, checked_prefix


class ForkSafeObjectStore:
    """An object store, wherever it is asked."""

    def __init__(self, source: str, url: EndpointURL, timeouts: TimeOuts) -> None:
        self._direct = ObjectStoreEndpoint(url, timeouts)
        self.kind, self.url = self._direct.kind, self._direct.url
        self._source, self._timeouts = source, timeouts
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._helper: _Helper | None = None

    def _here(self) -> Endpoint | _Helper:
        if not is_forked():
            return self._direct
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if self._helper is None or self._helper.ended:
                self._helper = _Helper(self.url, self._source, self._timeouts)
            return self._helper

    def get(self, name: str, limit: int) -> bytes | None:
        """As the protocol says; see there for all of these."""
        return self._here().get(checked(name), limit)

    def get_versioned(self, name: str, limit: int) -> Versioned | None:
        found = self._here().get_versioned(checked(name), limit)
        return None if found is None else Versioned(*found)

    def put(self, name: str, data: bytes) -> None:
        self._here().put(checked(name), data)

    def put_new(self, name: str, data: bytes) -> bool:
        return self._here().put_new(checked(name), data)

    def replace(self, name: str, data: bytes, version: str) -> bool:
        return self._here().replace(checked(name), data, version)

    def has(self, name: str) -> bool:
        return self._here().has(checked(name))

    def remove(self, name: str) -> None:
        self._here().remove(checked(name))

    def names(self, prefix: str) -> Iterator[Listed]:
        return (Listed(*each) for each in self._here().names(checked_prefix(prefix)))

    def close(self) -> None:
        if self._helper is not None and self._pid == os.getpid():
            self._helper.close()
        self._direct.close()


class _Helper:
    """The helper process, with an endpoint's verbs; several threads may wait for it."""

    def __init__(self, place: str, source: str, timeouts: TimeOuts) -> None:
        self._place = place
        self._patience = timeouts.connect + timeouts.whole + timeouts.stall
        self.ended = False
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, Future[Any]] = {}
        path = os.pathsep.join(each for each in sys.path if each)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", helper.__name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                close_fds=True,
            )
        except OSError as error:
            raise Unreachable(f"{place}: after a fork it is asked through a helper process, which cannot be started: {error}") from error
        self._to, self._from = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        self._send({"url": source, "timeouts": [timeouts.connect, timeouts.stall, timeouts.whole]})
        threading.Thread(target=self._read, name="precast-helper", daemon=True).start()

    def __getattr__(self, verb: str) -> Any:
        if verb not in helper.VERBS:
            raise AttributeError(verb)
        return lambda *arguments: self._ask(verb, arguments)

    def _ask(self, verb: str, arguments: tuple[Any, ...]) -> Any:
        future: Future[tuple[str, Any]] = Future()
        with self._lock:
            if self.ended:
                raise self._gone()
            self._number += 1
            number = self._number
            self._waiting[number] = future
            self._send([number, verb, list(arguments)])
        try:
            error, result = future.result(self._patience)
        except TimeoutError as late:
            self._waiting.pop(number, None)
            raise Unreachable(f"{self._place}: the helper process has not answered for {self._patience:.0f} s") from late
        if error:
            raise helper.ERRORS.get(error, Unreachable)(result)
        return result

    def _send(self, document: Any) -> None:
        try:
            helper.write(self._to, document)
        except (OSError, ValueError) as error:
            self.ended = True
            raise self._gone() from error

    def _read(self) -> None:
        while True:
            try:
                reply = helper.read(self._from)
            except (OSError, ValueError):
                reply = None
            if reply is None:
                break
            future = self._waiting.pop(reply[0], None)
            if future is not None:
                future.set_result((reply[1], reply[2]))
        with self._lock:
            self.ended = True
            left = list(self._waiting.values())
            self._waiting.clear()
        for future in left:
            future.set_exception(self._gone())
        self._process.wait()

    def _gone(self) -> EndpointError:
        return Unreachable(f"{self._place}: the helper process that asks it after a fork has ended; stderr says why")

    def close(self) -> None:
        """End it."""
        with self._lock:
            self.ended = True
            self._to.close()
