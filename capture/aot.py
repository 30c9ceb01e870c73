"""AOTAutograd: Dynamo's graph -> a functional ATen graph, with a record of what its inputs and outputs alias."""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.fx
import torch.fx.node as fx_node
from torch._dynamo import compiled_autograd
from torch._functorch._aot_autograd.graph_compile import aot_stage1_graph_capture
from torch._functorch._aot_autograd.schemas import MutationType, OutputType
from torch._functorch.aot_autograd import create_aot_state, prepare_aot_module_simplified
from torch._higher_order_ops import effects
from torch._subclasses.functional_tensor import PythonFunctionalizeAPI
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from precast.artifact_store.expressions import Expression
from precast.artifact_store.records import GraphOutput
from precast.capture.attention import name_attention, whole_attention
from precast.capture.floats import float_positions, floats_as_numbers
from precast.capture.frame import CaptureRefused
from precast.capture.higher_order import expand_higher_order
from precast.capture.one_device import on_one_device
from precast.capture.one_pass import functional_graph, metadata_of
from precast.capture.sources import NotPortable
from precast.capture.symbols import SymbolTable
from precast.capture.unexpressed import sizes_expressed
from precast.capture.user_kernels import LAUNCH, is_launch, writes_known

Decompositions = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True)
class AotGraph:
    """`graph`'s outputs are raw outputs only; `outputs` says what the caller gets. `mutated`: indices of inputs that the graph writes.

    `absolute`: the traced code counts offsets from the start of a storage, so that results depend on the inputs' offsets.
    """

    graph: torch.fx.GraphModule
    outputs: tuple[GraphOutput, ...]
    mutated: frozenset[int]
    absolute: bool


def inference_graph(gm: torch.fx.GraphModule, example_inputs: list[Any], decompositions: Decompositions) -> AotGraph | None:
    """The graph of a call that records no backward; None where eager would record one.

    Must run inside the Dynamo backend callback: the live TracingContext holds the fake tensors. Raises CaptureRefused.
    """
    _drop_idle_dropout(gm)
    floats, table = float_positions(gm), dict(decompositions)
    with contextlib.ExitStack() as stack:
        stack.enter_context(sizes_expressed(example_inputs))
        prepared = _prepare(gm, example_inputs, table)
        call, own_tensors, fake_args, descriptions, config, fake_mode, shape_env, activations = prepared
        if own_tensors:
            raise CaptureRefused("the traced code registers tensors of its own inside the graph")
        stack.enter_context(compiled_autograd._disable())
        stack.enter_context(_effects_as_calls(gm))
        stack.enter_context(whole_attention(gm))
        stack.enter_context(writes_known())
        graph = functional_graph(gm, fake_args, table, fake_mode)
        if graph is not None:
            metadata = metadata_of(graph)
        else:
            state = create_aot_state(stack, call, fake_args, descriptions, config, fake_mode, shape_env)
            if state.needs_autograd:
                return None
            if activations is not None:
                state.fw_metadata.act_input_indices = activations
            captured = aot_stage1_graph_capture(state, call)
            _refuse_unsupported(state, captured, len(example_inputs))
            graph, metadata = captured.graph_module, state.fw_metadata
        name_attention(graph)
        expand_higher_order(graph, fake_mode, decompositions)
        floats_as_numbers(graph, floats, shape_env)
        absolute = _from_whole_inputs([n for n in graph.graph.nodes if _storage_offset_given(n)])
        outputs = _Outputs(graph, fake_args).split(metadata)
        mutated = frozenset(i for i, info in enumerate(metadata.input_info) if info.mutates_data)
        _resolve_lazy_inputs(graph, absolute, mutated)
        graph.graph.eliminate_dead_code(lambda node: node.is_impure() or is_launch(node))  # torch 2.11 takes launches for pure
        on_one_device(graph, fake_mode, mutated)
    graph.recompile()
    return AotGraph(graph, outputs, mutated, absolute)


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
def _effects_as_calls(gm: torch.fx.GraphModule) -> Iterator[None]:
    """Operators with effects stay in the graph as plain calls. torch threads tokens through them, to keep their order; precast keeps the
    order of operators that are not ATen's by itself, and of ATen's there are only checks, which read what they check.
    """
    called = {n.target for m in gm.modules() if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes if n.op == "call_function"}
    operators = [torch.ops.aten._linalg_check_errors.default, *(op for op in called if effects.has_effects(op))]
    with contextlib.ExitStack() as stack:
        for op in operators:
            if isinstance(op, torch._ops.HigherOrderOperator):
                continue  # these ask for their token themselves (below), and torch 2.11 keeps unused ones in a graph for their effect only
            holder: Any = torch._library.simple_registry.singleton.find(effects._get_op_qualname(op)).effect
            stack.enter_context(mock.patch.object(holder, "_effect", None))
        everything = fx_node._side_effectful_functions | {*operators, LAUNCH}
        stack.enter_context(mock.patch.object(effects, "handle_effects", _plain_call))
        stack.enter_context(mock.patch.object(fx_node, "_side_effectful_functions", everything))
        stack.enter_context(mock.patch.object(torch._library.utils, "is_impure", _is_impure))
        yield


_impure = torch._library.utils.is_impure


def _is_impure(op: Any, **given: Any) -> bool:
    """Launches of Triton kernels write; torch 2.11 does not look for higher-order operators among those with side effects. A draw moves
    the generator, read or not: what is drawn after it are eager's numbers only if it stays.
    """
    if "impure_random" in given:
        given["impure_random"] = True
    return op is LAUNCH or _impure(op, **given)


def _plain_call(allow_token_discovery: bool, tokens: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In place of `handle_effects`, for higher-order operators that always ask for a token."""
    context: Any = PythonFunctionalizeAPI()
    inner_args, inner_kwargs = context.unwrap_tensors(args), context.unwrap_tensors(kwargs)
    with context.redispatch_to_next():
        return context.wrap_tensors(op(*inner_args, **inner_kwargs))


def _prepare(gm: torch.fx.GraphModule, inputs: list[Any], decompositions: dict[Any, Callable[..., Any]]) -> tuple[Any, ...]:
    prepare: Any = prepare_aot_module_simplified
    if torch.__version__ < "2.12":  # 2.11: one more positional argument (boxed_forward_device_index), one result fewer
        made = prepare(gm, inputs, None, decompositions, True, None, False, False, force_non_lazy_backward_lowering=True)
        call, tensors, _, _, fake_args, descriptions, config, fake_mode, shape_env, _, _ = made
        return call, tensors, fake_args, descriptions, config, fake_mode, shape_env, None
    made = prepare(gm, inputs, None, decompositions, True, False, False, force_non_lazy_backward_lowering=True)
    call, tensors, _, _, fake_args, descriptions, config, fake_mode, shape_env, _, _, activations = made
    return call, tensors, fake_args, descriptions, config, fake_mode, shape_env, activations


def _refuse_unsupported(state: Any, captured: Any, inputs: int) -> None:
    metadata = state.fw_metadata
    if captured.maybe_subclass_meta is not None:
        raise CaptureRefused("a tensor subclass with its own dispatch enters or leaves the graph")
    if metadata.tokens:
        raise CaptureRefused("the traced code calls an operator with side effects outside of tensors")
    for i, info in enumerate(metadata.input_info):
        if info.mutation_type is MutationType.MUTATED_OUT_GRAPH:
            raise CaptureRefused(f"graph input {i} changes its shape, strides or storage in place (such as by t_, resize_ or set_)")
    if any("resize_storage_bytes_" in str(n.target) for n in captured.graph_module.graph.nodes if n.op == "call_function"):
        raise CaptureRefused("the traced code gives or takes a tensor's memory (untyped_storage().resize_)")
    placeholders = sum(1 for n in captured.graph_module.graph.nodes if n.op == "placeholder")
    if placeholders != inputs:
        raise CaptureRefused("two inputs share memory and the traced code writes one of them", shared_memory=True)


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
        root = _owner([operand], _storage(operand))
        if root.op != "placeholder" or root is operand:
            continue
        if node.target is torch.ops.aten.as_strided_scatter.default or root.meta["val"].dtype != operand.meta["val"].dtype:
            raise CaptureRefused("an offset into the storage of an input is applied to a view of it", hint="apply it to the input itself")
        node.replace_input_with(operand, root)
    return bool(nodes)


class _Outputs:
    """What the caller gets per position, and the raw outputs that it is made from."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> None:
        self.graph = graph
        self.inputs = inputs  # the graph's own ones are detached
        self.placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self.symbols = SymbolTable([n.meta.get("val") for n in self.placeholders])
        self.raw: list[torch.fx.Node] = []
        self.bases: dict[int, torch.fx.Node] = {}

    def split(self, metadata: Any) -> tuple[GraphOutput, ...]:
        """One GraphOutput per position; leaves in the graph the raw outputs only."""
        output_node = next(n for n in reversed(self.graph.graph.nodes) if n.op == "output")
        values = list(output_node.args[0])[: len(metadata.output_info)]
        self.bases = _shared_storages([v for v, info in zip(values, metadata.output_info, strict=True) if not _is_input_alias(info)])
        outputs = []
        for value, info in zip(values, metadata.output_info, strict=True):
            if info.output_type is OutputType.is_input:
                outputs.append(GraphOutput("input", info.base_idx))
            elif info.output_type is OutputType.alias_of_input:
                outputs.append(self._input_view(value, info))
            else:
                outputs.append(self._own(value))
        output_node.args = (tuple(self.raw),)
        output_node.meta.pop("desc", None)
        return tuple(outputs)

    def _own(self, value: Any) -> GraphOutput:
        if value is None:
            return GraphOutput("none")
        if not isinstance(value, torch.fx.Node):
            return GraphOutput("int", value=value)
        if isinstance(value.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._number(value)
        base = self.bases.get(_storage(value)) if _is_strided(value) else None
        if base is not None and base is not value and _lies_within(value, base):
            window = self._window(value.meta["val"], base.meta["val"])
            if base.op == "placeholder":
                return GraphOutput("view", self.placeholders.index(base), *window)
            return GraphOutput("output_view", self._raw_index(base), *window)
        return GraphOutput("raw", self._raw_index(value))

    def _number(self, node: torch.fx.Node) -> GraphOutput:
        """From the inputs where it can be computed from them; else the graph gives it back."""
        number = node.meta["val"]
        try:
            return GraphOutput("int", value=self.symbols.expression(number))
        except NotPortable:
            if not isinstance(number, torch.SymInt):
                raise CaptureRefused("the graph gives back a number that depends on data and is no integer") from None
            if self._counts_from_storage(number):
                return GraphOutput("int", value=self._integer(number))
            return GraphOutput("int", self._raw_index(node))

    def _counts_from_storage(self, number: torch.SymInt) -> bool:
        """Whether it is made of a storage offset that depends on data."""
        places = {str(n.meta["val"].storage_offset()) for n in self.graph.graph.nodes if _is_strided(n)}
        return any(str(symbol) in places for symbol in number.node.expr.free_symbols)

    def _raw_index(self, node: torch.fx.Node) -> int:
        if node not in self.raw:
            self.raw.append(node)
        return self.raw.index(node)

    def _window(
        self, view: torch.Tensor, base: torch.Tensor
    ) -> tuple[tuple[Expression, ...], tuple[Expression, ...], Expression, str | None]:
        """Size, stride, offset from the base's first element, and the dtype where it differs."""
        start = view.storage_offset() * view.element_size() - base.storage_offset() * base.element_size()
        if not _holds(start % view.element_size() == 0):
            raise CaptureRefused("an output reinterprets an input's bytes at an unaligned offset")
        dtype = None if view.dtype == base.dtype else str(view.dtype).removeprefix("torch.")
        if view.is_conj() != base.is_conj() or view.is_neg() != base.is_neg():
            raise CaptureRefused("an output is a lazily conjugated or negated view of an input", hint="call resolve_conj() on it")
        size, stride = tuple(map(self._integer, view.shape)), tuple(map(self._integer, view.stride()))
        return size, stride, self._integer(start // view.element_size()), dtype

    def _integer(self, size: Any) -> Expression:
        try:
            return self.symbols.expression(size, self._found)
        except NotPortable as error:
            raise _by_data() from error

    def _found(self, name: str) -> Expression:
        """A number that depends on data: where a slice or a selection at such a number begins and how long it is, or one that the graph
        gives back. (It cannot give back a storage offset: what it computes may lie in other memory.)
        """
        for node in self.graph.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and _is_symbol(value, name) and node.target not in _OFFSETS:
                return ("raw", self._raw_index(node))
            if node.target not in (torch.ops.aten.slice.Tensor, torch.ops.aten.select.int) or not _is_strided(node):
                continue
            if _is_symbol(value.storage_offset(), name):
                return self._beginning(node)
            if node.target is torch.ops.aten.slice.Tensor and _is_symbol(value.shape[_slice_arguments(node)[1]], name):
                return self._length(node)
        raise NotPortable(f"the number {name} depends on data")

    def _beginning(self, node: torch.fx.Node) -> Expression:
        """The storage offset of a slice or a selection: Python's meaning of where it starts."""
        base, dim, position, _, _ = _slice_arguments(node)
        size, stride, offset = map(self._integer, (base.shape[dim], base.stride(dim), base.storage_offset()))
        first = self._place(position, size) if node.target is torch.ops.aten.slice.Tensor else ("place", self._at(position), size, dim)
        return ("+", offset, ("*", stride, first))

    def _length(self, node: torch.fx.Node) -> Expression:
        """How many positions a slice takes."""
        base, dim, start, end, step = _slice_arguments(node)
        size = self._integer(base.shape[dim])
        span = ("max", ("-", self._place(end, size), self._place(start, size)), 0)
        return ("//", ("+", span, step - 1), step)

    def _place(self, position: Any, size: Expression) -> Expression:
        """Where a slice starts or ends: negative positions count from the end, and none lies outside."""
        at = self._at(position)
        return ("min", ("max", ("if", ("<", at, 0), ("+", at, size), at), 0), size)

    def _at(self, position: Any) -> Expression:
        return self._integer(position.meta["val"] if isinstance(position, torch.fx.Node) else position)

    def _input_view(self, value: torch.fx.Node, info: Any) -> GraphOutput:
        base = self.placeholders[info.base_idx].meta["val"]
        view = value.meta["val"]
        stand_in = base
        sequence = getattr(info.view_meta_sequence, "sequence", None)
        if sequence and not any(meta.has_symbolic_inputs for meta in sequence):
            # A mutated input's new value may be laid out otherwise than the input: the views are replayed on a stand-in for the input.
            if not _is_symbolic(base):
                stand_in = torch.empty(0, dtype=base.dtype, device="meta").set_(
                    torch.empty(base.untyped_storage().nbytes(), dtype=torch.uint8, device="meta").untyped_storage(),
                    base.storage_offset(),
                    base.shape,
                    base.stride(),
                )
            view = torch._C._functionalization.apply_view_meta_sequence(stand_in, sequence)
        window = self._window(view, stand_in)
        return GraphOutput("view", info.base_idx, *window, detach=self.inputs[info.base_idx].requires_grad and not info.requires_grad)


_OFFSETS = (torch.ops.aten.sym_storage_offset.default, torch.ops.aten.sym_storage_offset)


def _slice_arguments(node: torch.fx.Node) -> tuple[torch.Tensor, int, Any, Any, int]:
    """What a slice or a selection is taken of: the dimension, where it starts, where it ends (of a selection: nothing), its step."""
    given: list[Any] = list(node.args)
    given += [0, None, None, 1][len(given) - 1 :]
    x, dim, start, end, step = given
    assert isinstance(x, torch.fx.Node) and isinstance(dim, int) and isinstance(step, int)
    return x.meta["val"], dim, 0 if start is None else start, sys.maxsize if end is None else end, step


def _is_symbolic(value: torch.Tensor) -> bool:
    return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset()))


def _holds(condition: Any) -> bool:
    """A condition on sizes; one on symbols becomes a guard where it is not always so."""
    try:
        return bool(condition)
    except GuardOnDataDependentSymNode as error:
        raise _by_data() from error


def _lies_within(value: torch.fx.Node, base: torch.fx.Node) -> bool:
    """Whether a tensor shows nothing beyond what the owner of its storage shows. A view that data places was checked when taken."""
    try:
        return bool(_reach(value) <= _reach(base))
    except GuardOnDataDependentSymNode as error:
        if base.target is operator.getitem:  # a part of a split: the others lie beyond it
            raise _by_data() from error
        return True


def _by_data() -> CaptureRefused:
    return CaptureRefused("the size or place of an output depends on data", hint="return a copy (clone()) of that view")


def _is_symbol(number: Any, name: str) -> bool:
    return isinstance(number, torch.SymInt) and str(number.node.expr) == name


def _is_input_alias(info: Any) -> bool:
    return info.output_type in (OutputType.is_input, OutputType.alias_of_input)


def _shared_storages(values: list[Any]) -> dict[int, torch.fx.Node]:
    """Storage -> the node to return raw, for each storage that several different output nodes show."""
    groups: dict[int, list[torch.fx.Node]] = {}
    for value in values:
        if isinstance(value, torch.fx.Node) and _is_strided(value) and value not in (group := groups.setdefault(_storage(value), [])):
            group.append(value)
    shared = {key: group for key, group in groups.items() if len(group) > 1}
    return {key: _owner(group, key) for key, group in shared.items()}


def _owner(group: list[torch.fx.Node], storage: int) -> torch.fx.Node:
    """The first node that made the storage: walking views (parts of a split too) back to what they are views of."""
    node = group[0]
    while True:
        sources = node.all_input_nodes
        if node.target is operator.getitem:
            sources = sources[0].all_input_nodes
        back = [n for n in sources if _is_strided(n) and _storage(n) == storage]
        if not back:
            return node
        node = back[0]


def _is_strided(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _storage(node: torch.fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def _reach(node: torch.fx.Node) -> Any:
    """One past the last byte of the storage that the tensor shows. Parts made by unsafe_split reach past the first of them: own memory."""
    value = node.meta["val"]
    last = value.storage_offset() + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return (last + 1) * value.element_size() if not bool(value.numel() == 0) else 0
