"""Graphs that write nothing are traced in one pass: the very graphs that AOTAutograd makes, and only where that is certain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from precast.capture import CapturedFrame, capture
from precast.capture.aten import aot_autograd
from precast.capture.capture_graph import identity
from precast.capture.common.captured_frame import CaptureRefused
from tests.capture import models
from tests.capture.harness import run_frame

Function = Callable[..., Any]


def _both(monkeypatch: pytest.MonkeyPatch, fn: Any, *args: Any, **kwargs: Any) -> tuple[CapturedFrame, CapturedFrame, bool]:
    """The frame as it is captured, the same through AOTAutograd, and whether the first was traced in one pass."""
    made: list[Any] = []
    real = aot_autograd.functional_graph
    monkeypatch.setattr(aot_autograd, "functional_graph", lambda *given: made.append(real(*given)) or made[-1])
    one = capture(fn, args, kwargs)
    monkeypatch.setattr(aot_autograd, "functional_graph", lambda *given: None)
    two = capture(fn, args, kwargs)
    monkeypatch.undo()
    return one, two, made[-1] is not None


def _same(one: CapturedFrame, two: CapturedFrame) -> None:
    assert one.graph is not None and two.graph is not None
    assert identity(one.graph) == identity(two.graph)
    assert one.outputs == two.outputs
    assert one.inputs == two.inputs


@pytest.mark.parametrize("name", models.MODELS)
def test_models(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model, args, kwargs = models.make(name)
    with torch.no_grad():
        one, two, taken = _both(monkeypatch, model, *args, **kwargs)
    assert taken or name == "mamba", "its scan brings vmap's own calls into Dynamo's graph"
    _same(one, two)


def _mlp(x: Any, w: Any) -> Any:
    return functional.layer_norm(functional.gelu(x @ w), (8,)).softmax(-1), (x + 1).relu()


def _convolution(x: Any, w: Any) -> Any:
    image = x.reshape(1, 1, 8, 8)
    y = functional.batch_norm(functional.conv2d(image, w.reshape(1, 1, 8, 8), padding=4), x[0, :1], x[1, :1].exp())
    return functional.max_pool2d(functional.relu(y), 2).mean()


def _attention(x: Any, w: Any) -> Any:
    q = x.reshape(1, 2, 4, 8)
    return functional.scaled_dot_product_attention(q, q, w.reshape(1, 2, 4, 8), is_causal=True).transpose(1, 2).flatten(2)


def _parts(x: Any, w: Any) -> Any:
    a, b = x.chunk(2, dim=-1)
    both = torch.cat([a * 2, b], dim=0)
    return both, both[2:], torch.topk(w, 2), torch.where(x > 0, x, w), x.to(torch.float64).sum(dtype=torch.float32)


def _drawn(x: Any, w: Any) -> Any:
    return x + torch.rand(8) * 0, functional.dropout(w, 0.5) * 0


def _overwrites(x: Any, w: Any) -> Any:
    y = x * 2
    above = y[:4].sum()
    y += w
    y -= w[0]
    y = functional.relu(y, inplace=True)
    z = y.t() @ w
    z *= 0.5
    z /= 3
    return z + above, y


def _by_keyword(x: Any, w: Any) -> Any:
    return functional.relu(input=x + w, inplace=True)


def _adds_narrower(x: Any, w: Any) -> Any:
    y = x.to(torch.float64) * 2
    y += w
    i = (x > 0).to(torch.int64)
    i += 2
    return y, i


def _by_method(x: Any, w: Any) -> Any:
    y = x + 1
    y.add_(w, alpha=2).mul_(w).clamp_(-1, 1)
    y.masked_fill_(w > 0.5, 0.25)
    z = torch.zeros_like(y)
    z.copy_(y[0]).fill_(2)
    return y.index_add_(0, torch.arange(2), w[:2]), z


def _reads_the_old_name(x: Any, w: Any) -> Any:
    old = y = x * 2
    y += w
    return old * 3 + y


def _inplace_activation(x: Any, w: Any) -> Any:
    y = x + w
    functional.relu(y, inplace=True)
    return y


def _by_overload(x: Any, w: Any) -> Any:
    return torch.ops.aten.mul(x, 2) + torch.ops.aten.add.Tensor(w, x, alpha=2), torch.ops.aten.slice(w, 0, 1, -1)[:, w[0].long()]


def _detached(x: Any, w: Any) -> Any:
    y = (x + w).detach()
    return y * 2, torch.zeros_like(w) + y.detach(), torch.tensor([1.5, 2.5]) * x[0, :2]


PURE: list[Function] = [_mlp, _convolution, _attention, _parts, _drawn, _overwrites, _by_keyword, _adds_narrower]
PURE += [_by_method, _by_overload, _reads_the_old_name, _inplace_activation]


@pytest.mark.parametrize("fn", PURE)
@pytest.mark.parametrize("how", [torch.no_grad, torch.inference_mode])
def test_pure_functions_take_one_pass(monkeypatch: pytest.MonkeyPatch, fn: Function, how: Any) -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    with how():
        one, two, taken = _both(monkeypatch, fn, x, w)
        assert taken
        _same(one, two)
        got = run_frame(one, fn, (x, w), {})
        torch.testing.assert_close(got, fn(x, w))


def _writes_argument(x: Any, w: Any) -> Any:
    x.mul_(2)
    return x + w


def test_what_is_detached_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    with torch.no_grad():
        one, _, taken = _both(monkeypatch, _detached, x, w)
        assert taken and one.graph is not None
        assert not {n.target for n in one.graph.graph.nodes} & {torch.ops.aten.detach.default, torch.ops.aten.alias.default}
        torch.testing.assert_close(run_frame(one, _detached, (x, w), {}), _detached(x, w))


def _adds_to_argument(x: Any, w: Any) -> Any:
    before = x.sum()
    x += w
    x.mul_(2)
    return before, x @ w


def _keeps_rows(x: Any, w: Any) -> Any:
    at = (w[0, :2] * 0 + 3).long().cumsum(0)
    x.index_copy_(0, at, w[:2] * 2)
    return (x @ w).softmax(-1)


def _assigns_rows(x: Any, w: Any) -> Any:
    at = torch.arange(2) + 1
    x[at] = w[:2] * 2
    x[:, at] = w[:, :2].exp()
    w[at, at] = x[0, :2]
    return x.sum(0), w * 1


def _copies_between(x: Any, w: Any) -> Any:
    y = x + w
    x.copy_(w)
    w.copy_(y)
    w.clamp_(max=0.5)
    return y.t() * x


def _fills_argument(x: Any, w: Any) -> None:
    x.fill_(w[0, 0])
    w.add_(1)


def _views_after_writing(x: Any, w: Any) -> Any:
    x.add_(w)
    return x[1:3].t() + x.t()[:, 4:6], w.relu()


WRITING: list[Function] = [_writes_argument, _adds_to_argument, _keeps_rows, _assigns_rows, _copies_between, _fills_argument]
WRITING += [_views_after_writing]


@pytest.mark.parametrize("fn", WRITING)
@pytest.mark.parametrize("how", [torch.no_grad, torch.inference_mode])
def test_arguments_that_are_written_whole_take_one_pass(monkeypatch: pytest.MonkeyPatch, fn: Function, how: Any) -> None:
    x, w = torch.randn(8, 8), torch.rand(8, 8) + 0.5
    with how():
        one, two, taken = _both(monkeypatch, fn, x, w)
        assert taken
        _same(one, two)
        mine, theirs = (x.clone(), w.clone()), (x.clone(), w.clone())
        named = {(("local", name),): value for name, value in zip("xw", mine, strict=True)}
        written = [named[i.path] for i in one.inputs if i.mutated]
        versions = [t._version for t in written] if how is torch.no_grad else []
        got, expected = run_frame(one, fn, mine, {}), fn(*theirs)
        torch.testing.assert_close((got, mine), (expected, theirs), check_stride=True)
        assert written
        assert all(now._version > before for now, before in zip(written, versions, strict=False))


def test_a_static_cache_takes_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()

    def inputs() -> dict[str, Any]:
        cache = StaticCache(config=model.config, max_cache_len=16)
        cache.early_initialization(1, 2, 16, torch.float32, torch.device("cpu"))
        return {"input_ids": torch.tensor([[7]]), "past_key_values": cache, "position_ids": torch.tensor([[0]])}

    with torch.no_grad():
        one, two, taken = _both(monkeypatch, model, **inputs())
        assert taken
        _same(one, two)
        assert sum(i.mutated for i in one.inputs) >= 4


def _adds_in_place(x: Any, w: Any) -> Any:
    y = x * 2
    view = y[0]
    y += w
    return y, view + 0


def _adds_to_view_of_argument(x: Any, w: Any) -> Any:
    y = x.t()
    y += w
    return y * 2


def _adds_wider(x: Any, w: Any) -> Any:
    y = x * 2
    y += w.to(torch.float64)
    return y


def _adds_into_part(x: Any, w: Any) -> Any:
    y = x * 2
    a, b = y.chunk(2)
    a += w[:4]
    return y, b * 2


def _keeps_strides(x: Any, w: Any) -> Any:
    a = (x * 2)[:, 1:5]
    a += w[:, :4]
    return a


def _rectifies_columns(x: Any, w: Any) -> Any:
    return functional.relu((x + w)[:, 1:5], inplace=True)


def _reaches_beyond(x: Any, w: Any) -> Any:
    a = (x * 2)[1]
    a += w[0]
    return a.as_strided((8, 8), (8, 1), 0) + 1


def _reads_between(x: Any, w: Any) -> Any:
    a = (x * 2)[:, :4]
    a += w[:, :4]
    return a.as_strided((16,), (1,)) + 1


def _adds_to_view_of_kept(x: Any, w: Any) -> Any:
    y = functional.dropout(x, 0.5, False)[:4]
    y += w[:4]
    return y * 2


def _sees_through_dropout(x: Any, w: Any) -> Any:
    y = functional.dropout(x * 2, 0.5, False)
    part = y[:4]
    y += w
    return y, part


def _drops_nothing(x: Any, w: Any) -> Any:
    y = functional.dropout(x, 0.0)
    y += w
    return y


def _returns_undropped(x: Any, w: Any) -> Any:
    return functional.dropout(x, 0, training=True), w + 1


def _calls_torch_dropout(x: Any, w: Any) -> Any:
    y = torch.dropout(x, 0.5, train=False)
    y += w
    return y


def _writes_to_out(x: Any, w: Any) -> Any:
    y = torch.empty(8, 8)
    torch.add(x, w, out=y)
    return y


def _assigns(x: Any, w: Any) -> Any:
    y = x.clone()
    y[0] = w[1]
    return y


def _trains_norm(x: Any, w: Any) -> Any:
    mean, variance = torch.zeros(8), torch.ones(8)
    return functional.batch_norm(x, mean, variance, training=True), mean, variance, w + 1


def _writes_statistics(x: Any, w: Any) -> Any:
    y = functional.batch_norm(x, w[0], w[1], training=True)
    return y


def _shows_argument(x: Any, w: Any) -> Any:
    return x.t(), w + 1


def _records(x: Any, w: Any) -> Any:
    with torch.enable_grad():
        y = x * 2
    return y + w


def _by_data(x: Any, w: Any) -> Any:
    return torch.nonzero(x > 0) * 2, w


def _complex(x: Any, w: Any) -> Any:
    return torch.complex(x, w).conj().imag + 1


def _branches(x: Any, w: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (x, w))


def _sees_argument_before(x: Any, w: Any) -> Any:
    rows = x[:4]
    x.add_(w)
    return rows * 2


def _gives_written_argument(x: Any, w: Any) -> Any:
    return x.add_(w), w * 2


def _gives_part_of_written(x: Any, w: Any) -> Any:
    x.add_(w)
    return x[0], w * 2


def _writes_part(x: Any, w: Any) -> Any:
    x[1] = w[0]
    x[2:4] = 0
    x[w > 1] = 0.5
    return x * w


def _detached_beside(x: Any, w: Any) -> Any:
    y = x * w
    return y, y.detach()


OTHERS: list[Function] = [
    _sees_argument_before,
    _gives_written_argument,
    _gives_part_of_written,
    _writes_part,
    _detached_beside,
    _adds_in_place,
    _adds_to_view_of_argument,
    _adds_wider,
    _adds_into_part,
    _keeps_strides,
    _rectifies_columns,
    _reaches_beyond,
    _reads_between,
    _adds_to_view_of_kept,
    _sees_through_dropout,
    _drops_nothing,
    _returns_undropped,
    _calls_torch_dropout,
    _writes_to_out,
    _assigns,
    _trains_norm,
    _writes_statistics,
    _shows_argument,
    _records,
    _by_data,
    _complex,
    _branches,
]


@pytest.mark.parametrize("fn", OTHERS)
def test_whatever_writes_or_shows_an_input_does_not(monkeypatch: pytest.MonkeyPatch, fn: Function) -> None:
    x, w = torch.randn(8, 8), torch.rand(8, 8) + 0.5
    with torch.no_grad():
        one, two, taken = _both(monkeypatch, fn, x, w)
        assert not taken
        _same(one, two)
        mine, theirs = (x.clone(), w.clone()), (x.clone(), w.clone())
        got, expected = run_frame(one, fn, mine, {}), fn(*theirs)
        torch.testing.assert_close((got, mine), (expected, theirs), check_stride=True)


def test_gradients_leave_it_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8, 8)
    assert not _both(monkeypatch, _mlp, x, torch.randn(8, 8))[2], "gradients are recorded: AOTAutograd says whether a graph is needed"


def _detaches(x: Any) -> Any:
    return x.detach(), x.view(64), x.detach().t(), x.data[1:], x + 1


@pytest.mark.parametrize("how", [torch.no_grad, torch.inference_mode])
def test_views_of_parameters_require_gradients_where_eager_says(how: Any) -> None:
    x = torch.nn.Parameter(torch.randn(8, 8))
    with how():
        got = run_frame(capture(_detaches, (x,), {}), _detaches, (x,), {})
        assert [t.requires_grad for t in got] == [t.requires_grad for t in _detaches(x)]
        assert {t.untyped_storage().data_ptr() for t in got[:-1]} == {x.untyped_storage().data_ptr()}


def _adds_first(x: Any, w: Any) -> Any:
    x.add_(1)
    return x * w


def test_arguments_that_share_memory_or_have_gaps_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(8, 16)
    with torch.no_grad():
        gaps = whole[:, ::2], torch.randn(8, 8)
        one, two, taken = _both(monkeypatch, _adds_first, *gaps)
        assert not taken
        _same(one, two)
        mine, theirs = (whole.clone()[:, ::2], gaps[1]), (whole.clone()[:, ::2], gaps[1])
        torch.testing.assert_close((run_frame(one, _adds_first, mine, {}), mine), (_adds_first(*theirs), theirs), check_stride=True)
        with pytest.raises(Exception, match="share memory"):
            capture(_adds_first, (whole[:, :8], whole[:, 4:12]), {})


def _picks_beside_a_selection(x: Any, i: Any, j: Any, v: Any) -> Any:
    x[i, :, j] = v * 1
    return x.sum(0)


def _assigns(x: Any, i: Any, v: Any) -> Any:
    x[i] = v * 1
    return x.sum(0)


ASKS_FOR_VALUES = torch.__version__ < "2.15"
"""Whether a place that a tensor without dimensions gives is read while tracing. Later ones write through `index_put` with it."""
AT = torch.tensor
ASSIGNING: list[tuple[Function, tuple[Any, ...], str]] = [
    (_picks_beside_a_selection, (torch.randn(8, 3, 3), AT(5), AT([2, 0, 1]), torch.randn(3, 3)), "refused"),
    (_picks_beside_a_selection, (torch.randn(4, 3, 5), AT(2), AT([0, 4]), torch.randn(3, 2)), "refused"),
    (_picks_beside_a_selection, (torch.randn(4, 3, 5), AT([2, 1]), AT([0, 4]), torch.randn(2, 3)), "one pass"),
    (_assigns, (torch.randn(8), AT(3), torch.randn(1)), "refused"),
    (_assigns, (torch.randn(8, 4), AT(3), torch.randn(4)), "one pass only"),
    (_assigns, (torch.randn(8, 4), AT([3, 4], dtype=torch.int32), torch.randn(1, 2, 4)), "AOTAutograd"),
    (_assigns, (torch.randn(8, 4), AT([[3, 4], [-1, 0]]), torch.randn(2, 4)), "one pass"),
]


@pytest.mark.parametrize("case", ASSIGNING, ids=lambda case: f"{case[0].__name__}-{'-'.join(str(tuple(t.shape)) for t in case[1])}")
def test_assignment_means_what_python_says(monkeypatch: pytest.MonkeyPatch, case: tuple[Function, tuple[Any, ...], str]) -> None:
    """A number's place is known to Python alone: AOTAutograd asks for its value, and such code is split there; not with torch 2.15."""
    fn, args, way = case
    with torch.no_grad():
        if way == "refused" and ASKS_FOR_VALUES:
            with pytest.raises(CaptureRefused, match="depends on the data of a tensor"):
                capture(fn, args, {})
            return
        if way in ("refused", "one pass only"):
            one = capture(fn, args, {})
        else:
            one, two, taken = _both(monkeypatch, fn, *(t.clone() for t in args))
            assert taken == (way == "one pass")
            _same(one, two)
        mine, theirs = ([t.clone() for t in args] for _ in range(2))
        torch.testing.assert_close((run_frame(one, fn, tuple(mine), {}), mine), (fn(*theirs), theirs))
