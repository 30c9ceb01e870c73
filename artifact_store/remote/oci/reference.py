"""References to images: `oci://registry/name:tag` or `oci://registry/name@sha256:…`, by the grammar of the OCI distribution
specification.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from precast.artifact_store.format.errors import StoreError

SCHEME = "oci://"
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?")
_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME = 255


@dataclass(frozen=True)
class Reference:
    """`host` with its port; `tag` or `digest` names the image, the digest exactly this one for ever."""

    host: str
    name: str
    tag: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{SCHEME}{self.host}/{self.name}{f'@{self.digest}' if self.digest else f':{self.tag}'}"

    @property
    def image(self) -> str:
        """What a request names the image by."""
        return self.digest or self.tag

    @property
    def loopback(self) -> bool:
        """Whether the registry is this machine, so that nobody listens on the way."""
        host = self.host.rpartition(":")[0] if re.search(r":\d+$", self.host) else self.host
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            return False


def is_reference(text: str) -> bool:
    """Whether a text means an image in a registry."""
    return text.lower().startswith(SCHEME)


def parse_reference(text: str) -> Reference:
    """The reference in `text`. Without a tag it is `latest`, as everywhere. Raises StoreError."""
    rest = text[len(SCHEME) :]
    if "?" in rest or "#" in rest:
        raise _refused(text, "? and # have no meaning in it")
    host, slash, path = rest.partition("/")
    if "@" in host:
        raise _refused(text, "credentials do not belong there: `docker login` keeps them where precast finds them")
    if not slash or not path:
        raise _refused(text, "a registry and a name are needed")
    path, at, digest = path.partition("@")
    name, colon, tag = path.partition(":")
    if not _HOST.fullmatch(host):
        raise _refused(text, f"{host!r} is no host, with or without a port")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise _refused(text, f"{name!r} is no name of a repository: lower-case letters, digits and . _ - between them, parts joined by /")
    if (colon and not _TAG.fullmatch(tag)) or (at and not _DIGEST.fullmatch(digest)):
        raise _refused(text, f"{(digest if at else tag)!r} is no {'digest' if at else 'tag'}")
    return Reference(host, name, tag or "latest", digest)


def _refused(text: str, why: str) -> StoreError:
    return StoreError(f"{text!r}: {why}; write oci://registry.example.org/team/models:tag")
