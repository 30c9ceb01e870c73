"""A process that asks an object store for another one, which cannot: obstore's threads do not survive a fork, and its requests would hang.

Requests and answers are msgpack documents behind four bytes of length, over its standard input and output; it ends with its input. Each
request runs in a thread. `forked.py` is the other side.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import msgpack

from precast.artifact_store.remote.endpoint import Denied, Endpoint, EndpointError, Garbled, TimeOuts, Unreachable, Unsupported

VERBS = ("get", "get_versioned", "put", "put_new", "replace", "has", "remove", "names")
ERRORS: dict[str, type[EndpointError]] = {each.__name__: each for each in (Unreachable, Denied, Garbled, Unsupported)}
THREADS = 8


def write(stream: BinaryIO, document: Any) -> None:
    """Send one document."""
    data = msgpack.packb(document, use_bin_type=True)
    stream.write(struct.pack(">I", len(data)) + data)
    stream.flush()


def read(stream: BinaryIO) -> Any:
    """The next document; None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = struct.unpack(">I", head)[0]
    data = stream.read(size)
    return msgpack.unpackb(data, raw=False) if len(data) == size else None


def answer(endpoint: Endpoint, verb: str, arguments: list[Any]) -> tuple[str, Any]:
    """What the endpoint does, as the name of an error, or "", and the result."""
    if verb not in VERBS:
        raise ValueError(f"there is no verb {verb!r}")
    try:
        result = getattr(endpoint, verb)(*arguments)
        return "", list(result) if verb == "names" else result
    except EndpointError as error:
        known = next((name for name, kind in ERRORS.items() if isinstance(error, kind)), Unreachable.__name__)
        return known, str(error)


def main() -> None:
    """Answer until the input ends."""
    from precast.artifact_store.remote.endpoints.object_store import ObjectStoreEndpoint
    from precast.artifact_store.remote.endpoints.url import parse

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's, meant for the process that asks
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    settings = read(requests)
    if settings is None:
        return
    endpoint = ObjectStoreEndpoint(parse(settings["url"]), TimeOuts(*settings["timeouts"]))
    writing = threading.Lock()

    def serve(number: int, verb: str, arguments: list[Any]) -> None:
        try:
            error, result = answer(endpoint, verb, arguments)
        except Exception as failure:  # noqa: BLE001 - told to the process that asked
            error, result = Unreachable.__name__, f"the helper process failed: {type(failure).__name__}: {failure}"
        with writing:
            write(answers, [number, error, result])

    with ThreadPoolExecutor(THREADS) as threads:
        while (request := read(requests)) is not None:
            threads.submit(serve, *request)
    os._exit(0)


if __name__ == "__main__":
    main()
