"""Programs with hand-made artifacts: variants, misses, limits, stances, refusals, threads, fork, modules, damage; native and Python."""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import os
import pickle
import resource
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Guard, Manifest, Predicate, Store
from precast.artifact_store.format.records import GraphInput, GraphOutput
from precast.runtime.api.compile import site_of
from precast.runtime.common.errors import LoadError, Refused
from precast.runtime.executable.library import Library
from precast.runtime.fingerprint.bytecode import digest
from precast.runtime.loading import compatibility
from precast.runtime.native import loader
from precast.runtime.programs.program import Program
from tests.runtime import hand_made_artifacts as standin
from tests.runtime.hand_made_artifacts import Counting
from tests.support.processes import child

Args = tuple[Any, ...]


def shape_guard(name: str, tensor: torch.Tensor) -> Guard:
    spec = {
        "type": "torch:Tensor",
        "dtype": "float32",
        "device": "cpu",
        "layout": "strided",
        "requires_grad": False,
        "size": tuple(tensor.shape),
        "stride": tensor.stride(),
        "conj": False,
        "neg": False,
        "offset": None,
    }
    return Guard((("local", name),), Predicate.TENSOR, spec)


def compile_product(program: Program, args: Args, kwargs: Mapping[str, Any], add: float = 0.0) -> Any:
    """For `f(x, w)` and for modules with a parameter `w`: x * w, one variant per shape of x."""
    values = program.locals_of(args, kwargs)
    x = GraphInput((("local", "x"),), False, 0)
    if "self" in values:
        weight, call = GraphInput((("local", "self"), ("param", "w")), True, None, parameter=True), "graph(x)[0]"
    else:
        weight, call = GraphInput((("local", "w"),), False, 1), "graph(x, w)[0]"
    manifest, blobs = standin.manifest_for(program, [shape_guard("x", values["x"])], [x, weight], call, standin.library(add))
    return program.store.put(manifest, blobs)


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


class Scale(torch.nn.Module):
    def __init__(self, value: float = 3.0) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([value]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


@pytest.fixture(params=["native", "python"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store; the runtime is native or, as on a machine without the native blob and without a compiler, Python only."""
    if request.param == "native":
        request.getfixturevalue("native_store")
        return Store.open(tmp_path)
    monkeypatch.setattr(loader._state, "module", None)
    monkeypatch.setattr(loader._state, "tables", False)
    monkeypatch.setenv(loader.ENVIRONMENT, "0")
    return Store.open(tmp_path)


@pytest.fixture
def compiler(set_compiler: Callable[[Any], None]) -> Counting:
    counting = Counting(compile_product)
    set_compiler(counting)
    return counting


X = torch.arange(4.0)


def test_function_compiles_once_per_shape_and_hits_afterwards(store: Store, compiler: Counting) -> None:
    f = precast.compile(product, store=store)
    for size in (4, 5, 4, 5, 4):
        x = torch.randn(size)
        torch.testing.assert_close(f(x, x), x * x)
    assert compiler.frame_count == 2


def test_a_new_program_object_loads_what_is_stored(store: Store, compiler: Counting) -> None:
    precast.compile(product, store=store)(X, X)
    assert compiler.frame_count == 1
    torch.testing.assert_close(precast.compile(product, store=store)(X, X), X * X)
    assert compiler.frame_count == 1


def test_keyword_arguments_and_wrong_ones(store: Store, compiler: Counting) -> None:
    f = precast.compile(product, store=store)
    for _ in range(3):
        torch.testing.assert_close(f(w=X, x=X), X * X)
        torch.testing.assert_close(f(X, w=X), X * X)
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            f(X)
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            f(X, X, y=1)
        with pytest.raises(TypeError, match="multiple values"):
            f(X, X, x=X)


def test_errors_of_the_graph_reach_the_caller(store: Store, compiler: Counting) -> None:
    f = precast.compile(product, store=store)
    f(X, X)
    for _ in range(3):
        with pytest.raises(IndexError, match="^index 7 is out of range$"):
            f(X, torch.zeros(3))


def test_decorator_forms(store: Store, compiler: Counting) -> None:
    @precast.compile(store=store)
    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """Doc."""
        return x * w

    assert twice.__name__ == "twice" and twice.__doc__ == "Doc."
    torch.testing.assert_close(twice(X, X), X * X)
    assert compiler.frame_count == 1


def test_bound_method_partial_and_callable_object(store: Store, compiler: Counting) -> None:
    module = Scale()
    torch.testing.assert_close(precast.compile(module.forward, store=store)(X), X * 3)
    partial = precast.compile(functools.partial(product, w=X), store=store)
    torch.testing.assert_close(partial(X), X * X)
    torch.testing.assert_close(partial(X, w=X + 1), X * (X + 1))
    assert compiler.frame_count == 2


def test_module_keeps_its_state_and_its_class(store: Store, compiler: Counting) -> None:
    module = Scale()
    compiled = precast.compile(module, store=store)
    assert isinstance(compiled, Scale) and isinstance(compiled, torch.nn.Module)
    assert list(compiled.state_dict()) == ["w"] and list(dict(compiled.named_parameters())) == ["w"]
    assert compiled._orig_mod is module and compiled.w is module.w
    compiled.eval()
    assert not module.training
    compiled.load_state_dict({"w": torch.tensor([5.0])})
    torch.testing.assert_close(compiled(X), X * 5)
    compiled.extra = 1
    assert module.extra == 1
    assert compiled.to(torch.float32) is compiled
    assert repr(compiled) == repr(module)


def test_module_follows_its_weights(store: Store, compiler: Counting) -> None:
    module = Scale()
    compiled = precast.compile(module, store=store)
    changes: list[Callable[[], Any]] = [
        lambda: module.w.add_(1),
        lambda: module.w.data.mul_(2),
        lambda: setattr(module.w, "data", torch.tensor([7.0])),
        lambda: setattr(module, "w", torch.nn.Parameter(torch.tensor([9.0]))),
        lambda: module.load_state_dict({"w": torch.tensor([11.0])}),
    ]
    for change in changes:
        compiled(X)
        compiled(X)
        change()
        torch.testing.assert_close(compiled(X), X * module.w)
        torch.testing.assert_close(compiled(X), X * module.w)
    assert compiler.frame_count == 1


def test_two_modules_of_one_class_share_artifacts_and_not_weights(store: Store, compiler: Counting) -> None:
    first, second = precast.compile(Scale(2.0), store=store), precast.compile(Scale(4.0), store=store)
    for _ in range(3):
        torch.testing.assert_close(first(X), X * 2)
        torch.testing.assert_close(second(X), X * 4)
    assert compiler.frame_count == 1


def test_a_module_passed_as_an_argument_uses_its_own_weights(store: Store, compiler: Counting) -> None:
    forward = precast.compile(Scale.forward, store=store)
    modules = [Scale(float(i)) for i in range(20)]
    for _ in range(2):
        for i, module in enumerate(modules):
            torch.testing.assert_close(forward(module, X), X * i)
    assert compiler.frame_count == 1


def test_hooks_run_as_in_eager(store: Store, set_compiler: Callable[[Any], None]) -> None:
    def refuse_hooks(program: Program, args: Args, kwargs: Mapping[str, Any]) -> Any:
        if program.function is torch.nn.Module._call_impl:
            raise Refused("hooks")
        return compile_product(program, args, kwargs)

    set_compiler(refuse_hooks)
    module = Scale()
    compiled = precast.compile(module, store=store)
    compiled(X)
    compiled(X)
    seen: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handles = [
            compiled.register_forward_pre_hook(lambda m, args: seen.append("pre")),
            compiled.register_forward_hook(lambda m, args, out: seen.append("post") or out + 1),
            torch.nn.modules.module.register_module_forward_hook(lambda m, args, out: seen.append("global")),
        ]
        torch.testing.assert_close(compiled(X), X * 3 + 1)
        assert seen == ["pre", "global", "post"]
        for handle in handles:
            handle.remove()
        torch.testing.assert_close(compiled(X), X * 3)
        assert len(seen) == 3
    module.forward = lambda x: x - 1  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        set_compiler(Counting(_refuse))
        torch.testing.assert_close(compiled(X), X - 1)


def _refuse(program: Program, args: Args, kwargs: Mapping[str, Any]) -> Any:
    raise Refused("it is a test", "do something else")


def test_deepcopy_and_pickle(store: Store, compiler: Counting) -> None:
    compiled = precast.compile(Scale(), store=store)
    compiled(X)
    other = copy.deepcopy(compiled)
    other.w.fill_(10)
    torch.testing.assert_close(other(X), X * 10)
    torch.testing.assert_close(compiled(X), X * 3)
    assert copy.copy(compiled).w is compiled.w
    with pytest.raises(TypeError, match="save its state_dict"):
        pickle.dumps(compiled)


def test_recompile_limit_warns_once_and_names_the_guard(store: Store, compiler: Counting) -> None:
    f = precast.compile(product, store=store, options={"recompile_limit": 2})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for size in (1, 2, 3, 4, 5):
            x = torch.randn(size)
            torch.testing.assert_close(f(x, x), x * x)
    texts = [str(w.message) for w in seen if "precast" in str(w.message)]
    assert len(texts) == 1 and "recompile_limit (2)" in texts[0] and "x: expected a tensor float32[" in texts[0]
    assert compiler.frame_count == 2
    x = torch.randn(2)
    torch.testing.assert_close(f(x, x), x * x)  # what was compiled is still used


def test_refusal_warns_once_and_runs_eagerly(store: Store, set_compiler: Callable[[Any], None]) -> None:
    counting = Counting(_refuse)
    set_compiler(counting)
    f = precast.compile(product, store=store)
    with pytest.warns(UserWarning, match=r"runs eagerly: it is a test \(do something else\)"):
        torch.testing.assert_close(f(X, X), X * X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(X, X)
        f(torch.zeros(2), torch.zeros(2))
    assert counting.frame_count == 1


def test_fullgraph_raises(store: Store, set_compiler: Callable[[Any], None]) -> None:
    set_compiler(_refuse)
    with pytest.raises(precast.PrecastError, match="fullgraph=True"):
        precast.compile(product, store=store, fullgraph=True)(X, X)


def test_recompile_limit_under_fullgraph_raises_each_time(store: Store, compiler: Counting) -> None:
    f = precast.compile(product, store=store, fullgraph=True, options={"recompile_limit": 1})
    f(X, X)
    for size in (5, 6):
        with pytest.raises(precast.PrecastError, match=r"recompile_limit \(1\).*x: expected a tensor float32\["):
            f(torch.ones(size), torch.ones(size))
    torch.testing.assert_close(f(X, X), X * X)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_cannot_be_loaded_is_not_compiled_again(store: Store, set_compiler: Callable[[Any], None], fullgraph: bool) -> None:
    def damaged(program: Program, args: Args, kwargs: Mapping[str, Any]) -> Any:
        x = GraphInput((("local", "x"),), False, 0)
        manifest, blobs = standin.manifest_for(program, [shape_guard("x", X)], [x], "graph(x)[0]", b"no shared object")
        return program.store.put(manifest, blobs)

    counting = Counting(damaged)
    set_compiler(counting)
    f = precast.compile(product, store=store, fullgraph=fullgraph)
    if fullgraph:
        with pytest.raises(precast.PrecastError, match="cannot be opened as a shared object"):
            f(X, X)
        return
    with pytest.warns(UserWarning, match=r"runs eagerly: what was compiled for it cannot be loaded: .*cannot be opened as a shared object"):
        f(X, X)
    for size in (4, 5):
        torch.testing.assert_close(f(torch.ones(size), torch.ones(size)), torch.ones(size))
    assert counting.frame_count == 1


MISSES: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"name": "encoder"}, {}, "holds this code under the name 'encoder': give name='encoder'"),
    ({}, {"name": "encoder"}, "holds this code without a name: leave name= out"),
    ({"name": "encoder"}, {"name": "decoder"}, "under the name 'encoder': give name='encoder'"),
    ({"options": {"freeze": True}}, {}, "compiled with freeze=True: give the same options"),
)


@pytest.mark.parametrize(("built", "loaded", "words"), MISSES)
def test_a_miss_says_under_which_name_the_code_is_stored(
    store: Store, compiler: Counting, built: dict[str, Any], loaded: dict[str, Any], words: str
) -> None:
    precast.compile(product, store=store, **built)(X, X)
    with pytest.raises(precast.GuardMiss, match=words):
        precast.load(product, store=store, require="hit", **loaded)(X, X)
    assert words in str(precast.explain_miss(precast.compile(product, store=store, **loaded), X, X))


def test_a_miss_says_what_is_wrong_with_the_store(tmp_path: Path, compiler: Counting) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "format").write_text("7\n")
    for name, words in (("file", "a file is in the way"), ("newer", "layout version 7"), ("typo", f"There is no store at {tmp_path}/typo")):
        with pytest.raises(precast.GuardMiss, match=words):
            precast.load(product, store=str(tmp_path / name))(X, X)
        with pytest.raises(precast.RecompileForbidden, match=words), precast.set_stance("fail_on_recompile"):
            precast.compile(product, store=str(tmp_path / name))(X, X)


def test_a_miss_says_that_the_artifact_that_fits_is_damaged(store: Store, compiler: Counting) -> None:
    precast.compile(product, store=store)(X, X)
    for path in (store.root / "objects").glob("*/*"):
        path.unlink()
    precast.reset()
    with pytest.raises(precast.GuardMiss, match="cannot be loaded: blobs of it are missing or damaged") as caught:
        precast.load(product, store=Store.open(store.root))(X, X)
    assert "fits (1 guard holds), and cannot be loaded" in str(caught.value) and not caught.value.explanation.hits


def test_a_miss_says_that_code_could_not_be_compared(store: Store, compiler: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    precast.compile(product, store=store)(X, X)
    served = precast.load(product, store=store)
    with monkeypatch.context() as patch:
        patch.setattr(compatibility, "changed_code", lambda *args: 1 // 0)  # as a user's module may raise when it is imported
        with pytest.raises(precast.GuardMiss, match="comparing it with the code here failed: ZeroDivisionError"):
            served(X, X)
    torch.testing.assert_close(served(X, X), X * X)


def test_a_refusal_with_guards_holds_for_such_calls_only(store: Store, set_compiler: Callable[[Any], None]) -> None:
    def sometimes(program: Program, args: Args, kwargs: Mapping[str, Any]) -> Any:
        if args[0].numel() == 4:
            raise Refused("gradients", guards=[shape_guard("x", args[0])])
        return compile_product(program, args, kwargs)

    counting = Counting(sometimes)
    set_compiler(counting)
    f = precast.compile(product, store=store)
    with pytest.warns(UserWarning, match="gradients"):
        f(X, X)
    for _ in range(3):
        torch.testing.assert_close(f(X, X), X * X)
        torch.testing.assert_close(f(X[:2], X[:2]), X[:2] * X[:2])
    assert counting.frame_count == 2


def test_stances(store: Store, compiler: Counting) -> None:
    f = precast.compile(product, store=store)
    with precast.set_stance("force_eager"):
        f(X, X)
    assert compiler.frame_count == 0
    with pytest.raises(precast.RecompileForbidden, match="would compile"), precast.set_stance("fail_on_recompile"):
        f(X, X)
    f(X, X)
    with precast.set_stance("fail_on_recompile"):
        f(X, X)

    @precast.set_stance("eager_on_recompile")
    def inside() -> torch.Tensor:
        return f(torch.zeros(9), torch.zeros(9))

    inside()
    assert compiler.frame_count == 1
    with precast.set_stance("force_eager"):  # a hit, too, runs the original
        marker = site_of(f).programs[0].variants[0].hits
        f(X, X)
        assert site_of(f).programs[0].variants[0].hits == marker
    f(torch.zeros(9), torch.zeros(9))
    assert compiler.frame_count == 2
    with pytest.raises(precast.OptionError, match="unknown stance"):
        precast.set_stance("lazy")


def test_guard_miss_explains(store: Store, compiler: Counting) -> None:
    precast.compile(product, store=store)(X, X)
    served = precast.load(product, store=store)
    torch.testing.assert_close(served(X, X), X * X)
    with pytest.raises(precast.GuardMiss) as caught:
        served(torch.zeros(2, 2), X)
    text = str(caught.value)
    assert "1 of 1 guard does not hold" in text
    assert "x: expected a tensor float32[4] stride (1) on cpu, found a tensor float32[2, 2] stride (2, 1) on cpu" in text
    found = caught.value.explanation.to_dict()
    assert found["hits"] is False and len(found["variants"]) == 1 and found["variants"][0]["fits"] is False
    assert compiler.frame_count == 1


def test_explain_miss_orders_the_nearest_first_and_names_changed_programs(store: Store, compiler: Counting) -> None:
    f = precast.compile(product, store=store)
    nothing = str(precast.explain_miss(f, X, X))
    assert "Nothing is stored for this program" in nothing and "could not be stored: PRECAST_LOGS=runtime says why" in nothing
    for size in (2, 3):
        f(torch.zeros(size), torch.zeros(size))
    explained = precast.explain_miss(f, torch.zeros(3), torch.zeros(3))
    assert explained.hits and explained.variants[0].fits and not explained.variants[1].fits
    frozen = precast.compile(product, store=store, options={"freeze": True})
    assert "compiled with freeze=False" in str(precast.explain_miss(frozen, X, X))


def test_kept_in_process(store: Store, set_compiler: Callable[[Any], None]) -> None:
    def unstored(program: Program, args: Args, kwargs: Mapping[str, Any]) -> Any:
        x, w = GraphInput((("local", "x"),), False, 0), GraphInput((("local", "w"),), False, 1)
        return standin.in_process(
            *standin.manifest_for(program, [shape_guard("x", args[0])], [x, w], "graph(x, w)[0]", standin.library(1.0))
        )

    counting = Counting(unstored)
    set_compiler(counting)
    f = precast.compile(product, store=store)
    for _ in range(3):
        torch.testing.assert_close(f(X, X), X * X + 1)
    assert counting.frame_count == 1 and not store.programs()


def test_outputs_that_are_inputs_and_views(store: Store, set_compiler: Callable[[Any], None]) -> None:
    outputs = (
        GraphOutput("input", 0),
        GraphOutput("raw", 0),
        GraphOutput("output_view", 0, (2, 2), (2, 1)),
        GraphOutput("int", None, value=5),
    )

    def views(program: Program, args: Args, kwargs: Mapping[str, Any]) -> Any:
        x, w = GraphInput((("local", "x"),), False, 0), GraphInput((("local", "w"),), False, 1)
        made = standin.manifest_for(program, [shape_guard("x", args[0])], [x, w], "graph(x, w)", standin.library(), outputs)
        return program.store.put(*made)

    set_compiler(views)
    f = precast.compile(product, store=store)
    for _ in range(2):
        first, raw, view, number = f(X, X)
        assert first is X and number == 5 and view.data_ptr() == raw.data_ptr() and view.shape == (2, 2)


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("other library ABI", {"abi": 99}, "speaks library ABI 99"),
    ("missing symbol", {"extra": '"aoti_torch_no_such_shim",'}, "needs aoti_torch_no_such_shim"),
]


@pytest.mark.parametrize("name, how, message", BROKEN, ids=[row[0] for row in BROKEN])
def test_a_library_that_does_not_fit_is_a_load_error(tmp_path: Path, name: str, how: dict[str, Any], message: str) -> None:
    library = standin.trusted_library(tmp_path / "library", standin.library(**how))
    with pytest.raises(LoadError, match=message):
        Library(library)


def test_an_optional_symbol_may_be_missing(tmp_path: Path) -> None:
    library = standin.trusted_library(tmp_path / "library", standin.library(extra='"?aoti_torch_no_such_shim",'))
    assert Library(library).run


def test_a_damaged_library_is_a_miss_and_is_compiled_again(store: Store, compiler: Counting) -> None:
    precast.compile(product, store=store)(X, X)
    manifest = next(store.manifests())
    path = store.blob_path(manifest.graphs["forward"].library)
    assert path is not None
    path.chmod(0o600)
    path.write_bytes(b"rubbish")
    f = precast.compile(product, store=Store.open(store.root))
    torch.testing.assert_close(f(X, X), X * X)
    assert compiler.frame_count == 2


def test_an_artifact_of_another_torch_or_target_is_of_no_use(store: Store, set_compiler: Callable[[Any], None]) -> None:
    def foreign(program: Program, args: Args, kwargs: Mapping[str, Any]) -> Any:
        x, w = GraphInput((("local", "x"),), False, 0), GraphInput((("local", "w"),), False, 1)
        for changes in ({"torch_version": "1.0"}, {"target": "cuda:sm_999"}):
            program.store.put(
                *standin.manifest_for(program, [shape_guard("x", args[0])], [x, w], "graph(x, w)[0]", b"no library", **changes)
            )
        return compile_product(program, args, kwargs)

    counting = Counting(foreign)
    set_compiler(counting)
    f = precast.compile(product, store=store)
    torch.testing.assert_close(f(X, X), X * X)
    text = str(precast.explain_miss(f, X, X))
    assert "compiled for torch 1.0" in text and "compiled for cuda:sm_999" in text
    assert counting.frame_count == 1


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("torch_minor", lambda: "2.0", "it was compiled for torch 2.1., and this is torch 2.0"),
        ("python_minor", lambda: "3.0", "its bytecode is for Python 3.1., and this is Python 3.0"),
        ("LOWERING_VERSION", "0", "it was made by lowering version [0-9]+, and this precast has 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_other_version_is_a_miss(
    store: Store, compiler: Counting, name: str, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact that is served as it is, and is not where this alone is another one."""
    compiled = precast.compile(product, store=store)
    compiled(X, X)
    torch.testing.assert_close(precast.load(product, store=store)(X, X), X * X)
    monkeypatch.setattr(compatibility, name, value)
    with pytest.raises(precast.GuardMiss, match=reason):
        precast.load(product, store=store)(X, X)
    assert compiler.frame_count == 1


@pytest.mark.parametrize(
    ("digests", "reason"),
    [
        ({":product": digest(product.__code__), f"{__name__}:compile_product": digest(compile_product.__code__)}, ""),
        ({f"{__name__}:compile_product": digest(product.__code__)}, "the code of compile_product in .* has changed since"),
        ({f"{__name__}:no_such": digest(product.__code__)}, "the code of no_such in .* has changed since"),
        ({":product": digest(compile_product.__code__)}, "the code of product in the program has changed since"),
    ],
    ids=["as it was", "edited", "gone", "the entry"],
)
def test_code_that_was_edited_is_a_miss(store: Store, compiler: Counting, digests: dict[str, str], reason: str) -> None:
    precast.compile(product, store=store)(X, X)
    (made,) = store.manifests()
    store.remove(made.artifact_id)
    names = ("program_key", "program_name", "target", "versions", "options", "guards", "frames", "graphs", "blobs")
    manifest = Manifest.make(**{name: getattr(made, name) for name in names}, digests=digests)
    store.put(manifest, {name: store.blob(name) or b"" for name in made.blobs})
    served = precast.load(product, store=store)
    if reason:
        with pytest.raises(precast.GuardMiss, match=reason):
            served(X, X)
    else:
        torch.testing.assert_close(served(X, X), X * X)


@pytest.mark.parametrize("part", ["torch", "lowering", "python"])
def test_artifacts_of_other_versions_are_kept_beside_ours(store: Store, compiler: Counting, part: str) -> None:
    """What was made with other versions is another artifact: storing it replaces nothing."""
    precast.compile(product, store=store)(X, X)
    (ours,) = store.manifests()
    theirs = Manifest.make(
        program_key=ours.program_key,
        program_name=ours.program_name,
        target=ours.target,
        versions=replace(ours.versions, **{part: "0"}),
        options=ours.options,
        guards=ours.guards,
        frames=ours.frames,
        graphs=ours.graphs,
        blobs=ours.blobs,
    )
    blobs = {name: store.blob(name) or b"" for name in ours.blobs}
    assert store.put(theirs, blobs) != ours.artifact_id and len(list(store.manifests())) == 2
    for _ in range(4):
        torch.testing.assert_close(precast.load(product, store=store)(X, X), X * X)


def test_threads(store: Store, compiler: Counting) -> None:
    f = precast.compile(product, store=store)
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with torch.no_grad():
                for i in range(60):
                    x = torch.full((1 + (seed + i) % 4,), float(i))
                    torch.testing.assert_close(f(x, x), x * x)
        except BaseException as error:  # noqa: BLE001 - shown below
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[0]
    assert compiler.frame_count == 4


def test_fork(store: Store, compiler: Counting) -> None:
    f = precast.compile(product, store=store)
    f(X, X)
    child = os.fork()
    if child == 0:
        try:
            ok = torch.equal(f(X, X), X * X) and torch.equal(f(X[:2], X[:2]), X[:2] * X[:2])
        except BaseException:  # noqa: BLE001 - the exit status tells
            ok = False
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_reset_forgets(store: Store, compiler: Counting) -> None:
    f = precast.compile(product, store=store)
    f(X, X)
    f(X, X)
    precast.reset()
    assert not site_of(f).programs[0].variants
    torch.testing.assert_close(f(X, X), X * X)
    assert compiler.frame_count == 1


def test_precompile_reports(store: Store, compiler: Counting) -> None:
    signatures = [((X, X), {}), ((X[:2],), {"w": X[:2]})]
    report = precast.precompile(product, signatures, store=store)
    assert report.ok and [item.outcome for item in report.signatures] == ["compiled", "compiled"]
    again = precast.precompile(product, signatures, store=store)
    assert [item.outcome for item in again.signatures] == ["hit", "hit"] and again.to_dict()["ok"]
    torch.testing.assert_close(precast.load(product, store=store)(X, X), X * X)
    with pytest.raises(precast.PrecastError, match="signature 1 must be"):
        precast.precompile(product, [X], store=store)  # type: ignore[list-item]


def test_signatures_are_counted_from_one(store: Store, compiler: Counting) -> None:
    said: list[str] = []
    report = precast.precompile(product, [((X, X), {}), ((X[:2], X[:2]), {})], store=store, progress=said.append)
    assert [item.index for item in report.signatures] == [1, 2]
    assert "signature 1 of 2" in said[0] and "signature 1 for" in str(report) and "signature 0" not in str(report)


def test_precompile_into_what_cannot_be_written_compiles_nothing(tmp_path: Path, compiler: Counting) -> None:
    stored = Store.open(tmp_path / "good")
    assert precast.precompile(product, [((X, X), {})], store=stored).ok
    compiler.frame_count = 0
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "programs").write_text("in the way")
    for bad in (Store.open(tmp_path / "bad"), Store.open(tmp_path / "good", readonly=True), Store.open(tmp_path / "bad" / "programs")):
        with pytest.raises(precast.PrecastError, match="store .*(bad|good).*. Nothing was compiled for .*product"):
            precast.precompile(product, [((X[:2], X[:2]), {})], store=bad)
    assert not compiler.frame_count
    report = precast.precompile(product, [((X, X), {})], store=Store.open(tmp_path / "good", readonly=True))
    assert [item.outcome for item in report.signatures] == ["hit"], "what is there needs no writing"
    assert not [*(tmp_path / "bad").rglob(".tmp-*")]


def test_precompile_of_a_compiled_program_makes_what_it_finds(store: Store, compiler: Counting) -> None:
    settings: dict[str, Any] = {"store": store, "name": "times", "options": {"freeze": True}}
    f = precast.compile(product, **settings)
    report = precast.precompile(f, [((X, X), {})])
    assert report.ok and report.program == "times" and compiler.frame_count == 1
    with precast.set_stance("fail_on_recompile"):
        torch.testing.assert_close(f(X, X), X * X)
    torch.testing.assert_close(precast.load(product, **settings)(X, X), X * X)
    with pytest.raises(precast.OptionError, match="the backend 'eager' compiles is not stored"):
        precast.precompile(precast.compile(product, backend="eager"), [((X, X), {})])


def test_options_and_backends_are_checked() -> None:
    with pytest.raises(precast.OptionError, match="did you mean 'freeze'"):
        precast.compile(product, options={"freze": True})
    with pytest.raises(precast.OptionError, match="wants bool, got int"):
        precast.compile(product, options={"freeze": 1})
    with pytest.raises(precast.OptionError, match="unknown mode"):
        precast.compile(product, mode="fastest")
    with pytest.raises(precast.OptionError, match="unknown backend"):
        precast.compile(product, backend="inductr")
    with pytest.raises(precast.PrecastError, match="cannot compile the class"):
        precast.compile(Scale)
    assert "freeze" in precast.list_options() and "default" in precast.list_mode_options()
    assert precast.compile(product, disable=True) is product


def test_a_bug_in_the_compiler_does_not_break_the_call(
    store: Store, set_compiler: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(program: Program, args: Args, kwargs: Mapping[str, Any]) -> Any:
        raise KeyError("lost")

    set_compiler(broken)
    monkeypatch.delenv("PRECAST_STRICT", raising=False)
    with pytest.warns(UserWarning, match="a bug of precast .* KeyError: 'lost'"):
        torch.testing.assert_close(precast.compile(product, store=store)(X, X), X * X)
    monkeypatch.setenv("PRECAST_STRICT", "1")
    with pytest.raises(KeyError):
        precast.compile(product, store=store)(X, X)


def test_prepared_weights_are_redone_when_they_change(store: Store, set_compiler: Callable[[Any], None]) -> None:
    def frozen(program: Program, args: Args, kwargs: Mapping[str, Any]) -> Any:
        x = GraphInput((("local", "x"),), False, 0)
        weight = GraphInput((("local", "self"), ("param", "w")), True, None, parameter=True)
        so = standin.library(more=standin.FROZEN)
        return program.store.put(*standin.manifest_for(program, [shape_guard("x", args[1])], [x, weight], "graph(x)[0]", so))

    set_compiler(frozen)
    module = Scale()
    compiled = precast.compile(module, store=store)
    seen: list[Callable[[], Any]] = [
        lambda: None,
        lambda: module.w.add_(1),
        lambda: setattr(module.w, "data", torch.tensor([7.0])),
        lambda: module.load_state_dict({"w": torch.tensor([11.0])}),
    ]
    for change in seen:
        change()
        for _ in range(3):
            torch.testing.assert_close(compiled(X), X * module.w)
    module.w.data.fill_(100.0)  # the one change that cannot be seen, as the option's documentation says
    torch.testing.assert_close(compiled(X), X * 11)
    precast.reset()
    torch.testing.assert_close(compiled(X), X * 100)


def test_nothing_is_kept_alive(store: Store, compiler: Counting) -> None:
    module = Scale()
    compiled = precast.compile(module, store=store)
    for _ in range(3):
        result = compiled(X)
    names = set(globals())
    gone = [weakref.ref(module), weakref.ref(module.w), weakref.ref(result)]
    del module, compiled, result
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]
    assert not [name for name in globals() if "precast_graph" in name], names


def test_memory_of_outputs_is_given_back(store: Store, compiler: Counting) -> None:
    compiled = precast.compile(Scale(), store=store)
    x = torch.zeros(1 << 18)
    for _ in range(20):
        compiled(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(400):  # 400 MiB if each call lost its output
        compiled(x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_what_another_process_stores_is_found_on_the_next_miss(store: Store, compiler: Counting) -> None:
    first, second = precast.compile(product, store=store), precast.compile(product, store=Store.open(store.root))
    first(X, X)
    second(X, X)
    first(X[:2], X[:2])
    torch.testing.assert_close(second(X[:2], X[:2]), X[:2] * X[:2])
    assert compiler.frame_count == 2


def test_a_program_that_runs_eagerly_does_not_read_the_store(store: Store, set_compiler: Callable[[Any], None]) -> None:
    set_compiler(_refuse)
    f = precast.compile(product, store=store)
    with pytest.warns(UserWarning, match="runs eagerly"):
        f(X, X)
    reads: list[str] = []
    store.variants = lambda key: reads.append(key) or []  # type: ignore[method-assign, func-returns-value]
    for _ in range(5):
        f(X, X)
    assert not reads


def test_what_is_no_store_is_refused_and_nothing_is_written(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for wrong in (store.blob_path, 3, b"folder"):
        with pytest.raises(TypeError, match="store= takes a Store, a path or None"):
            precast.compile(lambda x: x + 1, store=wrong)(torch.ones(2))  # type: ignore[arg-type]
    assert sorted(tmp_path.iterdir()) == before


def test_a_tensor_that_an_imported_module_holds(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holds_a_tensor.py").write_text("import torch\nT = torch.tensor(3.0)\n\ndef times(x):\n    return x * T\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("holds_a_tensor")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert precast.compile(lambda x: module.times(x), store=store)(torch.ones(2)).tolist() == [3.0, 3.0]


AT_THE_END = """
    import sys
    import torch
    import precast

    def shifted(x):
        return x + 1

    compiled = precast.compile(shifted, store="store", dynamic=False)

    class Last:
        def __init__(self, call):
            self.call, self.ends = call, sys.is_finalizing

        def __del__(self):
            print(self.ends(), self.call(torch.zeros(2)).tolist(), self.call(torch.zeros(3)).tolist())

    torch.set_grad_enabled(False)
    for _ in range(4):
        compiled(torch.zeros(2))
    last = Last(compiled)
"""


def test_a_destructor_that_calls_while_the_interpreter_ends(tmp_path: Path) -> None:
    """With arguments that it has compiled for, and others: Python opens no files then, and so nothing can be looked for or compiled."""
    assert child(tmp_path, AT_THE_END) == "True [1.0, 1.0] [1.0, 1.0, 1.0]\n"
