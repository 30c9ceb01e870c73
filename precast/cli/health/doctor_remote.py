"""The doctor's lines about remotes: each is asked for something small, and where it is written, something small is put and removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from precast.artifact_store import StoreError
from precast.artifact_store.format.text import many
from precast.artifact_store.place import default_root
from precast.artifact_store.remote import layout, spool
from precast.artifact_store.remote.attach import open_tier
from precast.artifact_store.remote.endpoint import EndpointError, Unsupported
from precast.artifact_store.remote.remote import Remote
from precast.artifact_store.remote.settings import chosen

PROBE = layout.usage_name("precast-doctor")


class Said(NamedTuple):
    """`good`: nothing to do; `broken`: the setting itself is wrong."""

    good: bool
    detail: str
    broken: bool = False


def remotes(path: str | None) -> Iterator[Said]:
    """A line for each remote, and one for what is still to be sent."""
    try:
        tiers = [open_tier(setting) for setting in chosen()]
    except StoreError as error:
        yield Said(False, str(error), broken=True)
        return
    for tier in tiers:
        yield _examine(tier)
        tier.endpoint.close()
    places = {tier.place for tier in tiers}
    waiting = spool.pending(default_root(path))
    for place in sorted({item.remote for item in waiting}):
        count = many(sum(item.remote == place for item in waiting), "artifact or record", "artifacts and records")
        how = "the next process that misses, or `precast push`, sends them" if place in places else "it is no remote of this store any more"
        yield Said(place in places, f"{count} still to be sent to {place}: {how}")


def _examine(tier: Remote) -> Said:
    what = f"{tier.place} (mode={tier.mode}, trust={tier.trust}, budget={tier.budget:g}s)"
    began = time.perf_counter()
    try:
        tier.endpoint.get(PROBE, layout.MAX_INDEX)
    except (EndpointError, StoreError) as error:
        return Said(False, f"{what}: cannot be asked: {error}; calls go on without it")
    said = f"{what}: answers in {(time.perf_counter() - began) * 1e3:.0f} ms"
    if tier.writable:
        try:
            tier.endpoint.put(PROBE, b"precast doctor")
            tier.endpoint.remove(PROBE)
        except Unsupported:
            said += ", can be written (and not removed from)"
        except EndpointError as error:
            return Said(False, f"{said}, and cannot be written: {error}; mode=ro says that it need not be")
        else:
            said += ", can be written"
    return Said(not tier.trouble, f"{said}{f', circuit breaker {tier.trouble}' if tier.trouble else ''}")


__all__ = ["remotes"]
