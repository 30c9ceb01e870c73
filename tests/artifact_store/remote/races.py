"""What several processes do to one endpoint at once. Imported by them, so it imports little."""

from __future__ import annotations

from precast.artifact_store.remote.endpoints.open import open_endpoint


def race(url: str, name: str, mine: bytes) -> tuple[bool, int]:
    """In a process of its own: be first, and add to a counter until it took."""
    endpoint = open_endpoint(url)
    first = endpoint.put_new(name, mine)
    lost = 0
    for _ in range(5):
        while True:
            found = endpoint.get_versioned(f"{name}-count", 100)
            if found is None:
                taken = endpoint.put_new(f"{name}-count", b"1")
            else:
                taken = endpoint.replace(f"{name}-count", b"%d" % (int(found.data) + 1), found.version)
            if taken:
                break
            lost += 1
    return first, lost
