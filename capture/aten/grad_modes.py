"""Code that changes the grad mode, or enters inference mode, for a while: what that means for views, and how it is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch.autograd import grad_mode

from precast.capture.adapters.functorch import is_functorch_wrapped_tensor
from precast.capture.aten.functionalize_inplace import memory_of, tensors

_SET: Any = torch._C._set_grad_enabled  # it has no types


def views_elsewhere(gm: torch.fx.GraphModule) -> bool:
    """Whether views of inputs that require gradients are taken under another grad mode than that of the call: their history is that
    mode's, which a functional graph does not say.
    """
    if not any(node.target in _CHANGES for node in gm.graph.nodes):
        return False
    mode = caller = torch.is_grad_enabled()
    recorded: set[int] = set()
    before: dict[torch.fx.Node, bool] = {}
    for node in gm.graph.nodes:
        seen = list(filter(_has_memory, tensors(node.meta.get("example_value"))))
        if node.op == "placeholder":
            recorded |= {memory_of(t) for t in seen if t.requires_grad}
        elif node.target is _SET:
            mode = bool(node.args[0])
        elif node.target is grad_mode._enter_inference_mode:
            before[node], mode = mode, not node.args[0]
        elif node.target is grad_mode._exit_inference_mode:
            mode = before[node.args[0]]
        elif mode is not caller and any(memory_of(t) in recorded for t in seen if t.requires_grad or not mode):
            return True
    return False


def _has_memory(value: torch.Tensor) -> bool:
    """Whether it is no tensor of a transform's (`torch.func.grad`), which ends before the graph does, and lies in a storage."""
    return value.layout is torch.strided and not is_functorch_wrapped_tensor(value)


@contextlib.contextmanager
def grad_mode_for_inference_mode(gm: torch.fx.GraphModule) -> Iterator[None]:
    """Meanwhile, running the graph switches gradients off where its code enters inference mode, and on where it leaves that by
    `inference_mode(False)`. Under inference mode itself torch can trace no views, and a trace that failed would leave it on.
    """
    changed = [n for m in gm.modules() if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes if n.target in _INSTEAD]
    targets = [node.target for node in changed]
    for node in changed:
        node.target = _INSTEAD[node.target]
    try:
        yield
    finally:
        for node, target in zip(changed, targets, strict=True):
            node.target = target


def _enter(mode: bool) -> bool:
    before = torch.is_grad_enabled()
    _SET(not mode)
    return before


_CHANGES = (_SET, grad_mode._enter_inference_mode)
_INSTEAD: dict[Any, Any] = {grad_mode._enter_inference_mode: _enter, grad_mode._exit_inference_mode: _SET}
