"""The remotes behind a local store, as its settings, the environment or a file name them: for `Store.remotes`, on the first miss or put."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from precast.artifact_store.entries import Entries
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.named_records import NamedRecords
from precast.artifact_store.remote import settings
from precast.artifact_store.remote.settings import Setting

if TYPE_CHECKING:
    from precast.artifact_store.remote.behind.local_side import LocalStore
    from precast.artifact_store.remote.behind.remotes import Remotes

log = logging.getLogger("precast.store")


def remotes_behind(store: LocalStore, given: Sequence[Setting] | None, entries: Entries, records: NamedRecords) -> Remotes | None:
    """None where there are none, or where what says so is wrong, which is logged: a remote is never in the way of a call."""
    try:
        wanted = settings.chosen() if given is None else tuple(given)
        if not wanted or entries.problem:
            return None
        from precast.artifact_store.remote.attach import open_tiers  # a store without remotes imports none of it
        from precast.artifact_store.remote.behind.local_side import LocalSide
        from precast.artifact_store.remote.behind.remotes import Remotes

        return Remotes(open_tiers(wanted), LocalSide(store, entries, records))
    except StoreError as error:
        log.warning("%s; going on without remotes", error)
        return None


__all__ = ["remotes_behind"]
