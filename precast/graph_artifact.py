"""Compiles a captured graph that has no frame (of `torch.compile(backend="precast")`) to an artifact in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precast import __version__
from precast.artifact_store import BlobSet, GraphRecord, Manifest, Store, Versions
from precast.artifact_store.guards import thaw
from precast.capture.graph_capture import CapturedGraph
from precast.graph_build import GraphRequest, Stopwatch, build_graph, compiler_version
from precast.runtime.compatibility import LOWERING_VERSION, torch_minor
from precast.runtime.errors import InProcess
from precast.runtime.log import logger
from precast.runtime.options import key_options
from precast.target_choice import target_of
from precast.trace import readable, trace_for


def compile_graph(
    name: str, key: str, captured: CapturedGraph, options: Mapping[str, Any], requested: str, store: Store
) -> Manifest | InProcess:
    """Compile the graph and put it into `store` under the program key `key`. Raises Refused where it has to run eagerly.

    `requested`: the resolved option `target`; the graph's own follows from its tensors.

    One compile per artifact across threads, processes and machines that share the store.
    """
    watch = Stopwatch()
    trace = trace_for(name, options)
    trace.dynamo_graph(captured.traced)
    trace.write("aten_graph", "py", lambda: readable(captured.graph))
    kept = key_options(options)
    target = target_of(captured.graph, requested)

    def manifest(graphs: Mapping[str, GraphRecord], blobs: BlobSet, evidence: Mapping[str, Any]) -> Manifest:
        frame = {
            "name": name,
            "inputs": [item.to_data() for item in captured.inputs],
            "outputs": [item.to_data() for item in captured.outputs],
            "constants": [item.to_data() for item in captured.constants],
            "wraps": thaw(captured.wraps),
        }
        return Manifest.make(
            program_key=key,
            program_name=name,
            target=target,
            versions=Versions(lowering=LOWERING_VERSION, torch=torch_minor(), python=None, compiler=compiler_version(target)),
            options=kept,
            guards=(),
            frames=[frame],
            graphs=graphs,
            blobs=blobs.sizes(),
            evidence=evidence,
            provenance={"seconds": dict(watch.seconds)},
            precast_version=__version__,
        )

    artifact_id = manifest({}, BlobSet(), {}).artifact_id
    with watch.stage("wait"), store.lease(artifact_id):
        known = store.get(artifact_id, key)
        if known is not None and store.complete(known):
            return known
        blobs = BlobSet()
        request = GraphRequest(name, target, kept, tuple(item.bound for item in captured.inputs), store, trace)
        record, evidence = build_graph(captured.graph, request, watch, blobs)
        made = manifest({"forward": record}, blobs, evidence)
        logger("compile").info("%s: compiled artifact %s (%s)", name, made.artifact_id[:12], watch)
        reason = store.try_put(made, blobs) if options["store_results"] else "store_results is off"
    return InProcess(made, blobs, reason) if reason else made
