"""Who we are for HTTP caches and redis: from the URL, the environment, or `.netrc`, always bound to a host and never logged.

A token without a host would go to whatever server a project's settings name, a stranger's repository among them, so none is accepted.
Object stores have chains of their own.
"""

from __future__ import annotations

import base64
import netrc
import os
from pathlib import Path
from typing import NamedTuple

from precast.artifact_store.remote.endpoints.url import EndpointURL

HTTP_TOKEN = "PRECAST_HTTP_TOKEN"
REDIS_PASSWORD = "PRECAST_REDIS_PASSWORD"


class Login(NamedTuple):
    """A user, maybe empty, and a password."""

    user: str
    password: str


def secret_for(url: EndpointURL, variable: str) -> str | None:
    """What `variable` holds for the URL's host. It reads `host=secret` or `host:port=secret`, several of them apart by spaces."""
    for number, pair in enumerate(os.environ.get(variable, "").split(), 1):
        host, sign, secret = pair.partition("=")
        if not sign or not host or not secret:
            raise ValueError(f"{variable}: entry {number} is not of the form host=secret, for example {variable}=cache.example.com=…")
        if host.lower() in (url.host, url.authority):
            return secret
    return None


def login_for(url: EndpointURL) -> Login | None:
    """User and password from the URL itself, else from the file that `NETRC` names or `~/.netrc`."""
    if url.user is not None or url.password is not None:
        return Login(url.user or "", url.password or "")
    path = Path(os.environ.get("NETRC") or Path("~/.netrc").expanduser())
    try:
        found = netrc.netrc(path).hosts.get(url.host)  # not `authenticators`, whose default entry would go to any host
    except FileNotFoundError:
        return None
    except netrc.NetrcParseError as error:
        raise ValueError(f"{path} cannot be read: {error.msg}, line {error.lineno}") from error  # its text is not shown
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if found is None:
        return None
    return Login(found[0] or "", found[2] or "")


def http_authorization(url: EndpointURL) -> str | None:
    """The value of the Authorization header: a bearer token of PRECAST_HTTP_TOKEN, else Basic."""
    token = secret_for(url, HTTP_TOKEN)
    if token is not None:
        return f"Bearer {token}"
    login = login_for(url)
    if login is None:
        return None
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
