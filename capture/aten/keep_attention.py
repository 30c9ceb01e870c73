"""Attention on a GPU stays one call: which kernel computes it is for the compiler to choose, not for whatever torch traced it.

Traced as it is, `scaled_dot_product_attention` becomes the kernel that torch would take on the device at hand, and plain products and a
softmax where there is no device.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import _disable_current_modes

from precast import attention_results
from precast.capture.common.patching import patched
from precast.target_registry import computes_on

_LARGE = 1 << 25
"""Elements of a mask beyond which one row of it stands for all, where torch is asked what it would take."""
_NAME = "scaled_dot_product_attention"
_ATEN = torch.ops.aten.scaled_dot_product_attention.default
_functional = torch.nn.functional.scaled_dot_product_attention
_library: Any = torch.library.Library("precast", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(str(_ATEN._schema).replace(f"aten::{_NAME}", _NAME))
_WHOLE = torch.ops.precast.scaled_dot_product_attention.default


@torch.library.register_fake(f"precast::{_NAME}", lib=_library)  # type: ignore[untyped-decorator]
def _fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    return attention_results.like(query, key, value, attn_mask, is_causal)


def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any) -> Any:
    """What is called in the place of torch's function while a graph is traced."""
    tensors = [t for t in (query, key, value, attn_mask) if isinstance(t, torch.Tensor)]
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    plain = query.dim() == 4 and not any(t.is_nested for t in tensors)
    if plain and not recorded and dropout_p == 0.0 and computes_on(query.device.type):
        return _WHOLE(query, key, value, attn_mask, dropout_p, *args, **kwargs)
    if plain and recorded and computes_on(query.device.type):
        found = _recorded(query, key, value, attn_mask, dropout_p, *args, **kwargs)
        if found is not None:
            return found
    return _functional(query, key, value, attn_mask, dropout_p, *args, **kwargs)


def _recorded(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: float,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention that records gradients, by the fused kernel that eager takes on the device at hand, or by the one that takes a mask and
    dropout; None where what torch traces is that kernel, or neither takes these operands. Traced without a device, and with some masks,
    torch would take products and a softmax.

    Sizes and alignment: what `_scaled_dot_product_efficient_attention` asks for (ATen/native/transformers/cuda/sdp_utils.cpp).
    """
    eager = _eagers_kernel(query, key, value, mask is not None, dropout_p, is_causal, scale, enable_gqa)
    if mask is None and eager in (SDPBackend.FLASH_ATTENTION.value, SDPBackend.CUDNN_ATTENTION.value):
        return None
    each = 16 // query.element_size()
    known = all(isinstance(n, int) for t in (query, key, value) for n in t.shape)
    same = query.dtype is key.dtype is value.dtype and query.dtype in (torch.float32, torch.float16, torch.bfloat16)
    if (
        not known
        or not same
        or enable_gqa
        or is_causal
        and mask is not None
        or not all(query.shape[:2] == t.shape[:2] for t in (key, value))
    ):
        return None
    if any(t.shape[-1] % each or not t.shape[-2] for t in (query, key, value)) or mask is not None and mask.requires_grad:
        return None
    bias = None
    if mask is not None:
        bias = (
            torch.zeros((), dtype=query.dtype, device=query.device).masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else mask
        )
        if bias.dtype is not query.dtype:
            return None
        wide = -key.shape[-2] % each
        bias = bias.expand(*query.shape[:2], query.shape[-2], key.shape[-2])
        if wide:  # rows of the bias are aligned in memory
            bias = torch.nn.functional.pad(bias, (0, wide))[..., : key.shape[-2]]
    if eager == SDPBackend.CUDNN_ATTENTION.value:
        kernel, more = torch.ops.aten._scaled_dot_product_cudnn_attention, [False]
    else:
        kernel, more = torch.ops.aten._scaled_dot_product_efficient_attention, list[bool]()
    return kernel(query, key, value, bias, True, dropout_p, is_causal, *more, scale=scale)[0]


def _eagers_kernel(query: Any, key: Any, value: Any, masked: bool, *rest: Any) -> int:
    """Which kernel torch takes for real tensors like these, as a number of `SDPBackend`; -1 where there is no device, or sizes vary. A mask
    counts as one that lies in memory as the kernels want it. `rest`: dropout_p, is_causal, scale, enable_gqa.
    """
    given = (query, key, value)
    if not torch.cuda.is_available() or not all(isinstance(n, int) for t in given for n in (*t.shape, *t.stride())):
        return int(SDPBackend.ERROR.value)
    dropout_p, is_causal, scale, enable_gqa = rest
    with _disable_current_modes():
        q, k, v = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).requires_grad_() for t in given)
        whole = (*q.shape[:-1], k.shape[-2])
        alone = (1,) * (q.dim() - 1) if math.prod(whole) > _LARGE else whole[:-1]
        mask = q.new_empty((*alone, whole[-1])).expand(whole) if masked else None
        return int(torch._fused_sdp_choice(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa))


@contextlib.contextmanager
def whole_attention(gm: torch.fx.GraphModule) -> Iterator[None]:
    """While `gm`, Dynamo's graph, is traced further, its attention on a GPU is one call, that in functions of torch too."""
    modules = [module for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
    _retarget(modules, _functional, attention)
    try:
        with patched(torch.nn.functional, _NAME, attention):
            yield
    finally:
        _retarget(modules, attention, _functional)


def _retarget(modules: list[torch.fx.GraphModule], old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for module in modules:
        nodes = module.graph.find_nodes(op="call_function", target=old)
        for node in nodes:
            node.target = new
        if nodes:
            module.recompile()


def name_attention(graph: torch.fx.GraphModule) -> None:
    """Gives the calls that stayed whole their name in ATen."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.find_nodes(op="call_function", target=_WHOLE):
                node.target = _ATEN


__all__ = ["name_attention", "whole_attention"]
