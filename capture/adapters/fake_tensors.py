"""Fake tensors, symbolic shapes, and the tracer that records ATen operators on them. Private to torch: imported here only."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, UnsupportedFakeTensorException, unset_fake_temporarily
from torch._subclasses.functional_tensor import PythonFunctionalizeAPI
from torch._subclasses.meta_utils import MetaTensorDescriber
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import disable_autocast_cache, make_fx, snapshot_fake
from torch.fx.experimental.symbolic_shapes import (
    ConstraintViolationError,
    DimDynamic,
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    ShapeEnv,
    guard_or_false,
    statically_known_true,
)

__all__ = [
    "ConstraintViolationError",
    "DimDynamic",
    "FakeTensor",
    "FakeTensorMode",
    "GuardOnDataDependentSymNode",
    "MetaTensorDescriber",
    "PendingUnbackedSymbolNotFound",
    "PythonFunctionalizeAPI",
    "ShapeEnv",
    "UnsupportedFakeTensorException",
    "disable_autocast_cache",
    "guard_or_false",
    "make_fx",
    "proxy_tensor",
    "snapshot_fake",
    "statically_known_true",
    "unset_fake_temporarily",
]
