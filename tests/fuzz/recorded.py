"""Random programs that record gradients: views, writes in place, views of what is written, modes; the writer is that of writer.py.

Everything is in double precision, so that what differs is not rounding. Tensors named a, b and c have the shape of x.
"""

from __future__ import annotations

from tests.fuzz.writer import HEAD, HEADS, Writer

MODULE = """

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, t):
        self.total.add_(t.detach().mean(0))
        return self.norm(self.first(t)).tanh() + t


torch.manual_seed(3)
NET = Net().double()


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t.sin()

    @staticmethod
    def backward(ctx, given):
        (t,) = ctx.saved_tensors
        return 3 * given * t.cos()


def again(function, *tensors):
    return torch.utils.checkpoint.checkpoint(function, *tensors, use_reentrant=False)


def block(t, u):
    return torch.tanh(t * u).sin() + u
"""

EXPRESSIONS = (
    "{a} * {b}",
    "{a}.sin() + y",
    "torch.tanh({a} * y)",
    "{a} / (1.0 + {b}.abs())",
    "{a}.softmax(-1) * {b}",
    "torch.where({a} > 0, {a}, {b} * 0.5)",
    "({a} @ {b}.t()).tanh() @ {c} * 0.1",
    "torch.nn.functional.layer_norm({a}, (4,), y)",
    "NET({a})",
    "Tripled.apply({a})",
    "again(block, {a}, {b})",
    "again(NET.first, {a})",
    "{a}.cumsum(1) * 0.3",
    "{a}[:, [1, 0, 3, 2]]",
    "{a}[[0] * {a}.shape[0]] * 0.5 + {b}",
    "torch.cat([{a}[:, 2:], {b}[:, :2]], 1)",
    "torch.stack([t * (i + 1) for i, t in enumerate({a}.unbind(1))], 1)",
    "{a}.flip(0).roll(1, 1)",
    "{a} - {b}.mean(0, keepdim=True)",
    "{a} * {b}.amax(1, keepdim=True).sigmoid()",
    "torch.nn.functional.pad({a}[:, 1:3], (1, 1), value=0.5)",
    "{a}.clamp(-1.0, 1.0) + {a} * 0.1",
    "{a}.index_add(0, torch.zeros({a}.shape[0], dtype=torch.int64), {b}) * 0.5",
    "{a}.masked_fill({b} > 0.5, k)",
    "torch.func.grad(lambda t: (t.sin() * y).sum())({a})",
    "torch.func.vmap(lambda t: t * y.sum())({a})",
    # views
    "{b}",
    "{b}[:]",
    "{b}.t().t()",
    "{b}.view(-1).view({b}.shape)",
    "{b}.expand_as({b})",
    "{b}.detach()",
    "{b}.detach().requires_grad_()",
    "{b}.clone()",
    "x[:]",
    "x",
    "{b}.t().contiguous().t()",
    "{b}.narrow(0, 0, {b}.shape[0])",
    "{b}.unflatten(1, (2, 2)).transpose(1, 2).flatten(1)",
    "y.expand({a}.shape[0], 4)",
    "{a}.as_strided({a}.shape, {a}.stride())",
)
SIMPLE = (
    "{a}.mul_(k)",
    "{a}.add_({b})",
    "{a}.copy_({b})",
    "{a}.sin_()",
    "{a}.relu_()",
    "{a}.zero_()",
    "{a}[0].mul_(2)",
    "{a}[:, 1:3].add_({b}[:, :2])",
    "{a}[:, 0] = {b}[:, 1]",
    "{a}[0, 0] = k",
    "{a}.t().mul_({b}.t())",
    "{a}.view(-1)[1:3].neg_()",
    "{a}.diagonal().fill_(0.25)",
    "{a}.unbind(1)[0].mul_(2)",
    "{a}.chunk(2, 1)[1].sigmoid_()",
    "{a}.select(1, n % 4).copy_({b}[:, 0])",
    "{a}[{b} > 0] = 0.5",
    "{a}.index_fill_(1, torch.tensor([0, 2]), 0.5)",
    "{a}.detach().mul_(1.5)",
    "x.mul_(0.5)",
    "x[:, :2].add_({b}[:, 2:])",
    "x.detach_()",
    "x[1:].copy_({b}[1:])",
    "{a}, {b} = {b}, {a}",
    "NET.total.add_({a}.detach().sum(0))",
    "NET.total = NET.total * 0.5",
    "{a} = {a} * NET.total",
    "{a} = {a}.clone(); {a}[:, ::2] = {b}[:, ::2]",
    "{a} += {b}",
    "{a} *= {b}[0]",
    "k = k * 0.5 + n",
    "torch._dynamo.graph_break()",
)
LEFT_OUT = ("while", "try", "if {a}.max", "for key", "if BOX", "if isinstance", "if 'gain'")
HEADS = (
    *[head for head in HEADS if not head.startswith(LEFT_OUT)],
    "with torch.enable_grad():",
    "with torch.set_grad_enabled(flag):",
    "for part in {a}.split(2, 1):",
)
RETURNS = (
    "return a, b, c",
    "return a, b.t(), c[1:]",
    "return a, a, x",
    "return {'a': a[:, 0], 'b': [b.view(-1), b], 'k': k}",
    "return a.sum() + b.mean()",
    "return a.sum(), a.detach(), b > 0, x.t()",
    "return x[1:], y[:2], c",
    "return a, a.mean(1), a.unsqueeze(0), b.sum()",
)


class RecordedWriter(Writer):
    """Writes programs whose gradients eager gives, or refuses."""

    head = HEAD + MODULE
    expressions = EXPRESSIONS
    simple = SIMPLE
    heads = HEADS
    returns = RETURNS


__all__ = ["RecordedWriter"]
