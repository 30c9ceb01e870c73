"""Random numbers in calls that record gradients: those of eager, or of precast's own; the backward pass sees what the forward pass drew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import precast
from precast.artifact_store import Store
from tests.support.processes import REFUSE, child

OWN = {"fallback_random": False}
Function = Callable[..., Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.open(tmp_path_factory.mktemp("store"))


def dropouts(x: Tensor, volume: Tensor) -> list[Tensor]:
    return [
        F.dropout(x.sin(), 0.3) * 2,
        F.dropout(x.cos(), 0.4, inplace=True),
        F.dropout(x, 1.0),
        F.dropout1d(volume[0, :, 0].sin(), 0.3),
        F.dropout2d(volume[:, 0].sin(), 0.3),
        F.dropout3d(volume.sin(), 0.3),
        F.alpha_dropout(x.sin(), 0.3, training=True),
        F.feature_alpha_dropout(volume.sin(), 0.3, training=True),
        F.rrelu(x, training=True),
        F.rrelu(x * 1, training=True, inplace=True),
    ]


def noise(x: Tensor, volume: Tensor) -> list[Tensor]:
    """Equal calls among them, each of which draws for itself."""
    empty = torch.empty_like(x)
    return [
        x * torch.rand_like(x) + torch.rand(4, 6) * x.cos(),
        x * torch.randn_like(x) + torch.randn(4, 6) * x.cos(),
        x.t() * torch.rand_like(x.t()),
        torch.bernoulli(x.sigmoid()) * x,
        empty.clone().bernoulli_(0.3) * x,
        empty.clone().uniform_(-1, 2) * x,
        empty.clone().normal_(1, 2) * x + torch.normal(x, 1.0) + torch.normal(x, x.abs()) * x,
        empty.clone().exponential_(2.0) * x + torch.poisson(x.exp()) * x,
        empty.clone().exponential_(2.0) * empty.clone().uniform_(-1, 2) * empty.clone().normal_(1, 2) * x,
        empty.clone().cauchy_() * empty.clone().cauchy_() * empty.clone().geometric_(0.4) * empty.clone().geometric_(0.4) * x,
        torch.randint_like(x, 5) * torch.randint_like(x, 5) * empty.clone().log_normal_() * empty.clone().log_normal_() * x,
        x[torch.randint(0, 4, (3,))] * x[torch.randperm(4)][:3],
    ]


def chosen(x: Tensor, volume: Tensor) -> list[Tensor]:
    normal = torch.distributions.Normal(x, 1.0, validate_args=False)
    gamma = torch.distributions.Gamma(x.exp(), 1.0, validate_args=False)
    categories = torch.distributions.Categorical(logits=x, validate_args=False)
    return [
        F.gumbel_softmax(x, tau=0.7),
        F.gumbel_softmax(x, tau=0.7, hard=True) * x,
        torch.gather(x, 1, torch.multinomial(x.softmax(1), 2)),
        normal.rsample(),
        gamma.rsample(),
        categories.log_prob(categories.sample()),
        F.scaled_dot_product_attention(volume[0], volume[1], volume[0] * 2, dropout_p=0.3),
        F.scaled_dot_product_attention(volume[0], volume[1], volume[0] * 2, dropout_p=0.3, is_causal=True),
        F.fractional_max_pool2d(volume[:, 0], 2, output_size=2),
    ]


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return (
        torch.randn(4, 6, generator=generator).requires_grad_(),
        torch.randn(2, 3, 4, 4, 4, generator=generator).requires_grad_(),
    )


def drawn(function: Function, seed: int) -> list[Tensor]:
    """Results, gradients, and the generator's state after each of the two passes."""
    x, volume = inputs()
    torch.manual_seed(seed)
    results = function(x, volume)
    after = torch.get_rng_state()
    torch.stack([(r * torch.linspace(1, 2, r.numel()).reshape(r.shape)).sum() for r in results]).sum().backward()
    assert x.grad is not None
    rest = [] if volume.grad is None else [volume.grad]
    return [*(r.detach() for r in results), x.grad, *rest, after, torch.get_rng_state()]


@pytest.mark.parametrize("function", [dropouts, noise, pytest.param(chosen, marks=pytest.mark.slow)])
def test_numbers_are_eagers(function: Function, store: Store) -> None:
    compiled = precast.compile(function, store=store, fullgraph=True)
    for seed in (1, 2):
        mine, theirs = drawn(compiled, seed), drawn(function, seed)
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a == 0, b == 0)
            torch.testing.assert_close(a, b)


class Layers(nn.Module):
    """Modules that drop."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.encoder(x)
        return self.attention(y, y, y)[0]  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_drop_what_eagers_drop(dynamic: bool, store: Store) -> None:
    torch.manual_seed(0)
    net = Layers()
    compiled = precast.compile(net, store=store, fullgraph=True, dynamic=dynamic)
    for rows in (2, 3):
        found = []
        for called in (compiled, net):
            net.zero_grad()
            torch.manual_seed(rows)
            called(torch.linspace(-1, 1, rows * 24).reshape(rows, 3, 8)).square().sum().backward()
            found.append([p.grad for p in net.parameters()])
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def scaled(x: Tensor, p: Tensor) -> list[Tensor]:
    """Each result is its input times what was drawn."""
    return [
        F.dropout(x, 0.3),
        F.dropout2d(x, 0.4),
        torch.native_dropout(x, 0.5, True)[0],
        x * torch.rand_like(x),
        x * torch.randn_like(x),
        x * torch.bernoulli(p),
        x * torch.empty_like(x).uniform_(1, 2),
        x * torch.empty_like(x).normal_(2, 1),
        x * torch.empty_like(x).bernoulli_(0.6),
    ]


@pytest.mark.parametrize("options", [OWN, pytest.param({}, marks=pytest.mark.slow)])
def test_the_backward_pass_sees_what_was_drawn(options: dict[str, Any], store: Store) -> None:
    """Numbers that kernels draw for themselves, too: seeds repeat them, and calls draw afresh."""
    compiled = precast.compile(scaled, store=store, fullgraph=True, options=options)
    p = torch.linspace(0, 1, 400).reshape(2, 2, 10, 10)
    found = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        x = torch.linspace(1, 2, 400).reshape(2, 2, 10, 10).requires_grad_()
        results = compiled(x, p)
        for result in results:
            (gradient,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
            torch.testing.assert_close(x.detach() * gradient, result.detach())
        found.append(torch.stack(results).detach())
    assert torch.equal(found[0], found[2])
    for a, b in zip(found[0], found[1], strict=True):
        assert not torch.equal(a, b)


@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, OWN], ids=["eager's", "own"])
def test_what_is_computed_again_sees_what_was_drawn(options: dict[str, Any], reentrant: bool, store: Store) -> None:
    def inner(v: Tensor) -> Tensor:
        return F.dropout(v, 0.4).exp() * torch.native_dropout(v.detach() * 0 + 1, 0.5, True)[0].detach()

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        first = checkpoint(inner, x, use_reentrant=reentrant)
        return first + 0, checkpoint(inner, x * 1, use_reentrant=reentrant) + 0

    compiled = precast.compile(twice, store=store, fullgraph=True, options=options)
    called = (compiled,) if options else (compiled, twice)
    found = []
    for function in called:
        x = torch.linspace(1, 2, 60).requires_grad_()
        torch.manual_seed(5)
        first, second = function(x)
        (first + 3 * second).sum().backward()
        wanted = torch.zeros(60)
        for result, weight in ((first.detach(), 1), (second.detach(), 3)):
            wanted += torch.where(result > 2.01, weight * result / 0.6, 0.0)  # of what neither of the two dropped
            found.append(result)
        torch.testing.assert_close(x.grad, wanted)
    if not options:
        torch.testing.assert_close(found[:2], found[2:])


def with_generator(x: Tensor, generator: torch.Generator) -> Tensor:
    mask = torch.empty_like(x).bernoulli_(0.5, generator=generator)
    return x.sin() * torch.rand(4, 6, generator=generator) * mask + torch.normal(x, 1.0, generator=generator)


@pytest.mark.parametrize("options", [{}, pytest.param(OWN, marks=pytest.mark.slow)])
def test_generators_that_are_passed_in(options: dict[str, Any], store: Store) -> None:
    """They advance as in eager; torch's own does not."""
    compiled = precast.compile(with_generator, store=store, options=options)
    found = []
    for function in (compiled, with_generator):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(6)
        for _ in range(2):
            x, _ = inputs()
            result = function(x, generator)
            result.sum().backward()
            found += [result.detach(), x.grad]
        found += [generator.get_state(), torch.get_rng_state()]
    torch.testing.assert_close(found[:6], found[6:])


def state_put_back(x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    first = F.dropout(x.sin(), 0.5)
    torch.set_rng_state(state)
    return first * F.dropout(x, 0.5)


def seeded_inside(x: Tensor) -> Tensor:
    torch.manual_seed(7)
    return x * torch.rand(4, 6)


def forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        first = F.dropout(x.sin(), 0.5)
    return first * F.dropout(x, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("function", [state_put_back, seeded_inside, forked])
def test_states_of_generators_that_code_sets(function: Function, store: Store) -> None:
    compiled = precast.compile(function, store=store)
    found = []
    for called in (compiled, function):
        torch.manual_seed(0)
        x, _ = inputs()
        called(x).sum().backward()
        found.append([x.grad, torch.get_rng_state()])
    torch.testing.assert_close(found[0], found[1])


def test_seeds_are_in_no_key(tmp_path: Path) -> None:
    """Ranks that are seeded apart share one artifact."""
    store, masks = Store.open(tmp_path), []
    for rank in range(2):
        torch.manual_seed(100 + rank)
        torch._dynamo.reset()
        x = torch.ones(8, 8, requires_grad=True)
        masks.append(precast.compile(lambda x: F.dropout(x, 0.5) * x, store=store, name="shared", options=OWN)(x).detach())
    assert not torch.equal(masks[0], masks[1])
    assert len(list(store.manifests())) == 1


WARM = """
import sys
import torch
import precast

def dropped(x):
    return torch.nn.functional.dropout(x.sin(), 0.3) * torch.rand_like(x)

def drawn(**options):
    found = []
    call = precast.compile(dropped, store=sys.argv[1], options=options, name="dropped", fullgraph=True)
    for seed in (1, 2):
        torch.manual_seed(seed)
        x = torch.linspace(-1, 1, 40).requires_grad_()
        y = call(x)
        y.sum().backward()
        found += [y.detach(), x.grad]
    return torch.stack(found)

torch.save([drawn(), drawn(fallback_random=False)], sys.argv[2])
"""


@pytest.mark.slow
def test_a_process_that_starts_warm_draws_the_same(tmp_path: Path) -> None:
    (tmp_path / "drawing.py").write_text(WARM)
    child(tmp_path, "import drawing", str(tmp_path / "store"), str(tmp_path / "cold"))
    served = REFUSE + "\nattempts = refuse_tracer()\nimport drawing\nassert not attempts, attempts\n"
    child(tmp_path, served, str(tmp_path / "store"), str(tmp_path / "warm"))
    cold, warm = torch.load(tmp_path / "cold"), torch.load(tmp_path / "warm")
    assert all(map(torch.equal, cold, warm))


def test_what_torch_has_no_gradient_of_runs_eagerly(store: Store) -> None:
    def counted(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.binomial(torch.full_like(x, 5.0), x.sigmoid()), x * 2

    x, _ = inputs()
    with pytest.warns(UserWarning, match="no gradient of an operator: derivative for aten::binomial"):
        precast.compile(counted, store=store)(x)[1].sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 2.0))
