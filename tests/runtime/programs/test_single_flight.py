"""Of processes that miss calls of one kind one compiles; who waits takes what comes of it, and no more time than is worth it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Guard, Predicate, Store
from precast.artifact_store.format import layout
from precast.artifact_store.format.msgpack import pack
from precast.artifact_store.format.records import GraphInput
from precast.artifact_store.local import leases
from precast.compiling import driver
from precast.runtime.api.compile import site_of
from precast.runtime.common import background
from precast.runtime.common.errors import Refused
from precast.runtime.common.log import logger
from precast.runtime.programs import single_flight
from precast.runtime.programs.program import Program
from precast.runtime.programs.single_flight import call_kind
from tests.runtime import hand_made_artifacts as standin
from tests.runtime.hand_made_artifacts import Counting

ROOT = Path(__file__).parents[3]
X, W = torch.arange(4.0), torch.ones(4)
TENSOR = {"type": "torch:Tensor", "dtype": "float32", "device": "cpu", "layout": "strided", "requires_grad": False, "stride": (1,)}


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


def put(program: Program, size: int) -> str:
    """Store an artifact that serves vectors of this size."""
    spec = {**TENSOR, "size": (size,), "conj": False, "neg": False, "offset": None}
    inputs = [GraphInput((("local", name),), False, number) for number, name in enumerate("xw")]
    guard = Guard((("local", "x"),), Predicate.TENSOR, spec)
    return program.store.put(*standin.manifest_for(program, [guard], inputs, "graph(x, w)[0]", standin.library(0.0)))


def leases_of(store: Store) -> list[str]:
    """Names of the leases that are held; but that of the native runtime, which is built beside a compile."""
    return [name for name in os.listdir(store.root / "leases") if not name.startswith("native-")]


def compile_here(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return put(program, len(args[0]))


@pytest.fixture
def compiles(set_compiler: Callable[[Any], None]) -> Counting:
    counting = Counting(compile_here)
    set_compiler(counting)
    return counting


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the topic `store` says."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logger("store")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield lines
    log.removeHandler(handler)
    log.setLevel(level)


class Other:
    """Stands for another process that has the turn for calls with X, and does something before it lets go."""

    def __init__(self, program: Program, action: Callable[[], object] = lambda: None, x: torch.Tensor = X) -> None:
        name = single_flight.name_of(program, {"x": x, "w": W})
        program.store.check_writable()
        self._acquired = leases.acquire(program.store.root / "leases", name)
        self._action = action
        assert self._acquired.__enter__().held

    def ends(self, seconds: float = 0.15) -> threading.Thread:
        def work() -> None:
            time.sleep(seconds)
            self._action()
            self._acquired.__exit__(None, None, None)

        thread = threading.Thread(target=work)
        thread.start()
        return thread


def compiled_for(store: Store, **options: Any) -> tuple[Any, Program]:
    compiled = precast.compile(product, store=store, options=options or None)
    return compiled, site_of(compiled).programs[0]


def test_what_another_process_compiles_meanwhile_serves(store: Store, compiles: Counting, said: list[str]) -> None:
    compiled, program = compiled_for(store)
    other = Other(program, lambda: put(program, 4)).ends()
    assert torch.equal(compiled(X, W), X)
    assert compiles.frame_count == 0
    other.join()
    ours = f"process {os.getpid()} on "
    assert any(f"waits for {ours}" in line for line in said) and any("goes on with what" in line for line in said)
    assert not list((store.root / "leases").iterdir())


def test_it_goes_on_before_the_other_lets_go_of_what_serves(store: Store, compiles: Counting) -> None:
    compiled, program = compiled_for(store)
    other = Other(program)
    threading.Timer(0.1, put, (program, 4)).start()
    assert torch.equal(compiled(X, W), X) and compiles.frame_count == 0
    other.ends(0)


def test_where_nothing_was_stored_nobody_waits_a_second_time(store: Store, compiles: Counting, said: list[str]) -> None:
    compiled, program = compiled_for(store)
    seen: list[list[str]] = []
    compiles.inner = lambda *given: (seen.append(leases_of(store)), compile_here(*given))[1]
    Other(program).ends()
    assert torch.equal(compiled(X, W), X)
    assert compiles.frame_count == 1 and seen == [[]]  # others need not wait for this one
    assert any("compiles by itself" in line and "stored nothing" in line for line in said)


def test_what_does_not_fit_gives_the_turn(store: Store, compiles: Counting, said: list[str]) -> None:
    compiled, program = compiled_for(store)
    seen: list[int] = []
    compiles.inner = lambda *given: (seen.append(len(leases_of(store))), compile_here(*given))[1]
    Other(program, lambda: put(program, 7)).ends()
    assert torch.equal(compiled(X, W), X)
    assert compiles.frame_count == 1 and seen == [1] and any("compiles now, after" in line for line in said)


def test_after_two_that_do_not_fit_it_compiles_by_itself(store: Store, compiles: Counting, said: list[str]) -> None:
    compiled, program = compiled_for(store)
    path = store.root / "leases" / single_flight.name_of(program, {"x": X, "w": W})
    holders = iter([7, 8, 9])

    def next_holder(old: Other | None) -> None:
        """Lets go and is succeeded before the waiter looks."""
        size = next(holders, None)
        if size is None:
            return
        if old is not None:
            put(program, size)
        fresh = leases.Watch(path)._token
        replaced = path.with_name("new")
        replaced.write_bytes(pack({"token": fresh, "pid": os.getpid(), "place": "elsewhere", "started": ""}))
        os.replace(replaced, path)
        threading.Timer(0.6, next_holder, (other,)).start()

    other = Other(program)
    next_holder(None)
    assert torch.equal(compiled(X, W), X)
    assert any("compiles by itself: what 2 others stored does not fit" in line for line in said), said


def test_the_dead_are_succeeded(store: Store, compiles: Counting) -> None:
    """At once, and with the turn, so that those who wait go on waiting."""
    compiled, program = compiled_for(store)
    store.check_writable()
    path = store.root / "leases" / single_flight.name_of(program, {"x": X, "w": W})
    gone = subprocess.Popen(["true"])
    gone.wait()
    path.write_bytes(pack({"token": "t", "pid": gone.pid, "place": leases._place(), "started": "1"}))
    seen: list[int] = []
    compiles.inner = lambda *given: (seen.append(len(leases_of(store))), compile_here(*given))[1]
    begin = time.monotonic()
    assert torch.equal(compiled(X, W), X)
    assert compiles.frame_count == 1 and seen == [1] and time.monotonic() - begin < leases.EXPIRY / 2


def test_who_waits_tells_a_successor_from_one_who_let_go(tmp_path: Path) -> None:
    path = tmp_path / "l"
    watch = leases.Watch(path)
    for token, after, released in (("a", "", 0), ("b", "a", 0), ("c", "", 1), ("d", "c", 1)):
        path.write_bytes(pack({"token": token, "pid": 1, "place": "elsewhere", "started": "", "after": after}))
        assert watch.look() is None and watch.released == released, token
    path.unlink()
    lease = watch.look()
    assert lease is not None and lease.held and watch.released == 2
    lease.release()
    assert not path.exists()


def test_patience_has_an_end(store: Store, compiles: Counting, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_flight, "PATIENCE", 0.2)
    compiled, program = compiled_for(store)
    other = Other(program)
    assert torch.equal(compiled(X, W), X)
    assert compiles.frame_count == 1 and any("does not come to an end" in line for line in said)
    other.ends(0)


def test_calls_of_other_kinds_do_not_wait(store: Store, compiles: Counting) -> None:
    compiled, program = compiled_for(store)
    other = Other(program, x=X.double())
    assert torch.equal(compiled(X, W), X) and compiles.frame_count == 1
    other.ends(0)


def test_a_compile_inside_of_a_compile_waits_for_nobody(store: Store, compiles: Counting) -> None:
    inner, inner_program = compiled_for(store)
    other = Other(inner_program)

    def outer_compile(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if program is not inner_program:
            assert torch.equal(inner(X, W), X)
        return compile_here(program, args, kwargs)

    compiles.inner = outer_compile

    def outer_function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * w + 0

    assert torch.equal(precast.compile(outer_function, store=store)(X, W), X) and compiles.frame_count == 2
    other.ends(0)


def test_threads_of_one_process_compile_once(store: Store, compiles: Counting) -> None:
    compiles.inner = lambda *given: (time.sleep(0.1), compile_here(*given))[1]
    compiled, _ = compiled_for(store)
    answers: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: answers.append(compiled(X, W))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4 and all(torch.equal(answer, X) for answer in answers) and compiles.frame_count == 1
    assert not list((store.root / "leases").iterdir()) and not single_flight._held


@pytest.mark.parametrize("outcome", ["refused", "error"])
def test_what_fails_lets_go(outcome: str, store: Store, compiles: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> str:
        raise Refused("no such luck") if outcome == "refused" else ZeroDivisionError

    compiles.inner = fail
    monkeypatch.setenv("PRECAST_STRICT", "")
    compiled, _ = compiled_for(store)
    with pytest.warns(UserWarning, match="runs eagerly"):
        assert torch.equal(compiled(X, W), X)
    assert not list((store.root / "leases").iterdir()) and not single_flight._held


def test_nobody_waits_for_what_cannot_be_stored(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn ends with the capture that says so, before the graph is compiled."""
    capture, build, seen = driver._capture, driver.build_graphs, []

    def captured(*given: Any) -> Any:
        seen.append(len(leases_of(store)))
        return replace(capture(*given), uncacheable=("it is unheard of",))

    def built(*given: Any) -> Any:
        seen.append(len(leases_of(store)))
        return build(*given)

    monkeypatch.setattr(driver, "_capture", captured)
    monkeypatch.setattr(driver, "build_graphs", built)
    assert torch.equal(compiled_for(store)[0](X, W), X) and seen == [1, 0]


@pytest.mark.parametrize("kind", ["read-only", "no leases", "store_results off"])
def test_without_leases_it_compiles(kind: str, store: Store, compiles: Counting, tmp_path: Path) -> None:
    store.check_writable()
    options: dict[str, Any] = {}
    if kind == "read-only":
        compiles.inner = lambda program, *given: standin.in_process(*_unstored(program))
        store = Store.open(tmp_path, readonly=True)
    elif kind == "no leases":
        (store.root / "leases").rmdir()
        (store.root / "leases").write_text("a file where the folder should be")
    else:
        options = {"store_results": False}
        compiles.inner = lambda program, *given: standin.in_process(*_unstored(program))
    compiled, _ = compiled_for(store, **options)
    assert torch.equal(compiled(X, W), X) and compiles.frame_count == 1
    assert not (store.root / "leases").is_dir() or not list((store.root / "leases").iterdir())


def _unstored(program: Program) -> Any:
    inputs = [GraphInput((("local", name),), False, number) for number, name in enumerate("xw")]
    return standin.manifest_for(program, [], inputs, "graph(x, w)[0]", standin.library(0.0))


def test_in_the_background_nobody_waits(store: Store, said: list[str]) -> None:
    """Calls run eagerly while another process compiles; the first one after that compiles, and holds the turn until that is done."""
    compiled, program = compiled_for(store, background_compile=True)
    other = Other(program)
    for _ in range(3):
        assert torch.equal(compiled(X, W), X)
    assert not program.variants and sum("waits for" in line for line in said) == 1
    other._acquired.__exit__(None, None, None)
    assert torch.equal(compiled(X, W), X)
    assert background.wait(60) and not list((store.root / "leases").iterdir()) and not single_flight._held
    assert torch.equal(compiled(X, W), X) and [v.stored for v in program.variants] == [True]


def test_in_the_background_what_another_process_compiled_serves(store: Store, compiles: Counting) -> None:
    compiled, program = compiled_for(store, background_compile=True)
    other = Other(program)
    assert torch.equal(compiled(X, W), X)
    put(program, 4)
    other._acquired.__exit__(None, None, None)
    assert torch.equal(compiled(X, W), X) and compiles.frame_count == 0 and [v.hits for v in program.variants] == [1]


def test_precompile_says_what_was_taken(store: Store, compiles: Counting) -> None:
    _, program = compiled_for(store)
    Other(program, lambda: put(program, 4)).ends()
    report = precast.precompile(product, [((X, W), {})], store=store)
    assert [item.outcome for item in report.signatures] == ["taken"] and report.ok and compiles.frame_count == 0


@pytest.mark.parametrize(
    ("one", "other", "exact", "equal"),
    [
        ({"x": X}, {"x": torch.ones(9)}, False, True),
        ({"x": X}, {"x": torch.ones(9)}, True, False),
        ({"x": X}, {"x": X.double()}, False, False),
        ({"x": X}, {"x": X[None]}, False, False),
        ({"n": 3}, {"n": 4}, False, True),
        ({"n": 3}, {"n": 4}, True, False),
        ({"n": 3}, {"n": 3.0}, False, False),
        ({"n": True}, {"n": False}, False, False),
        ({"mode": "a"}, {"mode": "b"}, False, False),
        ({"xs": [X, X]}, {"xs": [X]}, False, False),
        ({"d": {"a": X}}, {"d": {"a": torch.ones(7)}}, False, True),
        ({"d": {"a": X}}, {"d": {"b": X}}, False, False),
        ({"m": torch.nn.Linear(2, 2)}, {"m": torch.nn.Linear(3, 3)}, False, True),
        ({"m": torch.nn.Linear(2, 2)}, {"m": torch.nn.Linear(2, 2).eval()}, False, False),
        ({"o": object()}, {"o": object()}, True, True),
        ({"s": {"b", "a"}}, {"s": {"a", "b"}}, True, True),
        (
            {"x": torch.nested.nested_tensor([X], layout=torch.jagged)},
            {"x": torch.nested.nested_tensor([X, X], layout=torch.jagged)},
            True,
            True,
        ),
    ],
)
def test_kinds_of_calls(one: dict[str, Any], other: dict[str, Any], exact: bool, equal: bool) -> None:
    assert (call_kind(one, ("t",), exact) == call_kind(other, ("t",), exact)) is equal
    assert call_kind(one, ("t",), exact) != call_kind(one, ("u",), exact)


def test_long_keys_have_turns_too(store: Store, compiles: Counting) -> None:
    """Keys of what follows a graph break have up to 128 characters, as many as a file's name here."""
    compiled, program = compiled_for(store)
    names = []
    for end in "ab":
        program.key = "k" * 127 + end
        names.append(single_flight.name_of(program, {"x": X, "w": W}))
    assert names[0] != names[1] and all(map(layout.is_label, names))
    assert torch.equal(compiled(X, W), X) and compiles.frame_count == 1


MEMBER = """
import json, sys, time
from pathlib import Path
import torch
import precast

def plain(x):
    return torch.sin(x) * 2 + 1

def breaks(x):
    y = x.cos() * 3
    if y.sum() > 0:
        return y.exp()
    return y - 1

def sized(x):
    return x.tanh() * x.shape[0]

folder, number = Path(sys.argv[1]), int(sys.argv[2])
(folder / f"ready-{number}").touch()
while len(list(folder.glob("ready-*"))) < int(sys.argv[3]):
    time.sleep(0.01)
answers = {}
with torch.no_grad():
    for function, x in ((plain, torch.ones(5)), (breaks, torch.ones(4)), (sized, torch.ones(3 + number))):
        got = precast.compile(function, store=str(folder / "store"))(x)
        answers[function.__name__] = bool(torch.allclose(got, function(x), atol=1e-5))
print(json.dumps({"answers": answers, "traced": "precast.compiling.driver" in sys.modules}))
"""


def test_cold_processes_trace_once(tmp_path: Path) -> None:
    """Four processes, one store, a plain program, one with a graph break, and one that each calls with a size of its own."""
    (tmp_path / "member.py").write_text(MEMBER)
    count = 4
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PRECAST_LOGS": "compile,store", "OMP_NUM_THREADS": "1"}
    members = [
        subprocess.Popen(
            [sys.executable, "member.py", str(tmp_path), str(number), str(count)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    told = [member.communicate(timeout=300) for member in members]
    assert [member.returncode for member in members] == [0] * count, told
    answers = [json.loads(out) for out, _ in told]
    assert all(all(answer["answers"].values()) for answer in answers)
    lines = [line for _, beside in told for line in beside.splitlines()]
    made = [line.split("__main__:")[1].split(":")[0] for line in lines if ": compiled artifact" in line]
    traced = sum(answer["traced"] for answer in answers)
    assert sorted(made) == ["breaks", "breaks (resumed at line 12)", "plain", "sized", "sized"] and 1 <= traced <= len(made), made
    assert any("waits for process" in line for line in lines)
    assert not list((tmp_path / "store" / "leases").iterdir())
