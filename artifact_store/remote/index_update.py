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
DAMAGED_PAUSES = (0.2, 0.5, 1.5)
"""Seconds before each further attempt to read what is damaged."""
Edit = Callable[[ProgramIndex], ProgramIndex | None]
"""From what is there to what is to be there; None where that is there already."""


def parsed(data: bytes, program_key: str, place: str) -> ProgramIndex:
    """Raises Garbled for what is no index of this program."""
    try:
        return ProgramIndex.from_bytes(data, program_key)
    except (DamagedRecord, FutureFormat) as error:
        raise Garbled(f"{place}: {error}") from error


def to_be_changed(endpoint: Endpoint, program_key: str) -> tuple[Versioned | None, ProgramIndex]:
    """What is there, and the same for an edit.

    What cannot be read is read again: it may have been damaged on its way only, and would be lost if it were written anew. Where it comes
    alike each time, the damage is there, and the index for the edit is empty. Raises EndpointError, for a newer precast's as well.
    """
    name, before = layout.program_name(program_key), b""
    for pause in (*DAMAGED_PAUSES, 0.0):
        found = endpoint.get_versioned(name, layout.MAX_INDEX)
        if found is None:
            return None, ProgramIndex(program_key)
        try:
            return found, ProgramIndex.from_bytes(found.data, program_key)
        except FutureFormat as error:
            raise Garbled(f"{endpoint.url}: {error}; nothing is written there") from error
        except (DamagedRecord, Garbled) as error:
            damage, alike, before = error, found.data == before, found.data
        time.sleep(pause)
    if not alike:
        raise Unreachable(f"{endpoint.url}: {name} cannot be read, and comes otherwise each time: {damage}")
    log.warning("%s: %s; it is written anew", endpoint.url, damage)
    return found, ProgramIndex(program_key)


def change(endpoint: Endpoint, program_key: str, edit: Edit) -> bool:
    """Whether the index had to be changed for what `edit` wants; that holds now. Raises EndpointError."""
    name, changed = layout.program_name(program_key), False
    for attempt in range(TRIES):
        if attempt:
            time.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.01 * 2**attempt)))
        found, index = to_be_changed(endpoint, program_key)
        wanted = edit(index)
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
