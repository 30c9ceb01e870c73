"""Launches of users' Triton kernels, as extern calls that write their arguments (capture/graph/triton_launches.py says what such a node
holds).
"""

from __future__ import annotations

import torch
from torch import fx

from precast.lowering.build.builder import Builder
from precast.lowering.build.extern import Lookup, argument, is_launch, written_nodes
from precast.lowering.ir.nodes import LAUNCH, Extern, View
from precast.lowering.ir.sizes import Unsupported, sizes


def launch(b: Builder, node: fx.Node, lookup: Lookup) -> None:
    """Appends the call: what is launched and on which grids first, then the kernel's arguments by name."""
    given: dict[str, object] = dict(node.kwargs["arguments"])  # type: ignore[arg-type]
    arguments = {name: argument(b, value, lookup) for name, value in given.items()}
    changed = []
    for name, value in given.items():
        passed = arguments[name]
        if not isinstance(value, fx.Node) or not isinstance(passed, View):
            continue
        wanted = sizes(value.meta["val"].stride())
        if any(n != 1 and s != t for n, s, t in zip(passed.size, passed.stride, wanted, strict=True)):
            raise Unsupported(f"{name} of the Triton kernel {node.kwargs['kernel']} does not lie in memory as it was traced")
        if name in node.kwargs["written"]:  # type: ignore[operator]
            if lookup(value).window.buffer != passed.buffer:
                raise Unsupported(f"the Triton kernel {node.kwargs['kernel']} writes {name}, which is no memory of its own")
            changed.append(passed.buffer)
    where = (node.kwargs["launch"], argument(b, node.kwargs["grid"], lookup))
    step = Extern(f"{LAUNCH}{node.kwargs['kernel']}", where, tuple(arguments.items()), (), tuple(dict.fromkeys(changed)), (node.name,))
    b.steps.append(step)


_EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")


def is_uninitialised(node: fx.Node) -> bool:
    """Whether the node makes memory for a kernel to write. Elsewhere memory that eager leaves as it is is zero."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op._schema.name.removeprefix("aten::") not in _EMPTY:
        return False
    return any(is_launch(user) and node in written_nodes(user) for user in node.users)
