"""AOTAutograd: a graph of Dynamo's -> a graph of ATen operators. Private to torch: imported here only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd import schemas
from torch._functorch._aot_autograd.graph_compile import aot_stage1_graph_capture
from torch._functorch._aot_autograd.schemas import MutationType, OutputType, PlainTensorMeta, SubclassCreationMeta
from torch._functorch.aot_autograd import create_aot_state, prepare_aot_module_simplified


def prepare(gm: torch.fx.GraphModule, inputs: list[Any], decompositions: dict[Any, Callable[..., Any]]) -> tuple[Any, ...]:
    """What AOTAutograd makes of Dynamo's graph before it traces: (callable, tensors of the graph's own, fake arguments, their descriptions,
    settings, fake mode, shape environment, which inputs wait for a collective; None before torch 2.12).
    """
    made_by: Any = prepare_aot_module_simplified
    if "boxed_forward_device_index" in inspect.signature(made_by).parameters:  # torch 2.11: one more argument, one result fewer
        made = made_by(gm, inputs, None, decompositions, True, None, False, False, force_non_lazy_backward_lowering=True)
        call, tensors, _, _, fake_args, descriptions, config, fake_mode, shape_env, _, _ = made
        return call, tensors, fake_args, descriptions, config, fake_mode, shape_env, None
    made = made_by(gm, inputs, None, decompositions, True, False, False, force_non_lazy_backward_lowering=True)
    call, tensors, _, _, fake_args, descriptions, config, fake_mode, shape_env, _, _, activations = made
    return call, tensors, fake_args, descriptions, config, fake_mode, shape_env, activations


def expect_activations(metadata: Any, found: Any) -> None:
    """Tell AOTAutograd's record which inputs still wait for a collective: by index, from torch 2.14 on by index and attributes."""
    setattr(metadata, "act_input_paths" if hasattr(metadata, "act_input_paths") else "act_input_indices", found)


def numbers_within(made: PlainTensorMeta) -> int:
    """How many of a graph's outputs follow a tensor for its symbolic sizes and strides: from torch 2.14 on, in a subclass, some may."""
    return int(getattr(made, "arg_count", 1)) - 1


INNER_NUMBERS = hasattr(PlainTensorMeta, "arg_count")
"""Whether a graph takes the symbolic sizes and strides of a subclass's inner tensors, each behind its tensor: from torch 2.14 on."""

OPAQUE_META: tuple[type, ...] = (schemas.OpaqueMeta,) if hasattr(schemas, "OpaqueMeta") else ()
"""What says that a tensor subclass holds an object that is no tensor, such as the mesh of a DTensor: from torch 2.13 on."""

__all__ = [
    "INNER_NUMBERS",
    "OPAQUE_META",
    "MutationType",
    "OutputType",
    "PlainTensorMeta",
    "SubclassCreationMeta",
    "aot_stage1_graph_capture",
    "create_aot_state",
    "expect_activations",
    "numbers_within",
    "prepare",
]
