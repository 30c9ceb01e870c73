"""The manifest of an image that holds artifacts, by the OCI image specification 1.1: what stands under names on any remote are its layers.

    {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
     "artifactType": "application/vnd.precast.store.v1", "config": the empty descriptor,
     "layers": [index objects of programs, named records, objects], "annotations": {figures, for people}}

The layer of an index object names its program key, that of a record its kind and name, in an annotation; an object is named by its digest
alone. No layer has a title, and none is read: there is nothing in an image that could become the path of a file. Equal content gives equal
bytes. What comes from a registry is checked here against limits, and then by the same code as on every remote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.remote import layout as remote_layout
from precast.artifact_store.remote.endpoint import Garbled
from precast.artifact_store.remote.oci.registry import MANIFEST_TYPE

ARTIFACT_TYPE = "application/vnd.precast.store.v1"
PROGRAM_TYPE = "application/vnd.precast.program.v1+msgpack+zstd"
RECORD_TYPE = "application/vnd.precast.record.v1+msgpack+zstd"
OBJECT_TYPE = "application/vnd.precast.object.v1+zstd"
PROGRAM_NOTE, RECORD_NOTE = "vnd.precast.program", "vnd.precast.record"
EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
MANIFEST_LIMIT = 4 << 20
"""Bytes of an image's manifest; registries refuse longer ones."""


@dataclass(frozen=True)
class Layer:
    """Bytes of a registry: their SHA-256 in hex, and how many."""

    digest: str
    size: int


def image_manifest(named: Mapping[str, Layer], objects: Iterable[Layer], notes: Mapping[str, str]) -> bytes:
    """The manifest of an image with these layers. `named`: by names of `layout.py`; `notes`: for people. Raises StoreError where it would
    be longer than registries take.
    """
    layers = [_named(name, layer) for name, layer in sorted(named.items())]
    layers += [_descriptor(OBJECT_TYPE, layer) for layer in sorted(set(objects), key=lambda layer: layer.digest)]
    made = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": {**_descriptor(_EMPTY_TYPE, Layer(digest(EMPTY), len(EMPTY))), "data": "e30="},
        "layers": layers,
        "annotations": dict(notes),
    }
    data = json.dumps(made, sort_keys=True, separators=(",", ":")).encode()
    if len(data) > MANIFEST_LIMIT:
        raise StoreError(
            f"an image of {len(layers)} layers has a manifest of {len(data)} bytes, and registries take {MANIFEST_LIMIT}: push "
            "fewer artifacts to one tag (--program, --target, --build)"
        )
    return data


def _named(name: str, layer: Layer) -> dict[str, Any]:
    if (key := remote_layout.key_of(name)) is not None:
        return {**_descriptor(PROGRAM_TYPE, layer), "annotations": {PROGRAM_NOTE: key}}
    return {**_descriptor(RECORD_TYPE, layer), "annotations": {RECORD_NOTE: name.removeprefix(remote_layout.RECORDS)}}


def _descriptor(media_type: str, layer: Layer) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{layer.digest}", "size": layer.size}


def parse_image(data: bytes, where: str) -> tuple[dict[str, Layer], dict[str, Layer]]:
    """What an image holds: layers by their names, and objects by digest. Raises Garbled for another kind of image, and a malformed one."""
    try:
        image = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"{where}: the image's manifest is no JSON ({error})") from error
    if not isinstance(image, dict) or image.get("artifactType") != ARTIFACT_TYPE:
        kind = (image.get("artifactType") or image.get("mediaType")) if isinstance(image, dict) else None
        raise Garbled(f"{where}: the image holds no artifacts of precast (it is {str(kind)[:100]!r}): check its name and tag")
    layers = image.get("layers")
    if not isinstance(layers, list):
        raise Garbled(f"{where}: the image has no list of layers")
    named: dict[str, Layer] = {}
    objects: dict[str, Layer] = {}
    for layer in layers:
        name, found = _parse(layer, where)
        if name is None:
            objects[found.digest] = found
        elif name in named:
            raise Garbled(f"{where}: two layers are {name}")
        else:
            named[name] = found
    return named, objects


def _parse(layer: Any, where: str) -> tuple[str | None, Layer]:
    """A layer with its name, None for an object."""
    if not isinstance(layer, dict):
        raise Garbled(f"{where}: a layer is no map")
    name, size, kind = layer.get("digest"), layer.get("size"), layer.get("mediaType")
    limit = remote_layout.MAX_BLOB if kind == OBJECT_TYPE else remote_layout.MAX_INDEX
    if not isinstance(name, str) or not name.startswith("sha256:") or not layout.is_digest(name[7:]):
        raise Garbled(f"{where}: a layer is named {str(name)[:80]!r}, which is no SHA-256")
    if type(size) is not int or not 0 < size <= limit + limit // 64 + 1024:
        raise Garbled(f"{where}: a layer has {str(size)[:40]} bytes, and at most {limit} are read")
    found, notes = Layer(name[7:], size), layer.get("annotations")
    if kind == OBJECT_TYPE:
        return None, found
    note = notes.get(PROGRAM_NOTE if kind == PROGRAM_TYPE else RECORD_NOTE) if isinstance(notes, dict) else None
    try:
        if kind == PROGRAM_TYPE and isinstance(note, str):
            return remote_layout.program_name(note), found
        if kind == RECORD_TYPE and isinstance(note, str):
            return remote_layout.record_name(*note.split("/")), found
    except (ValueError, TypeError) as error:
        raise Garbled(f"{where}: a layer names {str(note)[:80]!r}, which cannot be: {error}") from error
    raise Garbled(f"{where}: a layer is {str(kind)[:80]!r}, which this precast does not read")
