"""Stances against torch.compile's: the same number of compiles call by call, the same results, and the same errors."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from precast.runtime.settings import stance
from tests.runtime.hand_made_artifacts import Counting


@pytest.fixture(autouse=True)
def _default_stance() -> Any:
    torch._dynamo.reset()
    torch._dynamo.eval_frame._EXAMPLE_INPUTS = None
    yield
    precast.set_stance("default")
    torch.compiler.set_stance("default")


def body(x: torch.Tensor) -> torch.Tensor:
    return x.cos() * 2


SIZES = {"same": (3, 3, 3, 3), "two": (3, 5, 3, 5)}


def run(stance_of: Any, compiled: Any, counted: Any, sizes: tuple[int, ...], name: str) -> list[Any]:
    """The number of compiles so far after each call, or the class of the error."""
    seen: list[Any] = []
    for size in sizes:
        x = torch.randn(size)
        try:
            with stance_of(name):
                torch.testing.assert_close(compiled(x), body(x))
            seen.append(counted.frame_count)
        except RuntimeError:
            seen.append("RuntimeError")
    return seen


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", stance.STANCES)
def test_compiles_call_by_call(name: str, sizes: str, store: Store, counter: Counting) -> None:
    theirs = CompileCounter()
    # torch keeps what it ran first under aot_eager_then_compile, and never compiles for a call like it; precast does as torch's page says
    known = "eager_then_compile" if name == "aot_eager_then_compile" else name
    expected = run(torch.compiler.set_stance, torch.compile(body, backend=theirs, dynamic=False), theirs, SIZES[sizes], known)
    found = run(precast.set_stance, precast.compile(body, store=store, dynamic=False), counter, SIZES[sizes], name)
    assert found == expected


def test_the_first_call_teaches_what_varies(store: Store, counter: Counting) -> None:
    """Under eager_then_compile, two calls of different sizes cost one compile, which serves all sizes; as with torch.compile."""
    theirs = CompileCounter()
    sizes = (3, 5, 7, 9, 3)
    expected = run(torch.compiler.set_stance, torch.compile(body, backend=theirs), theirs, sizes, "eager_then_compile")
    assert expected == [0, 1, 1, 1, 1]
    assert run(precast.set_stance, precast.compile(body, store=store), counter, sizes, "eager_then_compile") == expected


def test_cached_code_is_used_or_not(store: Store, counter: Counting) -> None:
    f = precast.compile(body, store=store, dynamic=False)
    x, y = torch.randn(4), torch.randn(6)
    for _ in range(6):
        f(x)
    ours = site_of(f).programs[0]
    for name, value, raises in (
        ("eager_on_recompile", x, False),
        ("eager_on_recompile", y, False),
        ("fail_on_recompile", x, False),
        ("fail_on_recompile", y, True),
        ("force_eager", y, False),
        ("force_eager", x, False),
    ):
        with precast.set_stance(name):
            if raises:
                with pytest.raises(precast.RecompileForbidden, match="would compile for this call.*\n"):
                    f(value)
            else:
                torch.testing.assert_close(f(value), body(value))
    assert counter.frame_count == 1 and len(ours.variants) == 1
    f(y)
    assert counter.frame_count == 2


def test_force_eager_runs_the_original_and_reset_forgets_the_first_call(store: Store, counter: Counting) -> None:
    calls = []

    def noting(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            calls.append(len(x))
        return x + 1

    f = precast.compile(noting, store=store)
    with precast.set_stance("eager_then_compile"):
        f(torch.zeros(2))
        f(torch.zeros(2))
        assert calls == [2] and counter.frame_count == 1
        precast.reset()
        f(torch.zeros(2))
        assert calls == [2] and counter.frame_count == 1, "the store still has it: no miss"
    with precast.set_stance("force_eager"):
        f(torch.zeros(3))
    assert calls == [2, 3]
    precast.reset()
    with precast.set_stance("eager_then_compile"):
        f(torch.zeros(4))
    assert calls == [2, 3, 4], "after a reset the first miss is the first again"


def test_as_function_context_manager_and_decorator(store: Store) -> None:
    precast.set_stance("force_eager")
    assert stance.current() == "force_eager"
    with precast.set_stance("eager_on_recompile"):
        assert stance.current() == "eager_on_recompile"
        with precast.set_stance("fail_on_recompile"):
            assert stance.current() == "fail_on_recompile"
        assert stance.current() == "eager_on_recompile"
    assert stance.current() == "force_eager"
    precast.set_stance()
    assert stance.current() == "default"

    @precast.set_stance("force_eager")
    def decorated(n: int) -> str:
        return stance.current() if n == 0 else decorated(n - 1)

    @precast.set_stance("force_eager")
    def steps() -> Any:
        yield stance.current()
        yield stance.current()

    assert stance.current() == "default"
    assert decorated(3) == "force_eager" and decorated.__name__ == "decorated"
    assert stance.current() == "default"
    generator = steps()
    assert next(generator) == "force_eager" and stance.current() == "default" and next(generator) == "force_eager"
    with pytest.raises(ZeroDivisionError), precast.set_stance("force_eager"):
        raise ZeroDivisionError
    assert stance.current() == "default"


def test_unknown_stances(store: Store) -> None:
    with pytest.raises(precast.OptionError, match="unknown stance 'lazy'") as caught:
        precast.set_stance("lazy")
    assert isinstance(caught.value, RuntimeError), "torch raises RuntimeError, at the next call"
    assert stance.current() == "default"


def forced(set_stance: Any, compile: Any, **settings: Any) -> list[tuple[int, int]]:
    """How often two backends were asked, call by call, in and outside of stances that force one of them."""
    first, second, seen = CompileCounter(), CompileCounter(), []
    compiled = compile(body, dynamic=False, **settings)

    def call(size: int) -> None:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), body(x))
        seen.append((first.frame_count, second.frame_count))

    call(3)
    with set_stance(force_backend=first):
        call(3), call(3), call(5)
    call(3)
    with set_stance(force_backend=first):
        call(3)
    with set_stance("default", force_backend=second):
        call(3)
    with set_stance(force_backend="eager"):
        call(3)
    with set_stance(force_backend=first):
        with set_stance("force_eager"):
            call(7)
        with set_stance("default"):
            call(3)
        call(9)
    return seen


@pytest.mark.parametrize("settings", [{}, {"backend": "eager"}, {"mode": "max-autotune"}], ids=["precast", "eager", "with a mode"])
def test_a_forced_backend_compiles_as_often_as_with_torch(settings: dict[str, Any], store: Store, counter: Counting) -> None:
    expected = forced(torch.compiler.set_stance, torch.compile, backend="eager")
    assert expected == [(0, 0), (1, 0), (1, 0), (2, 0), (2, 0), (2, 0), (2, 1), (2, 1), (2, 1), (2, 1), (3, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert forced(precast.set_stance, precast.compile, store=store, **settings) == expected
    assert len(list(Path(store.root).rglob("*.msgpack"))) == (0 if "backend" in settings else 1), "what others make is not stored"


def test_a_forced_backend_for_all_kinds_of_programs(store: Store) -> None:
    graphs = CompileCounter()

    def breaks(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("between")
        return y + 1

    layer, hooked = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    hooked.register_forward_hook(lambda module, given, out: out * 2)
    x = torch.randn(2, 3)
    programs = (breaks, functools.partial(body), functools.partial(breaks, x=x), layer, hooked, layer.forward)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for program, count in zip(programs, (2, 1, 2, 1, 1, 1), strict=True):
            compiled, before = precast.compile(program, store=store), graphs.frame_count
            args = () if getattr(program, "keywords", None) else (x,)
            for _ in range(2):
                with precast.set_stance(force_backend=graphs):
                    torch.testing.assert_close(compiled(*args), program(*args))
            assert graphs.frame_count - before == count, program
    assert store.programs() == []


def test_a_forced_backend_may_be_precast(store: Store, counter: Counting) -> None:
    f = precast.compile(body, backend="eager", store=store)
    with precast.set_stance(force_backend="precast"):
        torch.testing.assert_close(f(torch.ones(3)), body(torch.ones(3)))
    assert counter.frame_count == 1 and len(store.programs()) == 1
    with precast.set_stance(force_backend="eager"):
        served = precast.load(body, store=store, require="hit")
        torch.testing.assert_close(served(torch.ones(3)), body(torch.ones(3)))
        with pytest.raises(precast.GuardMiss):
            served(torch.ones(4, 4))
    assert counter.frame_count == 1


def test_as_decorator_a_backend_is_forced_inside_calls(store: Store) -> None:
    graphs = CompileCounter()
    compiled = precast.compile(body, store=store)

    @precast.set_stance(force_backend=graphs)
    def serve() -> torch.Tensor:
        return compiled(torch.ones(2))

    compiled(torch.ones(2))
    assert graphs.frame_count == 0
    serve(), serve()
    assert graphs.frame_count == 1


def test_wrong_forced_backends(store: Store) -> None:
    with pytest.raises(RuntimeError) as theirs:
        torch.compiler.set_stance("fail_on_recompile", force_backend="eager")
    with pytest.raises(precast.OptionError, match=str(theirs.value)):
        precast.set_stance("fail_on_recompile", force_backend="eager")
    with pytest.raises(precast.OptionError, match="unknown backend 'eagr'; did you mean 'eager'"):
        precast.set_stance(force_backend="eagr")
    with pytest.raises(precast.OptionError, match="wants a name or a callable"):
        precast.set_stance(force_backend=3)  # type: ignore[arg-type]
    assert not stance.state.detour


def sets_it(set_stance: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        set_stance("force_eager")
        return y * 2

    return program


def test_inside_a_compiled_program_it_raises(store: Store) -> None:
    x = torch.randn(3)
    with pytest.raises(AssertionError, match="forbidden") as theirs:
        torch.compile(sets_it(torch.compiler.set_stance), backend="eager")(x)
    with pytest.raises(theirs.type, match="forbidden"):
        precast.compile(sets_it(precast.set_stance), store=store)(x)
    with pytest.raises(theirs.type, match="forbidden"):
        torch.compile(sets_it(precast.set_stance), backend="eager")(x)
    assert stance.current() == "default"


class Stream:
    """Calls `set_stance` when it is printed to: no tracer looks there."""

    def __init__(self, set_stance: Any) -> None:
        self.set_stance = set_stance

    def write(self, text: str) -> None:
        self.set_stance("force_eager")


def test_in_what_a_compiled_program_calls_it_raises(store: Store) -> None:
    def program(x: torch.Tensor, stream: Any) -> torch.Tensor:
        y = x + 1
        print("printed", file=stream)
        return y * 2

    x = torch.randn(3)
    with pytest.raises(RuntimeError, match="attempted to set_stance in a") as theirs:
        torch.compile(program, backend="eager")(x, Stream(torch.compiler.set_stance))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(theirs.type, match="attempted to set_stance in a"):
            precast.compile(program, store=store)(x, Stream(precast.set_stance))
    assert stance.current() == "default"
    program(x, Stream(precast.set_stance))
    assert stance.current() == "force_eager", "outside it is allowed"


def test_below_disable_it_is_allowed(store: Store) -> None:
    @precast.disable
    def allowed() -> None:
        precast.set_stance("default")

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        allowed()
        return y * 2

    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(program, backend="eager")(x), program(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(precast.compile(program, store=store)(x), program(x))


CHILD = """
import sys, torch, precast
from precast.runtime.settings import stance
def f(x): return x.sin() + 1
x = torch.randn(3)
with torch.no_grad():
    for name in stance.STANCES:
        with precast.set_stance(name):
            served = precast.compile(f, store=sys.argv[1])
            try:
                torch.testing.assert_close(served(x), f(x))
            except precast.RecompileForbidden:
                print("forbidden", end=" ")
print(stance.current(), sorted(n for n in sys.modules if n == "torch._dynamo"))
"""


def test_precast_disable_in_the_environment(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path], env={**os.environ, "PRECAST_DISABLE": "1"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "force_eager []"
    assert not list(tmp_path.rglob("*.msgpack"))


def test_skip_guard_eval_looks_only_at_what_tells_variants_apart(store: Store, counter: Counting) -> None:
    def scaled(x: torch.Tensor, scale: float, name: str) -> torch.Tensor:
        return x * scale if name else x

    def seen(set_stance: Any, compiled: Any, counted: Any) -> list[Any]:
        x, found = torch.ones(3), []
        with set_stance("default"):
            compiled(x, 2.0, "a"), compiled(x, 3.0, "a")
        with set_stance("default", skip_guard_eval_unsafe=True):
            for args in ((x, 2.0, "a"), (x, 3.0, "a"), (x, 3.0, "b"), (x, 2.0, "c"), (x, 3.0, "b")):
                found.append((float(compiled(*args)[0]), counted.frame_count))
        found.append((float(compiled(x, 2.0, "b")[0]), counted.frame_count))
        return found

    theirs = CompileCounter()
    expected = seen(torch.compiler.set_stance, torch.compile(scaled, backend=theirs, dynamic=False), theirs)
    assert expected == [(2.0, 2), (3.0, 2), (3.0, 2), (2.0, 2), (3.0, 2), (2.0, 3)]
    f = precast.compile(scaled, store=store, dynamic=False)
    assert seen(precast.set_stance, f, counter) == expected
    with precast.set_stance("fail_on_recompile", skip_guard_eval_unsafe=True), pytest.raises(precast.RecompileForbidden):
        f(torch.ones(4), 2.0, "a")  # another size is noticed: generated code reads as many elements as it was made for
