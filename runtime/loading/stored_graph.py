"""Artifacts of bare graphs, which another front end guards (`torch.compile(backend="precast")`): found by content, opened, called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from precast.artifact_store import Manifest, Store
from precast.artifact_store.format.records import TensorConstant
from precast.runtime.common.errors import LoadError
from precast.runtime.common.log import logger
from precast.runtime.executable.blob_source import BlobSource
from precast.runtime.executable.constants import gpu_of
from precast.runtime.executable.graph_call import graph_call
from precast.runtime.loading.compatibility import why_unfit
from precast.runtime.loading.open import FORWARD, open_executable, reading, trusted_document
from precast.runtime.native import loader
from precast.runtime.settings.options import CudaGraphOptions
from precast.runtime.targets.ladder import rank, rules_of
from precast.target_registry import family_of

GraphCallable = Callable[..., tuple[Any, ...]]
_RECORD = "graph record"
T = TypeVar("T")


def find_graph(
    store: Store, program_key: str, name: str, cuda_graphs: CudaGraphOptions | None = None, device: torch.device | None = None
) -> GraphCallable | None:
    """The best stored artifact of the graph that this machine can run, opened; None where there is none. Every refusal is logged.

    `device`: the GPU that its inputs are on.
    """
    return find_artifact(store, program_key, name, lambda manifest: open_graph(manifest, store, cuda_graphs), device)


def find_artifact(
    store: Store, program_key: str, name: str, opened: Callable[[Manifest], T], device: torch.device | None = None
) -> T | None:
    """What `opened` makes of the best stored artifact under this key that this machine can run; it may raise LoadError. None where there
    is none. Every refusal is logged.

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
            call = opened(manifest)
        except LoadError as error:
            logger("runtime").warning("miss: %s: artifact %s cannot be used: %s", name, manifest.artifact_id[:12], error)
            continue
        store.used(manifest.artifact_id)
        return call
    return None


def _why_not_there(target: str, device: torch.device | None) -> str:
    """Why an artifact for `target` does not run on this very device, though the machine may have another that runs it."""
    if device is None or family_of(target).on_host or rules_of(target).runs_on(target, device).holds:
        return ""
    return f"{device} does not run {target}"


def open_update(manifest: Manifest, source: BlobSource) -> Callable[..., Any]:
    """The callable of a graph without constants and outputs, as `graph_call` makes it: it has `each`. Raises LoadError."""
    opened = open_executable(trusted_document(manifest, source), source, (), record=_RECORD)
    if opened.library is None or opened.spec.raw_kinds:
        raise LoadError(f"artifact {manifest.artifact_id[:12]} is no update in place")
    return graph_call(opened.library, opened.spec, ())


def open_graph(manifest: Manifest, source: BlobSource, cuda_graphs: CudaGraphOptions | None = None) -> GraphCallable:
    """The callable of a graph's artifact: takes the graph's inputs in order, returns its outputs. Raises LoadError.

    `cuda_graphs`: replay CUDA graphs where the artifact is for a GPU.
    """
    with reading(manifest, _RECORD):
        (frame,) = manifest.frames
        constants = [TensorConstant.from_data(item) for item in frame["constants"]]
        _ = manifest.graphs[FORWARD]
    opened = open_executable(trusted_document(manifest, source), source, constants, record=_RECORD, cuda_graphs=cuda_graphs)
    calls: dict[torch.device | None, Callable[..., Any]] = {}

    floats = [item.position for item in opened.spec.inputs if item.kind == "float" and item.position is not None]

    def run(*args: Any) -> tuple[Any, ...]:
        if floats:
            args = _with_numbers(args, floats)
        device = gpu_of(args) if opened.constants.placed else None
        call = calls.get(device)
        if call is None:
            call = calls.setdefault(device, opened.bound_to(opened.constants.on(device)))
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
    loader.ensure(store)
