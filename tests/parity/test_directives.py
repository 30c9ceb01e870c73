"""Directives on functions against torch's: the same results, graphs and breaks, in programs of precast.compile and of torch.compile."""

from __future__ import annotations

import contextlib
import copy
import operator
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from precast.runtime.programs import compile_hook

X = torch.randn(4)


@pytest.fixture(autouse=True)
def _fresh_tracer() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="precast: .* runs eagerly")
        yield


def inner(x: torch.Tensor) -> torch.Tensor:
    return x.cos() * 2


def outer(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + inner(x)


def counted(function: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """Frames and operations that torch.compile captures; the result has to be eager's."""
    counter = CompileCounter()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(function, backend=counter)(*args), function(*args))
    return counter.frame_count, counter.op_count


@pytest.fixture
def graphs(set_compiler: Callable[[Any], None]) -> list[str]:
    """Names of the programs of which a graph was compiled."""
    compile_variant, found = compile_hook.compiler(), []

    def counting(compiled: Any, args: Any, kwargs: Any) -> Any:
        made = compile_variant(compiled, args, kwargs)
        manifest = compiled.store.get(made, compiled.key) if isinstance(made, str) else made.manifest
        found.extend([compiled.name] * len(manifest.graphs))
        return made

    set_compiler(counting)
    return found


# -- disable

DISABLED = {
    "function": lambda disable: disable(outer),
    "decorator": lambda disable: disable()(outer),
    "with a reason": lambda disable: disable(outer, reason="tested"),
    "not recursive": lambda disable: disable(outer, recursive=False),
    "not recursive, decorator": lambda disable: disable(recursive=False)(outer),
    "twice": lambda disable: disable(disable(outer)),
    "a compiled function": lambda disable: disable(torch.compile(outer, backend="eager")),
    "positional": lambda disable: disable(outer, False),
}


@pytest.mark.parametrize("name", DISABLED)
def test_disable(name: str, tmp_path: Path, graphs: list[str]) -> None:
    theirs, ours = DISABLED[name](torch.compiler.disable), DISABLED[name](precast.disable)
    expected = counted(lambda x: theirs(x + 1) * 2, X)
    assert counted(lambda x: ours(x + 1) * 2, X) == expected
    assert ours.__name__ == "outer" and ours.__wrapped__ is outer
    for attribute in ("_torchdynamo_disable", "_torchdynamo_disable_msg"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
    for i, marked in enumerate((ours, theirs)):
        graphs.clear()
        compiled = precast.compile(lambda x, marked=marked: marked(x + 1) * 2, store=Store.open(tmp_path / str(i)))
        for _ in range(4):
            torch.testing.assert_close(compiled(X), outer(X + 1) * 2)
        assert len(graphs) == expected[0]


@pytest.mark.parametrize("disable", [torch.compiler.disable, precast.disable], ids=["torch", "precast"])
def test_a_disabled_function_is_not_traced_by_a_compiled_program(disable: Any, store: Store) -> None:
    traced = []

    @disable
    def look(x: torch.Tensor) -> torch.Tensor:
        traced.append(torch.compiler.is_compiling())
        return x * 3

    compiled = precast.compile(lambda x: look(x + 1) * 2, store=store)
    for _ in range(4):
        torch.testing.assert_close(compiled(X), (X + 1) * 6)
    assert traced == [False] * 4, "runs as it is written, at each call"
    with pytest.raises(precast.PrecastError, match="disable"):
        precast.compile(lambda x: look(x + 1) * 2, store=store, fullgraph=True)(X)


def test_disable_of_a_module(store: Store) -> None:
    module = torch.nn.Linear(4, 4)
    theirs, ours = torch.compiler.disable(module), precast.disable(module)
    with torch.no_grad():
        assert counted(lambda x: ours(x + 1) * 2, X) == counted(lambda x: theirs(x + 1) * 2, X)
        compiled = precast.compile(lambda x: ours(x + 1) * 2, store=store)
        torch.testing.assert_close(compiled(X), module(X + 1) * 2)
    assert isinstance(ours, torch.nn.Linear) and ours.weight is module.weight and ours._orig_mod is module


@pytest.mark.parametrize("disable", [torch.compiler.disable, precast.disable], ids=["torch", "precast"])
def test_disable_of_a_class(disable: Any, store: Store) -> None:
    @disable
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.compiler.is_compiling())
            return x * 3

    seen: list[bool] = []
    layer = Layer()
    torch.testing.assert_close(precast.compile(lambda x: layer(x + 1) * 2, store=store)(X), (X + 1) * 6)
    torch.testing.assert_close(torch.compile(lambda x: layer(x + 1) * 2, backend="eager")(X), (X + 1) * 6)
    assert seen == [False, False]


def test_disable_is_no_context_manager() -> None:
    for disable in (torch.compiler.disable, precast.disable):
        with pytest.raises(RuntimeError, match="decorator"), disable():
            pass


def test_what_is_compiled_by_itself_stays_compiled_below_disable(store: Store) -> None:
    compiled = precast.compile(inner, store=store)
    torch.testing.assert_close(precast.disable(lambda x: compiled(x))(X), inner(X))
    assert len(site_of(compiled).programs[0].variants) == 1


def test_the_last_of_compile_and_disable_wins(store: Store) -> None:
    compiled = precast.compile(precast.disable(inner), store=store, fullgraph=True)
    torch.testing.assert_close(compiled(X), inner(X))
    assert len(site_of(compiled).programs[0].variants) == 1
    counter = CompileCounter()
    torch.compile(torch.compiler.disable(inner), backend=counter)(X)
    assert counter.frame_count == 1
    disabled = precast.disable(precast.compile(inner, store=store))
    assert disabled.__wrapped__ is inner
    torch.testing.assert_close(disabled(X), inner(X))


def test_disable_refuses_what_cannot_be_called() -> None:
    for disable in (torch.compiler.disable, precast.disable):
        with pytest.raises(AssertionError):
            disable(3)


# -- allow_in_graph


def test_allow_in_graph(store: Store) -> None:
    calls = []

    @precast.allow_in_graph
    def opaque(x: torch.Tensor, by: int) -> torch.Tensor:
        calls.append(by)  # not a side effect that the tracer sees
        return x.sin() * by

    def program(x: torch.Tensor) -> torch.Tensor:
        return opaque(x + 1, 3) - 1

    assert counted(program, X) == (1, 3)
    compiled = precast.compile(program, store=store, fullgraph=True)
    torch.testing.assert_close(compiled(X), (X + 1).sin() * 3 - 1)
    assert precast.allow_in_graph([inner, outer]) == [inner, outer]
    for allow in (torch.compiler.allow_in_graph, precast.allow_in_graph):
        with pytest.raises(AssertionError):
            allow(3)


# -- substitute_in_graph


def own_rule(original: Any) -> Any:
    """What is around the first trace after a substitute was given: a warning, where this torch has a rule of its own for the function."""
    polyfills = sys.modules[f"torch._dynamo.polyfills.{original.__module__.strip('_')}"]
    return pytest.warns(UserWarning, match="by a rule of its own") if hasattr(polyfills, original.__name__) else contextlib.nullcontext()


def test_a_rule_of_torchs_own_stays(store: Store) -> None:
    """It is told once; torch refuses such a substitute with a ValueError. Programs that call either trace as before."""
    with pytest.raises(ValueError, match="Duplicate"):
        torch.compiler.substitute_in_graph(operator.countOf)(count_of)
    ours = precast.substitute_in_graph(operator.countOf)(count_of)
    compiled = precast.compile(lambda x, items: x * operator.countOf(items, 3) + ours(items, 2), store=store, fullgraph=True)
    with own_rule(operator.countOf):
        torch.testing.assert_close(compiled(X, [1, 3, 3]), X * 2)
    torch.testing.assert_close(compiled(X, [2, 2, 3]), X * 1 + 2)


def count_of(a: Any, b: Any, /) -> int:
    return sum(1 for item in a if item is b or item == b)


def test_substitute_in_graph_of_index_of(store: Store) -> None:
    def program(x: torch.Tensor, items: list[int]) -> torch.Tensor:
        return x * operator.indexOf(items, 3) + indexOf(items, 2)

    @precast.substitute_in_graph(operator.indexOf)
    def indexOf(a: Any, b: Any, /) -> int:
        for i, item in enumerate(a):
            if item is b or item == b:
                return i
        raise ValueError("sequence.index(x): x not in sequence")

    compiled = precast.compile(program, store=store, fullgraph=True)
    with own_rule(operator.indexOf):
        torch.testing.assert_close(compiled(X, [1, 2, 3]), X * 2 + 1)
    torch.testing.assert_close(compiled(X, [3, 2]), X * 0 + 1)
    assert counted(program, X, [1, 2, 3]) == (1, 2)
    assert indexOf([5, 6], 6) == 1
    with pytest.raises(ValueError, match="not in sequence|x not in"):
        indexOf([5, 6], 7)
    with pytest.raises(ValueError, match="already"):
        precast.substitute_in_graph(operator.indexOf)(lambda a, b, /: 0)


def test_substitute_in_graph_refuses_what_does_not_fit() -> None:
    for substitute in (torch.compiler.substitute_in_graph, precast.substitute_in_graph):
        with pytest.raises(TypeError, match="expects a function but got"):
            substitute(3)
        with pytest.raises(TypeError, match="expects a function but got"):
            substitute(operator.countOf)(3)
        with pytest.raises(TypeError, match="Signature mismatch|signature"):
            substitute(operator.countOf)(lambda a: a)


# -- assume_constant_result


def test_assume_constant_result(store: Store) -> None:
    asked = []

    @precast.assume_constant_result
    def setting(name: str) -> float:
        asked.append(name)
        return 2.5

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * setting("scale")

    compiled = precast.compile(program, store=store, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), X * 2.5)
    assert asked.count("scale") <= 2, "once while tracing, at most once more when it is loaded"
    assert counted(program, X) == (1, 1)


# -- is_compiling, is_exporting


def test_is_compiling_and_is_exporting(store: Store) -> None:
    assert precast.is_compiling is torch.compiler.is_compiling and precast.is_exporting is torch.compiler.is_exporting

    def program(x: torch.Tensor) -> tuple[torch.Tensor, bool, bool]:
        return (x + 1 if precast.is_compiling() else x - 1), precast.is_compiling(), precast.is_exporting()

    assert program(X)[1:] == (False, False)
    expected = torch.compile(program, backend="eager")(X)
    found = precast.compile(program, store=store, fullgraph=True)(X)
    assert found[1:] == expected[1:]
    assert found[1:] == (True, False) or torch.__version__ < "2.13"  # torch.compile says that it exports, in torch 2.11
    torch.testing.assert_close(found[0], X + 1)


# -- compile_module


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) + 1


@torch.no_grad()
def test_mark_step_begin_tells_inductors_graphs_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.delitem(sys.modules, "torch._inductor.cudagraph_trees", raising=False)
    precast.cudagraph_mark_step_begin()
    assert "torch._inductor.cudagraph_trees" not in sys.modules
    stand_in = types.SimpleNamespace(mark_step_begin=lambda: told.append(1))
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", stand_in)  # type: ignore[arg-type]
    precast.cudagraph_mark_step_begin()
    assert told == [1]


def test_compile_module_in_place(store: Store) -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    expected = net(x)
    before = net.state_dict().keys()
    assert precast.compile_module(net, store=store, fullgraph=True) is None
    for _ in range(4):
        torch.testing.assert_close(net(x), expected)
    program = site_of(net).programs[0]
    assert len(program.variants) == 1 and net.state_dict().keys() == before and type(net) is Net
    assert precast.explain_miss(net, x).hits and not precast.explain_miss(net, torch.randn(3, 4)).hits
    with precast.set_stance("force_eager"):
        torch.testing.assert_close(net(x), expected)
    copied = copy.deepcopy(net)
    assert copied._compiled_call_impl is None, "a copy is not compiled, as with nn.Module.compile"
    torch.testing.assert_close(copied(x), expected)
    net.layer.register_forward_hook(lambda *_: None)
    handle = net.register_forward_hook(lambda module, args, out: out * 2)
    torch.testing.assert_close(net(x), expected * 2)
    handle.remove()
    torch.testing.assert_close(net(x), expected)


@torch.no_grad()
def test_compile_module_inside_a_compiled_module(store: Store) -> None:
    net = torch.nn.Sequential(Net(), Net()).eval()
    x = torch.randn(2, 4)
    expected = net(x)
    precast.compile_module(net[0], store=store)
    compiled = precast.compile(net, store=store, fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    assert not site_of(net[0]).programs[0].variants, "it is traced into"
    torch.testing.assert_close(net(x), expected)
    assert len(site_of(net[0]).programs[0].variants) == 1


@torch.no_grad()
def test_compile_module_refuses_and_can_be_disabled(store: Store) -> None:
    with pytest.raises(precast.OptionError, match="takes an nn.Module"):
        precast.compile_module(inner)
    with pytest.raises(precast.OptionError, match="unknown option"):
        precast.compile_module(Net(), options={"nope": 1})
    net = Net()
    precast.compile_module(net, store=store, disable=True)
    assert net._compiled_call_impl is None


# -- no tracer

WARM = """
import operator, sys, warnings
import torch
import precast

def inner(x):
    return x.cos() * 2

@precast.disable
def left_out(x):
    return x * 3

@precast.disable(recursive=False)
def left_out_itself(x):
    return inner(x)

@precast.allow_in_graph
def opaque(x):
    return x.sin()

@precast.substitute_in_graph(operator.indexOf)
def index_of(a, b, /):
    for i, item in enumerate(a):
        if item == b:
            return i
    raise ValueError

@precast.assume_constant_result
def setting():
    return 2.5

def allowed(x):
    return opaque(x + 1) * setting()

def substituted(x):
    return x * operator.indexOf([1, 2, 3], 3) + (1 if precast.is_compiling() else 0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return inner(self.layer(x))

x = torch.randn(2, 4)
store = sys.argv[1]
with torch.no_grad():
    net = Net()
    wanted = net(x)
    precast.compile_module(net, store=store)
    torch.testing.assert_close(net(x), wanted)
    torch.testing.assert_close(precast.compile(allowed, store=store, fullgraph=True)(x), allowed(x))
    torch.testing.assert_close(precast.compile(substituted, store=store, fullgraph=True)(x), x * 2 + 1)
    for name in ("force_eager", "eager_on_recompile", "eager_then_compile", "default"):
        with precast.set_stance(name):
            torch.testing.assert_close(net(x), wanted)
    with precast.set_stance("fail_on_recompile"):
        torch.testing.assert_close(net(x), wanted)
    torch.testing.assert_close(left_out(x) + left_out_itself(x), x * 3 + inner(x))
    disabled = precast.disable(Net())
    disabled(x)
    precast.reset()
print("warm" if "torch._dynamo" not in sys.modules else "cold")
"""


def test_no_directive_imports_the_tracer(tmp_path: Path) -> None:
    (tmp_path / "directed.py").write_text(WARM)
    for expected in ("cold", "warm"):
        done = subprocess.run(
            [sys.executable, "-c", "import directed", str(tmp_path / "store")],
            cwd=tmp_path,
            env={**os.environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.strip() == expected


# -- what a directive changes belongs to the key: one program, its surroundings edited, in fresh processes that may not compile

EDITED = """
import os, sys
import torch
import precast

{disable}
def helper(x):
    return x.sin() * 2

def below(x):
    return x * {factor}

@precast.allow_in_graph
def opaque(x):
    return below(x) + 1

{constant}
def setting(name):
    return float(os.environ.get(name, "2.5"))

def calls_helper(x):
    return helper(x + 1) + 1

def calls_opaque(x):
    return opaque(x + 1) * 2

def calls_setting(x):
    return x * setting("SETTING")

x = torch.randn(4)
with torch.no_grad():
    for program in (calls_helper, calls_opaque, calls_setting):
        serve = precast.compile if sys.argv[2] == "cold" else precast.load
        try:
            torch.testing.assert_close(serve(program, store=sys.argv[1])(x), program(x))
            print("hit", end=" ")
        except precast.GuardMiss as miss:
            print("miss", end=" ")
            print(miss, file=sys.stderr)
print("tracer" if "torch._dynamo" in sys.modules else "no-tracer")
"""
PLAIN = {"disable": "", "factor": 3, "constant": "@precast.assume_constant_result"}
EDITS: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "nothing": ({}, {}, "hit hit hit no-tracer"),
    "a helper is disabled": ({"disable": "@precast.disable"}, {}, "miss hit hit no-tracer"),
    "code below an allowed function": ({"factor": 4}, {}, "hit miss hit no-tracer"),
    "another result": ({}, {"SETTING": "7.0"}, "hit hit miss no-tracer"),
    "no assumption any more": ({"constant": ""}, {}, "hit hit miss no-tracer"),
}


def edited(folder: Path, kind: str, fields: dict[str, Any], environment: dict[str, str]) -> str:
    (folder / "edited.py").write_text(EDITED.format(**{**PLAIN, **fields}))
    done = subprocess.run(
        [sys.executable, "-B", "-c", "import edited", str(folder / "store"), kind],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def edits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edits")
    assert edited(folder, "cold", {}, {}) == "hit hit hit tracer"
    return folder


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_directive_misses(name: str, edits: Path) -> None:
    fields, environment, expected = EDITS[name]
    assert edited(edits, "warm", fields, environment) == expected


def test_a_directive_that_is_removed_misses(tmp_path: Path) -> None:
    assert edited(tmp_path, "cold", {"disable": "@precast.disable"}, {}) == "hit hit hit tracer"
    assert edited(tmp_path, "warm", {"disable": "@precast.disable"}, {}) == "hit hit hit no-tracer"
    assert edited(tmp_path, "warm", {}, {}) == "miss hit hit no-tracer"
