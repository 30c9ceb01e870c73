"""The endpoint of a URL, by its scheme. What a scheme needs is imported here, when it is used, and nothing of the others."""

from __future__ import annotations

from precast.artifact_store.remote.endpoint import Endpoint, TimeOuts
from precast.artifact_store.remote.endpoints.url import parse

SCHEMES = ("s3", "gs", "az", "http", "https", "redis", "rediss", "shared")


def open_endpoint(url: str, timeouts: TimeOuts | None = None) -> Endpoint:
    """The endpoint of `url`; nothing is sent yet. Raises ValueError, a sentence, for what is no URL, unknown options, a missing package.

    `shared:///mnt/precast` and an absolute path are a shared folder.
    """
    parsed = parse(f"shared://{url}" if url.startswith("/") else url)
    limits = timeouts or TimeOuts()
    match parsed.scheme:
        case "s3" | "gs" | "az":
            from precast.artifact_store.remote.endpoints.forked import ForkSafeObjectStore

            return ForkSafeObjectStore(url, parsed, limits)
        case "http" | "https":
            from precast.artifact_store.remote.endpoints.http import HttpEndpoint

            return HttpEndpoint(parsed, limits)
        case "redis" | "rediss":
            from precast.artifact_store.remote.endpoints.redis import RedisEndpoint

            return RedisEndpoint(parsed, limits)
        case "shared":
            from precast.artifact_store.remote.endpoints.shared_folder import SharedFolderEndpoint

            return SharedFolderEndpoint(parsed, limits)
    raise ValueError(
        f"{parsed.text}: there are no remotes of the kind {parsed.scheme}://, but {', '.join(f'{each}://' for each in SCHEMES)}"
    )
