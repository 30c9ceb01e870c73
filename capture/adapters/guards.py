"""Dynamo's guards and sources, and the C guards that torch checks. Private to torch: imported here only."""

from __future__ import annotations

from torch._dynamo import source
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder, install_guard
from torch._dynamo.source import (
    AttrSource,
    CodeSource,
    ConstantSource,
    DictGetItemSource,
    GetItemSource,
    GlobalSource,
    NNModuleSource,
    NumpyTensorSource,
    RandomValueSource,
    TensorProperty,
    TensorPropertySource,
    TorchFunctionModeStackSource,
    TypeDictSource,
    TypeMROSource,
    TypeSource,
)
from torch._guards import CompileContext, Guard, TracingContext, compile_context

__all__ = [
    "AttrSource",
    "CheckFunctionManager",
    "CodeSource",
    "ConstantSource",
    "CompileContext",
    "DictGetItemSource",
    "GetItemSource",
    "GlobalSource",
    "Guard",
    "GuardBuilder",
    "NNModuleSource",
    "NumpyTensorSource",
    "RandomValueSource",
    "TensorProperty",
    "TensorPropertySource",
    "TorchFunctionModeStackSource",
    "TracingContext",
    "TypeDictSource",
    "TypeMROSource",
    "TypeSource",
    "compile_context",
    "install_guard",
    "source",
]
