"""Bills of materials: valid by the formats' schemas, complete, and the same each time."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from precast.artifact_store import Manifest, Store
from precast.cli.main import main
from precast.report.linked import needed
from precast.report.sbom import FORMATS, cyclonedx, materials, spdx
from tests.artifact_store.sample import make

SCHEMAS = Path(__file__).parent / "schemas"
NAMES = {"cyclonedx": "cyclonedx-1.6.json", "spdx": "spdx-2.3.json"}
PROVENANCE = {
    "packages": {"python": "3.11.7", "torch": "2.13.0+cu128", "triton": "3.6.0"},
    "builder": {"id": "nightly", "system": "Linux x86_64", "ci": "GitHub Actions", "run": "https://github.com/o/r/actions/runs/7"},
    "git": {"revision": "0" * 40, "dirty": False, "repository": "https://example.com/models.git"},
    "sources": {"service.models": "1" * 64},
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared object that needs libc and libm."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "a.c").write_text("#include <math.h>\ndouble f(double x) { return cos(x); }\n")
    command = ["gcc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", "a.so", "a.c", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "a.so").read_bytes()


@pytest.fixture(params=[PROVENANCE, {}], ids=["asked for", "of an older build"])
def artifact(request: pytest.FixtureRequest, store: Store) -> Manifest:
    manifest, blobs = make(1, provenance=request.param, precast_version="0.1.0")
    store.put(manifest, blobs)
    return manifest


@pytest.mark.parametrize("form", FORMATS)
def test_documents_are_valid_and_the_same_each_time(form: str, artifact: Manifest, store: Store) -> None:
    made = FORMATS[form](materials(store, artifact))
    jsonschema.validate(made, json.loads((SCHEMAS / NAMES[form]).read_text()))
    assert json.dumps(made) == json.dumps(FORMATS[form](materials(store, artifact)))


@pytest.mark.parametrize("form", FORMATS)
def test_references_lead_somewhere_and_are_unique(form: str, artifact: Manifest, store: Store) -> None:
    made = FORMATS[form](materials(store, artifact))
    if form == "cyclonedx":
        there = [item["bom-ref"] for item in [made["metadata"]["component"], *made["components"]]]
        named = [item["ref"] for item in made["dependencies"]]
        assert set(made["dependencies"][0]["dependsOn"]) == set(there) - {"artifact"}
        assert sorted(named) == sorted(there)
    else:
        there = [item["SPDXID"] for item in made["packages"]]
        named = [end for item in made["relationships"] for end in (item["spdxElementId"], item["relatedSpdxElement"])]
        assert set(named) == {*there, "SPDXRef-DOCUMENT"}
    assert len(set(there)) == len(there)


def test_what_it_is_made_of(store: Store, library: bytes) -> None:
    manifest, blobs = made_of(library)
    store.put(manifest, blobs)
    made = cyclonedx(materials(store, manifest))
    parts = {item["name"]: item for item in made["components"]}
    assert parts["torch"]["purl"] == "pkg:pypi/torch@2.13.0%2Bcu128" and parts["triton"]["version"] == "3.6.0"
    assert parts["python"]["type"] == "platform" and parts["precast"]["version"] == "0.1.0"
    assert {"libc.so.6", "libm.so.6"} <= parts.keys()
    assert {item["hashes"][0]["content"] for item in parts.values() if item["type"] == "file"} == set(manifest.blobs)
    top = made["metadata"]["component"]
    assert {item["type"]: item["url"] for item in top["externalReferences"]} == {
        "vcs": "https://example.com/models.git",
        "build-system": "https://github.com/o/r/actions/runs/7",
    }
    facts = {item["name"]: item["value"] for item in top["properties"]}
    assert facts["precast:git:revision"] == "0" * 40 and facts["precast:source:service.models"] == "sha-256:" + "1" * 64
    assert facts["precast:builder:id"] == "nightly"
    said = json.dumps(spdx(materials(store, manifest)))
    assert all(text in said for text in ("pkg:pypi/triton@3.6.0", "precast:git:revision=000", "libm.so.6"))


def made_of(library: bytes) -> tuple[Manifest, dict[str, bytes]]:
    """An artifact whose library is this shared object."""
    from precast.artifact_store import BlobSet, GraphRecord

    blobs = BlobSet()
    graph = GraphRecord({"library": blobs.add(library), "kernel_source": blobs.add(b"k"), "host_source": blobs.add(b"h")}, io={})
    manifest, _ = make(1, graphs={"forward": graph}, blobs=blobs.sizes(), provenance=PROVENANCE, precast_version="0.1.0")
    return manifest, dict(blobs)


def test_what_a_library_needs(library: bytes) -> None:
    assert set(needed(library)) == {"libc.so.6", "libm.so.6"}


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:100], lambda data: data[: len(data) // 2], lambda data: b"PK" + data]
)
def test_a_damaged_library_needs_nothing(damage: Any, library: bytes) -> None:
    assert needed(damage(library)) == []


def test_a_changed_byte_in_a_header_raises_nothing(library: bytes) -> None:
    for place in range(64):
        for value in (0, 0x7F, library[place] ^ 0xFF):
            assert isinstance(needed(library[:place] + bytes([value]) + library[place + 1 :]), list)


@pytest.mark.parametrize("form", FORMATS)
def test_show_prints_it(form: str, artifact: Manifest, store: Store) -> None:
    for more in ([], ["--json"]):
        shown = CliRunner().invoke(main, ["show", artifact.artifact_id, "--sbom", form, "--store", str(store.root), *more])
        assert shown.exit_code == 0, shown.output
        jsonschema.validate(json.loads(shown.stdout), json.loads((SCHEMAS / NAMES[form]).read_text()))


def test_another_format_is_wrong_usage(artifact: Manifest, store: Store) -> None:
    shown = CliRunner().invoke(main, ["show", artifact.artifact_id, "--sbom", "xml", "--store", str(store.root)])
    assert shown.exit_code == 2 and "'cyclonedx', 'spdx'" in shown.output
