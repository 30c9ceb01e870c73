"""Calls of a kind that cannot be compiled run as they are written; the program's other calls are compiled."""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import precast
from precast.artifact_store import Store
from precast.compiling import torch_graphs
from precast.runtime.api.compile import site_of
from precast.runtime.common.errors import Refused
from precast.runtime.programs.compile_hook import compiler as compile_callable
from precast.runtime.programs.variant import Variant
from precast.runtime.targets.versions import torch_minor


def adds(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(3)
    return a + b


def offset(a: torch.Tensor, wanted: bool) -> torch.Tensor:
    return a[1:].view(torch.int32).as_strided((2,), (1,), 3) + 1 if wanted else a + 1


def shared(length: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.randn(length)
    return whole[:-1], whole[1:]


def apart(length: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(length), torch.randn(length)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Any], Callable[[], Any]]] = {
    "shared memory": (adds, shared, apart),
    "place in a storage": (offset, lambda: (torch.randn(6), True), lambda: (torch.randn(6), False)),
}


def agrees(compiled: Any, function: Callable[..., Any], make: Callable[[], Any]) -> None:
    """The same results, and the same effect on the arguments, which are made twice from one seed."""
    seed = int(torch.randint(1 << 30, ()))
    torch.manual_seed(seed)
    ours = make()
    torch.manual_seed(seed)
    theirs = make()
    torch.testing.assert_close(compiled(*ours), function(*theirs))
    for mine, other in zip(ours, theirs, strict=True):
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, other)
            assert mine.shape == other.shape and mine.stride() == other.stride()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("refused_first", [True, False])
def test_only_calls_of_that_kind_run_eagerly(name: str, refused_first: bool, store: Store) -> None:
    function, refused, fine = CASES[name]
    compiled = precast.compile(function, store=store)
    order = [refused, fine] if refused_first else [fine, refused]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for make in [*order, refused, refused, fine, fine, refused, fine, fine, fine, refused]:
            agrees(compiled, function, make)
    texts = [str(w.message) for w in caught if str(w.message).startswith("precast: ")]
    assert len(texts) == 1 and "runs eagerly" in texts[0] and "test_refusals.py" in texts[0], texts
    variants = [v for v in site_of(compiled).programs[0].variants if isinstance(v, Variant)]
    assert len(variants) == 1 and variants[0].hits >= 2


@pytest.mark.parametrize("name", CASES)
def test_with_fullgraph_such_calls_raise_and_others_are_compiled(name: str, store: Store) -> None:
    function, refused, fine = CASES[name]
    compiled = precast.compile(function, store=store, fullgraph=True)
    for make in (refused, fine, refused, fine):
        if make is fine:
            agrees(compiled, function, make)
        else:
            with pytest.raises(precast.PrecastError, match="fullgraph=True was asked for"):
                compiled(*make())


def test_other_shapes_of_the_refused_kind(store: Store) -> None:
    compiled = precast.compile(adds, store=store, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for make in (shared, lambda: shared(9), apart, lambda: apart(8), shared, lambda: shared(9), lambda: apart(8), apart):
            agrees(compiled, adds, make)
    variants = [v for v in site_of(compiled).programs[0].variants if isinstance(v, Variant)]
    assert len(variants) == 2


def checks_its_argument(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if x.dim() != 2:
        raise ValueError("two dimensions")
    return y + 1


def checks_after_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    print(end="")
    return y + {2: 1, 3: 2}[x.dim()]


RAISING = {
    "its own check": (checks_its_argument, ValueError, (torch.ones(2),), (torch.ones(2, 3),)),
    "after a break": (checks_after_a_break, KeyError, (torch.ones(2),), (torch.ones(2, 3),)),
    "sizes that do not fit": (torch.nn.Linear(3, 3), RuntimeError, (torch.ones(2, 4),), (torch.ones(2, 3),)),
    "types that do not fit": (lambda a, b: a + b, TypeError, (torch.ones(2), "text"), (torch.ones(2), torch.ones(2))),
}


@pytest.mark.parametrize("name", RAISING)
def test_a_call_that_raises_says_nothing_of_others(name: str, store: Store) -> None:
    """One bad request, be it the first, does not keep a program and its store from being compiled."""
    program, error, bad, good = RAISING[name]
    compiled = precast.compile(program, store=store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with pytest.raises(error):
                compiled(*bad)
        for _ in range(3):
            torch.testing.assert_close(compiled(*good), program(*good))
    found = site_of(compiled).programs[0].family()
    assert any(variant.stored for variant in found[-1].variants)
    served = precast.load(program, store=store)
    torch.testing.assert_close(served(*good), program(*good))


def follows_a_weak_reference(x: torch.Tensor, holder: Any) -> torch.Tensor:
    return x * 2 if holder.weak() is not None else x * 3


def test_what_has_no_portable_guard_runs_eagerly_and_says_why(store: Store) -> None:
    """That one object lives is nothing that precast can check: without that guard the first answer would be given for ever."""

    class Holder:
        weak: Any

    kept, holder, x = Holder(), Holder(), torch.ones(3)
    compiled = precast.compile(follows_a_weak_reference, store=store)
    with pytest.warns(UserWarning, match=r"runs eagerly: guard TYPE_MATCH on L\['holder'\]\.weak\(\): it is reached"):
        for weak, factor in ((weakref.ref(kept), 2), (weakref.ref(Holder()), 3), (weakref.ref(kept), 2)):
            holder.weak = weak
            torch.testing.assert_close(compiled(x, holder), x * factor)
    assert not any(isinstance(v, Variant) for v in site_of(compiled).programs[0].variants)
    with pytest.raises(precast.PrecastError, match="fullgraph=True was asked for"):
        precast.compile(follows_a_weak_reference, store=store, fullgraph=True)(x, holder)


def grows(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 3 else x * 3


def test_sizes_with_no_portable_guard_are_compiled_as_numbers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from precast.capture.common import symbolic_shapes

    def no_form(printed: str, leaf: Any) -> Any:
        raise symbolic_shapes.NotPortable("it has no portable form")

    monkeypatch.setattr(symbolic_shapes, "parse", no_form)
    compiled = precast.compile(grows, store=store)
    for n in (5, 6, 2, 3, 5, 6):
        torch.testing.assert_close(compiled(torch.ones(n)), grows(torch.ones(n)))
    variants = [v for v in site_of(compiled).programs[0].variants if isinstance(v, Variant)]
    assert len(variants) == 4 and all(variant.stored for variant in variants)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) * x.mean()


def test_gradients_arrive_with_one_warning(store: Store) -> None:
    """Calls that record gradients are compiled too, with as many artifacts as sizes ask for, and never serve calls that record none."""
    model, twin = Scaled(), Scaled()
    twin.load_state_dict(model.state_dict())
    compiled = precast.compile(model, store=store)
    with warnings.catch_warnings(record=True) as caught, torch.enable_grad():
        warnings.simplefilter("always")
        for rows in (3, 3, 5, 7):
            x = torch.randn(rows, 4, requires_grad=True)
            own = x.detach().clone().requires_grad_()
            compiled(x).sum().backward()
            twin(own).sum().backward()
            torch.testing.assert_close(x.grad, own.grad)
    for got, want in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)
    assert not caught
    (key,) = store.programs()
    assert len(store.variants(key)) == 2  # of one size, and of any
    torch.testing.assert_close(compiled(x), twin(x))
    assert len(store.variants(key)) == 3
    assert all(isinstance(v, Variant) for v in site_of(compiled).programs[0].variants)


def test_a_size_that_the_tracer_loses(store: Store) -> None:
    """torch.combinations makes two sizes that depend on data, and torch's simulation of it knew one before torch 2.14."""

    def pairs(x: torch.Tensor) -> torch.Tensor:
        return torch.combinations(x * 2, 2) + 1

    x = torch.randn(5)
    one_graph = precast.compile(pairs, store=store, fullgraph=True)
    with torch.no_grad():
        if torch_minor() in ("2.11", "2.12", "2.13"):
            with pytest.raises(precast.PrecastError, match=r"loses a size that depends on data.*outside of the one graph"):
                one_graph(x)
        else:
            torch.testing.assert_close(one_graph(x), pairs(x))
        torch.testing.assert_close(precast.compile(pairs, store=store)(x), pairs(x))


def without_data(kind: str) -> torch.Tensor:
    return torch.empty(3, device="meta") if kind == "meta" else FakeTensorMode().from_tensor(torch.ones(3))


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_tensors_without_data_never_reach_generated_code(kind: str, store: Store) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1

    compiled = precast.compile(f, store=store)
    with torch.no_grad(), pytest.warns(UserWarning, match="which holds no data"):
        result = compiled(without_data(kind))
    assert result.shape == (3,) and result.dtype == torch.float32 and not store.programs()
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), f(x))
    assert store.programs()  # only such calls are left alone
    with torch.no_grad():
        report = precast.precompile(f, [((without_data(kind),), {})], store=store)
    assert report.signatures[0].outcome == "eager" and "give real tensors" in report.signatures[0].reason


TRACERS: dict[str, Callable[[Any, torch.Tensor], Callable[[torch.Tensor], Any]]] = {
    "export": lambda m, x: torch.export.export(m, (x,)).module(),
    "strict export": lambda m, x: torch.export.export(m, (x,), strict=True).module(),
    "make_fx": lambda m, x: make_fx(m)(x),
    "jit.trace": lambda m, x: torch.jit.trace(m, (x,)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("tracer", TRACERS)
def test_another_tracer_takes_the_program_as_it_is_written(tracer: str, warm: bool, store: Store) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    compiled, served = precast.compile(model, store=store), precast.load(model, store=store)
    x = torch.randn(2, 4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "precast:")
        if warm:
            compiled(x)
        for program in (compiled, served):
            torch.testing.assert_close(TRACERS[tracer](program, x)(x + 1), model(x + 1))
        torch.testing.assert_close(compiled(x), model(x))
        assert site_of(compiled).programs[0].variants  # it was not given up
        served(x)


async def later(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def pieces(x: torch.Tensor) -> Any:
    yield x + 1
    yield x + 2


@pytest.mark.parametrize("function", [later, pieces])
def test_functions_that_run_later_are_refused_by_name(function: Callable[..., Any], store: Store) -> None:
    compiled = precast.compile(function, store=store)
    with pytest.warns(UserWarning, match="generator or coroutine function runs later than it is called"):
        made = compiled(torch.ones(2))
    results = list(made) if function is pieces else [asyncio.run(made)]
    torch.testing.assert_close(results[0], torch.full((2,), 2.0))


def makes_meta(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x + 1, x.to("meta") + 1, torch.ones(3, device="meta") * 2


@pytest.mark.parametrize("door", [False, True])
def test_what_is_made_on_the_meta_device_stays_there(door: bool, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_graphs, "_warned", set())
    compiled = torch.compile(makes_meta, backend="precast") if door else precast.compile(makes_meta, store=store)
    with pytest.warns(UserWarning, match="its tensors are on meta") as caught:
        results = compiled(torch.ones(3))
    assert [result.device.type for result in results] == ["cpu", "meta", "meta"]
    assert {warning.filename for warning in caught if "on meta" in str(warning.message)} == {__file__}
    torch.testing.assert_close(results[0], torch.full((3,), 2.0))


def test_a_module_on_the_meta_device_by_torchs_door(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_graphs, "_warned", set())
    with torch.no_grad(), pytest.warns(UserWarning, match="its tensors are on meta"):
        assert torch.compile(torch.nn.Linear(2, 2, device="meta"), backend="precast")(torch.ones(1, 2, device="meta")).is_meta


def _rows_of(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2 + 1


def _calls_rows_of(x: torch.Tensor) -> torch.Tensor:
    return _rows_of(x)


def test_what_the_tracer_took_for_an_exception_compiles_its_callees_at_once(set_compiler: Any, store: Store) -> None:
    """As torch.compile does it: the function runs as it is, and the functions that it calls are compiled, in that very call."""
    real = compile_callable()

    def compiler(asked: Any, args: Any, kwargs: Any) -> Any:
        if asked.name.endswith("_calls_rows_of"):
            raise Refused("Observed exception", skipped=True, raises=True)
        return real(asked, args, kwargs)  # type: ignore[operator]

    set_compiler(compiler)
    x = torch.randn(5)
    torch.testing.assert_close(precast.compile(_calls_rows_of, store=store)(x), _rows_of(x))
    (manifest,) = store.manifests()
    assert manifest.program_name.endswith("_rows_of") and manifest.graphs


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x = x + 1
    return x


def test_calls_with_nothing_to_compile_are_no_misses_of_a_program_that_has_variants(store: Store) -> None:
    """One call was compiled, and another left nothing to compile: whoever serves from that store runs both."""
    x = torch.randn(3)
    compiled = precast.compile(repeated, store=store)
    for times in (2, 0, 2):
        torch.testing.assert_close(compiled(x, times), repeated(x, times))
    for serve in (lambda: precast.load(repeated, store=store), lambda: precast.compile(repeated, store=store)):
        precast.reset()
        served = serve()
        with precast.set_stance("fail_on_recompile"):
            torch.testing.assert_close(served(x, 2), repeated(x, 2))
            with pytest.warns(UserWarning, match="runs eagerly where no stored artifact fits the call: .* there is nothing to compile"):
                assert served(x, 0) is x
            torch.testing.assert_close(served(x, 2), repeated(x, 2))


@torch.no_grad()
def test_a_view_through_a_conjugate_runs_as_it_is_written(store: Store) -> None:
    def program(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return z.conj() * 2, z.conj().imag

    compiled = precast.compile(program, store=store)
    z = torch.randn(3, dtype=torch.complex64)
    for given in (z, z.conj(), z):
        got = compiled(given)
        torch.testing.assert_close(got, program(given))
        assert got[1]._base is not None
    with pytest.raises(precast.PrecastError, match="a result is a view of an input that cannot be made again"):
        precast.compile(program, store=store, fullgraph=True)(z.conj())
