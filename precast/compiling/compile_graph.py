"""Compiles a captured graph that has no frame (of `torch.compile(backend="precast")`) to an artifact in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precast.artifact_store import BlobSet, Manifest, Store
from precast.artifact_store.format.guards import thaw
from precast.capture.capture_graph import CapturedGraph
from precast.compiling.build_graph import GraphRequest, Stopwatch, build_graphs, compiler_version
from precast.compiling.publish import Built, Identity, publish, versions
from precast.compiling.target_choice import target_of
from precast.report.trace_folder import readable, trace_for
from precast.runtime.common.errors import InProcess
from precast.runtime.settings.options import built_by, key_options


def compile_graph(
    name: str, key: str, captured: CapturedGraph, options: Mapping[str, Any], requested: str, store: Store, *, updates: bool = False
) -> Manifest | InProcess:
    """Compile the graph and put it into `store` under the program key `key`. Raises Refused where it has to run eagerly.

    `requested`: the resolved option `target`; the graph's own follows from its tensors. `updates`: it is an optimiser's step.

    One compile per artifact across threads, processes and machines that share the store.
    """
    watch = Stopwatch()
    trace = trace_for(name, options)
    trace.dynamo_graph(captured.traced)
    trace.write("aten_graph", "py", lambda: readable(captured.graph))
    kept = key_options(options)
    target = target_of(captured.graph, requested)

    frame = {
        "name": name,
        "inputs": [item.to_data() for item in captured.inputs],
        "outputs": [item.to_data() for item in captured.outputs],
        "constants": [item.to_data() for item in captured.constants],
        "wraps": thaw(captured.wraps),
        **({} if captured.autograd is None else {"autograd": captured.autograd.to_data()}),
    }

    def build() -> Built:
        blobs = BlobSet()
        request = GraphRequest(
            name, target, built_by(options), tuple(item.bound for item in captured.inputs), store, trace, updates=updates
        )
        graphs, evidence = build_graphs(captured.graph, captured.backward, captured.autograd, request, watch, blobs)
        return Built(graphs, blobs, evidence, {"seconds": dict(watch.seconds)})

    planned = Identity(key, name, target, versions(compiler_version(target), bytecode=False), kept, frame).planned()
    unkept = "" if options["store_results"] else "store_results is off"
    published = publish(planned, build, store, watch, keep_here=lambda: unkept)
    return InProcess(published.manifest, published.blobs, published.unstored) if published.unstored else published.manifest
