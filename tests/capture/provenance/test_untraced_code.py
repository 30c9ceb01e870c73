"""Code that runs while a graph is made and that no tracer reads: an edit of it, or of what it names, misses in the next process."""

from __future__ import annotations

import functools
import math
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.runtime.api.compile import site_of
from precast.runtime.fingerprint.functions import LIMIT, function_account, reached
from precast.runtime.fingerprint.resolve_names import imports, named, written
from tests.support.needs import needs
from tests.support.processes import REFUSE, child

PROGRAMS = """
import enum, functools
import torch
import constants, helpers
from constants import MODE

K = 2
COUNT = 0
LIB = torch.library.Library("precast_test_untraced", "FRAGMENT")

class Step(torch.autograd.Function):
    BY = 2

    @staticmethod
    def forward(ctx, x):
        return x + Step.BY

    @staticmethod
    def backward(ctx, grad):
        return grad

def made_with(by):
    def shift(x):
        return x + by
    return shift

added = functools.partial(torch.add, other=2)

def counted(x):
    global COUNT
    COUNT += 1
    return x

def unrelated(x):
    return x - 1

@torch._dynamo.allow_in_graph
def reads_a_global(x):
    return x + K

@torch._dynamo.allow_in_graph
def calls_a_class(x):
    return Step.apply(x)

@torch._dynamo.allow_in_graph
def reads_an_import(x):
    from constants import DTYPE
    import constants as c
    return x + (2 if c.DTYPE is DTYPE is torch.float32 else 1)

@torch._dynamo.allow_in_graph
def has_a_default(x, by=2):
    return x + by

@torch._dynamo.allow_in_graph
def reads_a_mode(x):
    return x + (2 if MODE is constants.Mode.PLAIN else 1)

@torch._dynamo.allow_in_graph
def counts(x):
    return counted(x) + 2 + 0 * COUNT

reads_a_closure = made_with(2)
calls_a_partial = torch._dynamo.allow_in_graph(lambda x: added(x))

class Shift:
    ADDED = 2

    def of(self, x):
        return x + self.ADDED

SHIFTS = (Shift(),)
SETS = frozenset({functools.partial(torch.add, other=2), (Shift(),), frozenset({helpers.raised})})

def calls_held_objects(x):
    return SHIFTS[0].of(x)

def calls_in_sets(x):
    for held in SETS:
        if isinstance(held, functools.partial):
            x = held(x)
        elif isinstance(held, frozenset):
            x = torch.vmap([*held][0])(x)  # not seen to run: torch calls it
    return x

def operator(name, function):
    LIB.define(f"{name}(Tensor x) -> Tensor")
    LIB.impl(name, function, "CompositeImplicitAutograd")
    return getattr(torch.ops.precast_test_untraced, name)

def calls_a_helper(x):
    return helpers.shifted(x)

composite = operator("composite", calls_a_helper)
closed_over = operator("closed_over", reads_a_closure)
held = operator("held", calls_held_objects)
in_sets = operator("in_sets", calls_in_sets)

def p_global(x): return reads_a_global(x) * 2
def p_class(x): return calls_a_class(x) * 2
def p_import(x): return reads_an_import(x) * 2
def p_default(x): return has_a_default(x) * 2
def p_mode(x): return reads_a_mode(x) * 2
def p_counts(x): return counts(x) * 2
def p_partial(x): return calls_a_partial(x) * 2
def p_helper(x): return composite(x) * 2
def p_closure(x): return closed_over(x) * 2
def p_held(x): return held(x) * 2
def p_sets(x): return in_sets(x) * 2
"""
CONSTANTS = """
import enum, torch
SHIFT = 2
DTYPE = torch.float32

class Mode(enum.Enum):
    PLAIN = 0
    OTHER = 1

MODE = Mode.PLAIN
"""
HELPERS = """
import constants
def shifted(x):
    return x + constants.SHIFT
def raised(x):
    return 1 + x
"""
ALL = {f"p_{name}" for name in "global class import default mode counts partial helper closure held sets".split()}
Edit = tuple[str, str, str, str]
"""The module, what is there, what stands there then, the programs that it concerns."""
EDITS: dict[str, tuple[Edit, ...]] = {
    "other lines": (
        ("programs", "    return x - 1", "    # moved\n\n    return x - 2", ""),
        ("constants", "SHIFT = 2", "SHIFT = 2\nUNUSED = 3", ""),
        ("helpers", "    return x", "    # the same\n    return x", ""),
    ),
    "constants": (
        ("programs", "K = 2", "K = 3", "p_global"),
        ("programs", "BY = 2", "BY = 3", "p_class"),
        ("programs", "by=2", "by=3", "p_default"),
        ("constants", "SHIFT = 2", "SHIFT = 3", "p_helper"),
    ),
    "what is held or imported": (
        ("programs", "made_with(2)", "made_with(3)", "p_closure"),
        ("programs", "add, other=2)\n", "add, other=3)\n", "p_partial"),
        ("constants", "DTYPE = torch.float32", "DTYPE = torch.float64", "p_import"),
        ("constants", "MODE = Mode.PLAIN", "MODE = Mode.OTHER", "p_mode"),
    ),
    "what tuples and frozensets hold": (("helpers", "1 + x", "3 + x", "p_sets"),),
    "constants of classes of what they hold": (("programs", "ADDED = 2", "ADDED = 3", "p_held p_sets"),),
    "partials in frozensets": (("programs", "other=2), (", "other=3), (", "p_sets"),),
    "code": (
        ("programs", "return x + Step.BY", "return x - Step.BY", "p_class"),
        ("programs", "return x + K", "return x - K", "p_global"),
        ("helpers", "return x +", "return x -", "p_helper"),
    ),
}
SERVE = """
import sys, torch, precast, programs
for name in sorted(n for n in dir(programs) if n.startswith("p_")):
    program = getattr(programs, name)
    with torch.no_grad():
        try:
            given = precast.load(program, store="store")(torch.zeros(3))
            assert given.eq(program(torch.zeros(3))).all(), (name, given)
            print(name, "hit")
        except precast.GuardMiss as miss:
            print(name, "miss", " ".join(str(miss).split()))
"""
COMPILE = SERVE.replace("precast.load", "precast.compile")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs and a store that holds their artifacts."""
    folder = tmp_path_factory.mktemp("untraced")
    write(folder)
    child(folder, COMPILE)
    return folder


def write(folder: Path, edits: tuple[Edit, ...] = ()) -> None:
    for name, source in (("programs", PROGRAMS), ("constants", CONSTANTS), ("helpers", HELPERS)):
        for module, before, after, _ in edits:
            assert module != name or before in source
            source = source.replace(before, after) if module == name else source
        (folder / f"{name}.py").write_text(source)


@pytest.mark.parametrize("edits", EDITS)
def test_an_edit_is_a_miss_where_it_is_read_and_a_hit_elsewhere(edits: str, folder: Path) -> None:
    write(folder, EDITS[edits])
    said = dict(line.split(" ", 1) for line in child(folder, REFUSE + "refuse_tracer()\n" + SERVE).splitlines())
    expected = {program for *_, programs in EDITS[edits] for program in programs.split()}
    assert set(said) == ALL
    assert {name for name, answer in said.items() if answer.startswith("miss")} == expected
    for name in expected:
        assert "has changed since" in said[name] and ("which is not traced" in said[name] or "the code of" in said[name]), said[name]


TRITON = """
import torch, triton, triton.language as tl, constants

@triton.jit
def add(x_ptr, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + by, mask=at < n)

@triton.heuristics({"LARGE": lambda args: constants.SHIFT > 2})
@triton.jit
def guided(x_ptr, n, LARGE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + LARGE, mask=at < n)

@torch.library.triton_op("precast_test_untraced::add_", mutates_args={"x"})
def add_(x: torch.Tensor) -> None:
    torch.library.wrap_triton(add)[(triton.cdiv(x.numel(), 64),)](x, x.numel(), constants.SHIFT, BLOCK=64)

def p_body(x):
    y = x * 2
    add_(y)
    return y

def p_heuristic(x):
    y = x * 2
    guided[(triton.cdiv(x.numel(), 64),)](y, x.numel(), BLOCK=64)
    return y
"""
LAUNCH = """
import sys, torch, precast, programs
serve = getattr(precast, sys.argv[1])
for name in ("p_body", "p_heuristic"):
    with torch.no_grad():
        try:
            serve(getattr(programs, name), store="store")(torch.zeros(3))
        except precast.GuardMiss as miss:
            print("miss", " ".join(str(miss).split()))
        except RuntimeError as error:  # there is no GPU to run it
            assert "0 active drivers" in str(error), error
            print("found")
        else:
            print("found")
"""


def test_what_traced_bodies_and_heuristics_read_through_modules(tmp_path: Path) -> None:
    needs("triton")
    (tmp_path / "programs.py").write_text(TRITON)
    (tmp_path / "constants.py").write_text("SHIFT = 3\nOTHER = 1\n")
    assert child(tmp_path, LAUNCH, "compile").split() == ["found", "found"]
    (tmp_path / "constants.py").write_text("SHIFT = 3\nOTHER = 2\n")
    assert child(tmp_path, LAUNCH, "load").split() == ["found", "found"]
    (tmp_path / "constants.py").write_text("SHIFT = 1\nOTHER = 1\n")
    body, heuristic = child(tmp_path, LAUNCH, "load").splitlines()
    assert body.startswith("miss") and "the operator precast_test_untraced::add_.default has another" in body
    assert heuristic.startswith("miss") and "the Triton kernel guided of programs has changed since" in heuristic


NONSTRICT = """
import torch, precast
K = 2

@torch._dynamo.nonstrict_trace
def unread(x):
    return x + K

def program(x):
    return unread(x) * 2

with torch.no_grad():
    print(precast.compile(program, store="store", fullgraph=True)(torch.zeros(3))[0].item())
    if K == 3:
        print(precast.precompile(program, [((torch.zeros(3),), {})], store="store"))
"""


def test_what_nonstrict_trace_marks_stays_in_the_process(tmp_path: Path) -> None:
    (tmp_path / "unread.py").write_text(NONSTRICT)
    assert child(tmp_path, "import unread") == "4.0\n"
    (tmp_path / "unread.py").write_text(NONSTRICT.replace("K = 2", "K = 3").replace("x + K", "x + K + 20"))
    said = child(tmp_path, "import unread")
    assert said.startswith("46.0\n") and "cannot be stored: unread is marked by nonstrict_trace" in said, said


SHADOWED = """
import sys, torch, precast
from held_beside import K
LIB = torch.library.Library("precast_test_shadowed", "DEF")

def operator(function):
    LIB.define(f"{function.__name__}(Tensor x, float by=2) -> Tensor")
    LIB.impl(function.__name__, function, "CompositeImplicitAutograd")
    return getattr(torch.ops.precast_test_shadowed, function.__name__)

@operator
def scaled(x, by=2.0):
    return x * by + K

def program(x):
    return scaled(x) * 2

with torch.no_grad():
    try:
        print(getattr(precast, sys.argv[1])(program, store="store")(torch.ones(3))[0].item())
    except precast.GuardMiss as miss:
        print("miss", " ".join(str(miss).split()))
"""


def test_a_function_whose_name_its_operator_bears_is_found_in_its_file(tmp_path: Path) -> None:
    def says(source: str, serve: str = "load", beside: str = "K = 2") -> str:
        (tmp_path / "shadowed.py").write_text(source)
        (tmp_path / "held_beside.py").write_text(beside)
        return child(tmp_path, "import shadowed", serve)

    assert says(SHADOWED, "compile") == "8.0\n"
    assert says("# moved\n" + SHADOWED) == "8.0\n"
    assert "scaled of shadowed, which is not traced, or a function or a constant" in says(SHADOWED, beside="K = 3")
    for old, new in (("by + K", "by - K"), ("by=2.0)", "by=3.0)")):
        said = says(SHADOWED.replace(old, new))
        assert said.startswith("miss") and "has changed since" in said, said
    assert says(SHADOWED) == "8.0\n"


@torch.no_grad()
def test_a_function_without_a_name_stays_in_the_process(tmp_path: Path) -> None:
    """It may be another one in the next process, with another closure."""

    def made(by: int) -> Any:
        return torch._dynamo.allow_in_graph(lambda x: x + by)

    added = made(3)

    def program(x: torch.Tensor) -> torch.Tensor:
        return added(x) * 2

    compiled = precast.compile(program, store=tmp_path, fullgraph=True)
    for _ in range(2):
        assert compiled(torch.zeros(2))[0] == 6
    (variant,) = site_of(compiled).programs[0].variants
    assert not variant.stored


# -- what a function names

STATE = types.SimpleNamespace(count=0, by=3)


class Config:
    factor = 2.5


def reader(x: Any, scale: float = 0.5, *, offset: int = 1) -> Any:
    import json

    import tests.support.processes as family
    from tests.support.processes import REFUSE as text

    STATE.count += 1
    return [functools.reduce, math.pi, STATE.by, Config.factor, family.child, text, (lambda: Config.factor.real)(), json, x, scale, offset]


def test_names_by_way_of_modules_classes_objects_imports_and_defaults() -> None:
    found = {item.name: item.value for item in named(reader)}
    values = {
        "STATE.by": 3,
        "Config.factor": 2.5,
        "tests.support.processes.REFUSE": REFUSE,
        "tests.support.processes.child": child,
        "scale=": 0.5,
        "offset=": 1,
    }
    assert {name: found[name] for name in values} == values
    assert found["functools"] is functools and "math.pi" not in found and not any(name.startswith("json") for name in found)
    assert imports(reader.__code__) and written(reader) == {(id(STATE), "count")}


def test_what_a_function_sets_itself_is_not_in_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = function_account(reader)
    monkeypatch.setattr(STATE, "count", 7)
    assert function_account(reader) == before
    monkeypatch.setattr(STATE, "by", 7)
    assert function_account(reader) != before


def test_a_long_way_is_not_gone_to_its_end() -> None:
    """The nearest helpers are followed, so that one name of a large library is not all of it."""
    space: dict[str, Any] = {"__name__": "far"}
    for n in range(2 * LIMIT):
        exec(f"def f{n}(x):\n    return f{n + 1}(x) + K{n}", space)
        space[f"K{n}"] = n
    before = function_account(space["f0"])
    space[f"K{LIMIT}"] = -1
    assert len(list(reached(space["f0"]))) == LIMIT and function_account(space["f0"]) == before
    space[f"K{LIMIT - 1}"] = -1
    assert function_account(space["f0"]) != before
