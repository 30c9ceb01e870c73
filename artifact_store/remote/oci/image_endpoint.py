"""An image in a registry as an endpoint: the names of a remote's layout are its layers.

Reading is of the image as it was when it was opened. An object that is put is sent at once, as content that no tag names; `finish` sends
what names it and gives that the tag, so that others see all of it from then on, and a kill before leaves the tag as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from precast.artifact_store.format.errors import RecordError
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.remote import layout
from precast.artifact_store.remote.endpoint import Garbled, Listed, Versioned
from precast.artifact_store.remote.oci.image import EMPTY, MANIFEST_LIMIT, Layer, image_manifest, parse_image
from precast.artifact_store.remote.oci.reference import Reference
from precast.artifact_store.remote.oci.registry import Registry
from precast.artifact_store.remote.program_index import ProgramIndex, StoredObject
from precast.artifact_store.remote.remote_record import RemoteRecord


class ImageEndpoint:
    """`fresh`: begin with an empty image, whatever the tag names now. Safe to call from several threads."""

    kind = "oci"

    def __init__(self, reference: Reference, *, plain_http: bool = False, fresh: bool = False, registry: Registry | None = None) -> None:
        self.reference = reference
        self._registry = registry or Registry(reference, plain_http=plain_http)
        self._fresh = fresh
        self._lock = threading.RLock()
        self._named: dict[str, Layer] | None = None
        self._objects: dict[str, Layer] = {}
        self._put: dict[str, bytes] = {}
        self._was = b""

    @property
    def url(self) -> str:
        return str(self.reference)

    def exists(self) -> bool:
        """Whether there is an image of that name. Raises EndpointError."""
        self._layers()
        return bool(self._was)

    # -- an endpoint's verbs

    def get(self, name: str, limit: int) -> bytes | None:
        found = self.get_versioned(name, limit)
        return None if found is None else found.data

    def get_versioned(self, name: str, limit: int) -> Versioned | None:
        with self._lock:
            layer = self._layer(name)
            data = self._put.get(name)
        if layer is None:
            return None
        if layer.size > limit:
            raise Garbled(f"{self.url}: {name} has {layer.size} bytes, and {limit} were allowed")
        return Versioned(data if data is not None else self._registry.blob(layer.digest, layer.size), layer.digest)

    def put(self, name: str, data: bytes) -> None:
        layer = Layer(digest(data), len(data))
        if name.startswith(layout.OBJECTS):
            self._registry.put_blob(layer.digest, data)
            with self._lock:
                self._objects[layer.digest] = layer
            return
        with self._lock:
            self._layers()[name] = layer
            self._put[name] = bytes(data)

    def put_new(self, name: str, data: bytes) -> bool:
        with self._lock:
            if self._layer(name) is not None:
                return False
            self.put(name, data)
            return True

    def replace(self, name: str, data: bytes, version: str) -> bool:
        with self._lock:
            layer = self._layer(name)
            if layer is None or layer.digest != version:
                return False
            self.put(name, data)
            return True

    def has(self, name: str) -> bool:
        if name.startswith(layout.OBJECTS):
            return self._registry.has_blob(name.rpartition("/")[2])
        with self._lock:
            return self._layer(name) is not None

    def remove(self, name: str) -> None:
        with self._lock:
            self._layers().pop(name, None)
            self._put.pop(name, None)

    def names(self, prefix: str) -> Iterator[Listed]:
        with self._lock:
            found = sorted(self._layers().items())
        return iter([Listed(name, layer.size, 0.0) for name, layer in found if name.startswith(prefix)])

    def close(self) -> None:
        self._registry.close()

    # -- an image's

    def finish(self) -> int:
        """Give the tag to an image of all that was read and put; how many bytes that took. Nothing is sent where the tag names it already.
        Raises EndpointError and StoreError.
        """
        with self._lock:
            named, artifacts, targets, objects = dict(self._layers()), 0, set[str](), dict[str, Layer]()
            for name in named:
                data = self.get(name, layout.MAX_INDEX)
                if data is None:
                    continue
                items, index = self._inside(name, data)
                objects |= {item.stored: Layer(item.stored, item.packed) for item in items}
                if index is not None:
                    artifacts += len(index.entries)
                    targets |= {entry.target for entry in index.entries}
            programs = sum(layout.key_of(name) is not None for name in named)
            notes = {
                "vnd.precast.artifacts": str(artifacts),
                "vnd.precast.programs": str(programs),
                "vnd.precast.targets": ", ".join(sorted(targets))[:1000],
            }
            manifest = image_manifest(named, objects.values(), notes)
            if manifest == self._was:
                return 0
            sent = len(manifest)
            for data in (EMPTY, *(data for name, data in sorted(self._put.items()) if name in named)):
                if not self._registry.has_blob(digest(data)):
                    self._registry.put_blob(digest(data), data)
                    sent += len(data)
            self._registry.put_manifest(manifest)
            self._was = manifest
            return sent

    def _inside(self, name: str, data: bytes) -> tuple[list[StoredObject], ProgramIndex | None]:
        """The objects that an index object or a record needs."""
        try:
            if (key := layout.key_of(name)) is not None:
                index = ProgramIndex.from_bytes(data, key)
                return [item for entry in index.entries for item in entry.objects], index
            return list(RemoteRecord.from_bytes(data, name).blobs), None
        except RecordError as error:
            raise Garbled(f"{self.url}: {error}; push with --fresh to begin anew") from error

    def _layers(self) -> dict[str, Layer]:
        """The image's named layers; it is read when it is first needed."""
        with self._lock:
            if self._named is None:
                found = None if self._fresh else self._registry.manifest(MANIFEST_LIMIT)
                self._named, self._objects = ({}, {}) if found is None else parse_image(found[0], self.url)
                self._was = b"" if found is None else found[0]
            return self._named

    def _layer(self, name: str) -> Layer | None:
        if not name.startswith(layout.OBJECTS):
            return self._layers().get(name)
        self._layers()
        return self._objects.get(name.rpartition("/")[2])


__all__ = ["ImageEndpoint"]
