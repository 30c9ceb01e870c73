"""Texts that name places: folders of stores, URLs of remotes, and images in registries."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.moving.local import LocalPlace
from precast.artifact_store.moving.place import Place, RecordName
from precast.artifact_store.moving.remote_place import RemotePlace
from precast.artifact_store.place import what_is_at
from precast.artifact_store.remote.attach import open_tier
from precast.artifact_store.remote.endpoint import TimeOuts
from precast.artifact_store.remote.oci.image_endpoint import ImageEndpoint
from precast.artifact_store.remote.oci.reference import is_reference, parse_reference
from precast.artifact_store.remote.remote import Remote
from precast.artifact_store.remote.settings import Setting, chosen, from_url
from precast.artifact_store.store import Store
from precast.artifact_store.trust.judge import judge_for
from precast.artifact_store.trust.keys import signer_from_environment

BY_HAND = TimeOuts(connect=5.0, stall=45.0, whole=600.0)
"""Nobody's call waits for what people move: a large blob may take minutes."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
DEFAULT_TRUST = "signed"


def is_url(text: str) -> bool:
    """Whether a text names a place beyond this machine's folders."""
    return _SCHEME.match(text) is not None and not text.lower().startswith("file:")


def local_place(store: Store, *, signing: bool = False) -> LocalPlace:
    """A local store as a place. `signing`: what leaves it is signed where PRECAST_SIGNING_KEY has a key. Raises StoreError."""
    return LocalPlace(store, signer_from_environment() if signing else None)


def remote_place(
    url: str | Setting,
    *,
    trust: str | None = None,
    plain_http: bool = False,
    fresh: bool = False,
    repair: bool = False,
    writing: bool = False,
    guesses: Collection[RecordName] = (),
) -> RemotePlace:
    """The remote, or the image, at `url`, or a configured remote. `trust`: the policy for what comes from there, instead of its own;
    `fresh`: begin an image anew; `guesses`: records to ask for where nothing is listed. Raises StoreError.
    """
    if isinstance(url, Setting):
        return _tier(url, trust, guesses, repair)
    if not is_url(url):
        raise StoreError(
            f"{url!r} is no URL: write s3://, https://, redis://, shared:///a/folder or oci://, or `precast sync` between two stores"
        )
    if is_reference(url):
        reference = parse_reference(url)
        if writing and reference.digest:
            raise StoreError(f"{url}: what a digest names cannot be changed: push to a tag")
        policy = trust or DEFAULT_TRUST
        endpoint = ImageEndpoint(reference, plain_http=plain_http, fresh=fresh)
        return RemotePlace(Remote(endpoint, judge_for(policy, "--trust"), trust=policy), guesses, repair=repair)
    return _tier(from_url(url, "URL"), trust, guesses, repair)


def _tier(setting: Setting, trust: str | None, guesses: Collection[RecordName], repair: bool) -> RemotePlace:
    return RemotePlace(open_tier(setting if trust is None else replace(setting, trust=trust), BY_HAND), guesses, repair=repair)


def configured_remote(*, writing: bool) -> Setting:
    """The nearest remote that PRECAST_REMOTE or a file names, and that may be written where that is wanted. Raises StoreError."""
    for setting in chosen():
        if setting.mode == "rw" or not writing:
            return setting
    raise StoreError(f"name a URL, or a remote{' that may be written (mode=rw)' if writing else ''} in PRECAST_REMOTE or precast.toml")


def any_place(text: str, *, trust: str | None = None, plain_http: bool = False, writing: bool = False) -> Place:
    """The place that a text names. `writing`: something is to be put there, so that it may be new. Raises StoreError."""
    if is_url(text):
        return remote_place(text, trust=trust, plain_http=plain_http, writing=writing)
    store = Store.open(text, readonly=not writing, strict=True)
    there = what_is_at(store.root)
    if there == "other folder" or (not writing and there != "store"):
        raise StoreError(f"there is no store at {store.root}: check the path (and whether it is mounted)")
    return LocalPlace(store)


__all__ = ["any_place", "configured_remote", "is_url", "local_place", "remote_place"]
