"""Remotes of a store as leases see them, over any endpoint and with a plain layout of their own: for tests of leases alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from precast.artifact_store import Store
from precast.artifact_store.remote.endpoint import Endpoint


class PlainFleet:
    """`on_refresh`: called with the program's key at each refresh; `sent`: whether what was made has arrived."""

    def __init__(self, endpoint: Endpoint | None) -> None:
        self.endpoint = endpoint
        self.on_refresh: Callable[[str], None] = lambda program_key: None
        self.sent = threading.Event()
        self.sent.set()

    def lease_endpoint(self) -> Endpoint | None:
        return self.endpoint

    def refresh(self, program_key: str) -> None:
        self.on_refresh(program_key)

    def is_sent(self, program_key: str) -> bool:
        return self.sent.is_set()


def attached(store: Store, endpoint: Endpoint) -> PlainFleet:
    """Makes the leases of the store the fleet's."""
    fleet = PlainFleet(endpoint)
    store._remotes, store._remotes_known = cast(Any, fleet), True
    return fleet
