"""Dynamo's variables, what it knows of values while it traces, and its side effects. Private to torch: imported here only."""

from __future__ import annotations

from typing import Any

from torch._dynamo import variables
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables import (
    PolyfilledFunctionVariable,
    builder,
    builtin,
    dicts,
    functions,
    lists,
    nn_module,
    script_object,
    user_defined,
)
from torch._dynamo.variables.base import AsPythonConstantNotImplementedError, AttributeMutationExisting, ValueMutationNew, VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.functions import UserFunctionVariable
from torch._dynamo.variables.higher_order_ops import LocalMapWrappedHigherOrderVariable
from torch._dynamo.variables.lists import BaseListVariable, DequeVariable, ListIteratorVariable, TupleVariable
from torch._dynamo.variables.misc import PythonModuleVariable, RandomVariable
from torch._dynamo.variables.nn_module import UnspecializedNNModuleVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable, UntypedStorageVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable, UserDefinedObjectVariable

try:
    from torch._dynamo.variables import object_protocol
except ImportError:  # before torch 2.12
    object_protocol = None  # type: ignore[assignment]

try:
    from torch._dynamo.variables import invoke_subgraph
except ImportError:  # before torch 2.13, which reuses no regions
    invoke_subgraph = None  # type: ignore[assignment]

OpaqueObjectVariable: Any = None
"""An object that graphs take whole, such as a process group. Before torch 2.12 groups have variables of their own."""
if hasattr(GuardBuilder, "OPAQUE_OBJ_GUARD_FN_MATCH"):
    OpaqueObjectVariable = getattr(script_object, "CustomClassObjectVariable", getattr(script_object, "TorchScriptObjectVariable", None))

GETATTR = "var_getattr" if hasattr(VariableTracker, "var_getattr") else "tp_getattro_impl"
"""The method of a variable that reads an attribute: (self, tx, name). Its name changed with torch 2.14."""

ListMethods: Any = getattr(lists, "CommonListMethodsVariable", BaseListVariable)
"""The class whose `call_method` has `pop`, `insert` and `__imul__` of lists. It is a class of its own before torch 2.15."""

OrderedDictVariable: Any = getattr(dicts, "OrderedDictVariable", getattr(user_defined, "OrderedDictVariable", None))
"""An OrderedDict. Before torch 2.14 it is an object around the variable of its items; before torch 2.13 it is a dict as any other."""


def asked_for_methods(cls: Any) -> tuple[Any, ...]:
    """The classes whose `call_method` sees the calls of methods of `cls`. An object of a user's subclass is a `cls` of its own from
    torch 2.15 on, and finds methods in tables without asking `cls`; before, it asks the variable of its items.
    """
    found = [c for c in vars(user_defined).values() if isinstance(c, type) and issubclass(c, UserDefinedObjectVariable)]
    own = [c for c in found if issubclass(c, cls)]
    return (cls, *(c for c in own if not any(c is not other and issubclass(c, other) for other in own)))


def holds_items(variable: VariableTracker) -> VariableTracker:
    """The variable that has the items of a container of a user's class, which is `variable` itself from torch 2.15 on."""
    held: VariableTracker | None = getattr(variable, "_base_vt", None)
    return variable if held is None else held


__all__ = [
    "GETATTR",
    "OpaqueObjectVariable",
    "ListMethods",
    "invoke_subgraph",
    "OrderedDictVariable",
    "asked_for_methods",
    "holds_items",
    "object_protocol",
    "AsPythonConstantNotImplementedError",
    "AttributeMutationExisting",
    "BuiltinVariable",
    "ConstDictVariable",
    "ConstantVariable",
    "DequeVariable",
    "ListIteratorVariable",
    "LocalMapWrappedHigherOrderVariable",
    "PolyfilledFunctionVariable",
    "PythonModuleVariable",
    "RandomVariable",
    "SideEffects",
    "SymNodeVariable",
    "TensorVariable",
    "TorchInGraphFunctionVariable",
    "TupleVariable",
    "UnspecializedNNModuleVariable",
    "UntypedStorageVariable",
    "UserDefinedClassVariable",
    "UserDefinedObjectVariable",
    "UserFunctionVariable",
    "ValueMutationNew",
    "VariableBuilder",
    "VariableTracker",
    "builder",
    "builtin",
    "dicts",
    "functions",
    "lists",
    "nn_module",
    "user_defined",
    "variables",
]
