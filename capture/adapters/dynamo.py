"""Dynamo itself: frames, translators, bytecode, settings, errors. Private to torch: imported here only."""

from __future__ import annotations

import types

from torch._dynamo import (
    allow_in_graph,
    compiled_autograd,
    config,
    convert_frame,
    error_on_graph_break,
    exc,
    external_utils,
    output_graph,
    pgo,
    symbolic_convert,
    trace_rules,
    utils,
)
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._dynamo.backends import registry
from torch._dynamo.bytecode_transformation import create_instruction
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.decorators import DynamoConfigPatchProxy, substitute_in_graph
from torch._dynamo.exc import SkipFrame, raise_observed_exception, unimplemented
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX
from torch._dynamo.symbolic_convert import InliningInstructionTranslator, InstructionTranslator, InstructionTranslatorBase
from torch._dynamo.utils import dict_keys_getitem, dynamo_timed, get_custom_getattr, get_metrics_context, preserve_rng_state

FUNCTION_MODES_ARE_KEPT = any(
    "torch_function_mode_stack_state_mgr" in code.co_names
    for code in convert_frame.preserve_global_state.__code__.co_consts
    if isinstance(code, types.CodeType)
)
"""Whether `compile_frame` itself takes the torch-function modes from the stack while it traces, as in torch 2.11: what is taken away twice
would be gone.
"""

__all__ = [
    "FUNCTION_MODES_ARE_KEPT",
    "allow_in_graph",
    "dict_keys_getitem",
    "error_on_graph_break",
    "substitute_in_graph",
    "DynamoConfigPatchProxy",
    "InliningInstructionTranslator",
    "InstructionTranslator",
    "InstructionTranslatorBase",
    "OutputGraph",
    "PyCodegen",
    "SkipFrame",
    "TORCH_DYNAMO_RESUME_IN_PREFIX",
    "TransformGetItemToIndex",
    "compiled_autograd",
    "config",
    "convert_frame",
    "create_instruction",
    "dynamo_timed",
    "exc",
    "external_utils",
    "get_custom_getattr",
    "get_metrics_context",
    "output_graph",
    "pgo",
    "preserve_rng_state",
    "raise_observed_exception",
    "registry",
    "symbolic_convert",
    "trace_rules",
    "unimplemented",
    "utils",
]
