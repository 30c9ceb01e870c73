"""Artifacts of bare graphs, which another front end guards (`torch.compile(backend="precast")`): found by content, opened, called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from precast.artifact_store import Manifest, Store
from precast.artifact_store.errors import RecordError
from precast.artifact_store.guards import freeze
from precast.artifact_store.records import GraphInput, GraphOutput, TensorConstant
from precast.runtime import native
from precast.runtime.artifact_compatibility import why_unfit
from precast.runtime.calling_convention import GraphSpec, is_plain, raw_kinds
from precast.runtime.errors import LoadError
from precast.runtime.graph_outputs import graph_outputs
from precast.runtime.library import graph_library
from precast.runtime.library_call import library_call
from precast.runtime.log import logger
from precast.runtime.options import CudaGraphOptions
from precast.runtime.source import BlobSource
from precast.runtime.subclasses import wrapped_call
from precast.runtime.targets import fits, is_cuda, rank
from precast.runtime.tensor_constants import Constants, gpu_of

GraphCallable = Callable[..., tuple[Any, ...]]


def find_graph(
    store: Store, program_key: str, name: str, cuda_graphs: CudaGraphOptions | None = None, device: torch.device | None = None
) -> GraphCallable | None:
    """The best stored artifact of the graph that this machine can run, opened; None where there is none. Every refusal is logged.

    `device`: the GPU that its inputs are on.
    """
    usable: list[tuple[int, Manifest]] = []
    for manifest in store.variants(program_key):
        reason = why_unfit(manifest) or _why_not_there(manifest.target, device)
        if reason:
            logger("runtime").info("%s: %s is of no use here: %s", name, manifest.artifact_id[:12], reason)
        else:
            usable.append((rank(manifest.target) or 0, manifest))
    for _, manifest in sorted(usable, key=lambda pair: pair[0]):
        try:
            call = open_graph(manifest, store, cuda_graphs)
        except LoadError as error:
            logger("runtime").warning("miss: %s: artifact %s cannot be used: %s", name, manifest.artifact_id[:12], error)
            continue
        store.used(manifest.artifact_id)
        return call
    return None


def _why_not_there(target: str, device: torch.device | None) -> str:
    """Why an artifact for `target` does not run on this very device, though the machine may have another that runs it."""
    if device is None or not is_cuda(target) or fits(target, torch.cuda.get_device_capability(device)):
        return ""
    return f"{device} does not run {target}"


def open_graph(manifest: Manifest, source: BlobSource, cuda_graphs: CudaGraphOptions | None = None) -> GraphCallable:
    """The callable of a graph's artifact: takes the graph's inputs in order, returns its outputs. Raises LoadError.

    `cuda_graphs`: replay CUDA graphs where the artifact is for a GPU.
    """
    short = manifest.artifact_id[:12]
    try:
        (frame,) = manifest.frames
        inputs = tuple(GraphInput.from_data(item) for item in frame["inputs"])
        outputs = tuple(GraphOutput.from_data(item) for item in frame["outputs"])
        wraps = freeze(frame.get("wraps"))
        constants = Constants(TensorConstant.from_data(item) for item in frame["constants"])
        graph = manifest.graphs["forward"]
    except (KeyError, TypeError, ValueError, RecordError) as error:
        raise LoadError(f"artifact {short}: its graph record cannot be read ({error})") from error
    try:
        library = graph_library(graph.blobs, source)
    except LoadError as error:
        raise LoadError(f"artifact {short}: {error}") from error
    finish = None if is_plain(outputs) else (lambda raw, given: graph_outputs(outputs, raw, given))
    spec = GraphSpec(inputs, raw_kinds(outputs, dict(graph.io)), finish)

    wanted = cuda_graphs if manifest.target.startswith("cuda:") else None

    def made(tensors: Sequence[torch.Tensor]) -> Callable[..., Any]:
        call = partial(library_call, manifest.program_name, library, bound=tuple(tensors), cuda_graphs=wanted)
        return wrapped_call(call, spec, wraps)

    calls: dict[torch.device | None, Callable[..., Any]] = {}

    floats = [item.position for item in inputs if item.kind == "float" and item.position is not None]

    def run(*args: Any) -> tuple[Any, ...]:
        if floats:
            args = _with_numbers(args, floats)
        device = gpu_of(args) if constants.placed else None
        call = calls.get(device)
        if call is None:
            call = calls.setdefault(device, made(constants.on(device)))
        result: tuple[Any, ...] = call(*args)
        return result

    return run


def _with_numbers(args: tuple[Any, ...], floats: Sequence[int]) -> tuple[Any, ...]:
    """The arguments with the floats that torch gives as tensors as the numbers that they are."""
    values = list(args)
    for i in floats:
        values[i] = float(values[i])
    return tuple(values)


def prepare_native(store: Store) -> None:
    """Have the native runtime at hand, built where the store has none."""
    native.ensure(store)
