"""What lowering makes of graphs: which steps, where results lie, in which order memory is written. Values are the op table's business."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from precast.lowering.build.registry import LOWERINGS
from precast.lowering.decompositions import DECOMPOSITIONS
from precast.lowering.ir.nodes import Attention, Conv, Extern, Gemm, Kernel, Program, Reduce, Step, walk
from precast.lowering.ir.sizes import Unsupported
from precast.lowering.lower import lower
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import verify

Fn = Callable[..., Any]


def program_of(fn: Fn, *args: torch.Tensor) -> Program:
    with torch.no_grad():
        graph = make_fx(functionalize(fn), tracing_mode="fake", decomposition_table=DECOMPOSITIONS)(*args)
    return verify(lower(graph, "test"), "lower")


def agrees(fn: Fn, *args: torch.Tensor) -> Program:
    """Lowers, interprets, and compares values, shapes, strides, dtypes and mutated inputs with eager."""
    program = program_of(fn, *args)
    ours, theirs = ([a.clone() for a in args] for _ in range(2))
    with torch.no_grad():
        want = fn(*theirs)
    wants = list(want) if isinstance(want, tuple | list) else [want]
    gots = run(program, ours)
    for got, expected in (*zip(gots, wants, strict=True), *zip(ours, theirs, strict=True)):
        assert got.shape == expected.shape and got.dtype == expected.dtype
        assert all(n < 2 or a == b for n, a, b in zip(got.shape, got.stride(), expected.stride(), strict=True)), (
            got.stride(),
            expected.stride(),
        )
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    return program


def kinds(program: Program) -> list[type[Step]]:
    return [type(s) for s in program.steps]


def t(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


WHOLE: list[tuple[str, Fn, tuple[torch.Tensor, ...], list[type[Step]]]] = [
    ("chain of pointwise ops is one kernel", lambda x, y: (x * y + 1).relu().exp(), (t(4, 5), t(5)), [Kernel]),
    ("views cost nothing", lambda x: x.t().reshape(20).view(4, 5).permute(1, 0).unsqueeze(0) + 1, (t(4, 5),), [Kernel]),
    ("a linear layer is one product", lambda x, w, b: F.linear(x, w, b), (t(2, 3, 8), t(5, 8), t(5)), [Gemm]),
    ("a product with a [K, N] weight has no copy", lambda x, w, b: torch.addmm(b, x, w), (t(3, 8), t(8, 5), t(5)), [Gemm]),
    (
        "a scaled product is a product and a kernel",
        lambda x, w, b: torch.addmm(b, x, w, beta=2, alpha=3),
        (t(3, 8), t(8, 5), t(5)),
        [Gemm, Kernel],
    ),
    ("a batched product reads broadcast operands in place", lambda x, y: x @ y, (t(4, 3, 8), t(8, 5)), [Gemm]),
    ("convolution", lambda x, w, b: F.conv2d(x, w, b, padding=1), (t(1, 3, 8, 8), t(4, 3, 3, 3), t(4)), [Conv]),
    ("attention is kept whole", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (t(2, 4, 8, 16),), [Attention]),
    (
        "heads split from one projection are windows",
        lambda x: F.scaled_dot_product_attention(*(y.view(2, 8, 4, 16).transpose(1, 2) for y in x.split(64, 2))),
        (t(2, 8, 192),),
        [Attention],
    ),
    (
        "repeated key heads are read for their group",
        lambda q, k: F.scaled_dot_product_attention(q, *(2 * [k[:, :, None].expand(2, 2, 3, 8, 16).reshape(2, 6, 8, 16)])),
        (t(2, 6, 8, 16), t(2, 2, 8, 16)),
        [Attention],
    ),
    ("mean, variance, result", lambda x, w, b: F.layer_norm(x, (16,), w, b), (t(3, 16), t(16), t(16)), [Kernel] * 3),
    ("max, powers, sum, result", lambda x: F.softmax(x, -1), (t(3, 16),), [Kernel] * 4),
    ("embedding", lambda w: F.embedding(torch.tensor([[1, 2], [0, 3]]), w), (t(5, 4),), [Kernel]),
    ("sort is a library call", lambda x: x.sort().values + 1, (t(5),), [Extern, Kernel]),
    ("parts are written in place", lambda x, y, z: torch.cat([x.exp(), y, z], 1), (t(2, 3), t(2, 4), t(2, 5)), [Kernel] * 3),
    ("two cheap parts with one reader are a choice", lambda x: torch.cat([-x[:, 4:], x[:, :4]], 1) * 2, (t(2, 8),), [Kernel]),
    ("nearest upsampling is an index map", lambda x: F.interpolate(x, scale_factor=2.0) + 1, (t(1, 2, 4, 4),), [Kernel]),
    ("max pooling", lambda x: F.max_pool2d(x, 3, 2, 1), (t(1, 2, 9, 9),), [Kernel]),
    ("running sums", lambda x: x.cumsum(1), (t(3, 7),), [Kernel]),
    ("a scatter is a copy and a store", lambda x, y: x.index_add(0, torch.tensor([0, 0, 2]), y), (t(4, 3), t(3, 3)), [Kernel, Kernel]),
]


@pytest.mark.parametrize("fn, args, steps", [w[1:] for w in WHOLE], ids=[w[0].replace(" ", "-") for w in WHOLE])
def test_steps(fn: Fn, args: tuple[torch.Tensor, ...], steps: list[type[Step]]) -> None:
    program = agrees(fn, *args)
    tensors = [s for s in program.steps if not (isinstance(s, Kernel) and _is_constant(s))]
    assert [type(s) for s in tensors] == steps, program.steps


def _is_constant(kernel: Kernel) -> bool:
    """The small index literals of a test."""
    return not any(True for s in kernel.stores for v in walk(s.value) if type(v).__name__ == "Load") and len(kernel.axes) == 1


OUTPUTS: list[tuple[str, Fn]] = [
    ("transposed", lambda x: (x + 1).t()),
    ("a view of an input", lambda x: x[1:, ::2]),
    ("an input itself", lambda x: x),
    ("a copy of an input", lambda x: x.clone()),
    ("two views of one result", lambda x: ((y := x * 2).t(), y[1:])),
    ("an expanded result", lambda x: (x.sum(0, keepdim=True)).expand(3, 6)),
    ("two copies of one input", lambda x: (x.clone(), x.clone())),
    ("constants", lambda x: (torch.zeros(2, 3), torch.arange(5), torch.full((), 7.0))),
    ("a product and its view", lambda x: ((y := x @ x.t()), y.view(-1))),
    ("a part of a split", lambda x: (x + 1).split(2)[0]),
    ("scalars", lambda x: (x.sum(), x[0, 0], x.max())),
    ("permuted", lambda x: x.reshape(2, 2, 6).permute(2, 0, 1).exp()),
    ("an empty result", lambda x: (x[:0] + 1, x[:, :0].sum(0), x.new_zeros(0))),
    ("a complex result", lambda x: torch.fft.rfft(x)),
    ("a conjugate", lambda x: torch.fft.rfft(x).conj()),
    ("bits seen as another type", lambda x: x.view(torch.int32) + 1),
]


@pytest.mark.parametrize("fn", [o[1] for o in OUTPUTS], ids=[o[0].replace(" ", "-") for o in OUTPUTS])
def test_results(fn: Fn) -> None:
    agrees(fn, t(4, 6))


def test_results_share_memory_as_in_eager() -> None:
    program = agrees(lambda x: ((y := x * 2).t(), y[1:], y.clone(), x[1:], x.clone()), t(4, 6))
    names = [o.view.buffer for o in program.outputs if o.view is not None]
    assert names[0] == names[1] and names[3] == "in0"
    assert len(set(names)) == 4


def _swap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return old + y


def _late(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = x * 2
    x.add_(1)
    return before + x, x.t() * y.t()


def _reversed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.copy_(x.flip(0) + y)
    return x.sum()


def _part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    kept = x[0] + 0
    x[1:].mul_(y[1:])
    x[0] = y[0]
    return kept


@pytest.mark.parametrize("fn", [_swap, _late, _reversed, _part])
def test_old_values_are_read_before_memory_is_written(fn: Fn) -> None:
    agrees(fn, t(4, 6), t(4, 6))


def test_a_strided_weight_is_read_where_it_lies() -> None:
    program = agrees(lambda x, w: F.linear(x, w), t(3, 8), t(5, 8))
    (step,) = program.steps
    assert isinstance(step, Gemm) and step.b.buffer == "in1" and step.b.stride == (1, 8)


def test_channels_last_stays() -> None:
    x = t(2, 4, 6, 6).to(memory_format=torch.channels_last)
    program = agrees(lambda x, w: F.conv2d(x, w).relu() + 1, x, t(8, 4, 1, 1))
    assert all(b.stride[1] == 1 for b in program.buffers if len(b.size) == 4 and b.size[2] > 1)


def test_reductions_accumulate_wide() -> None:
    program = program_of(lambda x: x.sum(), t(100).to(torch.bfloat16))
    (kernel,) = program.steps
    assert isinstance(kernel, Kernel)
    assert [v.dtype.value for v in walk(kernel.stores[0].value) if isinstance(v, Reduce)] == ["f32"]


def test_tensor_literals_are_carried() -> None:
    program = agrees(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), t(2, 3))
    assert len(program.constants) == 1 and len(program.constants[0].data) == 12


def test_empty_tensor_literals_are_computed() -> None:
    program = agrees(lambda x: torch.cat([torch.tensor([]), x]), t(3))
    assert not program.constants


def test_sizes_that_depend_on_data_are_bound_by_the_call_that_learns_them() -> None:
    def graph_of(fn: Fn, *args: torch.Tensor) -> torch.fx.GraphModule:
        return make_fx(fn, tracing_mode="symbolic")(*args)

    program = lower(graph_of(lambda x: torch.masked_select(x, x > 0), t(5)), "bound")
    (call,) = (s for s in program.steps if isinstance(s, Extern) and s.binds)
    assert call.op == "aten::masked_select" and [(b.out, b.dim) for b in call.binds] == [(0, 0)]


def test_what_is_lowered_is_not_decomposed() -> None:
    assert not set(LOWERINGS) & set(DECOMPOSITIONS)
    for name in ("_softmax", "native_layer_norm", "gelu", "silu", "addmm", "convolution", "embedding", "max_pool2d_with_indices", "cumsum"):
        assert getattr(torch.ops.aten, name).default in LOWERINGS


def test_symbolic_sizes() -> None:
    """One program for all batch sizes."""

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.gelu(F.linear(x.reshape(x.shape[0], -1), w, b))
        return F.softmax(y.view(x.shape[0], 2, -1).transpose(0, 1), -1) + x.shape[0]

    x, w, b = t(5, 3, 4), t(6, 12), t(6)
    batch = torch.export.Dim("batch", min=2, max=64)

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return layer(x, w, b)

    exported = torch.export.export(Layer(), (x, w, b), dynamic_shapes=({0: batch}, None, None)).run_decompositions(DECOMPOSITIONS)
    program = verify(lower(exported.graph_module, "symbolic"), "lower")
    for n in (2, 5, 17):
        x = t(n, 3, 4)
        (got,) = run(program, [x, w, b])
        torch.testing.assert_close(got, layer(x, w, b))


def test_lowering_is_fast() -> None:
    """300 layers of 5 nodes in well under half a second of processor time (the second time: imports and sympy are warm)."""

    def deep(x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = F.layer_norm(x.view(4, 2, 8).transpose(0, 1).reshape(8, 8).relu() + x, (8,))
        return x

    graph = make_fx(functionalize(deep), tracing_mode="fake", decomposition_table=DECOMPOSITIONS)(t(8, 8))
    lower(graph, "warm")
    start = time.process_time()
    lower(graph, "deep")
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("fn", [torch.max, torch.min, lambda x: x.max(0), lambda x: x.min(0)[0]])
def test_nothing_has_no_largest_element(fn: Fn) -> None:
    """Eager raises, tracing does not."""
    with pytest.raises(Unsupported, match="without elements"):
        program_of(fn, torch.empty(0, 5))
    agrees(lambda x: x.max(1)[0], torch.empty(0, 5))
