"""Blobs: bytes named by their SHA-256."""

from __future__ import annotations

from precast.artifact_store.format.msgpack import digest


class BlobSet(dict[str, bytes]):
    """The blobs of one artifact, digest -> bytes, in the making: `library = blobs.add(so_bytes)`."""

    def add(self, data: bytes | str) -> str:
        """Keep `data` (text as UTF-8) and return its digest."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        name = digest(raw)
        self[name] = raw
        return name

    def sizes(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.items()}
