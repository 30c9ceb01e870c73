"""What `torch.compile(model, backend="precast")` does with a graph. torch traces and guards; precast lowers, stores and loads.

A graph's artifact is keyed by its content, so that a fresh process that
traces the same graph loads what another one compiled. Lowering and code generation are imported on the first miss only.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from precast.capture import patch_rows
from precast.capture.capture_graph import CapturedGraph, capture_graph
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.dynamo.traced_function import traced_function
from precast.capture.guards.module_registers import guard_registers, skipped
from precast.capture.guards.torch_identity import guard_identity
from precast.capture.soundness.tensor_metadata import following, unfollowed
from precast.lowering.decompositions import DECOMPOSITIONS
from precast.runtime.api.compile import StoreLike, open_store
from precast.runtime.common.errors import InProcess, LoadError, Refused, failure_level, failure_text, strict
from precast.runtime.common.log import logger, warn
from precast.runtime.common.upward_imports import COMPILE_GRAPH
from precast.runtime.executable.blob_source import MemoryBlobs
from precast.runtime.executable.constants import gpu_of
from precast.runtime.loading.stored_graph import GraphCallable, find_graph, open_graph, prepare_native
from precast.runtime.settings import stance
from precast.runtime.settings.options import CudaGraphOptions, graph_options, key_options
from precast.runtime.targets.ladder import resolve

patch_rows.require(patch_rows.ATEN)  # Dynamo traces as torch.compile has it: the rows for it are not needed

_lock = threading.Lock()
_warned: set[str] = set()


@following
def precast(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    store: StoreLike = None,
) -> Callable[..., Any]:
    """A backend for torch.compile. `mode` and `options` are precast's; those that belong to torch.compile itself are refused by name.

    Where a graph cannot be compiled, it runs as torch traced it, with one warning. Where the trace cannot be
    relied on, the frame runs as written. Raises OptionError.
    """
    merged = graph_options(mode, options)
    guard_identity()
    if stance.state.force_eager:
        return gm.forward
    name = f"torch.compile:{traced_function() or 'graph'}"
    try:
        guard_registers()
    except CaptureRefused as refused:
        _tell(name, "as written", str(refused))
        raise skipped(refused) from refused
    original = gm.forward
    if unknown := unfollowed(gm):
        _tell(name, "as written", str(unknown))
        raise unknown
    try:
        captured = capture_graph(gm, example_inputs, DECOMPOSITIONS, merged["activation_memory"])
        return _load_or_compile(name, captured, merged, store)
    except (CaptureRefused, Refused) as refused:
        return _eager(name, str(refused), original)
    except Exception as error:
        if strict():
            raise
        logger("runtime").log(failure_level(error), "%s: compiling failed", name, exc_info=True)
        return _eager(name, f"compiling it failed{failure_text(error, 'torch.compiler.reset()')}"[:500], original)


def _eager(name: str, reason: str, original: Callable[..., Any]) -> Callable[..., Any]:
    _tell(name, "as torch traced it", reason)
    return original


def _tell(name: str, how: str, reason: str) -> None:
    with _lock:
        new = reason not in _warned
        _warned.add(reason)
    if new:
        warn(f"precast: {name} runs {how}: {reason}")
    logger("runtime").info("%s: runs %s: %s", name, how, reason)


def _load_or_compile(name: str, captured: CapturedGraph, options: Mapping[str, Any], where: StoreLike) -> GraphCallable:
    store = open_store(where)
    key = f"graph-{hashlib.sha256(repr((captured.identity, sorted(key_options(options).items()))).encode()).hexdigest()[:24]}"
    cuda_graphs = CudaGraphOptions.of(options)
    device = gpu_of(node.meta.get("val") for node in captured.graph.graph.find_nodes(op="placeholder"))
    target = resolve(options["target"])
    found = find_graph(store, key, name, cuda_graphs, device)
    if found is None and store.remotes is not None:
        from precast.runtime.programs.remote_lookup import brought_for  # not where there are none

        found = brought_for(store, key, target, lambda: find_graph(store, key, name, cuda_graphs, device))
    if found is not None:
        logger("store").info("%s: hit: graph %s", name, key)
        return found
    compile_graph = COMPILE_GRAPH.load()
    native = threading.Thread(target=prepare_native, args=(store,), name="precast-native-build")
    native.start()
    try:
        outcome = compile_graph(name, key, captured, options, target, store)
    finally:
        native.join()
    try:
        if isinstance(outcome, InProcess):
            logger("runtime").info("%s: kept in this process only: %s", name, outcome.reason)
            return open_graph(outcome.manifest, MemoryBlobs(outcome.blobs), cuda_graphs)
        opened = open_graph(outcome, store, cuda_graphs)
        store.used(outcome.artifact_id)
        return opened
    except LoadError as error:
        raise Refused(f"what was compiled for it cannot be loaded: {error}") from error
