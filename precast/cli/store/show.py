"""`precast show ID`: one artifact, laid open: what it is for, its guards, kernels, generated source and where it came from."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from precast.artifact_store import Manifest, RecordError, Store
from precast.artifact_store.format.text import counted, inline
from precast.cli.output import (
    Failure,
    Output,
    errors_to_json,
    finish,
    human_option,
    json_option,
    open_store,
    store_option,
)
from precast.cli.programs.chips import chip_option
from precast.cli.store.predicted_steps import print_steps
from precast.report.kernel_images import images
from precast.report.peak import peak_of
from precast.report.recorded import kept, steps
from precast.report.signers import signers_data, signers_text
from precast.report.units import human_age, human_size

SOURCES = ("host_source", "kernel_source")
SHORTEST_PREFIX = 4
LISTED = 12


@click.command(short_help="Show one artifact: guards, source, kernels, provenance.")
@click.argument("artifact", metavar="ID")
@click.option("--guards", is_flag=True, help="Print every guard, and the inlined code whose change would miss.")
@click.option("--source", is_flag=True, help="Print the generated host program and kernels.")
@click.option("--steps", "as_steps", is_flag=True, help="Print each step of the graphs: its work, and its time as it is to be expected.")
@chip_option
@click.option("--sbom", type=click.Choice(["cyclonedx", "spdx"]), help="Print what it is made of: CycloneDX 1.6 or SPDX 2.3, as JSON.")
@store_option
@human_option
@json_option
@errors_to_json
def show(
    artifact: str,
    guards: bool,
    source: bool,
    as_steps: bool,
    chip: str | None,
    sbom: str | None,
    store_path: str | None,
    human: bool,
    as_json: bool,
) -> None:
    """Show one artifact. ID may be shortened to its first characters.

    Without options: target, versions, options, guards by kind, graphs, blobs, frames, evidence and provenance. Times of --steps are
    predicted: for the GPU that stands for the target's architecture, or for --chip, and need neither that device nor a run.
    """
    out = Output(as_json, human)
    store = open_store(store_path, existing=True)
    manifest = find(store, artifact)
    try:
        if sbom is not None:
            print_sbom(store, manifest, sbom)
            finish(0)
        if as_steps:
            print_steps(out, store, manifest, chip)
            finish(0)
        if as_json:
            out.data(_record(store, manifest))
            finish(0)
        if guards:
            print_guards(out, manifest)
        if source:
            print_source(out, store, manifest)
        if not guards and not source:
            for line in overview(store, manifest):
                out.text(line)
    except RecordError as error:
        raise Failure(f"artifact {manifest.artifact_id[:12]}: {error}; `precast verify --repair` sets it aside") from error


def explain_artifact(artifact: str, store_path: str | None, as_json: bool) -> None:
    """`precast explain ID`: what must hold for a call to hit this artifact, here and now: versions and target first, then the guards."""
    out = Output(as_json)
    manifest = find(open_store(store_path, existing=True), artifact)
    rows = list(guard_lines(manifest))
    out.data({"id": manifest.artifact_id, "target": manifest.target, "versions": manifest.versions, "guards": rows})
    versions = manifest.versions
    python = f", Python {versions.python}" if versions.python else ""
    out.text(
        f"{manifest.program_name} {manifest.artifact_id[:12]} serves a call on {manifest.target} with torch {versions.torch}{python}, when:"
    )
    for path, predicate, value in rows:
        out.text(f"  {path} {predicate} {value}".rstrip())


def find(store: Store, prefix: str) -> Manifest:
    """The one artifact whose id starts with `prefix`; Failure when there is none, or more than one."""
    prefix = prefix.lower()
    if len(prefix) < SHORTEST_PREFIX:
        raise Failure(f"{prefix!r} is too short: give at least {SHORTEST_PREFIX} characters of the id (`precast ls` shows them)")
    names = [name for key in store.programs() for name in store.manifest_names(key) if name.rpartition("/")[2].startswith(prefix)]
    if not names:
        raise Failure(f"no artifact {prefix} in {store.root}; `precast ls` shows what is there")
    if len(names) > 1:
        matching = ", ".join(name.rpartition("/")[2][:16] for name in names[:5])
        raise Failure(f"{prefix} is the beginning of {len(names)} artifacts ({matching}…); give more characters")
    _, program_key, file = names[0].split("/")
    manifest = store.get(file.partition(".")[0], program_key)
    if manifest is None:
        raise Failure(f"{names[0]} cannot be read; `precast verify` says why")
    return manifest


def overview(store: Store, manifest: Manifest) -> Iterator[str]:
    """The artifact on one screen."""
    versions = manifest.versions
    created = store.made_at(manifest)
    yield f"artifact   {manifest.artifact_id}"
    yield f"program    {manifest.program_name} (key {manifest.program_key})"
    yield f"target     {manifest.target}"
    python = f", bytecode of Python {versions.python}" if versions.python else ""
    yield f"versions   torch {versions.torch}, lowering {versions.lowering}{python}, compiler {versions.compiler or 'unknown'}"
    yield f"made       {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(created))} ({human_age(created)})"
    yield f"signed by  {signers_text(store, manifest)}"
    yield f"options    {inline(manifest.options) or 'defaults'}"
    kinds = counted(predicate for _, predicate, _ in manifest.guard_rows)
    yield f"guards     {len(manifest.guard_rows)} ({kinds}), hash {manifest.guard_hash[:12]}"
    yield f"inlined    {len(manifest.digests)} functions whose change would miss"
    for waived in manifest.waived:
        yield f"waived     {waived}"
    yield f"frames     {len(manifest.frames)}: {', '.join(str(frame.get('name', '?')) for frame in manifest.frames)}"
    if (recorded := kept(manifest)) is not None:
        yield f"keeps      {recorded}"
    for name, graph in sorted(manifest.graphs.items(), reverse=True):  # forward, then backward
        yield f"graph      {name}"
        if done := steps(store, graph):
            yield f"  {'steps':<14} {done}"
        if (peak := peak_of(store, graph)) is not None:
            for number, line in enumerate(peak.lines()):
                yield f"  {'peak' if not number else '':<14} {line}"
        facts = {image.role: str(image) for image in images(store, manifest, graph)}
        for role, blob in graph.blobs.items():
            size = manifest.blobs.get(blob, 0)
            absence = store.why_absent(blob)
            yield f"  {role:<14} {blob[:12]}  {facts.get(role) or human_size(size)}{absence and f'  {absence}'}"
        yield from _tree(graph.io, 1)
    for title, record in (("evidence", manifest.evidence), ("provenance", {"precast": manifest.precast_version, **manifest.provenance})):
        yield title
        yield from _tree(record, 1)


def print_sbom(store: Store, manifest: Manifest, form: str) -> None:
    """The artifact's bill of materials, with --json and without."""
    from precast.report.sbom import FORMATS, materials

    Output(as_json=True).data(FORMATS[form](materials(store, manifest)))


def print_guards(out: Output, manifest: Manifest) -> None:
    """Every guard as `path  predicate  constant`, tab-separated for a pipe."""
    rows = list(guard_lines(manifest))
    out.table(("PATH", "MUST", "VALUE"), rows, rows)
    for name, code_digest in sorted(manifest.digests.items()):
        out.text(f"code of {name}\tdigest\t{code_digest.partition(' ')[0]}")
    for waived in manifest.waived:
        out.text(f"waived\t\t{waived}")


def guard_lines(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Guards in words, in the runtime's own (it alone knows how paths read)."""
    from precast.runtime.guards.text import guard_columns

    for path, predicate, constant in manifest.guard_rows:
        yield guard_columns(path, predicate, constant)


def print_source(out: Output, store: Store, manifest: Manifest) -> None:
    """The generated sources of every graph, each under a heading that Python and C++ both read as a comment's text."""
    for name, graph in manifest.graphs.items():
        for role in SOURCES:
            if role not in graph.blobs:
                continue
            data = store.blob(graph.blobs[role])
            out.text(f"==== {name}: {role} {graph.blobs[role][:12]} ====")
            out.text(data.decode(errors="replace") if data is not None else "(the blob is missing or damaged: `precast verify`)")


def _record(store: Store, manifest: Manifest) -> dict[str, Any]:
    """The whole artifact for --json."""
    sources: dict[str, dict[str, str | None]] = {}
    for name, graph in manifest.graphs.items():
        blobs = {role: store.blob(graph.blobs[role]) for role in SOURCES if role in graph.blobs}
        sources[name] = {role: data.decode(errors="replace") if data is not None else None for role, data in blobs.items()}
    return {
        "id": manifest.artifact_id,
        "format": manifest.format,
        "program_key": manifest.program_key,
        "program_name": manifest.program_name,
        "target": manifest.target,
        "versions": manifest.versions,
        "options": manifest.options,
        "guard_hash": manifest.guard_hash,
        "guards": [{"path": path, "predicate": predicate, "constant": constant} for path, predicate, constant in manifest.guard_rows],
        "waived": manifest.waived,
        "digests": manifest.digests,
        "frames": manifest.frames,
        "graphs": {name: {"blobs": graph.blobs, "io": graph.io} for name, graph in manifest.graphs.items()},
        "peak": {name: asdict(peak) for name, graph in manifest.graphs.items() if (peak := peak_of(store, graph)) is not None},
        "kept": asdict(recorded) if (recorded := kept(manifest)) is not None else None,
        "blobs": manifest.blobs,
        "images": {name: [asdict(image) for image in images(store, manifest, graph)] for name, graph in manifest.graphs.items()},
        "sources": sources,
        "precast": manifest.precast_version,
        "evidence": manifest.evidence,
        "provenance": manifest.provenance,
        "signed_by": signers_data(store, manifest),
    }


def _tree(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    """A map as indented lines; long lists end with their length."""
    for key, item in value.items():
        indent = "  " * depth
        if isinstance(item, Mapping) and item:
            yield f"{indent}{key}"
            yield from _tree(item, depth + 1)
        elif isinstance(item, (list, tuple)) and item and isinstance(item[0], Mapping):
            yield f"{indent}{key:<14} {len(item)}"
            yield from (f"{indent}  {inline(part)}" for part in item[:LISTED])
            if len(item) > LISTED:
                yield f"{indent}  … and {len(item) - LISTED} more"
        elif isinstance(item, (list, tuple)) and len(item) > 6:
            yield f"{indent}{key:<14} {inline(item[:3])[:-1]}, … {len(item)} in all]"
        else:
            yield f"{indent}{key:<14} {inline(item)}"
