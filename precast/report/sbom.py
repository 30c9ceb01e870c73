"""What an artifact is made of, as a software bill of materials in the two formats of the field; of one artifact always the same.

CycloneDX 1.6 (https://cyclonedx.org) and SPDX 2.3 (https://spdx.dev), both as JSON. Components: precast, torch, Triton, Python, the
compilers, the system libraries that the compiled code links, and the artifact's blobs by their digests.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from precast.artifact_store import Manifest, Store
from precast.report.linked import needed

_SPACE = uuid.UUID("5a9f6b0e-8f0e-4c0b-9c3b-2c1f2f1c7b11")
"""The name space of the documents' ids, which follow from the artifact's."""
_LICENSES = {"precast": "Apache-2.0", "torch": "BSD-3-Clause", "triton": "MIT", "python": "Python-2.0"}


@dataclass(frozen=True)
class Component:
    """`role`: "library", "tool" (needed to build, not to run), "platform" or "file"; `digest`: SHA-256, of files."""

    name: str
    version: str
    role: str
    purl: str = ""
    digest: str = ""
    note: str = ""
    licence: str = ""

    @property
    def reference(self) -> str:
        """Its name within the document."""
        return re.sub(r"[^A-Za-z0-9.-]", "-", f"{self.role}-{self.name}-{self.digest[:12] or self.version or 'any'}")


@dataclass(frozen=True)
class Materials:
    """All that a document says, in neither format."""

    manifest: Manifest
    made: float
    components: tuple[Component, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    """"vcs" (where the source is) and "build-system" (the run that built it) -> URL, as far as they are recorded."""


def materials(store: Store, manifest: Manifest) -> Materials:
    """Raises OSError where the artifact is not in the store any more."""
    provenance = manifest.provenance
    git, builder = provenance.get("git", {}), provenance.get("builder", {})
    facts = {
        "precast:program-key": manifest.program_key,
        "precast:target": manifest.target,
        "precast:guard-hash": manifest.guard_hash,
        "precast:lowering": manifest.versions.lowering,
        **{f"precast:builder:{key}": str(value) for key, value in sorted(builder.items())},
        **{f"precast:git:{key}": str(value) for key, value in sorted(git.items())},
        **{f"precast:source:{name}": f"sha-256:{digest}" for name, digest in sorted(provenance.get("sources", {}).items())},
        **{f"precast:inlined:{name.rpartition('#')[0]}": digest for name, digest in sorted(manifest.digests.items())},
    }
    links = {kind: url for kind, url in (("vcs", git.get("repository")), ("build-system", builder.get("run"))) if url}
    return Materials(manifest, store.made_at(manifest), tuple(_components(store, manifest)), facts, links)


def _components(store: Store, manifest: Manifest) -> Iterator[Component]:
    packages, versions = manifest.provenance.get("packages", {}), manifest.versions
    yield _package("precast", manifest.precast_version)
    yield _package("torch", packages.get("torch", versions.torch))
    if "triton" in packages:
        yield _package("triton", packages["triton"])
    if python := packages.get("python", versions.python):
        yield Component("python", python, "platform", f"pkg:generic/python@{python}", licence=_LICENSES["python"])
    for text in filter(None, versions.compiler.split(", ")):
        name, _, version = text.rpartition(" ")
        if not name.startswith("triton"):
            short = name.split(" ")[0] or version
            yield Component(short, version, "tool", f"pkg:generic/{short.replace('+', '%2B')}@{version}", note=text)
    linked: set[str] = set()
    for name, graph in sorted(manifest.graphs.items()):
        for role, blob in sorted(graph.blobs.items()):
            yield Component(f"{name}/{role}", "", "file", digest=blob, note=f"{manifest.blobs.get(blob, 0)} bytes")
            if role.rpartition(".")[2] == "library" and (data := store.blob(blob)) is not None:
                linked |= set(needed(data))
    for name in sorted(linked):
        yield Component(name, "", "library", note="a system library that the compiled code links; its version is the machine's")


def _package(name: str, version: str) -> Component:
    return Component(name, version, "library", f"pkg:pypi/{name}@{version.replace('+', '%2B')}", licence=_LICENSES[name])


def cyclonedx(given: Materials) -> dict[str, Any]:
    """CycloneDX 1.6."""
    manifest = given.manifest
    kinds = {"library": "library", "tool": "application", "platform": "platform", "file": "file"}

    def component(item: Component) -> dict[str, Any]:
        made: dict[str, Any] = {"type": kinds[item.role], "bom-ref": item.reference, "name": item.name}
        optional = {"version": item.version, "purl": item.purl, "description": item.note}
        made |= {key: value for key, value in optional.items() if value}
        if item.role != "file":
            made["scope"] = "excluded" if item.role == "tool" else "required"
        if item.digest:
            made["hashes"] = [{"alg": "SHA-256", "content": item.digest}]
        if item.licence:
            made["licenses"] = [{"license": {"id": item.licence}}]
        return made

    top = {
        "type": "application",
        "bom-ref": "artifact",
        "name": manifest.program_name,
        "version": manifest.artifact_id,
        "hashes": [{"alg": "SHA-256", "content": manifest.checksum}],
        "properties": [{"name": name, "value": value} for name, value in given.facts.items()],
    }
    if given.links:
        top["externalReferences"] = [{"type": kind, "url": url} for kind, url in sorted(given.links.items())]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{_id(manifest)}",
        "version": 1,
        "metadata": {"timestamp": _time(given.made), "lifecycles": [{"phase": "build"}], "component": top},
        "components": [component(item) for item in given.components],
        "dependencies": [
            {"ref": "artifact", "dependsOn": sorted({item.reference for item in given.components})},
            *({"ref": reference} for reference in sorted({item.reference for item in given.components})),
        ],
    }


def spdx(given: Materials) -> dict[str, Any]:
    """SPDX 2.3. Blobs are packages, since SPDX wants SHA-1 of files, which nobody should compare any more."""
    manifest = given.manifest

    def package(identifier: str, name: str, version: str, licence: str) -> dict[str, Any]:
        made = {"SPDXID": identifier, "name": name, "downloadLocation": "NOASSERTION", "filesAnalyzed": False}
        made |= {"licenseConcluded": "NOASSERTION", "licenseDeclared": licence or "NOASSERTION", "copyrightText": "NOASSERTION"}
        return made | ({"versionInfo": version} if version else {})

    top = package("SPDXRef-artifact", manifest.program_name, manifest.artifact_id, "")
    top |= {"primaryPackagePurpose": "APPLICATION", "checksums": [{"algorithm": "SHA256", "checksumValue": manifest.checksum}]}
    top["annotations"] = [
        {"annotationDate": _time(given.made), "annotationType": "OTHER", "annotator": _creator(manifest), "comment": f"{name}={value}"}
        for name, value in {**given.facts, **{f"precast:{kind}": url for kind, url in given.links.items()}}.items()
    ]
    packages, relations = [top], [_relation("SPDXRef-DOCUMENT", "SPDXRef-artifact", "DESCRIBES")]
    kinds = {"library": "DEPENDS_ON", "platform": "DEPENDS_ON", "tool": "BUILD_DEPENDENCY_OF", "file": "CONTAINS"}
    for item in given.components:
        identifier = f"SPDXRef-{item.reference}"
        made = package(identifier, item.name, item.version, item.licence)
        if item.purl:
            made["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": item.purl}]
        if item.digest:
            made |= {"primaryPackagePurpose": "FILE", "checksums": [{"algorithm": "SHA256", "checksumValue": item.digest}]}
        if item.note:
            made["comment"] = item.note
        packages.append(made)
        ends = ("SPDXRef-artifact", identifier)
        one, other = reversed(ends) if item.role == "tool" else ends
        relations.append(_relation(one, other, kinds[item.role]))
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{manifest.program_name} {manifest.artifact_id[:12]}",
        "documentNamespace": f"https://spdx.org/spdxdocs/precast-{manifest.artifact_id[:12]}-{_id(manifest)}",
        "creationInfo": {"created": _time(given.made), "creators": [_creator(manifest)]},
        "packages": packages,
        "relationships": relations,
    }


def _relation(one: str, other: str, kind: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _creator(manifest: Manifest) -> str:
    return f"Tool: precast-{manifest.precast_version or 'unknown'}"


def _id(manifest: Manifest) -> uuid.UUID:
    return uuid.uuid5(_SPACE, manifest.checksum)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


FORMATS: Mapping[str, Callable[[Materials], dict[str, Any]]] = {"cyclonedx": cyclonedx, "spdx": spdx}
"""By their names on the command line."""
