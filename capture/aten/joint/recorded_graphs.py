"""A call that records gradients: AOTAutograd's joint graph -> a forward graph and a backward graph, and how they fit together."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy

from precast.artifact_store.format.records import AutogradRecord, GraphInput, GraphOutput
from precast.capture.adapters.partitioners import min_cut_rematerialization_partition
from precast.capture.aten.effects import draws
from precast.capture.aten.joint import recomputation
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.graph.lift_constants import lift_constants
from precast.capture.graph.output_aliases import Outputs
from precast.capture.graph.recorded_outputs import RecordedOutputs, is_view


@dataclass(frozen=True)
class Halves:
    """A joint graph in two: `graph` computes what the caller gets (its `outputs`) and what `backward` needs."""

    graph: torch.fx.GraphModule
    outputs: tuple[GraphOutput, ...]
    mutated: frozenset[int]
    backward: torch.fx.GraphModule
    autograd: AutogradRecord


def cut(joint: torch.fx.GraphModule, metadata: Any, memory: str) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The forward and the backward graph: what is cheap is computed again rather than kept. `memory`: as for `recomputation.choose`."""
    recomputation.choose(joint, metadata.num_forward, memory)
    _keep_what_is_drawn(joint)
    _compute_floats_again(joint)
    forward, backward = min_cut_rematerialization_partition(
        joint, (), num_fwd_outputs=metadata.num_forward, static_lifetime_input_indices=list(metadata.static_input_indices or ())
    )
    return forward, backward


def _keep_what_is_drawn(joint: torch.fx.GraphModule) -> None:
    """Random numbers inside of `torch.utils.checkpoint` are kept for the backward graph, where the rest is computed again: drawing them
    again would need the generator's state of then.
    """
    for node in joint.graph.nodes:
        if "recompute" in node.meta and draws(node):
            for kept in (node, *(user for user in node.users if user.target is operator.getitem)):
                kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _compute_floats_again(joint: torch.fx.GraphModule) -> None:
    """What is computed of floats of the call: the backward graph takes the floats themselves."""
    for node in joint.graph.nodes:
        computed = node.op == "call_function" and node.target is not torch.ops.aten._local_scalar_dense.default
        if computed and isinstance(node.meta.get("val"), torch.SymFloat):
            recomputation.compute_again(node)


def halves(
    forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, metadata: Any, inputs: list[Any], views_elsewhere: bool
) -> Halves:
    """The two graphs with their records. `inputs`: the fake tensors of the forward graph's placeholders. Raises CaptureRefused."""
    outputs = RecordedOutputs(forward, inputs)
    taken = [n for n in backward.graph.nodes if n.op == "placeholder"]
    kept = list(outputs.end.args[0])[metadata.num_forward :]
    numbers = [n for n in kept if not isinstance(n.meta.get("val"), torch.Tensor)]
    tensors = [n for n in kept if isinstance(n.meta.get("val"), torch.Tensor)]
    made, written = outputs.record(metadata, views_elsewhere)
    if len(taken) != len(kept) + len(outputs.tangents) or [n.name for n in taken[: len(kept)]] != [n.name for n in (*numbers, *tensors)]:
        refused = CaptureRefused("the backward graph takes something that is neither saved by the forward graph nor a gradient")
        refused.symbols = True
        raise refused
    if any(n.target is torch.ops.aten.copy_.default for n in backward.graph.nodes):
        raise CaptureRefused("the backward pass writes a tensor of the forward pass")
    mutated = frozenset(
        i for i, n in enumerate(outputs.placeholders) if any(u.target is torch.ops.aten.copy_.default and u.args[0] is n for u in n.users)
    )
    tensors = _without_views(tensors, backward, {id(n) for n in (*outputs.raw, *outputs.placeholders)})
    saved = outputs.keep(tensors, mutated | {index for index, _, _ in written})
    places = [n for n in backward.graph.nodes if n.op == "placeholder"][len(numbers) :]
    for node, place in zip(tensors, places, strict=False):
        if node in outputs.copied:
            place.meta["val"] = outputs.copied[node].meta["val"]
            _views_anew(place)
    integers = tuple(outputs.number(n) for n in numbers)
    outputs.finish()
    wanted = tuple(i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.requires_grad)
    tangents = [n for n in backward.graph.nodes if n.op == "placeholder"][len(numbers) + len(tensors) :]
    orders = tuple((index, *_layout(node.meta["val"])) for index, node in zip(outputs.tangents, tangents, strict=True))
    reached = _reached(backward, wanted, tangents)
    gradients = _gradients(backward, wanted)
    count = len(numbers) + len(tensors) + len(tangents)
    with _disable_current_modes():
        backward, constants = lift_constants(backward, count)
    kinds: list[Any] = ["float" if isinstance(n.meta["val"], torch.SymFloat) else "int" for n in numbers]
    kinds += ["tensor"] * (len(tensors) + len(tangents))
    given = [GraphInput((("input", i),), False, i, kind) for i, kind in enumerate(kinds)]
    given += [GraphInput((("constant", i),), True, None, "constant") for i in range(len(constants))]
    record = AutogradRecord(tuple(outputs.results), wanted, saved, integers, orders, written, tuple(given), gradients, constants, reached)
    return Halves(forward, made, mutated, backward, record)


def _without_views(saved: Sequence[torch.fx.Node], backward: torch.fx.GraphModule, kept: set[int]) -> list[torch.fx.Node]:
    """What is saved, without views of tensors that are there anyway, or are no larger: the backward graph takes these views itself."""
    placeholders = {n.name: n for n in backward.graph.nodes if n.op == "placeholder"}
    first = next(n for n in backward.graph.nodes if n.op != "placeholder")
    known = kept | {id(node) for node in saved}
    chains = {node: _views_down_to(node, known) for node in saved}
    taken = {node: placeholders[node.name] for node in saved if not chains[node]}  # what is saved -> the backward graph's placeholder
    for node, chain in chains.items():
        if not chain:
            continue
        base, old = chain[-1].args[0], placeholders[node.name]
        assert isinstance(base, torch.fx.Node)
        if base not in taken:
            with backward.graph.inserting_before(old):
                taken[base] = backward.graph.placeholder(f"saved_{base.name}")
            taken[base].meta["val"] = base.meta["val"]
        value = taken[base]
        for step in reversed(chain):
            with backward.graph.inserting_before(first):
                copied = backward.graph.call_function(step.target, (value, *step.args[1:]), dict(step.kwargs))  # type: ignore[arg-type]
            copied.meta["val"] = step.meta["val"]
            value = copied
        old.replace_all_uses_with(value)
        backward.graph.erase_node(old)
    places = {node: i for i, node in enumerate(backward.graph.nodes)}
    return sorted(taken, key=lambda node: places[taken[node]])


def _views_down_to(node: torch.fx.Node, known: set[int]) -> list[torch.fx.Node]:
    """The views from the node down to the first one of a tensor that is kept anyway, or is no larger; empty where it stays itself."""
    chain: list[torch.fx.Node] = []
    found: list[torch.fx.Node] = []
    view = node
    while isinstance(node.target, torch._ops.OpOverload) and is_view(node) and len(node.all_input_nodes) == 1:
        chain.append(node)
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        if id(source) in known or not is_view(source) and _no_larger(source, view):
            found = list(chain)
        node = source
    return found


def _no_larger(base: torch.fx.Node, view: torch.fx.Node) -> bool:
    sizes = [base.meta["val"].numel(), view.meta["val"].numel()]
    return all(isinstance(n, int) for n in sizes) and bool(sizes[0] <= sizes[1])


def restride(place: torch.fx.Node, stride: Sequence[int]) -> None:
    """Gives a placeholder's value these strides, and its views those that follow."""
    value = place.meta["val"]
    if tuple(value.stride()) != tuple(stride):
        place.meta["val"] = value.new_empty_strided(value.shape, tuple(stride))
        _views_anew(place)


def _views_anew(node: torch.fx.Node) -> None:
    """The values of views of a node whose value has other strides than it had."""
    for user in node.users:
        if is_view(user) and user.args[0] is node:
            args, kwargs = torch.fx.node.map_arg((user.args, user.kwargs), lambda n: n.meta["val"])
            mode: Any = getattr(node.meta["val"], "fake_mode", None)  # none: the parts of a split
            with mode or contextlib.nullcontext():
                user.meta["val"] = user.target(*args, **kwargs)  # type: ignore[operator]
            _views_anew(user)


def _layout(value: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The order of a dense tensor's dimensions in memory, outermost first; and its strides where it is not dense."""
    size, stride = [_known(n) for n in value.shape], [_known(n) for n in value.stride()]
    dims = range(len(size))
    order = tuple(dims)
    if None not in size and None not in stride:
        order = tuple(sorted(dims, key=lambda d: (-(stride[d] or 0), -(size[d] or 0), d)))
        if value.numel() and any(size[d] != 1 and stride[d] != step for d, step in zip(order, _steps(order, size), strict=True)):
            if any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride())):
                raise CaptureRefused("a gradient that the backward graph takes is not dense, and of a size that varies")
            return order, tuple(value.stride())
    return order, ()


def _steps(order: Sequence[int], size: Sequence[Any]) -> list[int]:
    """Strides of dense dimensions in that order."""
    steps = [1] if order else []
    for dim in reversed(order[1:]):
        steps.append(steps[-1] * max(size[dim], 1))
    return steps[::-1]


def _known(number: Any) -> int | None:
    """A size or stride of this very call; None where it depends on data. AOTAutograd lays gradients out by the memory format that it
    suggests for them, which guards pin.
    """
    if isinstance(number, int):
        return number
    hint = number.node.hint
    return int(hint) if hint is not None else None


def _reached(backward: torch.fx.GraphModule, wanted: Sequence[int], tangents: Sequence[torch.fx.Node]) -> tuple[tuple[int, ...], ...]:
    """For each wanted gradient which of the tangents it is made of; () where that is all of them, or none."""
    made_of = {node: 1 << i for i, node in enumerate(tangents)}  # as bits
    for node in backward.graph.nodes:
        if node not in made_of:
            made_of[node] = functools.reduce(operator.or_, [made_of[source] for source in node.all_input_nodes], 0)
    end: Any = next(n for n in reversed(backward.graph.nodes) if n.op == "output").args[0]
    every = (1 << len(tangents)) - 1
    found = [made_of[end[i]] if isinstance(end[i], torch.fx.Node) else 0 for i in wanted]
    return tuple(() if bits == every else tuple(i for i in range(len(tangents)) if bits >> i & 1) for bits in found)


def _gradients(backward: torch.fx.GraphModule, wanted: Sequence[int]) -> tuple[GraphOutput, ...]:
    """The gradients of the inputs that require them; the graph gives the raw outputs only."""
    end = next(n for n in reversed(backward.graph.nodes) if n.op == "output")
    values: Any = end.args[0]
    return Outputs(backward, []).of_values([values[i] for i in wanted])


__all__ = ["Halves", "cut", "halves", "restride"]
