"""The proxy that the environment names for HTTP: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, as other programs read them.

obstore reads them by itself. A proxy is spoken to in plain HTTP; of `https://` it sees the host only, since it makes a tunnel.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import NamedTuple

from precast.artifact_store.remote.endpoints.url import EndpointURL, parse


class Proxy(NamedTuple):
    """Where it listens, and who we are for it: the value of a header, or None."""

    host: str
    port: int
    authorization: str | None

    def connect(self, host: str, port: int) -> bytes:
        """The request for a tunnel."""
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
        lines += [] if self.authorization is None else [f"Proxy-Authorization: {self.authorization}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def proxy_for(url: EndpointURL) -> Proxy | None:
    """The proxy for this URL; None where it is reached directly. Raises ValueError where the environment names what is none."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib import request  # imports much

    proxies = request.getproxies_environment()
    named = proxies.get(url.scheme) or proxies.get("all")
    bypassed: Callable[[str, dict[str, str]], bool] = request.proxy_bypass_environment  # type: ignore[attr-defined]
    if not named or bypassed(url.authority, proxies):
        return None
    found = parse(named if "://" in named else f"http://{named}")
    if found.scheme != "http" or not found.host:
        raise ValueError(
            f"the proxy {found.text} of the environment is no http:// one, which is all that is spoken: set no_proxy={url.host}"
        )
    secret = None
    if found.user is not None:
        secret = "Basic " + base64.b64encode(f"{found.user}:{found.password or ''}".encode()).decode()
    return Proxy(found.host, found.port or 80, secret)
