"""Publishing an artifact: one compile across the threads, processes and machines that share a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from precast import __version__
from precast.artifact_store import BlobSet, GraphRecord, Guard, Manifest, Store, Versions
from precast.artifact_store.format.guards import thaw
from precast.capture import CapturedFrame
from precast.compiling.build_graph import Stopwatch
from precast.runtime.common.log import logger
from precast.runtime.programs.program import Program
from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor

PATIENCE_SECONDS = 600.0
"""How long another process is waited for that compiles the same artifact."""


@dataclass(frozen=True)
class Identity:
    """What identifies an artifact, all that is known before it is compiled.

    `frame`: the record of its calling convention and bytecode; `guards`, `waived`: what a call is checked for, and what the user chose not
    to check; `digests`: functions that were inlined -> digests of their code.
    """

    program_key: str
    program_name: str
    target: str
    versions: Versions
    options: Mapping[str, Any]
    frame: Mapping[str, Any]
    guards: Iterable[Guard] = ()
    waived: Iterable[str] = ()
    digests: Mapping[str, str] = field(default_factory=dict)

    def planned(self) -> Manifest:
        """The artifact's manifest without what its compilation produces."""
        return Manifest.make(
            program_key=self.program_key,
            program_name=self.program_name,
            target=self.target,
            versions=self.versions,
            options=self.options,
            guards=self.guards,
            frames=[self.frame],
            waived=self.waived,
            digests=self.digests,
            graphs={},
            blobs={},
            precast_version=__version__,
        )


def versions(compiler: str, bytecode: bool = True) -> Versions:
    """What compiled code of this process depends on. `bytecode`: the artifact holds some, so that Python's version counts."""
    return Versions(LOWERING_VERSION, torch=torch_minor(), python=python_minor() if bytecode else None, compiler=compiler)


def identity_of_frame(program: Program, frame: CapturedFrame, target: str, compiler: str, options: Mapping[str, Any]) -> Identity:
    """The artifact of a captured frame whose bytecode can be kept. `options`: those that decide its code."""
    assert frame.code is not None
    record = {
        "name": frame.name,
        "code": frame.code.to_data(),
        "inputs": [item.to_data() for item in frame.inputs],
        "outputs": [item.to_data() for item in frame.outputs],
        "wraps": thaw(frame.wraps),
        **({"objects": [item.to_data() for item in frame.objects]} if frame.objects else {}),
        **({} if frame.autograd is None else {"autograd": frame.autograd.to_data()}),
    }
    digests = {f"{d.module}:{d.qualname}#{d.digest[:6]}": d.digest for d in frame.digests}
    return Identity(
        program.key, program.name, target, versions(compiler), options, record, frame.guards, waived=frame.waived, digests=digests
    )


@dataclass(frozen=True)
class Built:
    """What a compilation produced: graphs by role, their blobs, evidence for the choices made, and how it came about."""

    graphs: Mapping[str, GraphRecord]
    blobs: BlobSet
    evidence: Mapping[str, Any]
    provenance: Mapping[str, Any]


@dataclass(frozen=True)
class Published:
    """What came of it. `taken`: another process had compiled it meanwhile. `kept_here`: why it was to stay in this process; `unstored`:
    that, or why the store could not be written; empty where the store has it.
    """

    manifest: Manifest
    blobs: BlobSet
    taken: bool = False
    kept_here: str = ""
    unstored: str = ""


def compile_planned(planned: Manifest, build: Callable[[], Built], watch: Stopwatch) -> tuple[Manifest, BlobSet]:
    """The whole artifact. Raises what `build` raises."""
    built = build()
    manifest = planned.completed(graphs=built.graphs, blobs=built.blobs.sizes(), evidence=built.evidence, provenance=built.provenance)
    logger("compile").info("%s: compiled artifact %s (%s)", manifest.program_name, manifest.artifact_id[:12], watch)
    return manifest, built.blobs


def publish(
    planned: Manifest,
    build: Callable[[], Built],
    store: Store,
    watch: Stopwatch,
    *,
    patience: float = PATIENCE_SECONDS,
    keep_here: Callable[[], str] = lambda: "",
) -> Published:
    """Compile the artifact and put it into `store`, unless another process did so while the lease was waited for.

    `patience`: seconds to wait for the lease; `keep_here`: asked under the lease, before the compilation, why what is compiled has to stay
    in this process ("" for no reason). Raises what `build` raises.
    """
    with watch.stage("wait"), store.lease(planned.artifact_id, timeout=patience, program_key=planned.program_key):
        known = store.get(planned.artifact_id, planned.program_key)
        if known is not None and store.serves(known):
            logger("compile").info(
                "%s: artifact %s was compiled meanwhile by another process", planned.program_name, planned.artifact_id[:12]
            )
            return Published(known, BlobSet(), taken=True)
        kept_here = keep_here()
        manifest, blobs = compile_planned(planned, build, watch)
        return Published(manifest, blobs, kept_here=kept_here, unstored=kept_here or store.try_put(manifest, blobs))
