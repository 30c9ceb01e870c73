"""The operators outside of ATen that a frame calls, and the Python code that ran for them while its graph was traced."""

from __future__ import annotations

import contextlib
import re
import sys
import types
from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch
import torch.fx

from precast.artifact_store.format.import_names import type_name
from precast.artifact_store.format.records import CodeDigest
from precast.capture.adapters.higher_order_ops import flat_apply
from precast.capture.graph.subclass_flatten import met_subclasses
from precast.capture.graph.triton_launches import launched
from precast.capture.provenance.subclass_files import file_records
from precast.capture.provenance.untraced_code import functions_of, untraced_records, within
from precast.runtime.fingerprint.custom_operators import OPERATOR, operator_account, operator_home, operator_name, reached_code
from precast.runtime.fingerprint.module_scope import is_versioned
from precast.runtime.fingerprint.tensor_subclasses import SUBCLASS, subclass_account, subclass_code

_OWN = ("aten", "prim", "prims", "inductor", "rngprims", "_c10d_functional", "quantized", "higher_order", "precast")
"""Namespaces that belong to torch, and ours: their version is part of the key."""
_DISPATCHERS = ("torch._ops", "torch._library", "torch.library")
"""Modules of torch that call functions which users registered."""
_NAMED_TUPLES = "namedtuple_"
"""The prefix of the artificial module name that the standard library gives to the constructor of a named tuple."""


class OperatorUse:
    """The operators of one trace, and all Python code that ran for them, with the modules whose globals it reads.

    `classes`: tensor subclasses whose dispatch was traced through.
    `hidden`: names of functions whose dependencies cannot be determined.
    """

    def __init__(self) -> None:
        self.operators: dict[torch._ops.OpOverload, None] = {}
        self.codes: dict[types.CodeType, str] = {}
        self.functions: dict[types.CodeType, types.FunctionType] = {}
        self.kernels: dict[CodeDigest, None] = {}
        self.hidden: dict[str, None] = {}
        self.classes: dict[type, None] = {}

    def meet(self, classes: Iterable[type]) -> None:
        """Add those tensor subclasses that are the user's."""
        self.classes |= dict.fromkeys(cls for cls in classes if not is_versioned(cls.__module__))

    def add(self, graph_module: torch.fx.GraphModule) -> None:
        """Add the operators, functions and launched Triton kernels of a graph and of the graphs nested in it."""
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
        """One record per operator, kernel and untraced function, and the reasons for those without one.

        They are validated like inlined code: fingerprints are computed again before the artifact is used.
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
        """Code that the fingerprints of operators and of tensor subclasses cover."""
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
    """A context that adds to `use` the graph's operators and, if it has any, all user code that runs inside: fake implementations, bodies
    of composite operators and functions marked by `allow_in_graph` run there without being traced.
    """
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
    """Whether the frame was called, directly or not, by some of this code, perhaps through a library that calls back (`tree_map`, a
    decorator). Frames below an import do not count.
    """
    while frame is not None and frame.f_code not in codes:
        frame = None if frame.f_code.co_filename.startswith("<frozen importlib") else frame.f_back
    return frame is not None
