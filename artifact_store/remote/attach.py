"""From settings to the remotes behind a store: endpoints are opened, each behind a transport, with a judge by its policy."""

from __future__ import annotations

from collections.abc import Sequence

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.remote.endpoint import TimeOuts
from precast.artifact_store.remote.remote import Remote
from precast.artifact_store.remote.settings import Setting, chosen
from precast.artifact_store.remote.transport.transport import open_transport
from precast.artifact_store.trust.judge import judge_for


def open_tier(setting: Setting, timeouts: TimeOuts | None = None) -> Remote:
    """One remote; nothing is sent yet. Raises StoreError, naming the setting."""
    try:
        endpoint = open_transport(setting.url, timeouts)
    except ValueError as error:
        raise StoreError(f"{setting.where}: {error}") from error
    return Remote(endpoint, judge_for(setting.trust, f"{setting.where}: trust"), setting.mode, setting.budget, setting.trust)


def open_tiers(settings: Sequence[Setting]) -> list[Remote]:
    """All of them. Raises StoreError."""
    return [open_tier(setting) for setting in settings]


def describe(setting: Setting) -> dict[str, str | float]:
    """A setting for people and machines, without credentials. Raises StoreError."""
    tier = open_tier(setting)
    tier.endpoint.close()
    return {"url": tier.place, "mode": tier.mode, "trust": tier.trust, "budget": tier.budget, "where": setting.where}


def checked(urls: Sequence[str], where: str) -> tuple[Setting, ...]:
    """Settings for these URLs, each of which names an endpoint that could be opened. Raises StoreError, naming `where`."""
    wanted = chosen(urls, where)
    for tier in open_tiers(wanted):
        tier.endpoint.close()
    return wanted


__all__ = ["checked", "describe", "open_tier", "open_tiers"]
