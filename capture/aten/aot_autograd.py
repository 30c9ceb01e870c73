"""AOTAutograd: Dynamo's graph -> a functional ATen graph, with a record of what its inputs and outputs alias."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from precast.artifact_store.format.records import AutogradRecord, GraphOutput, Wrap
from precast.capture.adapters.aot_autograd import (
    MutationType,
    OutputType,
    aot_stage1_graph_capture,
    create_aot_state,
    expect_activations,
    prepare,
)
from precast.capture.adapters.dtensors import is_mesh
from precast.capture.adapters.dynamo import compiled_autograd
from precast.capture.aten.functional_trace import functional_graph, metadata_of
from precast.capture.aten.grad_modes import grad_mode_for_inference_mode, views_elsewhere
from precast.capture.aten.joint.image_layout import channels_last_images
from precast.capture.aten.joint.pool_offsets import keep_offsets
from precast.capture.aten.joint.recorded_graphs import cut, halves
from precast.capture.aten.joint.softmax_statistics import drop_detach, write_out_softmax
from precast.capture.aten.keep_attention import name_attention
from precast.capture.aten.patches import PATCHES
from precast.capture.aten.untracked_sizes import sizes_expressed
from precast.capture.aten.wrong_decompositions import unrounded_statistics, without_wrong
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.common.patching import applied
from precast.capture.common.release_references import forget_random_state
from precast.capture.graph.higher_order_ops import expand_higher_order
from precast.capture.graph.output_aliases import Outputs
from precast.capture.graph.recorded_dtensors import on_local_tensors
from precast.capture.graph.recorded_outputs import viewed
from precast.capture.graph.single_device import on_one_device
from precast.capture.graph.storage_aliases import owner, shown_storage
from precast.capture.graph.subclass_flatten import Flat, Part, parts_of, plain_inputs, positions_of, refuse_shared, without_meshes, wraps_of
from precast.capture.graph.symbolic_floats import float_positions, floats_as_numbers
from precast.capture.graph.triton_launches import is_launch
from precast.capture.soundness.composite_checks import quantiles_tested
from precast.capture.soundness.tensor_metadata import views_apart

Decompositions = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True)
class AotGraph:
    """`graph`'s outputs are raw outputs only; `outputs` says what the caller gets. `mutated`: indices of inputs that the graph writes.

    `absolute`: the traced code counts offsets from the start of a storage, so that results depend on the inputs' offsets.
    `parts`: what the placeholders take, where tensor subclasses are among the inputs; `wraps`: what the caller gets, where subclasses are
    among that. None: the inputs and `outputs` themselves. `meshes`: what ("mesh", i) in `wraps` speaks of; no placeholder takes it.
    `backward`, `autograd`: of a call that records gradients, the graph of its backward pass and how the two fit together.
    """

    graph: torch.fx.GraphModule
    outputs: tuple[GraphOutput, ...]
    mutated: frozenset[int]
    absolute: bool
    parts: tuple[Part, ...] | None = None
    wraps: tuple[Wrap, ...] | None = None
    backward: torch.fx.GraphModule | None = None
    autograd: AutogradRecord | None = None
    meshes: tuple[Part, ...] = ()


def aten_graph(gm: torch.fx.GraphModule, example_inputs: list[Any], decompositions: Decompositions, memory: str = "default") -> AotGraph:
    """The graph of a call; with that of its backward pass, where eager would record one. `memory`: the option `activation_memory`.

    Must run inside the Dynamo backend callback: the live TracingContext holds the fake tensors. Raises CaptureRefused.
    """
    _drop_idle_dropout(gm)
    quantiles_tested(gm)
    floats, table = float_positions(gm), without_wrong(decompositions)
    elsewhere = views_elsewhere(gm)
    parts: tuple[Part, ...] | None = None
    wraps: tuple[Wrap, ...] | None = None
    meshes: tuple[Part, ...] = ()
    with contextlib.ExitStack() as stack:
        stack.callback(forget_random_state)
        stack.enter_context(sizes_expressed(example_inputs))
        with views_apart():
            prepared = prepare(gm, example_inputs, table)
        call, own_tensors, fake_args, descriptions, config, fake_mode, shape_env, activations = prepared
        if own_tensors:
            raise CaptureRefused("the traced code registers tensors of its own inside the graph")
        stack.enter_context(compiled_autograd._disable())
        stack.enter_context(grad_mode_for_inference_mode(gm))
        stack.enter_context(applied(PATCHES, gm))
        graph = functional_graph(gm, fake_args, table, fake_mode)
        if graph is not None:
            metadata = metadata_of(graph)
        else:
            with _chains_refused():
                state = create_aot_state(stack, call, fake_args, descriptions, config, fake_mode, shape_env)
            if activations is not None:
                expect_activations(state.fw_metadata, activations)
            flat = parts_of(fake_args)
            if len(flat) > len(fake_args) and any(info.mutates_data for info in state.fw_metadata.input_info):
                refuse_shared(plain_inputs(fake_args, flat), flat)
            captured = _captured(state, call)
            graph, metadata = captured.graph_module, state.fw_metadata
            if state.needs_autograd:
                _refuse_unsupported(state, metadata, captured, len(flat))
                if captured.maybe_subclass_meta is None and not any(map(is_mesh, fake_args)):
                    return _recorded(captured.graph_module, metadata, fake_args, fake_mode, table, elsewhere, floats, memory)
                gradients = getattr(captured.maybe_subclass_meta, "grad_input_metas", None)
                local = on_local_tensors(captured.graph_module, metadata, gradients, fake_args)
                taken = tuple(local.kept.index(i) for i in floats)
                made = _recorded(captured.graph_module, local.metadata, local.inputs, fake_mode, table, elsewhere, taken, memory)
                return replace(made, parts=local.parts, wraps=local.wraps, meshes=local.meshes)
            values = plain_inputs(fake_args, flat)
            if captured.maybe_subclass_meta is not None:
                _refuse_views_with_history(metadata)
                wraps, metadata = wraps_of(metadata), captured.maybe_subclass_meta.fw_metadata
            _refuse_unsupported(state, metadata, captured, len(values))
            if captured.maybe_subclass_meta is not None or any(map(is_mesh, values)):
                found = without_meshes(graph, Flat(values, flat, metadata, wraps))
                fake_args, parts, metadata, wraps, meshes = found.values, found.parts, found.metadata, found.wraps, found.meshes
        name_attention(graph)
        expand_higher_order(graph, fake_mode, table)
        floats_as_numbers(graph, floats if parts is None else positions_of(floats, parts), shape_env)
        absolute = _from_whole_inputs([n for n in graph.graph.nodes if _storage_offset_given(n)])
        outputs = Outputs(graph, fake_args).split(metadata, elsewhere)
        mutated = frozenset(i for i, info in enumerate(metadata.input_info) if info.mutates_data)
        _resolve_lazy_inputs(graph, absolute, mutated)
        graph.graph.eliminate_dead_code(lambda node: node.is_impure() or is_launch(node))  # torch 2.11 takes launches for pure
        on_one_device(graph, fake_mode, mutated)
    graph.recompile()
    return AotGraph(graph, outputs, mutated, absolute, parts, wraps, meshes=meshes)


def _refuse_views_with_history(metadata: Any) -> None:
    """AOTAutograd makes no backward graph for views of inputs, which autograd would see when they are taken; of what is inside of a tensor
    subclass it knows nothing.
    """
    if any(info.requires_grad and info.output_type is not OutputType.is_input for info in metadata.output_info):
        raise CaptureRefused("gradients flow through a view of a tensor subclass that is given back", hint="return a copy (clone()) of it")


def _recorded(
    joint: torch.fx.GraphModule,
    metadata: Any,
    inputs: list[Any],
    fake_mode: Any,
    table: dict[Any, Any],
    elsewhere: bool,
    floats: tuple[int, ...],
    memory: str,
) -> AotGraph:
    """The forward and the backward graph of a call that records gradients. `floats`: which inputs are floats of the call."""
    if torch.is_inference_mode_enabled():
        raise CaptureRefused(
            "the traced code leaves inference mode and records gradients", hint="call it outside of torch.inference_mode()"
        )
    if metadata.grad_enabled_mutation is not None and not torch.is_grad_enabled():
        raise CaptureRefused("the traced code records gradients in a call that does not, and leaves the grad mode changed")
    if any(_is_sparse(leaf) for n in joint.graph.nodes for leaf in pytree.tree_leaves(n.meta.get("val"))):
        raise CaptureRefused("a gradient, or a tensor that one is made of, is not dense (sparse=True)")
    with fake_mode:
        unrounded_statistics(joint.graph)
    drop_detach(joint)
    write_out_softmax(joint, fake_mode, table)
    channels_last_images(joint, fake_mode)
    keep_offsets(joint, fake_mode, table)
    forward, backward = cut(joint, metadata, memory)
    _take_floats(forward, backward, floats, fake_mode.shape_env)
    for graph in (forward, backward):
        expand_higher_order(graph, fake_mode, table)
    if any(_storage_offset_given(n) for n in backward.graph.nodes if viewed(n).op == "placeholder"):
        raise CaptureRefused("the backward pass counts offsets from the start of a tensor's storage (as_strided)")
    absolute = _from_whole_inputs([n for n in forward.graph.nodes if _storage_offset_given(n)])
    both = halves(forward, backward, metadata, inputs, elsewhere)
    for graph, mutated in ((both.graph, both.mutated), (both.backward, frozenset[int]())):
        _resolve_lazy_inputs(graph, absolute, mutated)
        graph.graph.eliminate_dead_code(lambda node: node.is_impure() or is_launch(node))
        on_one_device(graph, fake_mode, mutated)
        graph.recompile()
    return AotGraph(both.graph, both.outputs, both.mutated, absolute, backward=both.backward, autograd=both.autograd)


def _take_floats(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, positions: tuple[int, ...], shape_env: Any) -> None:
    """Floats of the call as numbers in both graphs: torch cuts the joint graph where they are tensors, and keeps these, or what was read
    off them. The backward graph takes its numbers first.
    """
    given = forward.graph.find_nodes(op="placeholder")
    names = {given[i].name for i in positions}
    read = {user.name: given[i].name for i in positions for user in given[i].users}
    floats_as_numbers(forward, positions, shape_env)
    taken = backward.graph.find_nodes(op="placeholder")
    for node in taken:
        if node.name in read:
            node._rename(read[node.name])
    floats_as_numbers(
        backward, tuple(i for i, n in enumerate(taken) if n.name in names and isinstance(n.meta["val"], torch.Tensor)), shape_env
    )
    tensors = [n for n in taken if isinstance(n.meta.get("val"), torch.Tensor)]
    for node in taken:
        if tensors and node.name in names and isinstance(node.meta["val"], torch.SymFloat):
            tensors[0].prepend(node)


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def _drop_idle_dropout(gm: torch.fx.GraphModule) -> None:
    """Dropout that is off, or drops nothing, returns its very argument; one that drops all multiplies by zero, and draws nothing. torch's
    own decomposition would copy, and draw.
    """
    calls = [n for f in (torch.nn.functional.dropout, torch.dropout) for n in gm.graph.find_nodes(op="call_function", target=f)]
    for node in calls:
        training = node.kwargs.get("training", node.kwargs.get("train", node.args[2] if len(node.args) > 2 else True))
        share = node.kwargs.get("p", node.args[1] if len(node.args) > 1 else 0.5)
        source = node.kwargs.get("input", node.args[0] if node.args else None)
        known = type(share) in (int, float)
        if not isinstance(source, torch.fx.Node):
            continue
        if training is False or (known and share == 0):
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
        elif training is True and known and share == 1:
            in_place = node.kwargs.get("inplace", node.args[3] if len(node.args) > 3 else False)
            node.target = torch.Tensor.mul_ if in_place else torch.mul
            node.args, node.kwargs = (source, 0), {}
    gm.recompile()


@contextlib.contextmanager
def _chains_refused() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "encountered a mutation on a view chain" not in str(error):
            raise
        raise CaptureRefused(
            "a view that as_strided takes of another view is written, which torch does not trace", hint="write a copy (clone()) of it"
        ) from error


def _captured(state: Any, call: Any) -> Any:
    try:
        return aot_stage1_graph_capture(state, call)
    except (AssertionError, RuntimeError) as error:
        said = str(error)
        if any(words in said for words in _SAID_OF_SHARED):
            raise CaptureRefused(_SHARED, shared_memory=True) from error
        if state.needs_autograd and said.startswith("derivative for "):
            raise CaptureRefused(f"torch has no gradient of an operator: {said}") from error
        if not state.needs_autograd or "INTERNAL ASSERT FAILED" not in said:
            raise
        refused = CaptureRefused("torch cannot trace the backward pass: an operator of it takes no sizes or numbers that vary")
        refused.symbols = True
        raise refused from error


_SAID_OF_SHARED = (
    "non-differentiable view input mutations",  # by set_, or by data that was assigned
    "outs_to_grad length",
    "has been modified by an inplace operation",
)
"""What AOTAutograd says where tensors share memory, one is written, and it has no form for that."""
_SHARED = "two inputs share memory and the traced code writes one of them"


def _refuse_unsupported(state: Any, metadata: Any, captured: Any, inputs: int) -> None:
    if metadata.tokens or state.fw_metadata.tokens:
        raise CaptureRefused("the traced code calls an operator with side effects outside of tensors")
    for i, info in enumerate((*state.fw_metadata.input_info, *metadata.input_info)):
        if info.mutation_type is MutationType.MUTATED_OUT_GRAPH and (info.mutates_metadata or not state.needs_autograd):
            raise CaptureRefused(f"graph input {i} changes its shape, strides or storage in place (such as by t_, resize_ or set_)")
    if any("resize_storage_bytes_" in str(n.target) for n in captured.graph_module.graph.nodes if n.op == "call_function"):
        raise CaptureRefused("the traced code gives or takes a tensor's memory (untyped_storage().resize_)")
    placeholders = sum(1 for n in captured.graph_module.graph.nodes if n.op == "placeholder" and "tangents" not in n.target)
    if placeholders != inputs:
        raise CaptureRefused(_SHARED, shared_memory=True)


def _resolve_lazy_inputs(graph: torch.fx.GraphModule, absolute: bool, mutated: Collection[int]) -> None:
    """The values of lazily conjugated and negated inputs, computed first: kernels read memory, which holds others."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    for i, node in enumerate(placeholders):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not (value.is_conj() or value.is_neg()):
            continue
        if absolute or i in mutated:
            raise CaptureRefused(
                f"graph input {i} is a lazily conjugated or negated view, and is written", hint="call resolve_conj() on it"
            )
        # A library call copies the values of a complex tensor. A kernel reads a real one as it lies in memory: with the other sign.
        resolve = torch.ops.aten.clone.default if value.is_complex() else torch.ops.aten.neg.default
        users = [user for user in node.users if user.op != "output"]
        with graph.graph.inserting_after(placeholders[-1]):
            made = graph.graph.call_function(resolve, (node,))
        made.meta["val"] = resolve(value)
        for user in users:
            user.replace_input_with(node, made)


_ABSOLUTE = ("aten::as_strided", "aten::as_strided_copy", "aten::as_strided_scatter")


def _storage_offset_given(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.name not in _ABSOLUTE:
        return False
    position = next(i for i, a in enumerate(node.target._schema.arguments) if a.name == "storage_offset")
    return node.kwargs.get("storage_offset") is not None or (len(node.args) > position and node.args[position] is not None)


def _from_whole_inputs(nodes: list[torch.fx.Node]) -> bool:
    """Lets calls that count from the start of an input's storage take the input itself, not a view of it; whether there are any calls."""
    for node in nodes:
        operand = node.args[0]
        assert isinstance(operand, torch.fx.Node)
        root = owner([operand], shown_storage(operand))
        if root.op != "placeholder" or root is operand:
            continue
        if node.target is torch.ops.aten.as_strided_scatter.default or root.meta["val"].dtype != operand.meta["val"].dtype:
            raise CaptureRefused("an offset into the storage of an input is applied to a view of it", hint="apply it to the input itself")
        node.replace_input_with(operand, root)
    return bool(nodes)
