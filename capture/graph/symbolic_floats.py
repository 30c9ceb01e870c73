"""Floats of a call that vary: torch hands them to a graph as tensors and reads these there; precast's graphs take them as they are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils._sympy.functions import FloatTrueDiv, FloorToInt

from precast.artifact_store.format.guards import Guard, Predicate
from precast.artifact_store.format.records import GraphInput
from precast.capture.adapters.dynamo import config as dynamo_config
from precast.capture.adapters.guards import NumpyTensorSource, RandomValueSource
from precast.capture.adapters.variables import VariableBuilder, VariableTracker
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.common.patching import patched


def is_float(argument: Any) -> bool:
    """Whether torch hands it to the graph as a tensor of a float of the call. (A drawn number is a tensor in precast, too, and so are
    arrays and scalars of numpy.)
    """
    return bool(argument.pass_arg_as_tensor) and not isinstance(argument.source, RandomValueSource | NumpyTensorSource)


def float_positions(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """Which of the inputs of Dynamo's graph are such floats. In a part of a graph that torch splits (`optimize_ddp`) inputs are values of
    other parts, and tensors.
    """
    arguments = [node.meta.get("grapharg") for node in gm.graph.find_nodes(op="placeholder")]
    return tuple(i for i, argument in enumerate(arguments) if argument is not None and is_float(argument))


def finite(inputs: Sequence[GraphInput]) -> list[Guard]:
    """Symbolic floats are finite: infinities and NaN are captured as the constants that they are, as in torch."""
    expression = ("<=", ("abs", ("int", 0)), sys.float_info.max)
    return [Guard((("state",),), Predicate.SHAPE, {"expr": expression, "paths": (i.path,)}) for i in inputs if i.kind == "float"]


@contextlib.contextmanager
def zeros_are_constants() -> Iterator[None]:
    """While it lasts, a float of the call that is zero is guarded on its value. sympy has no -0.0: where traced code fixes a symbol of it
    (`math.copysign(1, f)`) torch goes on with 0.0, and its guard holds for both.
    """
    original = VariableBuilder.wrap_symfloat

    def wrap_symfloat(self: VariableBuilder, value: float) -> VariableTracker:
        with dynamo_config.patch(specialize_float=True) if value == 0 else contextlib.nullcontext():
            return original(self, value)

    with patched(VariableBuilder, "wrap_symfloat", wrap_symfloat):
        yield


def floats_as_numbers(graph: torch.fx.GraphModule, positions: tuple[int, ...], shape_env: Any) -> None:
    """Turn these inputs of the ATen graph into the numbers that it reads from them. Raises CaptureRefused where it cannot."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    for node in (placeholders[i] for i in positions):
        if not node.users:
            node.meta["val"] = 0.0  # any number: guards fixed what was read, and nothing reads it now
        for user in tuple(node.users):
            if user.target is not torch.ops.aten._local_scalar_dense.default:
                raise _plain_floats("a float of the call is used as a tensor")
            node.meta["val"] = user.meta["val"]
            user.replace_all_uses_with(node)
            graph.graph.erase_node(user)
    if positions:
        numbers = [v.node.expr for n in graph.graph.nodes if isinstance(v := n.meta.get("val"), (torch.SymInt, torch.SymFloat))]
        if any(map(_floors_a_quotient, (*numbers, *(guard.expr for guard in shape_env.guards)))):
            raise _plain_floats(
                "a float of the call is divided by `//`: torch rounds the quotient before it takes the floor, Python does not"
            )


def _floors_a_quotient(expression: Any) -> bool:
    return any(found.has(FloatTrueDiv) for found in expression.atoms(FloorToInt))


def _plain_floats(reason: str) -> CaptureRefused:
    refused = CaptureRefused(reason)
    refused.symbols = True
    return refused
