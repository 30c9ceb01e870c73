"""Flattening of tensor subclasses (`__tensor_flatten__`): the graph takes and returns their inner plain tensors.

AOTAutograd traces through their dispatch. Its records of what was wrapped become the parts of inputs and the wraps of outputs.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.fx
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from precast.artifact_store.format.guards import Path
from precast.artifact_store.format.import_names import Untaggable, object_name, type_name
from precast.artifact_store.format.records import GraphInput, Wrap
from precast.artifact_store.format.tagged_constants import tag
from precast.capture.adapters.aot_autograd import (
    INNER_NUMBERS,
    OPAQUE_META,
    OutputType,
    PlainTensorMeta,
    SubclassCreationMeta,
    numbers_within,
)
from precast.capture.adapters.dtensors import is_mesh
from precast.capture.common.captured_frame import CaptureRefused
from precast.runtime.executable.subclasses import part_of


@dataclass(frozen=True)
class Part:
    """The part of Dynamo's input `index` that one placeholder takes, as in `GraphInput.part`."""

    index: int
    steps: tuple[Any, ...]


def met_subclasses(gm: torch.fx.GraphModule) -> tuple[type, ...]:
    """The classes of such tensors that enter Dynamo's graph or are made in it, of tensors inside them, and of objects in their metadata."""
    found: dict[type, None] = {}
    stack = [node.meta.get("example_value") for node in gm.graph.nodes]
    while stack:
        value = stack.pop()
        if is_traceable_wrapper_subclass(value):
            names, metadata = value.__tensor_flatten__()
            found[type(value)] = None
            found |= dict.fromkeys(_classes_in(metadata))
            stack += [getattr(value, name) for name in names]
    return tuple(sorted(found, key=type_name))


def _classes_in(metadata: Any) -> Iterator[type]:
    """Classes of metadata, whose constants and methods the dispatch may read."""
    if isinstance(metadata, type):
        yield metadata
    elif isinstance(metadata, dict | list | tuple):
        yield from (cls for held in (metadata.values() if isinstance(metadata, dict) else metadata) for cls in _classes_in(held))
    elif dataclasses.is_dataclass(metadata):
        yield from (cls for field in dataclasses.fields(metadata) for cls in _classes_in(getattr(metadata, field.name, None)))
    if isinstance(metadata, enum.Enum) or hasattr(metadata, "_fields") or dataclasses.is_dataclass(metadata):
        yield metadata if isinstance(metadata, type) else type(metadata)


def attribute_set(output: Any) -> str:
    """The name of an attribute that the traced code sets on such a tensor, "" for none; operators in the graph would not see the new
    value.
    """
    for variable, attributes in output.side_effects.store_attr_mutations.items():
        node = getattr(getattr(variable, "proxy", None), "node", None)
        if node is not None and attributes and is_traceable_wrapper_subclass(node.meta.get("example_value")):
            return str(next(iter(attributes)))
    return ""


def parts_of(inputs: Sequence[Any]) -> tuple[Part, ...]:
    """One per placeholder of the graph that AOTAutograd makes for these inputs."""
    return tuple(Part(i, steps) for i, value in enumerate(inputs) for steps in _leaves(value))


def _leaves(value: Any) -> Iterator[tuple[Any, ...]]:
    """The paths to the leaves of a value in AOTAutograd's order: the attributes (each with its own numbers where this torch passes those),
    then the symbolic sizes, then the symbolic strides. The mesh of a DTensor is a leaf.
    """
    if not is_traceable_wrapper_subclass(value):
        yield ()
        return
    for name in value.__tensor_flatten__()[0]:
        inner = getattr(value, name)
        if is_mesh(inner):
            yield (name,)
            continue
        if not isinstance(inner, torch.Tensor):
            raise CaptureRefused(f"the attribute {name} of a {type(value).__name__} is no tensor, but a {type(inner).__name__}")
        yield from ((name, *steps) for steps in _leaves(inner))
        if INNER_NUMBERS and not is_traceable_wrapper_subclass(inner):
            yield from ((name, *steps) for steps in _numbers(inner))
    yield from _numbers(value)


def _numbers(value: Any) -> Iterator[tuple[Any, ...]]:
    for kind, numbers in (("size", value.shape), ("stride", value.stride())):
        for dim, number in enumerate(numbers):
            if isinstance(number, torch.SymInt):
                if number.node.is_nested_int():
                    raise CaptureRefused(f"a {type(value).__name__} has a dimension whose lengths vary (a jagged layout)")
                yield ((kind, dim),)


@dataclass(frozen=True)
class Flat:
    """A graph on plain tensors: its inputs' values, the part that each takes, AOTAutograd's records of inputs and outputs, and what the
    caller gets (None: the outputs). `meshes`: the parts that ("mesh", i) in `wraps` speaks of.
    """

    values: list[Any]
    parts: tuple[Part, ...]
    metadata: Any
    wraps: tuple[Wrap, ...] | None
    meshes: tuple[Part, ...] = ()


def without_meshes(graph: torch.fx.GraphModule, flat: Flat) -> Flat:
    """`graph` without the device meshes that DTensors bring in and take out: they are objects, of which it computes nothing.

    Raises CaptureRefused where an operator takes one.
    """
    kept = [i for i, value in enumerate(flat.values) if not is_mesh(value)]
    if len(kept) == len(flat.values):
        return flat
    placeholders = graph.graph.find_nodes(op="placeholder")
    meshes = {placeholders[i]: flat.parts[i] for i in range(len(placeholders)) if i not in kept}
    if user := next((user for node in meshes for user in node.users if user.op != "output"), None):
        raise CaptureRefused(f"{user.target} takes a device mesh, which has no place in a stored graph")
    output = graph.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    given_back = {i: made for i, made in enumerate(results) if made in meshes}
    left = [i for i in range(len(results)) if i not in given_back]
    number = {old: new for new, old in enumerate(left)}
    output.args = (tuple(results[i] for i in left),)
    output.meta.pop("desc", None)
    for node in meshes:
        graph.graph.erase_node(node)
    order = tuple(meshes.values())
    place = {i: order.index(meshes[node]) for i, node in given_back.items()}
    wraps = None if flat.wraps is None else tuple(_renumbered(wrap, number, place) for wrap in flat.wraps)
    info = flat.metadata
    outputs = [info.output_info[i] for i in left if i < len(info.output_info)]
    outputs = [replace(o, base_idx=kept.index(o.base_idx)) if o.base_idx in kept else o for o in outputs]
    inputs = [info.input_info[i] for i in kept]
    said = SimpleNamespace(input_info=inputs, output_info=outputs, grad_enabled_mutation=info.grad_enabled_mutation)
    return Flat([flat.values[i] for i in kept], tuple(flat.parts[i] for i in kept), said, wraps, order)


def _renumbered(wrap: Wrap, number: Mapping[int, int], place: Mapping[int, int]) -> Wrap:
    """`wrap` with the graph's outputs by their new numbers, and the meshes among them by their places."""
    if isinstance(wrap, int):
        return ("mesh", place[wrap]) if wrap in place else number[wrap]
    if wrap[0] != "subclass":
        return wrap
    kind, cls, metadata, attributes, *numbers = wrap
    held = tuple((name, _renumbered(made, number, place)) for name, made in attributes)
    counted = [tuple(n if isinstance(n, int) else ("output", number[n[1]]) for n in sizes) for sizes in numbers]
    return (kind, cls, metadata, held, *counted)


def plain_inputs(inputs: Sequence[Any], parts: Sequence[Part]) -> list[Any]:
    """The values of the placeholders."""
    return [part_of(inputs[part.index], part.steps) for part in parts]


def refuse_shared(values: Sequence[Any], parts: Sequence[Part]) -> None:
    """For a graph with mutation: AOTAutograd assumes that inner tensors alias nothing. Raises CaptureRefused where they do."""
    storages = [value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor)]
    if len(storages) != len(set(storages)):
        refused = CaptureRefused("tensors within a tensor subclass share memory and the traced code writes one of them", shared_memory=True)
        refused.parts = tuple(part for part, value in zip(parts, values, strict=True) if not is_mesh(value))
        raise refused


def positions_of(inputs: Sequence[int], parts: Sequence[Part]) -> tuple[int, ...]:
    """The placeholders that take these inputs as a whole."""
    return tuple(i for i, part in enumerate(parts) if part.index in inputs and not part.steps)


def flat_inputs(inputs: Sequence[GraphInput], parts: Sequence[Part], mutated: frozenset[int]) -> list[GraphInput]:
    """The graph's inputs, where its placeholders take `parts` of `inputs`. Raises CaptureRefused."""
    whole = {part.index: i for i, part in enumerate(parts) if not part.steps}
    return [_flat(inputs, part, i in mutated, whole) for i, part in enumerate(parts)]


def positioned(wraps: Sequence[Wrap], inputs: Sequence[GraphInput], meshes: Sequence[Part]) -> tuple[Wrap, ...]:
    """`wraps` with the call's own objects by their positions among what is passed, and what modules own by its place among the objects
    that are bound (`objects_of`). Raises CaptureRefused.
    """
    return tuple(_positioned(wrap, inputs, meshes) for wrap in wraps)


def _positioned(wrap: Wrap, inputs: Sequence[GraphInput], meshes: Sequence[Part]) -> Wrap:
    if isinstance(wrap, int):
        return wrap
    kind, *rest = wrap
    if kind == "subclass":
        name, metadata, attributes, *numbers = rest
        return (kind, name, metadata, tuple((held, _positioned(made, inputs, meshes)) for held, made in attributes), *numbers)
    if kind == "dtensor":
        return (kind, *rest[:-1], _positioned(rest[-1], inputs, meshes))
    if kind == "mesh":
        part = meshes[rest[0]]
        position = inputs[part.index].position
        bound = [other for other in meshes if inputs[other.index].bound]
        return ("part", position, part.steps) if position is not None else ("object", bound.index(part))
    position = inputs[rest[0]].position
    if position is None:
        raise CaptureRefused("a tensor subclass that a module owns is written, and given back")
    return ("input", position)


def objects_of(inputs: Sequence[GraphInput], meshes: Sequence[Part]) -> tuple[GraphInput, ...]:
    """Where the meshes are that modules own, or code finds at some place: they are bound, like parameters."""
    found = [(inputs[part.index], part.steps) for part in meshes]
    return tuple(
        replace(given, path=(*given.path, *(step for name in steps for step in _path(name))), kind="object", parameter=False)
        for given, steps in found
        if given.bound
    )


def _flat(inputs: Sequence[GraphInput], part: Part, mutated: bool, whole: dict[int, int]) -> GraphInput:
    given = inputs[part.index]
    if not part.steps:
        return replace(given, mutated=mutated) if given.read is None else _read(inputs, given, whole)
    number = _is_number(part.steps[-1])
    if number and given.bound:
        raise CaptureRefused("a tensor subclass that a module owns has a size that varies", hint="mark it as static")
    if given.bound and part.steps[-1][0] == "to_local":
        raise CaptureRefused("a DTensor that a module owns records gradients in a call that records none")
    path = (*given.path, *(step for name in part.steps for step in _path(name)))
    steps = () if given.bound else part.steps
    return replace(given, path=path, kind="int" if number else "tensor", mutated=mutated, parameter=False, part=steps)


def _read(inputs: Sequence[GraphInput], given: GraphInput, whole: dict[int, int]) -> GraphInput:
    """An input that is a size of another input, renumbered: the size is read from the placeholder of that tensor, or from the object that
    the call passes.
    """
    assert given.read is not None
    kind, index, *dim = given.read
    if index in whole:
        return replace(given, read=(kind, whole[index], *dim))
    owner = inputs[index]
    if owner.bound or not dim:
        raise CaptureRefused("the place of a tensor subclass in its storage, or the size of one that a module owns, varies")
    return replace(given, read=None, position=owner.position, part=((kind, *dim),))


def _is_number(step: Any) -> bool:
    return not isinstance(step, str) and step[0] != "to_local"


def _path(step: Any) -> Path:
    if step[0] == "to_local":
        return (("attr", "_local_tensor"),)
    return (("attr", step),) if isinstance(step, str) else (("method", step[0]), ("item", ("int", step[1])))


def wraps_of(metadata: Any) -> tuple[Wrap, ...]:
    """How the caller's values are made from the graph's outputs. `metadata`: AOTAutograd's, of the graph with the subclasses.

    Raises CaptureRefused.
    """
    wraps: list[Wrap] = []
    first = 0
    for info, made in zip(metadata.output_info, metadata.subclass_fw_graph_out_meta, strict=False):
        if isinstance(made, PlainTensorMeta):
            wraps.append(first)
            first += 1 + numbers_within(made)
            continue
        wrap, first = _wrap(made, first)
        same = info.output_type is OutputType.is_input
        wraps.append(("input", info.base_idx) if same else wrap)
    return tuple(wraps)


def _wrap(made: SubclassCreationMeta, first: int) -> tuple[Wrap, int]:
    """The Wrap that rebuilds one instance from consecutive outputs beginning at `first`, and the position after its last output."""
    cls = type(made.original_subclass)
    attributes: list[tuple[str, Wrap]] = []
    for name, inner in made.attrs.items():
        if isinstance(inner, SubclassCreationMeta):
            wrap, first = _wrap(inner, first)
            attributes.append((name, wrap))
        elif isinstance(inner, PlainTensorMeta):
            attributes.append((name, first))
            first += 1 + numbers_within(inner)
        elif isinstance(inner, OPAQUE_META):  # of a mesh, which the graph gives back as it is
            attributes.append((name, first))
            first += 1
        else:
            raise CaptureRefused(f"the attribute {name} of a {cls.__name__} is no tensor")
    numbers: list[tuple[Any, ...]] = []
    for given in (made.outer_size, made.outer_stride):
        found: list[Any] = []
        for number in given:
            if isinstance(number, torch.SymInt):
                found.append(("output", first))
                first += 1
            else:
                found.append(number)
        numbers.append(tuple(found))
    try:
        return ("subclass", object_name(cls), tag(_as_in_eager(made.meta)), tuple(attributes), *numbers), first
    except Untaggable as error:
        raise CaptureRefused(f"a {cls.__name__} leaves the graph, and its metadata cannot be told to another process: {error}") from None


def _as_in_eager(metadata: Any) -> Any:
    """Metadata as eager code would make it, where the tracer has replaced constants by its own objects. A symbolic size in it is fixed."""
    if type(metadata) in (immutable_list, list):
        return [_as_in_eager(held) for held in metadata]
    if type(metadata) in (immutable_dict, dict):
        return {key: _as_in_eager(held) for key, held in metadata.items()}
    if type(metadata) in (tuple, torch.Size):
        return type(metadata)(_as_in_eager(held) for held in metadata)
    if isinstance(metadata, tuple) and hasattr(metadata, "_fields"):
        return type(metadata)(*map(_as_in_eager, metadata))
    plain = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}.get(type(metadata))
    return metadata if plain is None else plain(metadata)


__all__ = [
    "Part",
    "Flat",
    "attribute_set",
    "flat_inputs",
    "met_subclasses",
    "objects_of",
    "parts_of",
    "plain_inputs",
    "positioned",
    "positions_of",
    "refuse_shared",
    "without_meshes",
    "wraps_of",
]
