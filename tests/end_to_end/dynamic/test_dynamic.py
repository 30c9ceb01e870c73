"""Dynamic shapes through the whole of precast: how often it compiles, what one guard table serves, what a fresh process knows."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import precast
from precast.artifact_store import Store
from precast.artifact_store.format import expressions
from precast.runtime.api.compile import site_of
from precast.runtime.counting import tallies
from precast.runtime.native import loader
from tests.end_to_end.dynamic.dynamic_programs import SEQUENCES, scale, shift
from tests.support.processes import selected


@pytest.fixture(autouse=True)
def _fresh_torch() -> Iterator[None]:
    torch._dynamo.reset()
    tallies._all.clear()
    yield
    torch._dynamo.reset()


WORKER = Path(__file__).parent / "dynamic_worker.py"


def compiles() -> int:
    """Since the test began, of all programs."""
    return sum(tallies._all.values())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each sequence of calls leaves its store."""
    return tmp_path_factory.mktemp("served")


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("name", SEQUENCES)
def test_it_compiles_as_often_as_torch(served: Path, name: str, dynamic: bool | None) -> None:
    function, make = SEQUENCES[name]
    store = Store.open(served / f"{name}, {dynamic}")
    calls = make()
    counter = CompileCounter()
    theirs = torch.compile(function, backend=counter, dynamic=dynamic)
    ours = precast.compile(function, store=store, dynamic=dynamic)
    counts = []
    for args in calls:
        torch.testing.assert_close(ours(*args), function(*args))
        theirs(*args)
        counts.append((compiles(), counter.frame_count))
    assert [a for a, _ in counts] == [b for _, b in counts]


def test_from_the_store_without_the_tracer(served: Path, request: pytest.FixtureRequest) -> None:
    """Every sequence of calls that the test above made, a server's varying batch and length among them. Runs after it."""
    names = selected(request, "test_it_compiles_as_often_as_torch")
    assert len(list(served.iterdir())) == len(names), "each has left a store"
    done = subprocess.run([sys.executable, str(WORKER), str(served)], capture_output=True, text=True, timeout=300, check=False)
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and {report["name"] for report in reports} == {path.name for path in served.iterdir()}, done.stderr[-3000:]
    assert not [report for report in reports if report["failed"] or report["attempts"]], reports


def test_what_was_made_for_one_size_goes_before_what_serves_all(store: Store) -> None:
    first = precast.compile(scale, store=store)
    for n in (8, 9):
        first(torch.randn(n, 4))
    again = precast.compile(scale, store=store)
    torch.testing.assert_close(again(torch.ones(8, 4)), scale(torch.ones(8, 4)))
    for compiled in (first, again):
        assert [variant.symbolic for variant in site_of(compiled).programs[0].variants] == [False, True]
    assert [variant.hits for variant in site_of(again).programs[0].variants] == [1, 0]


def test_one_table_serves_every_size(store: Store, native_store: Store) -> None:
    compiled = precast.compile(shift, store=native_store, dynamic=True, name="one table")
    compiled(torch.randn(5, 4), 9)
    for _ in range(4):
        compiled(torch.randn(5, 4), 9)
    dispatcher = site_of(compiled).call
    before = dispatcher.hits
    for n in range(2, 66):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x, n + 1), shift(x, n + 1))
    assert compiles() <= 1
    assert dispatcher.hits - before == 64


def test_the_native_runtime_computes_as_python_does(native_store: Store) -> None:
    module = loader.loaded()
    assert module is not None
    draw = random.Random(torch.randint(2**31, ()).item())
    x, n = torch.empty_strided((3, 5), (7, 1)), 6
    held = 0
    for _ in range(600):
        expression = _random_expression(draw, 3)
        table = module.Table()
        numbers = [table.local(0), table.local(1)]
        table.shape(tuple(expressions.postfix(expression, numbers.__getitem__)))
        try:
            wanted = bool(expressions.evaluate(expression, [x, n]))
        except ZeroDivisionError:
            wanted = False
        assert table.check((x, n)) == wanted, expression
        held += wanted
    assert 50 < held < 550


def _random_expression(draw: random.Random, depth: int) -> Any:
    if depth == 0 or draw.random() < 0.2:
        return draw.choice([draw.randint(-3, 9), ("size", 0, 1), ("size", 0, 0), ("stride", 0, 0), ("offset", 0), ("int", 1)])
    operator = draw.choice(expressions.OPERATORS)
    if operator == "**":
        return (operator, _random_expression(draw, 0), draw.randint(0, 3))
    count = {"neg": 1, "not": 1, "abs": 1, "if": 3, "+": 3, "*": 3}.get(operator, 2)
    return (operator, *(_random_expression(draw, depth - 1) for _ in range(count)))


@pytest.mark.parametrize(
    ("program", "why"),
    [((), "malformed"), ((16, 2, 0), "malformed"), ((1, 9, 0), "malformed"), ((0, 1), "malformed"), ((0, 1, 0) * 65, "malformed")],
)
def test_a_malformed_shape_program_is_refused(native_store: Store, program: tuple[int, ...], why: str) -> None:
    table = loader.loaded().Table()  # type: ignore[union-attr]
    table.local(0)
    with pytest.raises(ValueError, match=why):
        table.shape(program)


def test_numbers_beyond_64_bits_miss(native_store: Store) -> None:
    table = loader.loaded().Table()  # type: ignore[union-attr]
    table.shape(tuple(expressions.postfix(("<", 0, ("int", 0)), [table.local(0)].__getitem__)))
    assert table.check((3,)) and not table.check((-3,)) and not table.check((2**64,)) and not table.check((3.0,))
    table.shape(tuple(expressions.postfix(("<", 0, ("*", ("int", 0), ("int", 0), ("int", 0))), [0].__getitem__)))
    assert table.check((3,)) and not table.check((2**40,))


def test_two_programs_do_not_learn_from_each_other(store: Store) -> None:
    first, second = (precast.compile(scale, store=store, name=name) for name in ("first", "second"))
    for n in (3, 5):
        first(torch.randn(n, 4))
    second(torch.randn(7, 4))
    guards = site_of(second).programs[0].variants[0].guards
    assert not any(guard.predicate == "shape" for guard in guards)


def test_mutation_and_aliasing_at_every_size(store: Store) -> None:
    def program(x: torch.Tensor) -> Any:
        x.mul_(2)
        y = x + 1
        return x, x[1:], y, y.t(), x.size(0)

    compiled = precast.compile(program, store=store, dynamic=True, fullgraph=True)
    for n in (4, 5, 9, 30):
        x = torch.randn(n, 3)
        want_x = x.clone()
        got, want = compiled(x), program(want_x)
        torch.testing.assert_close(x, want_x)
        assert got[0] is x and got[4] == n
        assert got[1].untyped_storage()._cdata == x.untyped_storage()._cdata
        assert got[3].untyped_storage()._cdata == got[2].untyped_storage()._cdata
        for a, b in zip(got[:4], want[:4], strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        rows = torch.randn(2 * n, 3)
        torch.testing.assert_close(compiled(rows[::2])[2], program(rows[::2].clone() / 2)[2])
    assert compiles() == 2, "contiguous, and every other row"


PROGRAM = """
import sys
import torch
import precast

def step(x, n):
    return torch.softmax(x * n, -1).sum(0)[1:], x.size(0) + n

compiled = {compile}
with torch.no_grad():
    for n in {sizes}:
        x = torch.randn(n, n + 2)
        for _ in range(3):
            got, want = compiled(x, n), step(x, n)
            assert torch.allclose(got[0], want[0], rtol=1e-4, atol=1e-5) and got[1] == want[1]
program = precast.runtime.api.compile.site_of(compiled).programs[0]
print(sum(precast.runtime.counting.tallies._all.values()), len(program.variants), any(m.startswith(("torch._dynamo", "sympy")) for
m in sys.modules))
"""


def run(folder: Path, **fields: Any) -> str:
    (folder / "dynamic_program.py").write_text(textwrap.dedent(PROGRAM.format(**fields)))
    command = [sys.executable, "-c", "import dynamic_program"]
    done = subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_a_fresh_process_does_not_relearn(tmp_path: Path) -> None:
    compile = f"precast.compile(step, store={str(tmp_path / 'store')!r})"
    assert run(tmp_path, compile=compile, sizes=(3,)) == "1 1 True"
    assert run(tmp_path, compile=compile, sizes=(5, 6, 7)) == "1 2 True", "what the store knows makes the first compile symbolic"
    assert run(tmp_path, compile=compile, sizes=(*range(8, 40), 3)) == "0 2 False"
    load = f"precast.load(step, store={str(tmp_path / 'store')!r})"
    assert run(tmp_path, compile=load, sizes=(50, 3)) == "0 2 False"


def test_a_call_that_fits_no_guard_says_why(store: Store) -> None:
    compiled = precast.compile(scale, store=store, dynamic=True)
    compiled(torch.randn(5, 4))
    text = str(precast.explain_miss(compiled, torch.randn(1, 4)))
    assert "expected 2 <= x.size(0), found x.size(0) = 1" in text


def test_symbols_that_cannot_be_compiled_fall_back_to_the_sizes_of_the_call(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from precast.compiling import driver
    from precast.runtime.common.errors import Refused

    original = driver.build_graphs

    def build_graphs(graph: Any, *rest: Any) -> Any:
        if any(isinstance(s, torch.SymInt) for n in graph.graph.find_nodes(op="placeholder") for s in getattr(n.meta["val"], "shape", ())):
            raise Refused("no symbols today")
        return original(graph, *rest)

    monkeypatch.setattr(driver, "build_graphs", build_graphs)
    compiled = precast.compile(scale, store=store, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (3, 4, 5):
            x = torch.randn(n, 4)
            torch.testing.assert_close(compiled(x), scale(x))
    assert compiles() == 3


def pinned(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(5, -1) if x.size(0) == 5 else x * x.size(1)


def branch_on_bits(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0] - 1
    n |= n >> 1
    n |= n >> 2
    n |= n >> 4
    return x + 1 if (n + 1) & 64 else x - 1


def test_bits_of_a_size_are_guarded(store: Store) -> None:
    compiled = precast.compile(branch_on_bits, store=store, dynamic=True, fullgraph=True)
    for n in (40, 100, 33, 20, 40):
        torch.testing.assert_close(compiled(torch.zeros(n)), branch_on_bits(torch.zeros(n)))
    variants = site_of(compiled).programs[0].variants
    assert all(variant.stored for variant in variants) and len(variants) == 2


def test_what_is_symbolic_and_what_fixed_the_rest_is_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "precast.dynamic"):
        precast.compile(pinned, store=store, dynamic=True)(torch.randn(5, 4))
    (manifest,) = store.variants(store.programs()[0])
    told = manifest.evidence["dynamic"]
    assert any(line.startswith("x.size(1) is symbolic") for line in told)
    (fixed,) = [line for line in told if line.startswith("x.size(0) is fixed at 5")]
    assert "test_dynamic.py" in fixed and "if x.size(0) == 5" in fixed
    assert all(any(line in record.getMessage() for record in caplog.records) for line in told)


def test_sizes_that_depend_on_data(store: Store) -> None:
    def positive(x: torch.Tensor) -> Any:
        return torch.masked_select(x, x > 0) * 2, x.nonzero().size(0)

    compiled = precast.compile(positive, store=store, fullgraph=True)
    for _ in range(3):
        x = torch.randn(40)
        got, want = compiled(x), positive(x)
        torch.testing.assert_close(got[0], want[0])
        assert got[1] == want[1]
    assert compiles() == 1


def test_positions_from_either_end(store: Store) -> None:
    """One variant serves positions that count from the front and from the back, where torch's guards allow both."""
    functions = {
        "select": lambda x, row, place: torch.select(x, 1, place) * row,
        "select_scatter": lambda x, row, place: torch.select_scatter(x, row, 1, place),
        "slice": lambda x, row, place: x[:, place:] * 2,
    }
    with torch.no_grad():
        for name, function in functions.items():
            compiled = precast.compile(function, store=store, dynamic=True, name=name, isolate_recompiles=True)
            for place in (2, 3, -1, -2, 0, 4):
                x, row = torch.randn(5, 6), torch.randn(5)
                assert torch.equal(compiled(x, row, place), function(x, row, place)), (name, place)


def remainder(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * (n % 7)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("large", [2**63, -(2**63), 2**64 + 5])
def test_integers_beyond_64_bits_are_constants(store: Store, large: int, dynamic: bool | None) -> None:
    """Before the number is symbolic, and where it is: the graph takes 64 bits."""
    x = torch.ones(3)
    for calls, expected in (((large, large + 1, 3, 4), (1, 2, 3, 4)), ((3, 4, large, 5, large, 2**63 - 1), (1, 2, 3, 3, 3, 3))):
        tallies._all.clear()
        compiled = precast.compile(remainder, dynamic=dynamic, store=f"{store.root}-{len(calls)}")
        for n, most in zip(calls, expected, strict=True):
            assert torch.equal(compiled(x, n), remainder(x, n)), n
            assert compiles() <= most, (n, compiles())


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_operator_whose_sizes_torch_learns_by_running_it_is_compiled_for_each_size(dynamic: bool | None, tmp_path: Path) -> None:
    """Such an operator runs in the trace, which torch does with plain sizes only."""

    def reflectors(x: torch.Tensor) -> Any:
        return torch.geqrf(x)

    compiled = precast.compile(reflectors, fullgraph=True, dynamic=dynamic, store=str(tmp_path))
    with torch.no_grad():
        for size in (3, 4):
            x = torch.randn(size, size)
            assert all(map(torch.equal, compiled(x), reflectors(x)))
