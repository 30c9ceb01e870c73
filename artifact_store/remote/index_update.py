"""Changing an index object that others may change at the same moment: read, edit, write if it is still what was read, else again.

Where an endpoint cannot compare, the edited index is written, read back after a moment, and written again where another's write has
undone the edit. A write that comes later still may undo it for good: nobody fetches that artifact then, and that is all.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from precast.artifact_store.format.errors import DamagedRecord, FutureFormat
from precast.artifact_store.remote import layout
from precast.artifact_store.remote.endpoint import Endpoint, Garbled, Unreachable, Unsupported, Versioned
from precast.artifact_store.remote.program_index import ProgramIndex

log = logging.getLogger("precast.store")

TRIES = 40
"""Attempts to change one that others change all the time."""
LONGEST_PAUSE = 0.5
Edit = Callable[[ProgramIndex], ProgramIndex | None]
"""From what is there to what is to be there; None where that is there already."""


def parsed(data: bytes, program_key: str, place: str) -> ProgramIndex:
    """Raises Garbled for what is no index of this program."""
    try:
        return ProgramIndex.from_bytes(data, program_key)
    except (DamagedRecord, FutureFormat) as error:
        raise Garbled(f"{place}: {error}") from error


def to_be_changed(found: Versioned | None, program_key: str, place: str) -> ProgramIndex:
    """What is there, for an edit; empty where it cannot be read, so that what is damaged is written anew. Raises Garbled for a newer
    precast's.
    """
    if found is None:
        return ProgramIndex(program_key)
    try:
        return ProgramIndex.from_bytes(found.data, program_key)
    except FutureFormat as error:
        raise Garbled(f"{place}: {error}; nothing is written there") from error
    except (DamagedRecord, Garbled) as error:
        log.warning("%s: %s; it is written anew", place, error)
        return ProgramIndex(program_key)


def change(endpoint: Endpoint, program_key: str, edit: Edit) -> bool:
    """Whether the index had to be changed for what `edit` wants; that holds now. Raises EndpointError."""
    name, changed = layout.program_name(program_key), False
    for attempt in range(TRIES):
        if attempt:
            time.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.01 * 2**attempt)))
        found = endpoint.get_versioned(name, layout.MAX_INDEX)
        wanted = edit(to_be_changed(found, program_key, endpoint.url))
        if wanted is None:
            return changed
        data = wanted.to_bytes()
        try:
            if endpoint.put_new(name, data) if found is None else endpoint.replace(name, data, found.version):
                return True
        except Unsupported:
            endpoint.put(name, data)
            changed = True  # as long as it is there when it is read back
    raise Unreachable(f"{endpoint.url}: {name} was changed by others {TRIES} times in a row while it was to be changed; try again later")


__all__ = ["Edit", "change", "parsed", "to_be_changed"]
