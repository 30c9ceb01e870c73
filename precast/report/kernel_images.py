"""Facts about kernel images in the store: architecture, size, registers, shared memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from precast.artifact_store import GraphRecord, Manifest, Store
from precast.report.units import human_size

_ROLE = re.compile(r"(?:part\d+\.)?image\d+")
_ELF = b"\x7fELF"
_PTX_HEADER = re.compile(rb"\.version\s+(\S+).*?\.target\s+(\w+)", re.DOTALL)
_ENTRY = re.compile(rb"\.entry\s+(\w+)")


@dataclass(frozen=True)
class ImageFacts:
    """`kind`: "sm_90", or "ptx 8.0 for sm_80"; `registers` and `shared` (bytes) are None where the image does not say."""

    role: str
    digest: str
    kind: str
    entry: str
    size: int
    registers: int | None
    shared: int | None

    def __str__(self) -> str:
        registers = f", {self.registers} registers" if self.registers is not None else ""
        shared = f", {human_size(self.shared)} shared" if self.shared else ""
        return f"{self.kind}, {self.entry or 'unreadable'}, {human_size(self.size)}{registers}{shared}"


def of_artifact(store: Store, manifest: Manifest) -> Iterator[ImageFacts]:
    """The images of all its graphs."""
    for graph in manifest.graphs.values():
        yield from images(store, manifest, graph)


def images(store: Store, manifest: Manifest, graph: GraphRecord) -> Iterator[ImageFacts]:
    """The images of one of the artifact's graphs that are in the store; the evidence knows their shared memory."""
    kernels = manifest.evidence.get("kernels", {})
    shared = {name: int(facts["shared"]) for name, facts in kernels.items() if isinstance(facts, Mapping) and "shared" in facts}
    for role, digest in graph.blobs.items():
        data = store.blob(digest) if _ROLE.fullmatch(role) else None
        if data is not None:
            kind, entry, registers = _elf(data) if data.startswith(_ELF) else _ptx(data)
            yield ImageFacts(role, digest, kind, entry, len(data), registers, shared.get(entry))


def _elf(data: bytes) -> tuple[str, str, int | None]:
    from precast.codegen.triton.build import cubin  # these take long to import, and only GPU artifacts need them
    from precast.codegen.triton.build.images import architecture

    return architecture(data), cubin.entry(data), cubin.registers(data)


def _ptx(data: bytes) -> tuple[str, str, int | None]:
    header, entry = _PTX_HEADER.search(data), _ENTRY.search(data)
    kind = f"ptx {header[1].decode()} for {header[2].decode()}" if header else "neither an image nor PTX"
    return kind, entry[1].decode() if entry else "", None


__all__ = ["ImageFacts", "images", "of_artifact"]
