"""Programs with higher-order operators: name -> a function of one [n, 4] tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint
from functorch.experimental.control_flow import map as torch_map
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.out_dtype import out_dtype
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

WEIGHT = torch.linspace(-1, 1, 16).reshape(4, 4)
LAYER = torch.nn.Linear(4, 4)
MASK = create_block_mask(lambda b, h, i, j: i >= j, None, None, 12, 12, device="cpu")


def branch(x):
    return torch.cond(x.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos() * 2, (x,))


def branch_with_captured(x):
    w = x * 3
    return torch.cond(x.sum() > 0, lambda t: (t @ w.t(), t.sum()), lambda t: (LAYER(t) @ WEIGHT @ t.t(), t.amax()), (x,))


def branch_in_branch(x):
    def deeper(t):
        return torch.cond(t[0, 0] > 0, lambda u: u + 1, lambda u: u - 1, (t,))

    return torch.cond(x.sum() > 0, deeper, lambda t: t * 2, (x,)) + 1


def branch_on_transposed(x):
    return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t * 2, (x.t().clone().t()[:, 1:],))


def loop(x):
    def body(i, t):
        return i + 1, t * 1.5 + i

    return while_loop(lambda i, t: i < 5, body, (torch.zeros((), dtype=torch.int64), x))


def loop_on_data(x):
    return while_loop(lambda t: t.abs().sum() > 0.5, lambda t: (t @ WEIGHT * 0.1,), (x,))


def loop_never_entered(x):
    return while_loop(lambda t: t.sum() > 1e9, lambda t: (t + 1,), (x,))


def branch_in_loop(x):
    def body(i, t):
        return i + 1, torch.cond(t.sum() > 0, lambda u: u - 1, lambda u: u * 0.5 + 1, (t,))

    return while_loop(lambda i, t: i < 4, body, (torch.zeros((), dtype=torch.int64), x))[1]


def mapped(x):
    return torch_map(lambda r, k: (r * k).relu() + r.sum(), x, x.sum(0))


def scanned(x):
    return scan(lambda c, y: (c + y, c * y), x[0] * 0, x, dim=0)


def scanned_backwards(x):
    return scan(lambda c, y: (c * 0.5 + y, c.sin()), x[0] * 0, x * 2, dim=0, reverse=True)


def scanned_associatively(x):
    return associative_scan(lambda a, b: a * b + a, x, 0, combine_mode="generic")


def _heads(x):
    return x.reshape(1, 1, -1, 4).repeat(1, 2, 4, 1)


def attention_with_bias(x):
    q = _heads(x)
    return flex_attention(q, q + 1, q * 2, score_mod=lambda s, b, h, i, j: s + (i - j) * WEIGHT[0, 0] + h)


def attention_with_mask(x):
    q = _heads(x)
    return flex_attention(q, q + 1, q * 2, block_mask=MASK, scale=0.3)


def attention_grouped(x):
    q = _heads(x)
    return flex_attention(q, q[:, :1] + 1, q[:, :1] * 2, score_mod=lambda s, b, h, i, j: s.tanh(), enable_gqa=True)


def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(lambda t: t.sin() @ t.t(), x, use_reentrant=False) + 1


def vectorised(x):
    return torch.vmap(lambda r: r.dot(r) + 1)(x)


def gradient(x):
    return torch.func.grad(lambda t: (t.sin() * t).sum())(x)


def forward_derivative(x):
    return torch.func.jvp(lambda t: t.sin(), (x,), (x * 2,))


def backward_derivative(x):
    value, pull = torch.func.vjp(lambda t: t.sin() * 2, x)
    return pull(value)


def jacobian(x):
    return torch.func.jacrev(lambda t: t.sin().sum(0))(x)


@torch.compiler.nested_compile_region
def region(t):
    return t.sin() + t.cos()


def regions(x):
    return region(region(x) * 2)


def integer_product(x):
    return out_dtype(torch.ops.aten.mm.default, torch.int32, (x * 10).to(torch.int8), (x.t() * 10).to(torch.int8))


PROGRAMS: dict[str, Any] = {
    f.__name__: f
    for f in (
        branch, branch_with_captured, branch_in_branch, branch_on_transposed, loop, loop_on_data, loop_never_entered,
        branch_in_loop, mapped, scanned, scanned_backwards, scanned_associatively, attention_with_bias, attention_with_mask,
        attention_grouped, checkpointed, vectorised, gradient, forward_derivative, backward_derivative, jacobian, regions, integer_product,
    )
}  # fmt: skip


def printing(x):
    torch._higher_order_ops.print("first {v} of {}", 2, v=x.sum())
    y = x * 2
    torch._higher_order_ops.print("second {v}", v=y.sum())
    return y + 1


def check(name: str, compiled: Any) -> None:
    """Values, strides and dtypes are eager's on fresh inputs, both ways of each branch among them; what is returned is not the input."""
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(3, 4) + seed % 2 - 0.5
        mine = x.clone()
        got, want = compiled(mine), PROGRAMS[name](x.clone())
        torch.testing.assert_close(got, want, check_stride=name not in ("gradient",))
        torch.testing.assert_close(mine, x, rtol=0, atol=0)
