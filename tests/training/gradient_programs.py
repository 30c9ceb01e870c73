"""Programs that record gradients, each with what it is called with: one table for the tests of eager's meaning and of warm starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Program:
    """`make` gives the callable (a module's state is compared, too); `inputs` the arguments of one call. `whole`: one graph.

    `dense`: results are dense where eager's are views with gaps, a stated limit (docs/training.md).
    """

    name: str
    make: Callable[[], Callable[..., Any]]
    inputs: Callable[[], tuple[Any, ...]]
    whole: bool = True
    dense: bool = False


PROGRAMS: list[Program] = []


def program(inputs: Callable[[], tuple[Any, ...]], whole: bool = True, dense: bool = False) -> Callable[[Any], Any]:
    """Adds the function, or the module class, to the table under its name."""

    def add(made: Any) -> Any:
        make = made if isinstance(made, type) else lambda: made
        PROGRAMS.append(Program(made.__name__, make, inputs, whole, dense))
        return made

    return add


def leaf(*size: int, **kwargs: Any) -> Tensor:
    return torch.randn(*size, requires_grad=True, **kwargs)


def two() -> tuple[Tensor, Tensor]:
    return leaf(4, 6), leaf(4, 6)


def one() -> tuple[Tensor]:
    return (leaf(4, 6),)


@program(two)
def pointwise(x: Tensor, y: Tensor) -> Tensor:
    return (x.sin() * y.exp()).tanh()


@program(two)
def several_outputs(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * y, (x + y).relu(), x.sum()


@program(two)
def output_that_needs_no_gradient(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * y, (x * 2).detach(), (x > y), x.argmax(dim=1), x.shape[0]


@program(two)
def same_output_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * y
    return z, z


@program(two)
def equal_outputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y + 1, x * y + 1


@program(one)
def input_given_back(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x * 2


@program(one)
def view_of_an_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.t(), x[1:3] * 3


@program(one)
def views_of_a_result(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = x.exp()
    return z.t(), z[1:], z


@program(one)
def views_of_what_is_not_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    z = x.exp()
    return z.view(-1)[2:5], z.view(6, 4)


@program(one)
def parts_of_a_split(x: Tensor) -> list[Tensor]:
    return [part * 2 for part in x.split(3, dim=1)]


@program(one, dense=True)
def parts_given_back(x: Tensor) -> tuple[Tensor, ...]:
    return (x * 2).unbind(1)


@program(lambda: (leaf(4, 6) * 1, leaf(4, 6)))
def in_place_on_an_input(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(y)
    return x.sin() + y


@program(lambda: (leaf(4, 6) * 1, leaf(4, 6)))
def in_place_on_a_view_of_an_input(x: Tensor, y: Tensor) -> Tensor:
    x[1:3].add_(y[1:3])
    return x * y


@program(lambda: (torch.zeros(4, 6), leaf(4, 6)))
def in_place_on_a_buffer(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y.detach())
    return y * x.clone()


@program(lambda: (torch.zeros(4, 6), leaf(4, 6)))
def gradients_flow_into_an_input(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y * y)
    return y * 2


@program(one)
def in_place_on_what_was_made(x: Tensor) -> Tensor:
    z = x.sin()
    z.mul_(2)
    z[0].zero_()
    return z.relu_()


@program(one)
def under_no_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale, scale


@program(lambda: (torch.randn(3, 4), leaf(3, 4)))
def gradients_inside_of_no_grad(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        a = x * y
        with torch.enable_grad():
            b = y * y
    return a + b


@program(lambda: (leaf(5, 5), torch.randn(5, 5)))
def input_without_gradients(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


@program(lambda: (leaf(8, 3), torch.tensor([0, 2, 1, 1, 0, 2, 0, 1])))
def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, label_smoothing=0.1)


@program(lambda: (leaf(2, 4, 8, 16), leaf(2, 4, 8, 16), leaf(2, 4, 8, 16)))
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@program(lambda: (leaf(2, 4, 8, 16), leaf(2, 4, 8, 16), leaf(2, 4, 8, 16), torch.randn(8, 8)))
def attention_with_a_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@program(lambda: (leaf(6, 5), torch.tensor([0, 3, 3, 5])))
def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    return x[index] * 2


@program(lambda: (leaf(6, 5), torch.tensor([0, 3, 3, 5]), leaf(4, 5)))
def add_rows(x: Tensor, index: Tensor, y: Tensor) -> Tensor:
    return x.index_add(0, index, y).sin()


@program(lambda: (leaf(2, 3, 9, 9),))
def pooling(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, 1).mean((2, 3)) + F.avg_pool2d(x, 3).sum((2, 3)) + F.adaptive_avg_pool2d(x, 2).amax((2, 3))


@program(lambda: (leaf(7, 5),))
def sorted_and_scanned(x: Tensor) -> Tensor:
    return x.sort(dim=0).values.cumsum(1) + x.topk(3, dim=0).values.sum(0)


@program(lambda: (leaf(5, 7), leaf(5, 7)))
def where_and_clamp(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > 0, x, y * 2).clamp(-1, 1)


@program(lambda: (leaf(3, 4, dtype=torch.complex64),))
def complex_numbers(x: Tensor) -> Tensor:
    return (x * x.conj()).real.sum() + (x.exp()).abs().sum()


@program(lambda: (torch.randn(6, 4),))
class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.gelu(self.first(x)))


@program(lambda: (torch.randn(3, 5),))
class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


@program(lambda: (torch.randn(6, 4),))
class FrozenLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8).requires_grad_(False), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


@program(lambda: (torch.randn(4, 3, 8, 8),))
class ConvolutionsWithStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 4, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.norm(self.first(x)), inplace=True)).flatten(1)


@program(lambda: (torch.randint(0, 11, (2, 6)),))
class SmallTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 11)

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layer(self.embedding(x))).flatten(0, 1), x.flatten())


@program(lambda: (torch.randn(5, 3, 4),))
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.norm = nn.GRUCell(4, 6), nn.GroupNorm(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(3, 6)
        for step in x:
            hidden = self.norm(self.cell(step, hidden))
        return hidden


@program(lambda: (torch.randn(4, 6),))
class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        inner = lambda v: self.second(self.first(v).tanh()).sin()  # noqa: E731
        return checkpoint(inner, x, use_reentrant=False) + x


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 30 * x**2 * given  # not the true derivative, which shows that it is this that ran


@program(one)
def function_with_its_own_backward(x: Tensor) -> Tensor:
    return Cubed.apply(x.sin()) * 2


@program(one)
def gradient_of_a_function(x: Tensor) -> Tensor:
    return torch.func.grad(lambda v: (v**3).sum())(x) + x


@program(two)
def mapped_over_a_batch(x: Tensor, y: Tensor) -> Tensor:
    return torch.func.vmap(lambda a, b: (a * b).sum() * a)(x, y)


@program(two)
def forward_mode(x: Tensor, y: Tensor) -> Tensor:
    return torch.func.jvp(torch.sin, (x,), (y,))[1] * x


@program(lambda: (leaf(4, 6), leaf(6, 3)))
def autocast_inside(x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        z = x @ y
    return z.float().tanh()


@program(lambda: (leaf(4, 6, dtype=torch.bfloat16), leaf(6, 3, dtype=torch.bfloat16)))
def bfloat16(x: Tensor, y: Tensor) -> Tensor:
    return F.layer_norm(x @ y, (3,)).float().sum(0)


@program(lambda: (leaf(6, 4), leaf(6)), whole=False)
def graph_break_between(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin() * y[:, None]
    torch._dynamo.graph_break()
    return z.cos() * y[:, None]


@program(lambda: (leaf(4, 6), 3))
def numbers_and_tensors(x: Tensor, n: int) -> Tensor:
    return (x * n).sum(0) / n


@program(lambda: (leaf(2, 3, 4, 4), leaf(5, 3, 2, 2)))
def transposed_results(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w).permute(0, 2, 3, 1)


@program(lambda: (leaf(3, 4).expand(2, 3, 4),))
def expanded_input(x: Tensor) -> Tensor:
    return x * x


@program(lambda: (leaf(0, 4), leaf(3, 4)))
def empty_tensor(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y]).sin()


@program(lambda: (leaf(()), leaf(3)))
def scalars(x: Tensor, y: Tensor) -> Tensor:
    return x * y.sum() + x.sqrt().nan_to_num()


@program(lambda: (leaf(5, 4), leaf(5, 4)))
def distances(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x, y).mean() + F.cosine_similarity(x, y).sum() + F.normalize(x).norm()


@program(lambda: (leaf(3, 8),))
def padded_and_rolled(x: Tensor) -> Tensor:
    return F.pad(x, (1, 2), value=3.0).roll(2, 1).flip(0) * x.repeat(1, 2)[:, :11]


@program(lambda: (leaf(4, 4),))
def linear_algebra(x: Tensor) -> Tensor:
    return torch.linalg.solve(x @ x.t() + torch.eye(4), x).sum() + torch.linalg.inv(x @ x.t() + torch.eye(4)).trace()


@program(lambda: (leaf(1, 2, 5, 5), torch.rand(1, 4, 4, 2)))
def sampled_grid(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, align_corners=False) + F.interpolate(x, (4, 4), mode="bilinear")


@program(lambda: (leaf(6, 6),))
def slices_that_are_saved(x: Tensor) -> tuple[Tensor, Tensor]:
    z = x.exp() @ x
    return z, (z[:, :1].sin() * z[1:2].cos()) @ z[:, 2:4] * z[2:3, 1:3]


@program(lambda: (leaf(4, 5), torch.tensor([[True, False, True, False, True]] * 4)))
def size_that_depends_on_data(x: Tensor, mask: Tensor) -> Tensor:
    return torch.masked_select(x * x, mask).sin()
