"""Where the tracer alone would go on as Python does not."""

from __future__ import annotations

import collections
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import precast
from precast.artifact_store import Store

# ruff: noqa: UP031

CASES: dict[str, Callable[[Any], Any]] = {
    "text": lambda n: "n%d" % n,
    "bytes": lambda n: b"%d" % n,
    "text and a tuple": lambda n: "%d of %s" % (n, n),
    "text and a dict": lambda n: "%(a)d of %(b)s" % {"a": n, "b": n},
    "complex": lambda n: n + 1j,
    "complex first": lambda n: 2j - n,
    "complex product": lambda n: operator.imul(n, 3j),
    "a list repeated": lambda n: [1] * n,
    "no operation": lambda n: n + "a",
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("caught", [True, False])
@torch.no_grad()
def test_operations_with_a_number_that_varies(name: str, caught: bool, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracer raises a TypeError for most of these, and code that catches errors went on with that."""
    case = CASES[name]
    if name == "bytes" and torch.__version__ < "2.13":
        monkeypatch.delenv("PRECAST_STRICT")  # that tracer itself fails there: such code runs eagerly

    def catching(x: torch.Tensor, n: int) -> tuple[Any, ...]:
        try:
            found = case(n)
        except Exception as error:  # noqa: BLE001 - whatever it is counts
            found = type(error).__name__
        return x * 2, found, n

    def plain(x: torch.Tensor, n: int) -> tuple[Any, ...]:
        return x * 2, case(n), n

    program = catching if caught or name == "no operation" else plain
    compiled = precast.compile(program, store=store, dynamic=True)
    for n in (3, 4, 7, 3):
        x = torch.randn(3)
        got, wanted = compiled(x, n), program(x, n)
        torch.testing.assert_close(got[0], wanted[0])
        assert repr(got[1:]) == repr(wanted[1:])


@torch.no_grad()
def test_sizes_in_texts_stay_sizes(store: Store) -> None:
    def program(x: torch.Tensor, n: int) -> tuple[Any, ...]:
        return x * 2, "%s" % (x.shape,), "%d by %d" % x.shape, "%s and %d" % (tuple(x.shape), n), "%(size)s" % {"size": x.shape}

    compiled = precast.compile(program, store=store, dynamic=True)
    for n in (3, 4, 7):
        x = torch.randn(n, 5)
        got, wanted = compiled(x, n), program(x, n)
        torch.testing.assert_close(got[0], wanted[0])
        assert got[1:] == wanted[1:]


class Settings:
    """Answers for what it does not have."""

    def __init__(self, **given: float) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> float:
        if name == "factor":
            return 7.0
        raise AttributeError(name)


class Answering(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def __getattr__(self, name: str) -> Any:
        return 7.0 if name == "factor" else super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.factor


@torch.no_grad()
def test_what_getattr_answers_depends_on_the_absence(store: Store) -> None:
    """torch.compile goes on with the answer."""

    def program(x: torch.Tensor, settings: Settings) -> torch.Tensor:
        return x * settings.factor

    compiled, x = precast.compile(program, store=store), torch.randn(3)
    for settings in (Settings(), Settings(factor=2.0), Settings(other=1.0), Settings(factor=7.0)):
        torch.testing.assert_close(compiled(x, settings), program(x, settings))
    model = Answering()
    served = precast.compile(model, store=store)
    torch.testing.assert_close(served(x), x * 7)
    model.factor = 3.0
    torch.testing.assert_close(served(x), x * 3)
    del model.factor
    torch.testing.assert_close(served(x), x * 7)
    model.__dict__["weight"] = torch.zeros(3)
    torch.testing.assert_close(served(x), x * 0)


@torch.no_grad()
def test_what_is_no_tensor_where_another_call_had_a_number_of_numpys(store: Store) -> None:
    def program(x: torch.Tensor, n: Any) -> torch.Tensor:
        return x + 1 if n is None else x.sin() if isinstance(n, str) else x * n

    compiled, x = precast.compile(program, store=store), torch.randn(3)
    for n in (2, np.float64(2), None, "a", np.float32(3), None, 2.5, [1.0, 2.0, 3.0][0]):
        torch.testing.assert_close(compiled(x, n), program(x, n))


@torch.no_grad()
def test_a_key_that_was_absent(store: Store) -> None:
    known: dict[str, float] = {}

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * known["by"]
        except KeyError:
            return x + 1

    compiled = precast.compile(program, store=store)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x + 1)
    known["by"] = 3.0
    torch.testing.assert_close(compiled(x), x * 3)


@torch.no_grad()
@pytest.mark.parametrize("values", [(3, 4, 6, 1, 0), (0.5, 1.5, -0.0, 7.5)], ids=["int", "float"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_relations_give_truths(values: tuple[float, ...], dynamic: bool | None, store: Store) -> None:
    """Also where they hold for every number: True, and not 1."""

    def program(x: torch.Tensor, n: float) -> tuple[Any, ...]:
        rows = x.shape[0]
        return x * n, n == n, n != n, n < 3, not n, n > 2 or n == 1, rows == rows, rows > 2, bool(rows), x.numel() == n, [n] == [n]

    compiled = precast.compile(program, store=store, dynamic=dynamic)
    for rows, n in enumerate(values, 3):
        x = torch.randn(rows)
        got, wanted = compiled(x, n), program(x, n)
        torch.testing.assert_close(got[0], wanted[0])
        assert repr(got[1:]) == repr(wanted[1:])


@torch.no_grad()
def test_labels_behind_the_first_minus_one_do_not_count(store: Store) -> None:
    """torch's own decomposition counts them as the label 0."""

    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.multilabel_margin_loss(x, labels)

    x, compiled = torch.randn(5, 4), precast.compile(loss, store=store)
    for labels in ([0, 1, -1, 2], [3, -1, -1, -1], [-1, 0, 1, 2], [0, 1, 2, 3]):
        given = torch.tensor([labels] * 5)
        torch.testing.assert_close(compiled(x, given), loss(x, given))


@torch.no_grad()
def test_labels_of_a_type_that_the_kernel_refuses(store: Store) -> None:
    compiled = precast.compile(torch.nn.functional.multi_margin_loss, store=store)
    x, labels = torch.randn(5, 4), torch.tensor([1, 2, 3, 0, 1])
    torch.testing.assert_close(compiled(x, labels), torch.nn.functional.multi_margin_loss(x, labels))
    with pytest.raises(RuntimeError, match="expected scalar type Long"):
        compiled(x, labels.int())


@torch.no_grad()
def test_scaled_functions_far_from_zero(store: Store) -> None:
    """erfcx as a product of exp and erfc is no number where the one is infinite and the other zero."""

    def functions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.special.erfcx(x), torch.special.log_ndtr(x)

    x = torch.tensor([-1e10, -30.0, -9.0, 0.0, 9.0, 10.0, 26.0, 50.0, 1e10, float("inf"), float("nan")])
    for given in (x, x.double()):
        torch.testing.assert_close(precast.compile(functions, store=store)(given), functions(given), equal_nan=True)


class Missing(dict[str, float]):
    def __missing__(self, key: str) -> float:
        self[key] = 1.0
        return 1.0


@pytest.mark.parametrize(
    "made", [lambda **given: collections.defaultdict(lambda: 7.0, **given), Missing], ids=["defaultdict", "__missing__"]
)
@torch.no_grad()
def test_checks_do_not_make_keys(made: Callable[..., Any], store: Store) -> None:
    """A guard looked for a key by `d[key]`, which makes one that is absent: another answer, and a dict that had changed."""

    def program(x: torch.Tensor, d: dict[str, float]) -> torch.Tensor:
        return x * d["k"] + 100 if "k" in d else x * len(d)

    x = torch.ones(2)
    for compiled in (precast.compile(program, store=store), precast.compile(program, store=store)):
        for given in ({"k": 2.0}, {}, {"k": 3.0}, {"a": 1.0}, {}):
            mine, theirs = made(**given), made(**given)
            torch.testing.assert_close(compiled(x, mine), program(x, theirs))
            assert dict(mine) == dict(theirs) == given


def changes_grad_mode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + 1
    torch.set_grad_enabled(not torch.is_grad_enabled())
    return y * 2, x[1:]


def changes_it_around_a_break(x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(not torch.is_grad_enabled())
    y = x * 3
    print(end="")
    return y.sin() if torch.is_grad_enabled() else y.cos()


@pytest.mark.parametrize("door", ["precast", "torch"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("program", [changes_grad_mode, changes_it_around_a_break])
def test_grad_mode_that_stays_changed(program: Any, before: bool, door: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and stored, and the caller's grad mode is eager's afterwards, also where the artifact is found in the store."""
    monkeypatch.setenv("PRECAST_STORE", str(store.root))

    def compiled() -> Any:
        return torch.compile(program, backend="precast") if door == "torch" else precast.compile(program, store=store)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it would say that it runs eagerly
        for call in (compiled(), compiled()):
            for _ in range(3):
                x = torch.randn(5)
                with torch.set_grad_enabled(before):
                    want = program(x)
                with torch.set_grad_enabled(before):
                    torch.testing.assert_close(call(x), want)
                    assert torch.is_grad_enabled() is not before
            precast.reset()
            torch._dynamo.reset()
    if door == "precast":
        with torch.set_grad_enabled(before):
            precast.load(program, store=store, require="hit")(x)
            assert torch.is_grad_enabled() is not before


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("mode", [True, False])
def test_a_view_under_a_changed_grad_mode_has_eagers_history(mode: bool, stays: bool, store: Store) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if stays:
            torch.set_grad_enabled(mode)
            return x.view(-1)
        with torch.set_grad_enabled(mode):
            return x.view(-1)

    x = torch.randn(2, 3, requires_grad=True)
    with torch.set_grad_enabled(not mode), pytest.warns(UserWarning, match="grad mode"):
        view = precast.compile(program, store=store)(x)
    assert (view.grad_fn is not None) is mode
    with torch.set_grad_enabled(mode), warnings.catch_warnings():
        warnings.simplefilter("error")
        same = precast.compile(program, store=store)(x)  # the mode is the caller's own: compiled
    assert (same.grad_fn is not None) is mode


def test_views_that_are_taken_in_the_callers_mode_are_compiled(store: Store) -> None:
    """What else the code does under another grad mode has no part in their history."""

    def without(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.sum()
        return x.view(-1)

    def detached(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            y = x.detach() * 2
        return x.view(-1), y

    x = torch.randn(2, 3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.enable_grad():
            assert precast.compile(without, store=store)(x).grad_fn is not None
        assert precast.compile(detached, store=store)(x)[0].grad_fn is None


@torch.inference_mode()
def inferred(x: torch.Tensor) -> torch.Tensor:
    return (x.view(-1, 2) * 2).sum(-1)


def partly_inferred(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        y = x.t()
        with torch.inference_mode(False):
            z = y.reshape(-1) + 1
    return y @ x, z


def given_back(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.view(-1)


@pytest.mark.parametrize("door", ["precast", "torch"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("program", [inferred, partly_inferred, given_back])
def test_code_in_inference_mode_is_compiled(program: Any, before: bool, door: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views in inference mode are what torch's own tracing fails on; the mode is the caller's afterwards."""
    monkeypatch.setenv("PRECAST_STORE", str(store.root))
    call = torch.compile(program, backend="precast") if door == "torch" else precast.compile(program, store=store)
    with warnings.catch_warnings(), torch.set_grad_enabled(before):
        warnings.simplefilter("error")
        for _ in range(2):
            x = torch.randn(3, 4)
            torch.testing.assert_close(call(x), program(x))
            assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled() is before
    if door == "precast":
        with torch.set_grad_enabled(before):
            torch.testing.assert_close(precast.load(program, store=store, require="hit")(x), program(x))


def test_a_view_in_inference_mode_of_what_requires_gradients_has_eagers_history(store: Store) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    with torch.enable_grad(), pytest.warns(UserWarning, match="grad mode"):
        view = precast.compile(given_back, store=store)(x)
        want = given_back(x)
    assert (view.requires_grad, view.grad_fn) == (want.requires_grad, want.grad_fn)
    assert not torch.is_inference_mode_enabled() and torch.equal(view, want)
