"""References to images, and images' manifests, the registry's word being anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precast.artifact_store import StoreError
from precast.artifact_store.remote.endpoint import Garbled
from precast.artifact_store.remote.oci.image import (
    ARTIFACT_TYPE,
    MANIFEST_LIMIT,
    OBJECT_TYPE,
    PROGRAM_NOTE,
    PROGRAM_TYPE,
    RECORD_NOTE,
    RECORD_TYPE,
    Layer,
    image_manifest,
    parse_image,
)
from precast.artifact_store.remote.oci.reference import parse_reference

SHA = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "host", "name", "image"),
    [
        ("oci://127.0.0.1:5000/models:v1", "127.0.0.1:5000", "models", "v1"),
        ("oci://ghcr.io/team/models", "ghcr.io", "team/models", "latest"),
        ("OCI://ghcr.io/a/b_c/d--e:V1.0-x", "ghcr.io", "a/b_c/d--e", "V1.0-x"),
        ("oci://[::1]:5000/models:v1", "[::1]:5000", "models", "v1"),
        (f"oci://ghcr.io/models@{SHA}", "ghcr.io", "models", SHA),
        (f"oci://ghcr.io/models:v1@{SHA}", "ghcr.io", "models", SHA),
    ],
)
def test_references(text: str, host: str, name: str, image: str) -> None:
    found = parse_reference(text)
    assert (found.host, found.name, found.image) == (host, name, image)
    assert parse_reference(str(found)).image == image


@pytest.mark.parametrize(
    "text",
    [
        "oci://",
        "oci://ghcr.io",
        "oci://ghcr.io/",
        "oci:///models:v1",
        "oci://ghcr.io/Models:v1",
        "oci://ghcr.io/../models:v1",
        "oci://ghcr.io/a/../../b:v1",
        "oci://ghcr.io/a//b:v1",
        "oci://ghcr.io/models:",
        "oci://ghcr.io/models:a/b",
        "oci://ghcr.io/models:v1 ",
        "oci://ghcr.io/models@sha256:abc",
        "oci://ghcr.io/models@md5:" + "ab" * 16,
        "oci://user:secret@ghcr.io/models:v1",
        "oci://ghcr.io/models:v1?mode=ro",
        "oci://ghcr.io:port/models",
        "oci://ghcr.io/" + "a" * 256,
    ],
)
def test_what_is_no_reference_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(StoreError, match="write oci://") as caught:
        parse_reference(text)
    assert "secret" not in str(caught.value).replace(repr(text), "")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1:5000", True),
        ("127.9.9.9", True),
        ("localhost:5000", True),
        ("[::1]:5000", True),
        ("[::1]", True),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org:80", False),
        ("10.0.0.1:5000", False),
        ("ghcr.io", False),
    ],
)
def test_only_this_machine_is_asked_without_encryption(host: str, loopback: bool) -> None:
    assert parse_reference(f"oci://{host}/models:v1").loopback is loopback


NAMED = {"v1/programs/model-1": Layer("12" * 32, 40), "v1/records/native/cp311": Layer("34" * 32, 50)}
OBJECTS = [Layer("56" * 32, 60), Layer("78" * 32, 70)]


def test_an_image_reads_back_and_equal_content_is_equal_bytes() -> None:
    data = image_manifest(NAMED, OBJECTS, {"note": "x"})
    assert parse_image(data, "here") == (NAMED, {layer.digest: layer for layer in OBJECTS})
    assert data == image_manifest(dict(reversed(NAMED.items())), [*OBJECTS, *OBJECTS], {"note": "x"})
    assert b"title" not in data


def test_an_image_that_registries_would_refuse_is_not_made() -> None:
    layers = [Layer(f"{number:064x}", 5) for number in range(30_000)]
    with pytest.raises(StoreError, match="fewer artifacts") as caught:
        image_manifest({}, layers, {})
    assert str(MANIFEST_LIMIT) in str(caught.value)


def changed(**layer: Any) -> bytes:
    """An image whose second layer is otherwise."""
    image = json.loads(image_manifest(NAMED, OBJECTS, {}))
    image["layers"][1] = {**image["layers"][1], **layer}
    return json.dumps(image).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "holds no artifacts of precast"),
        (b'{"mediaType": "application/vnd.oci.image.index.v1+json"}', "image.index"),
        (json.dumps({"artifactType": ARTIFACT_TYPE}).encode(), "no list of layers"),
        (json.dumps({"artifactType": ARTIFACT_TYPE, "layers": {}}).encode(), "no list of layers"),
        (json.dumps({"artifactType": ARTIFACT_TYPE, "layers": [7]}).encode(), "no map"),
        (changed(digest="sha512:" + "ab" * 64), "no SHA-256"),
        (changed(digest="sha256:../../../etc/passwd"), "no SHA-256"),
        (changed(digest=None), "no SHA-256"),
        (changed(size=-1), "bytes"),
        (changed(size=0), "bytes"),
        (changed(size=True), "bytes"),
        (changed(size=1 << 60), "bytes"),
        (changed(size="10"), "bytes"),
        (changed(mediaType="application/vnd.oci.image.layer.v1.tar+gzip"), "does not read"),
        (changed(annotations={RECORD_NOTE: "native/../../../evil"}), "cannot be"),
        (changed(annotations={RECORD_NOTE: "leases/x"}), "cannot be"),
        (changed(annotations={RECORD_NOTE: "native"}), "cannot be"),
        (changed(annotations={RECORD_NOTE: 7}), "does not read"),
        (changed(annotations=[]), "does not read"),
        (changed(mediaType=PROGRAM_TYPE, annotations={PROGRAM_NOTE: "../evil"}), "cannot be"),
        (changed(mediaType=PROGRAM_TYPE, annotations={PROGRAM_NOTE: "model-1"}), "two layers"),
    ],
)
def test_what_a_registry_may_say_instead_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(Garbled, match=said):
        parse_image(data, "here")


def test_titles_mean_nothing() -> None:
    data = changed(annotations={RECORD_NOTE: "native/cp311", "org.opencontainers.image.title": "../../../../root/.ssh/authorized_keys"})
    assert parse_image(data, "here") == parse_image(image_manifest(NAMED, OBJECTS, {}), "here")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from([SHA, OBJECT_TYPE, RECORD_TYPE]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["digest", "size", "mediaType", "annotations", "x"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(JSON, max_size=5), st.binary(max_size=40))
def test_any_answer_is_read_or_refused(layers: list[Any], noise: bytes) -> None:
    for data in (json.dumps({"artifactType": ARTIFACT_TYPE, "layers": layers}).encode(), noise):
        try:
            named, objects = parse_image(data, "here")
        except Garbled:
            continue
        assert all(0 < layer.size for layer in (*named.values(), *objects.values()))
