"""Refreshing: a thread that looks for better artifacts of call sites at intervals, so that a server takes them up without a restart."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable

from precast.runtime.common.log import logger
from precast.runtime.dispatch.call_site import Site


class Refresher:
    """A thread of this process that refreshes sites at their intervals for as long as they live; made anew in the child of a fork."""

    def __init__(self) -> None:
        self._sites: dict[int, tuple[weakref.ref[Site], float]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def add(self, site: Site, seconds: float) -> None:
        """Refresh this site every so many seconds from now on."""
        with self._lock:
            self._sites[id(site)] = (weakref.ref(site), seconds)
            self._start()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="precast-refresh", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                logger("runtime").warning("artifacts are not refreshed: %s", error)

    def _after_fork(self) -> None:
        self._lock, self._thread = threading.Lock(), None
        if self._sites:
            self._start()

    def _work(self) -> None:
        due: dict[int, float] = {}
        while True:
            with self._lock:
                self._sites = {key: entry for key, entry in self._sites.items() if entry[0]() is not None}
                if not self._sites:
                    self._thread = None
                    return
                sites = list(self._sites.items())
            now = time.monotonic()
            for key, (ref, seconds) in sites:
                if due.setdefault(key, now + seconds) <= now:
                    due[key] = now + seconds
                    _refresh(ref)
            time.sleep(max(0.01, min(due[key] for key, _ in sites) - time.monotonic()))


def _refresh(ref: Callable[[], Site | None]) -> None:
    site = ref()
    if site is None:
        return
    for program in site.all_programs:
        try:
            program.refresh()
        except Exception:  # noqa: BLE001 - a user's module that is imported, say; the next round tries again
            logger("runtime").error("%s: looking for new artifacts failed", program.name, exc_info=True)


refresher = Refresher()

__all__ = ["Refresher", "refresher"]
