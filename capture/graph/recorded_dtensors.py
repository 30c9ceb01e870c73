"""Calls that record gradients and have DTensors among what they take or give back: their joint graph on local tensors.

Each DTensor stands for one tensor of the graph, its local one. Autograd sees the DTensors themselves: gradients are put together to
DTensors that lie on the mesh as the traced backward pass says, and results are made by torch's own `from_local`, which is told that, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from precast.artifact_store.format.import_names import Untaggable
from precast.artifact_store.format.records import Wrap
from precast.artifact_store.format.tagged_constants import tag
from precast.capture.adapters.aot_autograd import SubclassCreationMeta
from precast.capture.adapters.dtensors import default_shard_order, is_dtensor, is_mesh
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.graph.recorded_outputs import is_own, takes_tangent, viewed
from precast.capture.graph.subclass_flatten import Part


@dataclass(frozen=True)
class OnLocals:
    """A joint graph on local tensors. `inputs`: what its primals stand for, DTensors as they are; `kept`: their positions among all that
    Dynamo's graph takes. The rest as in `AotGraph`, and AOTAutograd's records.
    """

    inputs: list[Any]
    kept: tuple[int, ...]
    metadata: Any
    parts: tuple[Part, ...]
    wraps: tuple[Wrap, ...]
    meshes: tuple[Part, ...]


def on_local_tensors(joint: torch.fx.GraphModule, metadata: Any, gradients: Sequence[Any] | None, inputs: Sequence[Any]) -> OnLocals:
    """Takes device meshes out of the joint graph. `metadata`, `gradients`: AOTAutograd's records of the call and of its inputs' gradients,
    with the DTensors in them. Raises CaptureRefused.
    """
    _refuse_unsupported(metadata, inputs)
    placeholders = joint.graph.find_nodes(op="placeholder")
    sources: dict[torch.fx.Node, Part] = {}
    taken = iter(placeholders)
    for index, value in enumerate(inputs):
        node = next(taken)
        if is_mesh(value):
            sources[node] = Part(index, ())
        elif is_dtensor(value):
            sources[next(taken)] = Part(index, ("device_mesh",))
    kept = tuple(i for i, value in enumerate(inputs) if not is_mesh(value))
    results, given, made = _results(joint, metadata, gradients, inputs, sources)
    end = joint.graph.output_node()
    end.args = (tuple(results),)
    end.meta.pop("desc", None)
    _erase_meshes(joint.graph)
    said = SimpleNamespace(
        input_info=[metadata.input_info[i] for i in kept],
        output_info=metadata.output_info,
        num_forward=len(metadata.output_info),
        num_intermediate_bases=0,
        mutated_inp_runtime_indices=[],
        static_input_indices=[kept.index(i) for i in metadata.static_input_indices or () if i in kept],
        grad_enabled_mutation=metadata.grad_enabled_mutation,
    )
    meshes = tuple(dict.fromkeys(part for _, part in made if part is not None))
    wraps = tuple(wrap if part is None else (*wrap, ("mesh", meshes.index(part))) for wrap, part in made)
    return OnLocals([inputs[i] for i in kept], kept, said, tuple(given[i] for i in kept), wraps, meshes)


def _refuse_unsupported(metadata: Any, inputs: Sequence[Any]) -> None:
    among = [*inputs, *(made.original_subclass for made in metadata.subclass_fw_graph_out_meta if isinstance(made, SubclassCreationMeta))]
    if not all(is_dtensor(value) for value in among if is_traceable_wrapper_subclass(value)):
        raise CaptureRefused("gradients are recorded through tensor subclasses other than DTensors, which is not compiled in this version")
    if not torch.is_grad_enabled():
        raise CaptureRefused("the traced code records gradients of DTensors in a call that does not record any")
    if any(info.mutates_data or info.mutates_metadata for info in metadata.input_info):
        raise CaptureRefused("a call that records gradients of DTensors writes one of its inputs")
    if metadata.num_intermediate_bases or not all(map(is_own, metadata.output_info)):
        raise CaptureRefused(_VIEW, hint="return a copy of it")
    numbers = [n for value in among if isinstance(value, torch.Tensor) for n in (*value.shape, *value.stride())]
    if not all(type(n) is int for n in (*numbers, *(i for i in inputs if isinstance(i, torch.SymInt | torch.SymFloat)))):
        refused = CaptureRefused("a call that records gradients of DTensors has a size or number that varies")
        refused.symbols = True
        raise refused


_VIEW = "a call that records gradients of DTensors gives back an input, or a view"
Made = tuple[Any, Part | None]
"""A wrap, and where the mesh in it comes from."""


def _results(
    joint: torch.fx.GraphModule, metadata: Any, gradients: Sequence[Any] | None, inputs: Sequence[Any], sources: dict[torch.fx.Node, Part]
) -> tuple[list[Any], list[Part], list[Made]]:
    """The graph's results and gradients on local tensors, the part of each input that the graph takes, and what results are made to."""
    values = iter(pytree.tree_leaves(joint.graph.output_node().args, is_leaf=lambda value: value is None))
    tangents = iter(metadata.traced_tangents)
    results: list[Any] = []
    made: list[Made] = []
    for info, created in zip(metadata.output_info, metadata.subclass_fw_graph_out_meta, strict=True):
        tangent = next(tangents) if takes_tangent(info) else None
        results.append(next(values))
        if isinstance(results[-1], torch.fx.Node) and viewed(results[-1]).op == "placeholder":
            raise CaptureRefused(_VIEW, hint="return a copy of it")
        if not isinstance(created, SubclassCreationMeta):
            made.append((len(results) - 1, None))
            continue
        mesh = sources.get(next(values))
        if mesh is None:
            raise CaptureRefused("a result is a DTensor on a mesh that is none of the inputs")
        laid = None if tangent is None else _placements(tangent._spec.placements)
        size, stride = tuple(created.outer_size), tuple(created.outer_stride)
        made.append((("dtensor", len(results) - 1, _laid_out(created), size, stride, laid), mesh))
    given: list[Part] = []
    for index, (value, created) in enumerate(zip(inputs, gradients or (None,) * len(inputs), strict=True)):
        gradient = next(values)
        steps: tuple[Any, ...] = ("_local_tensor",) if is_dtensor(value) else ()
        if isinstance(created, SubclassCreationMeta):
            next(values)
            steps = (("to_local", _placements(created.meta[0]), tuple(created.outer_size), tuple(created.outer_stride)),)
        given.append(Part(index, steps))
        if not is_mesh(value):
            results.append(gradient)
    return results, given, made


def _laid_out(created: Any) -> Any:
    """How a DTensor that the graph gives back lies on its mesh. Raises CaptureRefused where `from_local` cannot say so."""
    placements, _, order, _ = created.meta
    if order != default_shard_order(placements):
        raise CaptureRefused("a call that records gradients gives back a DTensor whose shards are in an order of their own")
    return _placements(placements)


def _placements(placements: Any) -> Any:
    try:
        return tag(tuple(placements))
    except Untaggable as error:
        raise CaptureRefused(f"a DTensor that records gradients: {error}") from None


def _erase_meshes(graph: torch.fx.Graph) -> None:
    for node in reversed([n for n in graph.nodes if is_mesh(n.meta.get("val"))]):
        if node.users:
            raise CaptureRefused(f"{next(iter(node.users)).target} takes a device mesh, which has no place in a stored graph")
        graph.erase_node(node)


__all__ = ["OnLocals", "on_local_tensors"]
