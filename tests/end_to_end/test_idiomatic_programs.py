"""Inference code as it is found in production: each program is compiled without a warning, stored, and served from the store."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import precast
from precast.artifact_store import Store
from precast.runtime.common import background
from precast.runtime.common.errors import PrecastError
from precast.runtime.executable import graph_call
from precast.runtime.executable.library import Library
from precast.runtime.loading import launcher

Program = Callable[..., Any]


@contextmanager
def strictly() -> Iterator[None]:
    """A warning (that something runs eagerly, say) is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def agrees(program: Program, calls: list[tuple[Any, ...]], store: Store) -> int:
    """Compiled and loaded, it is what eager is; how many artifacts that took."""
    with strictly():
        compiled = precast.compile(program, store=store)
        for args in calls:
            torch.testing.assert_close(compiled(*args), program(*args))
        precast.reset()
        loaded = precast.load(program, store=store, require="hit")
        for args in calls:
            torch.testing.assert_close(loaded(*args), program(*args))
    return sum(len(store.variants(key)) for key in store.programs())


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_an_antialiased_resize_in_inference_mode(mode: str, store: Store) -> None:
    def program(x: Tensor) -> Tensor:
        return F.interpolate(x, size=(3, 7), mode=mode, antialias=True)

    with torch.inference_mode():
        agrees(program, [(torch.randn(1, 2, 5, 5),)], store)


def resized(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(3, 7), mode="bilinear", antialias=True)


def test_weights_that_are_resized_beforehand_in_inference_mode(store: Store) -> None:
    class Resizes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(1, 2, 8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return x + F.interpolate(self.table, size=(3, 5), mode="bilinear", antialias=True)

    model, x = Resizes().eval(), torch.randn(1, 2, 3, 5)
    with torch.inference_mode(), strictly():
        torch.testing.assert_close(precast.compile(model, options={"freeze": True}, store=store)(x), model(x))


def test_it_is_compiled_for_inference_mode_in_the_background(store: Store) -> None:
    """The thread that compiles is not in inference mode, the calls are."""
    compiled, x = precast.compile(resized, store=store, options={"background_compile": True}), torch.randn(1, 2, 5, 5)
    with torch.inference_mode():
        compiled(x)
        assert background.wait(60)
        torch.testing.assert_close(compiled(x), resized(x))
        precast.reset()
        torch.testing.assert_close(precast.load(resized, store=store, require="hit")(x), resized(x))


def test_by_torchs_door_an_artifact_serves_both_modes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STORE", str(store.root))
    x = torch.randn(1, 2, 5, 5)
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad):
        torch._dynamo.reset()
        with mode():
            torch.testing.assert_close(torch.compile(resized, backend="precast")(x), resized(x))


MASKS: dict[str, Callable[[], Tensor]] = {
    "causal": lambda: torch.ones(4, 4, dtype=torch.bool).tril(),
    "nothing": lambda: torch.zeros(1, 1, 1, 4),
    "positions": lambda: torch.arange(4)[None, :] <= torch.arange(4)[:, None],
    "numbers": lambda: torch.full((4, 4), float("-inf")).triu(1),
    "window": lambda: (torch.arange(4)[None, :] - torch.arange(4)[:, None]).abs() < 2,
}


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_that_the_code_makes_for_any_number_of_rows(mask: str, store: Store) -> None:
    """It is known when the program is compiled, the number of rows is not."""

    def program(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=MASKS[mask]())

    assert agrees(program, [(torch.randn(rows, 2, 4, 8),) for rows in (2, 3, 5, 7)], store) == 2


def full(x: Tensor) -> Tensor:
    return torch.full((x.shape[0],), x.shape[1] >= 7, dtype=torch.bool)


def times(x: Tensor) -> tuple[Tensor, ...]:
    return x * (x.shape[1] > 6), x * (x.shape[1] == 6), x + (x.shape[1] % 2 == 0), x * (x.shape[1] / 2 > 3.1)


def tensors(x: Tensor) -> tuple[Tensor, ...]:
    one = torch.tensor(x.shape[1] >= 7)
    return one, torch.tensor(x.shape[1] != 7, dtype=torch.float32), torch.tensor([x.shape[1] <= 5, x.shape[0] > 1])


def combined(x: Tensor) -> tuple[Tensor, ...]:
    return (x > 0) & (x.shape[1] > 6), (x > 0) ^ (x.shape[1] > 6)


def filled(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y.fill_(x.shape[1] > 6)
    return y


@pytest.mark.parametrize(
    ("program", "most"), [(full, 2), (times, 2), (tensors, 2), (combined, 3), (filled, 2)], ids=lambda v: getattr(v, "__name__", str(v))
)
def test_a_truth_about_a_size_as_a_value(program: Program, most: int, store: Store) -> None:
    """Stopping criteria: one artifact for all lengths but the first. Of `&` and `^` Dynamo makes one for either truth."""
    assert agrees(program, [(torch.randn(2, length),) for length in (4, 5, 7, 8, 6)], store) == most


class Decorated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


CAST = torch.autocast("cpu", dtype=torch.bfloat16)


@torch.no_grad()
@CAST
def decorated(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def test_autocast_as_a_decorator(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees(Decorated().eval(), [(torch.randn(2, 4),)], store)
    args = torch.randn(4, 4), torch.randn(4, 4)
    agrees(decorated, [args], store)
    compiled = precast.compile(decorated, store=store)
    assert compiled(*args).dtype is torch.bfloat16
    monkeypatch.setattr(CAST, "_enabled", False)
    assert compiled(*args).dtype is torch.float32


class Doubles(torch.nn.Linear):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x + 1) * 2


def by_another_name(self: torch.nn.Module, x: Tensor) -> Tensor:
    return torch.nn.Module.__call__(self, x) * 3  # type: ignore[no-any-return,no-untyped-call]


class Triples(torch.nn.Linear):
    __call__ = by_another_name


class Straight(torch.nn.Linear):
    """Its call is its forward: hooks are not run."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1

    __call__ = forward


class Negates:
    def __call__(self, x: Tensor) -> Tensor:
        return -x


class Borrows(torch.nn.Linear):
    """Its forward is named as a call is."""

    forward = Negates.__call__  # type: ignore[assignment]


@pytest.mark.parametrize("hooked", ["never", "before", "later"])
@pytest.mark.parametrize("kind", [Doubles, Triples, Straight, Borrows])
def test_a_module_with_a_call_of_its_own(kind: type[torch.nn.Linear], hooked: str, store: Store) -> None:
    module, x = kind(4, 4).eval(), torch.randn(2, 4)
    if hooked == "before":
        module.register_forward_hook(lambda module, args, result: result + 3)
    agrees(module, [(x,)], store)
    compiled = precast.compile(module, store=store)
    if hooked == "later":
        compiled(x)
        module.register_forward_hook(lambda module, args, result: result + 3)
    want = module(x)
    with strictly():
        torch.testing.assert_close(compiled(x), want)
        torch.testing.assert_close(precast.compile(lambda y: compiled(y) - 1, store=store)(x), want - 1)
    precast.compile_module(module, store=store)
    assert precast.precompile(module, [((x,), {})]).ok
    with strictly():
        torch.testing.assert_close(module(x), want)


class Static(torch.nn.Linear):
    @staticmethod
    def __call__(x: Tensor) -> Tensor:
        return x * 5


class Object(Doubles):
    __call__ = Negates()


@pytest.mark.parametrize("kind", [Static, Object])
def test_a_call_that_is_no_function_is_refused_by_name(kind: type[torch.nn.Linear], store: Store) -> None:
    module, x = kind(4, 4), torch.randn(2, 4)
    with pytest.raises(PrecastError, match=rf"cannot compile a {kind.__name__}: .*:{kind.__name__}.__call__ is a (staticmethod|Negates)"):
        precast.compile(module, store=store)(x)
    with pytest.raises(PrecastError, match="make it a method, or compile a function that calls the module"):
        precast.compile_module(module, store=store)
    torch.testing.assert_close(precast.compile(lambda y: module(y) + 1, store=store)(x), module(x) + 1)


def test_transforms_without_gradients_being_recorded(store: Store) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.grad(lambda a: (a**2).sum())(x), torch.func.jacrev(torch.sin)(x)

    agrees(program, [(torch.randn(3),)], store)


KIND = SDPBackend.MATH


def test_one_kind_of_attention(store: Store) -> None:
    def program(q: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, q, q)

    def by_constant(q: Tensor) -> Tensor:
        with sdpa_kernel(KIND):
            return F.scaled_dot_product_attention(q, q, q)

    for kind in (program, by_constant):
        agrees(kind, [(torch.randn(2, 2, 4, 8),)], store)


def test_versions_and_limits(store: Store) -> None:
    def program(x: Tensor) -> Tensor:
        return x * (2 if sys.version_info >= (3, 8) else 1) + sys.float_info.epsilon

    agrees(program, [(torch.randn(3),)], store)


def counted(x: Tensor) -> Tensor:
    return x + torch.arange(8)


def test_a_default_device(store: Store) -> None:
    with torch.device("cpu"):
        agrees(counted, [(torch.randn(2, 8),)], store)
    with torch.device("meta"), torch.device("cpu"):
        agrees(counted, [(torch.randn(2, 8, device="cpu"),)], store)


def test_another_default_device_is_another_program(store: Store) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.zeros(3)

    compiled, x = precast.compile(program, store=store), torch.ones(1)
    for _ in range(2):
        with torch.device("cpu"):
            assert compiled(x).device.type == "cpu"
        with warnings.catch_warnings(), torch.device("cpu"), torch.device("meta"):
            warnings.simplefilter("ignore")
            assert compiled(x).device.type == "meta"
        assert compiled(x).device.type == "cpu"


class Whole:
    def __init__(self) -> None:
        self.t, self.w = torch.ones(3), torch.ones(3)


class Lazily:
    """An object whose attribute is code."""

    def __init__(self) -> None:
        self.t, self.reads = torch.ones(3), 0

    @property
    def w(self) -> Tensor:
        self.reads += 1
        return torch.ones(3)


def of_either(o: Any, whole: bool) -> Tensor:
    return o.t * o.w if whole else o.t + 1


def test_what_an_object_of_another_type_has_is_not_read_at_each_call(store: Store) -> None:
    """The type is looked at before attributes, which may be code."""
    compiled = precast.compile(of_either, store=store)
    compiled(Whole(), True)
    compiled(Lazily(), False)
    for _ in range(12):
        other = Lazily()
        torch.testing.assert_close(compiled(other, False), other.t + 1)
        assert other.reads == 0


class Counts(torch.nn.Module):
    """A running mean, as an exponential moving average of weights is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(4, 4))

    def forward(self, x: Tensor, total: Tensor) -> Tensor:
        self.mean.mul_(0.5).add_(x, alpha=0.5)
        total += 1
        return self.mean * total


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_written_has_another_version(mode: Any, store: Store) -> None:
    model, total = Counts(), torch.zeros(())
    with mode():
        for kind in (precast.compile(model, store=store), torch.compile(model, backend="precast")):
            for _ in range(3):
                before = model.mean._version, total._version
                kind(torch.randn(4, 4), total)
                assert model.mean._version > before[0] and total._version > before[1]
        inside = torch.zeros(())
        precast.compile(model, store=store)(torch.randn(4, 4), inside)
        assert inside == 1


def test_autograd_notices_what_a_compiled_program_wrote(store: Store) -> None:
    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    with torch.enable_grad():
        loss = (w * x).sum()
    with torch.no_grad():
        precast.compile(lambda x: x.add_(1).sum(), store=store)(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_frozen_weights_follow_a_compiled_update(store: Store) -> None:
    """The prepared copies of one program go by the versions of what another compiled program writes."""
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).eval().requires_grad_(False), torch.randn(8, 64)

    def update(weight: Tensor) -> None:
        weight.mul_(0.5).add_(1)

    with torch.no_grad(), strictly():
        frozen, updated = precast.compile(model, options={"freeze": True}, store=store), precast.compile(update, store=store)
        for _ in range(3):
            torch.testing.assert_close(frozen(x), model(x))
            updated(model[0].weight)


@pytest.mark.parametrize("place", [0, 1, 5])
def test_a_token_is_written_at_a_place(place: int, store: Store) -> None:
    """As generation loops do: `ids[position] = token`, with a position that is a tensor without dimensions and a token that has one."""

    def program(ids: Tensor, position: Tensor, token: Tensor, cache: Tensor, row: Tensor) -> Tensor:
        ids[position] = token
        cache[position, :, torch.arange(3)] = row
        return ids.sum() + cache.sum()

    def make() -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(place)
        ids, token = torch.arange(6), torch.tensor([77])
        return ids, torch.tensor(place), token, torch.zeros(6, 2, 3), torch.randn(2, 3, generator=generator)

    with torch.no_grad(), strictly():
        mine, theirs = make(), make()
        torch.testing.assert_close(precast.compile(program, store=store)(*mine), program(*theirs))
        torch.testing.assert_close(mine, theirs)


class Doubling(torch.nn.Module):
    """Written: a weight of another program's, a counter of its own, an argument; read: a convolution's weights, which are prepared."""

    def __init__(self, other: torch.nn.Conv2d) -> None:
        super().__init__()
        self.other, self.own = other, torch.nn.Conv2d(16, 16, 3, padding=1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        self.other.weight.mul_(2)
        self.calls += 1
        given.mul_(2)
        return self.own(x) * self.calls


def test_a_frozen_program_that_writes_is_seen_too(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By other frozen programs and by autograd; and it does not prepare its own weights at each call."""
    first, x, given = torch.nn.Conv2d(16, 16, 3, padding=1), torch.randn(1, 16, 16, 16), torch.ones(3)
    model, leaf = Doubling(first).eval().requires_grad_(False), torch.ones(3, requires_grad=True)
    first.weight.data *= 0.1
    prepared: list[int] = []
    monkeypatch.setattr(Library, "prepare_state", lambda self, *args, real=Library.prepare_state: prepared.append(1) or real(self, *args))
    for mode in ("native", "python"):
        if mode == "python":
            monkeypatch.setattr(graph_call, "graph_call", graph_call.PythonGraphCall)
            monkeypatch.setattr(launcher, "graph_call", graph_call.PythonGraphCall)
            precast.reset()
        with torch.enable_grad():
            loss = (leaf * given).sum()
        with torch.no_grad(), strictly():
            frozen, doubling = (precast.compile(m, options={"freeze": True}, store=store) for m in (first, model))
            prepared.clear()
            for _ in range(3):
                torch.testing.assert_close(frozen(x), first(x))
                twin, theirs = copy.deepcopy(model), given.clone()
                torch.testing.assert_close((doubling(x, given), given), (twin(x, theirs), theirs))
                torch.testing.assert_close(model.state_dict(), twin.state_dict())
            assert mode == "native" or len(prepared) == 3 + 1, "the changed weight three times, the others once"
            unchanged = model.own(x)
            model.own.weight.data *= 3  # which nobody can see: the copies of before are used again
            torch.testing.assert_close(doubling(x, given), unchanged * model.calls)
            model.own.weight.data /= 3
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
