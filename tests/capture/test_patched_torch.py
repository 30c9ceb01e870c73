"""What single patches of torch are for, where no program of the other tests depends on them (capture/dynamo/patches.py and its sister)."""

from __future__ import annotations

import contextlib
import functools
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._library.effects import EffectType

from precast.artifact_store.format.guards import Predicate
from precast.capture import CapturedFrame, CaptureOptions, CaptureRefused, Dynamic, capture
from precast.runtime.fingerprint.assumed_constants import CONSTANT
from precast.runtime.guards.evaluate import first_failing
from tests.capture.harness import locals_of, run_frame

x = torch.arange(6.0).reshape(2, 3)


def captured(function: Any, *args: Any, **options: Any) -> CapturedFrame:
    with torch.no_grad():
        return capture(function, args, options=CaptureOptions({}, **options))


def is_noticed(function: Any, args: tuple[Any, ...], change: Callable[[], Any]) -> bool:
    """Whether guards of the call fail after a change, and hold before."""
    frame, values = captured(function, *args), locals_of(function, args, {})
    with torch.no_grad():
        assert first_failing(frame.guards, values) == -1
        change()
        return first_failing(frame.guards, values) != -1


def test_the_shape_of_a_tensor_is_what_an_operator_has_made_of_it() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        y = x.clone()
        y.t_()
        return y.reshape(y.shape[0], -1), y.shape[0]

    result, rows = run_frame(captured(function, x), function, (x,), {})
    assert rows == 3 and result.shape == (3, 2)


def test_graphs_that_nobody_runs_are_not_written() -> None:
    kinds: list[str] = []
    captured(lambda x: x + 1, x, trace=lambda gm: kinds.append(type(gm).__mro__[1].__name__))
    assert kinds == ["_LazyGraphModule"]


@pytest.mark.parametrize("module", ["torch._dynamo.backends.tvm", "torch.distributed.tensor.experimental._func_map"])
def test_a_trace_imports_no_more_than_it_uses(module: str) -> None:
    code = (
        "import sys, torch; from precast.capture import capture, CaptureOptions\n"
        "capture(lambda x: torch.relu(x) + 1, (torch.randn(2),), options=CaptureOptions({}))\n"
        f"print({module!r} in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


NAMESPACE: dict[str, Any] = {}
exec("def made(x):\n    return x * 3", NAMESPACE)
made = NAMESPACE["made"]


def test_code_of_a_function_without_a_module_is_fingerprinted() -> None:
    assert "made" in {digest.qualname for digest in captured(lambda x: made(x) + 1, x).digests}


KEPT = [1, 2]


def test_of_an_object_whose_id_is_taken_its_contents_do_not_count() -> None:
    frame = captured(lambda x, items: x + (1 if id(items) == id(KEPT) else 2), x, [1])
    assert Predicate.EQUALS not in {guard.predicate for guard in frame.guards}


@torch.compiler.assume_constant_result
def constant() -> int:
    return 3


def test_a_result_that_is_assumed_to_be_constant_is_recorded() -> None:
    frame = captured(lambda x: x + constant(), x)
    assert any(digest.module.startswith(CONSTANT) for digest in frame.digests)


class Meta(type):
    factor = 2.0


class Made(metaclass=Meta):
    weight = 2.0


class Around:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_an_attribute_of_its_own_hides_what_getattr_of_the_class_finds() -> None:
    made = Around(Made())
    assert is_noticed(lambda x: x * made.weight, (x,), lambda: made.__dict__.update(weight=3.0))


def test_data_of_a_metaclass_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_noticed(lambda x: x * Made.factor, (x,), lambda: monkeypatch.setattr(Meta, "factor", 3.0))


def test_an_attribute_of_its_own_hides_a_tensors_method() -> None:
    given = torch.ones(2)
    assert is_noticed(lambda given: given.sin(), (given,), lambda: given.__dict__.update(sin=given.cos))


def helper(x: torch.Tensor) -> torch.Tensor:
    return x


def test_that_a_function_lacks_an_attribute_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = lambda x: x + (1 if hasattr(helper, "calls") else 0)  # noqa: E731
    assert is_noticed(asks, (x,), lambda: monkeypatch.setattr(helper, "calls", 1, raising=False))


def test_a_place_that_varies_is_a_constant_and_the_graph_goes_on() -> None:
    def function(x: torch.Tensor, n: int, items: list[int]) -> torch.Tensor:
        rest = list(items)
        rest.pop(n)
        return x + rest[0]

    frame = captured(function, x, 1, [1, 2, 3], one_graph=False, dynamic=Dynamic("yes"))
    assert frame.broke is None and frame.graph is not None


def test_a_call_that_wants_a_constant_ends_the_graph() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        items = [1, 2]
        items.sort(reverse=n)  # type: ignore[call-overload]
        return x + items[0]

    frame = captured(function, x, 1, one_graph=False, dynamic=Dynamic("yes"))
    assert frame.broke is not None and "wants a constant" in frame.broke.reason


def test_writes_to_memory_that_stands_for_several_elements_are_refused() -> None:
    with pytest.raises(CaptureRefused, match="more than one element of the written-to tensor refers to a single memory location"):
        captured(lambda x: x.expand(4, 2, 3).add_(1), x[0])


def breaks(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = net(x)
    print("a graph break")
    return y + 1


@pytest.mark.parametrize("refused", [False, True])
def test_nothing_refers_to_the_tensors_of_a_call_afterwards(refused: bool) -> None:
    net, given = torch.nn.Linear(3, 2), torch.ones(1, 3)
    was_on = gc.isenabled()
    gc.disable()
    try:
        with pytest.raises(CaptureRefused) if refused else contextlib.nullcontext():
            captured(functools.partial(breaks, net) if refused else net, given)
        left = [*weakref.getweakrefs(net.weight), *weakref.getweakrefs(given)]
    finally:
        if was_on:
            gc.enable()
    assert left == []


def test_operators_that_ask_for_a_token_get_none() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._higher_order_ops.print("seen {}", 1)
        return x + 1

    graph = captured(function, x).graph
    assert graph is not None and any("print" in str(node.target) for node in graph.graph.nodes)


def test_draws_that_nothing_reads_stay() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.rand(2)
        return x + torch.rand(3)

    graph = captured(function, x).graph
    assert graph is not None and sum("rand" in str(node.target) for node in graph.graph.nodes) == 2


@torch.library.custom_op("precast_tests::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@noted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_with_effects_are_plain_calls() -> None:
    torch.library._register_effectful_op("precast_tests::noted", EffectType.ORDERED)
    try:
        with torch.enable_grad():
            graph = capture(lambda x: noted(x) + 1, (x,), options=CaptureOptions({})).graph
    finally:
        torch.library._register_effectful_op("precast_tests::noted", None)
    assert graph is not None and torch.ops.precast_tests.noted.default in {node.target for node in graph.graph.nodes}
