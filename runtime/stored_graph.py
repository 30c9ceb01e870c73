"""Artifacts of bare graphs, which another front end guards (`torch.compile(backend="precast")`): found by content, opened, called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precast.artifact_store import Manifest, Store
from precast.artifact_store.errors import RecordError
from precast.artifact_store.records import GraphInput, GraphOutput, TensorConstant
from precast.runtime import native
from precast.runtime.compatibility import why_unfit
from precast.runtime.errors import LoadError
from precast.runtime.graph import GraphSpec, graph_call, is_plain, raw_kinds
from precast.runtime.graph_outputs import graph_outputs
from precast.runtime.library import load_library, load_parts
from precast.runtime.log import logger
from precast.runtime.source import BlobSource
from precast.runtime.targets import rank
from precast.runtime.variant import tensor_constant

GraphCallable = Callable[..., tuple[Any, ...]]


def find_graph(store: Store, program_key: str, name: str) -> GraphCallable | None:
    """The best stored artifact of the graph that this machine can run, opened; None where there is none. Every refusal is logged."""
    usable: list[tuple[int, Manifest]] = []
    for manifest in store.variants(program_key):
        reason = why_unfit(manifest)
        if reason:
            logger("runtime").info("%s: %s is of no use here: %s", name, manifest.artifact_id[:12], reason)
        else:
            usable.append((rank(manifest.target) or 0, manifest))
    for _, manifest in sorted(usable, key=lambda pair: pair[0]):
        try:
            call = open_graph(manifest, store)
        except LoadError as error:
            logger("runtime").warning("miss: %s: artifact %s cannot be used: %s", name, manifest.artifact_id[:12], error)
            continue
        store.used(manifest.artifact_id)
        return call
    return None


def open_graph(manifest: Manifest, source: BlobSource) -> GraphCallable:
    """The callable of a graph's artifact: takes the graph's inputs in order, returns its outputs. Raises LoadError."""
    short = manifest.artifact_id[:12]
    try:
        (frame,) = manifest.frames
        inputs = tuple(GraphInput.from_data(item) for item in frame["inputs"])
        outputs = tuple(GraphOutput.from_data(item) for item in frame["outputs"])
        constants = tuple(tensor_constant(TensorConstant.from_data(item)) for item in frame["constants"])
        graph = manifest.graphs["forward"]
    except (KeyError, TypeError, ValueError, RecordError) as error:
        raise LoadError(f"artifact {short}: its graph record cannot be read ({error})") from error
    path = source.blob_path(graph.library)
    if path is None:
        raise LoadError(f"artifact {short}: its library {graph.library[:12]}… is missing or damaged")
    finish = None if is_plain(outputs) else (lambda raw, given: graph_outputs(outputs, raw, given))
    spec = GraphSpec(inputs, raw_kinds(outputs, dict(graph.io)), finish)
    call = graph_call(load_library(graph.library, path, load_parts(graph.blobs, source.blob_path)), spec, constants)

    def run(*args: Any) -> tuple[Any, ...]:
        result: tuple[Any, ...] = call(*args)
        return result

    return run


def prepare_native(store: Store) -> None:
    """Have the native runtime at hand, built where the store has none."""
    native.ensure(store)
