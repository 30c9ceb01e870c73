"""Which operators outside of ATen a frame calls, and the Python code of theirs that its graph was made with."""

from __future__ import annotations

import contextlib
import re
import sys
import types
from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch
import torch.fx

from precast.artifact_store.import_names import type_name
from precast.artifact_store.records import CodeDigest
from precast.capture.adapters.higher_order_ops import flat_apply
from precast.capture.dispatch_files import file_records
from precast.capture.subclasses import met_subclasses
from precast.capture.untraced import functions_of, untraced_records, within
from precast.capture.user_kernels import launched
from precast.runtime.modules import is_versioned
from precast.runtime.operators import OPERATOR, operator_account, operator_home, operator_name, reached_code
from precast.runtime.subclass_code import SUBCLASS, subclass_account, subclass_code

_OWN = ("aten", "prim", "prims", "inductor", "rngprims", "_c10d_functional", "quantized", "higher_order")
"""Namespaces that belong to torch: their version is part of the key."""
_DISPATCHERS = ("torch._ops", "torch._library", "torch.library")
"""Modules of torch that call what users registered."""
_NAMED_TUPLES = "namedtuple_"
"""Begins the name of the module that the standard library makes up for the constructor of a named tuple."""


class OperatorUse:
    """What was found while a graph was made: operators, and all code that Python ran for them, with the modules whose globals it reads.

    `classes`: tensor subclasses whose dispatch was traced through.
    `hidden`: names of functions of which it cannot be said what they depend on.
    """

    def __init__(self) -> None:
        self.operators: dict[torch._ops.OpOverload, None] = {}
        self.codes: dict[types.CodeType, str] = {}
        self.functions: dict[types.CodeType, types.FunctionType] = {}
        self.kernels: dict[CodeDigest, None] = {}
        self.hidden: dict[str, None] = {}
        self.classes: dict[type, None] = {}

    def meet(self, classes: Iterable[type]) -> None:
        """Note tensor subclasses that are the user's."""
        self.classes |= dict.fromkeys(cls for cls in classes if not is_versioned(cls.__module__))

    def add(self, graph_module: torch.fx.GraphModule) -> None:
        """Note the operators of a graph and of the graphs nested in it, the functions in it, and the Triton kernels that it launches."""
        self.kernels |= dict.fromkeys(launched(graph_module))
        for module in graph_module.modules():
            if isinstance(module, torch.fx.GraphModule):
                for node in module.graph.nodes:
                    if _is_nonstrict(node.target):
                        self.hidden[re.sub(r"_(callable|spec)(_\d+)?$", "", str(node.args[0]))] = None
                    elif isinstance(node.target, types.FunctionType) and not is_versioned(node.target.__module__):
                        self.functions[node.target.__code__] = node.target  # `allow_in_graph`: Dynamo has not read it
                        self.codes[node.target.__code__] = node.target.__module__
                    for operand in (node.target, *node.args, *node.kwargs.values()):
                        self.operators |= dict.fromkeys(_operators_of(operand))

    def digests(self) -> tuple[tuple[CodeDigest, ...], tuple[str, ...]]:
        """One record per operator, kernel and function that no tracer read, and reasons for what has none.

        Guarded like inlined code: what it names is looked at again before the artifact is used.
        """
        records = []
        for op in self.operators:
            name = operator_name(op)
            account = operator_account(name)
            records.append(CodeDigest(f"{OPERATOR}{operator_home(op)}", name, "" if account is None else account.text()))
        for cls in self.classes:
            module, _, qualname = type_name(cls).partition(":")
            records.append(CodeDigest(f"{SUBCLASS}{module}", qualname, subclass_account(cls).text()))
        untraced, problems = untraced_records(self.codes, self.functions, self.covered())
        if self.classes:
            alive = [function for found in functions_of(self.codes, self.functions).values() for function in found]
            files, edited = file_records(self.classes, self.codes, alive)
            untraced, problems = [*untraced, *files], [*problems, *edited]
        problems += [
            f"{name} is marked by nonstrict_trace: it runs unread, so that an edit of it could not be noticed" for name in self.hidden
        ]
        return (*records, *self.kernels, *untraced), tuple(problems)

    def other_code(self) -> tuple[types.CodeType, ...]:
        """Code that ran while tracing and is not part of an operator's own digest: bodies of composite operators, helpers."""
        covered = self.covered()
        return tuple(code for code in self.codes if code not in covered)

    def covered(self) -> set[types.CodeType]:
        """Code that the digests of operators and of tensor subclasses tell of."""
        dispatching = within(code for cls in self.classes for code in subclass_code(cls))
        return dispatching.union(code for op in self.operators for code in reached_code(op))


def _operators_of(operand: Any) -> Iterable[torch._ops.OpOverload]:
    if isinstance(operand, torch._ops.OpOverloadPacket):
        return [op for name in operand._overload_names for op in _operators_of(getattr(operand, name))]
    return [operand] if isinstance(operand, torch._ops.OpOverload) and operand.namespace not in _OWN else []


def _is_nonstrict(target: Any) -> bool:
    """Whether a node of Dynamo's graph calls a function marked by `nonstrict_trace`."""
    return target is flat_apply or getattr(target, "__name__", "") == "flat_apply_capture"


@contextlib.contextmanager
def watched(graph_module: torch.fx.GraphModule, use: OperatorUse) -> Iterator[None]:
    """Notes into `use` the graph's operators and, where it has any, all user code that runs inside: fake implementations, the bodies of
    composite operators and functions marked by `allow_in_graph` run there without Dynamo's knowing."""
    use.add(graph_module)
    use.meet(met_subclasses(graph_module))
    dispatching = {code for cls in use.classes for code in subclass_code(cls)}  # called by any code of torch's
    if not use.operators and not use.codes and not dispatching:
        yield
        return
    before = sys.getprofile()

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code in use.codes or (caller := frame.f_back) is None:
            return
        home = str(frame.f_globals.get("__name__", ""))
        if is_versioned(home) or home.startswith(_NAMED_TUPLES):
            return
        called_by_torch = frame.f_code in dispatching or str(caller.f_globals.get("__name__", "")).startswith(_DISPATCHERS)
        if called_by_torch or caller.f_code in use.codes or home in sys.modules and _is_within(caller, use.codes):
            use.codes[frame.f_code] = home

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_within(frame: types.FrameType | None, codes: Container[types.CodeType]) -> bool:
    """Whether some of this code called the frame, or waits for it: a library may have been asked to call back (`tree_map`, a decorator).
    What an import runs does not count.
    """
    while frame is not None and frame.f_code not in codes:
        frame = None if frame.f_code.co_filename.startswith("<frozen importlib") else frame.f_back
    return frame is not None
