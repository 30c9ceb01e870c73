"""Traces graphs without mutation, or with mutation of whole tensors only, to functional ATen graphs in one pass; AOTAutograd takes two,
and wraps every tensor.

That halves the time of this stage. Whether a graph qualifies is estimated beforehand where that is cheap, and verified on the trace: no
operator whose schema mutates, no result that aliases an input. All other graphs go through AOTAutograd.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import traceback

from precast.capture.adapters.aot_autograd import OutputType
from precast.capture.adapters.dynamo import preserve_rng_state
from precast.capture.adapters.fake_tensors import FakeTensor, disable_autocast_cache
from precast.capture.aten.aten_recorder import Recorder, Unrecorded
from precast.capture.aten.functionalize_inplace import Functional, SeenAgain, is_in_place, memory_of
from precast.capture.aten.keep_attention import attention


def functional_graph(
    gm: torch.fx.GraphModule, inputs: list[Any], decompositions: dict[Any, Callable[..., Any]], fake_mode: Any
) -> torch.fx.GraphModule | None:
    """The graph of ATen operators that AOTAutograd would make of `gm` on the fake `inputs`, but that nothing is detached in it; None where
    it has to make it."""
    if torch.is_grad_enabled() or not all(map(_is_plain, inputs)) or not all(map(_may_be_pure, gm.graph.nodes)):
        return None

    with torch.autograd.set_multithreading_enabled(False), preserve_rng_state(), fake_mode, enable_python_dispatcher():
        with traceback.preserve_node_meta(), disable_autocast_cache():
            recorder, interpreter = Recorder(inputs, decompositions), Functional(gm)
            try:
                with recorder:
                    results = interpreter.run(*inputs)
                written = [i for i, (old, new) in enumerate(zip(inputs, interpreter.given, strict=True)) if new is not old]
                graph = recorder.module([*results, *(interpreter.given[i] for i in written)])
            except (SeenAgain, Unrecorded):
                return None
    if not _is_functional(graph, len(written)):
        return None
    _write_at_the_end(graph, written)
    return graph


def metadata_of(graph: torch.fx.GraphModule) -> Any:
    """What AOTAutograd records of inputs and outputs, for a `functional_graph`: which inputs are written; no output shows an input, and
    code that would change the grad mode is not among them."""
    made = SimpleNamespace(output_type=OutputType.non_alias)
    written = {n.args[0] for n in graph.graph.find_nodes(op="call_function", target=_COPY)}
    inputs = [SimpleNamespace(mutates_data=n in written) for n in graph.graph.find_nodes(op="placeholder")]
    return SimpleNamespace(input_info=inputs, output_info=[made for _ in _results(graph)], grad_enabled_mutation=None)


def _is_plain(value: Any) -> bool:
    """A dense real tensor of constant size, with memory of its own and no lazy bit."""
    return (
        type(value) is FakeTensor
        and value.layout is torch.strided
        and not value.is_complex()
        and not value.is_neg()
        and not any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset()))
    )


def _may_be_pure(node: torch.fx.Node) -> bool:
    """Whether a node of Dynamo's graph is a call of torch's that may be expected to write nothing, or nothing that matters: `Functional`
    and `_is_functional` decide."""
    if node.op == "output" or is_in_place(node):
        return True
    if not all(map(_is_plain, _tensors(node.meta.get("example_value")))):
        return False
    if node.op in ("placeholder", "call_method"):
        return node.op == "placeholder" or not _writes(str(node.target))
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(node.target).partition(".")[0] in _NAMESPACES
    name, home = getattr(node.target, "__name__", "_"), getattr(node.target, "__module__", "")
    if home == "_operator":
        return name not in _ASSIGNING
    if home not in _HOMES or name.startswith("_") or _writes(name):
        return node.target is torch._C._log_api_usage_once
    return "out" not in node.kwargs and node.kwargs.get("inplace") is not True


def _writes(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") or name.startswith("__i") or name == "__setitem__"


_ASSIGNING = frozenset(n for n in dir(operator) if n[0] == "i" and (hasattr(operator, n[1:]) or hasattr(operator, f"{n[1:]}_")))
_ASSIGNING |= {"setitem", "delitem"}
_NAMESPACES = ("aten", "prims", "precast")
_HOMES = ("math", "torch", "torch._C._nn", "torch.functional", "torch.nn.functional", attention.__module__)


def _is_functional(graph: torch.fx.GraphModule, written: int) -> bool:
    """Whether nothing is written and no result lies in an input's memory, or in that of the last `written` ones: what inputs then hold."""
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):  # get_attr: a tensor constant, which AOTAutograd leaves as it is, too
            continue
        if node.op != "call_function" or not (node.target is operator.getitem or _writes_nothing(node.target)):
            return False
        if not all(map(_is_plain, _tensors(node.meta.get("val")))):
            return False
    results = _results(graph)
    results, held = results[: len(results) - written], results[len(results) - written :]
    if not all(isinstance(n, torch.fx.Node) for n in held) or not all(isinstance(n, torch.fx.Node) for n in results):
        return False
    given = {memory_of(n.meta["val"]) for n in (*graph.graph.find_nodes(op="placeholder"), *held)}
    return all(n.op == "call_function" and memory_of(n.meta["val"]) not in given for n in results)


def _write_at_the_end(graph: torch.fx.GraphModule, written: list[int]) -> None:
    """Takes what inputs hold in the end from the results, and copies it into them."""
    results, placeholders = _results(graph), graph.graph.find_nodes(op="placeholder")
    end, first = graph.graph.output_node(), len(results) - len(written)
    with graph.graph.inserting_before(end):
        for i, value in zip(written, results[first:], strict=True):
            graph.graph.call_function(_COPY, (placeholders[i], value)).meta["val"] = placeholders[i].meta["val"]
    end.args = (results[:first],)


_COPY = torch.ops.aten.copy_.default


def _results(graph: torch.fx.GraphModule) -> list[Any]:
    results: Any = graph.graph.output_node().args[0]
    return list(results)


def _writes_nothing(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES and not target._schema.is_mutable


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors and the symbolic numbers in what a node gives."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
        yield value
