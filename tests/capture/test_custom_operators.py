"""torch.library operators: against eager, from the store without the tracer, and what makes a stored artifact miss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import precast
from precast.runtime.api.compile import site_of
from tests.capture import custom_operators
from tests.support.processes import REFUSE, child

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@torch.no_grad()
@pytest.mark.parametrize("name", custom_operators.PROGRAMS)
def test_eager_agrees_and_it_is_stored(name: str, store: Path) -> None:
    program = custom_operators.PROGRAMS[name]
    compiled = precast.compile(program, store=store)
    custom_operators.check(name, compiled)
    variants = site_of(compiled).programs[0].variants
    assert variants and all(v.stored for v in variants)


def test_warm_without_the_tracer(store: Path) -> None:
    child(
        ROOT,
        REFUSE
        + f"""
import precast, torch
from tests.capture import custom_operators
refuse_tracer()
with torch.no_grad():
    for name, program in custom_operators.PROGRAMS.items():
        custom_operators.check(name, precast.load(program, store={str(store)!r}))
""",
    )


@torch.no_grad()
def test_an_operator_may_keep_its_arguments(tmp_path: Path) -> None:
    compiled = precast.compile(custom_operators.keeping, store=tmp_path)
    custom_operators.KEPT.clear()
    inputs = [torch.randn(40, 50) for _ in range(3)]
    for x in inputs:
        compiled(x)
    for n, x in enumerate(inputs):
        torch.testing.assert_close(custom_operators.KEPT[2 * n : 2 * n + 2], [x * 2, x * 3])


@torch.no_grad()
def test_an_exception_of_the_body_arrives_as_it_is(tmp_path: Path) -> None:
    compiled = precast.compile(custom_operators.refusing, store=tmp_path)
    for _ in range(3):
        with pytest.raises(NotADirectoryError, match="more than 1.0"):
            compiled(torch.ones(3, 4))
    torch.testing.assert_close(compiled(torch.zeros(3, 4)), torch.ones(3, 4))


@torch.no_grad()
@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("name", ["stopping", "stopping_in_place"])
def test_an_interrupt_of_the_body_arrives_as_it_is(name: str, problem: type[BaseException], tmp_path: Path) -> None:
    """Ctrl-C while an operator runs, or while Triton compiles a kernel, must not be lost at the border to C."""
    compiled = precast.compile(getattr(custom_operators, name), store=tmp_path)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(3, 4)), torch.full((3, 4), 3.5))
        custom_operators.INTERRUPTS.append(problem)
        with pytest.raises(problem):
            compiled(torch.ones(3, 4))
    assert not custom_operators.INTERRUPTS


@torch.no_grad()
def test_a_result_that_the_fake_implementation_did_not_promise(tmp_path: Path) -> None:
    compiled = precast.compile(custom_operators.lying, store=tmp_path)
    for x, found in ((torch.ones(3, 4), r"float64\[3, 4\]"), (-torch.ones(3, 4), r"float32\[1, 4\]")):
        with pytest.raises(RuntimeError, match=rf"result 0 of the operator .*::liar is {found}; .* promised float32\[3, 4\]"):
            compiled(x)


@torch.no_grad()
@pytest.mark.parametrize(("name", "reason"), [("no_fake", "no fake implementation"), ("view_result", "returns an alias of its argument")])
def test_fullgraph_says_what_is_missing(name: str, reason: str, tmp_path: Path) -> None:
    compiled = precast.compile(custom_operators.PROGRAMS[name], fullgraph=True, store=tmp_path)
    with pytest.raises(precast.PrecastError, match=reason):
        compiled(torch.randn(3, 4))


@torch.no_grad()
@pytest.mark.parametrize("function", ["inv", "cholesky", "inv_ex checked"])
def test_linear_algebra_errors_keep_their_class(function: str, tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if function == "inv_ex checked":
            return torch.linalg.inv_ex(x, check_errors=True)[0]
        return getattr(torch.linalg, function)(x)

    compiled = precast.compile(program, store=tmp_path)
    singular = torch.diag(torch.tensor([-1.0, 0.0, 2.0]))
    for call in (program, compiled, compiled, compiled):
        with pytest.raises(torch.linalg.LinAlgError):
            call(singular)


EDITED = """
import torch, precast

def shape_of(x):
    return {shape}

@torch.library.custom_op("precast_test_edit::twist", mutates_args=())
def twist(x: torch.Tensor{argument}) -> torch.Tensor:
    return x * {factor}

@twist.register_fake
def _(x{fake_argument}):
    return torch.empty(shape_of(x){fake})

def program(x):
    return twist(x) + 1

def main(store, make):
    compiled = make(program, store=store)
    with torch.no_grad():
        try:
            print("answer", compiled(torch.ones(2))[0].item())
        except precast.GuardMiss as miss:
            print("MISS", " ".join(str(miss).split()))
"""
PLAIN = {"shape": "x.shape", "argument": "", "factor": "2", "fake_argument": "", "fake": ""}
EDITS = [
    ({}, "answer 3.0"),
    ({"factor": "5"}, "answer 6.0"),
    ({"argument": ", k: int = 1", "fake_argument": ", k=1"}, "the operator precast_test_edit::twist.default has another schema or fake"),
    ({"fake": ", dtype=x.dtype"}, "the operator precast_test_edit::twist.default has another schema or fake implementation now"),
    ({"shape": "(x.shape[0],)"}, "the operator precast_test_edit::twist.default has another schema or fake implementation now"),
]


def test_edits_of_the_body_take_effect_and_edits_of_the_interface_miss(tmp_path: Path) -> None:
    """Of schema, fake implementation, and what that one calls."""
    (tmp_path / "edited.py").write_text(EDITED.format(**PLAIN))
    assert "answer 3.0" in child(tmp_path, "import edited, precast; edited.main('store', precast.compile)")
    sources = [EDITED.format(**{**PLAIN, **edit}) for edit, _ in EDITS]
    said = child(
        tmp_path,
        REFUSE
        + f"""
import edited, precast, torch
refuse_tracer()
for source in {sources!r}:
    exec(compile(source, "edited.py", "exec"), edited.__dict__)
    edited.main("store", precast.load)
""",
    ).splitlines()
    found = [line for line in said if line.startswith(("answer", "MISS"))]
    assert len(found) == len(EDITS)
    for line, (edit, expected) in zip(found, EDITS, strict=True):
        assert expected in line, (edit, line)


def test_an_operator_that_is_not_registered_is_named(tmp_path: Path) -> None:
    (tmp_path / "operators.py").write_text(
        "import torch\n"
        "@torch.library.custom_op('precast_test_absent::twice', mutates_args=())\n"
        "def twice(x: torch.Tensor) -> torch.Tensor: return x * 2\n"
        "@twice.register_fake\n"
        "def _(x): return torch.empty_like(x)\n"
    )
    (tmp_path / "app.py").write_text("import torch\ndef program(x):\n    return torch.ops.precast_test_absent.twice.default(x)\n")
    child(
        tmp_path, "import torch, operators, app, precast\nwith torch.no_grad(): precast.compile(app.program, store='store')(torch.ones(2))"
    )
    said = child(
        tmp_path,
        "import torch, app, precast\nwith torch.no_grad(): precast.load(app.program, store='store')(torch.ones(2))",
        expect=1,
    )
    assert "precast_test_absent::twice" in said and "GuardMiss" in said, said


@torch.no_grad()
def test_a_part_of_an_input_that_is_itself_a_part(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return custom_operators.scale(x[1:], 2.0)

    compiled = precast.compile(program, store=tmp_path, dynamic=False)
    whole = torch.arange(20.0)
    for x in (whole[:10], whole[4:14], whole[4:14].clone()):
        torch.testing.assert_close(compiled(x), x[1:] * 2)
