"""Higher-order operators: one graph, equal to eager, and from the store in a fresh process without the tracer."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

import precast
from precast.runtime.api.compile import site_of
from precast.torch_backend import precast as torch_backend
from tests.support.processes import REFUSE, child

ROOT = Path(__file__).parents[2]
from tests.end_to_end import higher_order_programs as programs  # noqa: E402


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@torch.no_grad()
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_one_graph_equal_to_eager_and_stored(name: str, store: Path) -> None:
    compiled = precast.compile(programs.PROGRAMS[name], store=store, fullgraph=True)
    programs.check(name, compiled)
    (variant,) = site_of(compiled).programs[0].variants
    assert variant.stored and len(variant.manifest.graphs) == 1


def test_warm_without_the_tracer(store: Path) -> None:
    with torch.no_grad():
        for name, program in programs.PROGRAMS.items():  # nothing new, unless the tests above ran in other processes
            programs.check(name, precast.compile(program, store=store, fullgraph=True))
    code = f"""
    import torch, precast
    from tests.end_to_end import higher_order_programs as programs
    refuse_tracer()
    with torch.no_grad():
        for name, program in programs.PROGRAMS.items():
            programs.check(name, precast.compile(program, store={str(store)!r}, fullgraph=True))
    """
    child(ROOT, REFUSE + textwrap.dedent(code))


@torch.no_grad()
def test_prints_in_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compiled = precast.compile(programs.printing, store=tmp_path, fullgraph=True)
    x = torch.ones(2, 4)
    programs.printing(x)
    want = capfd.readouterr().out
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x * 2 + 1)
        assert capfd.readouterr().out.splitlines()[-2:] == want.splitlines()


@torch.no_grad()
@pytest.mark.parametrize("name", ["branch", "branch_with_captured", "loop_on_data", "mapped", "scanned", "regions"])
def test_sizes_that_vary(name: str, tmp_path: Path) -> None:
    program = programs.PROGRAMS[name]
    compiled = precast.compile(program, store=tmp_path, dynamic=True)
    for n in (3, 5, 8, 4):
        torch.manual_seed(n)
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), program(x))
    assert len(site_of(compiled).programs[0].variants) == 1


@torch.no_grad()
def test_strides_that_vary_are_not_those_of_the_first_call(tmp_path: Path) -> None:
    def transposed(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(p, lambda y: y * 2, lambda y: y + 1, (x.t(),))

    compiled = precast.compile(transposed, store=tmp_path)
    for n in (3, 4, 5, 6):
        for p in (torch.tensor(True), torch.tensor(False)):
            torch.testing.assert_close(compiled(p, x := torch.randn(n, n + 2)), transposed(p, x))


@torch.no_grad()
def test_an_error_in_a_branch_is_the_callers(tmp_path: Path) -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t, i: t[i], lambda t, i: t * 2, (x, index))

    compiled = precast.compile(program, store=tmp_path, fullgraph=True)
    index = torch.tensor([9, 0, 0])
    torch.testing.assert_close(compiled(-torch.ones(3, 4), index), -torch.ones(3, 4) * 2)
    with pytest.raises(IndexError):
        compiled(torch.ones(3, 4), index)


def test_a_body_that_is_gone_is_a_miss(tmp_path: Path) -> None:
    """The library of a branch is a blob like any other: without it the artifact is not used."""
    with torch.no_grad():
        compiled = precast.compile(programs.branch, store=tmp_path)
        compiled(torch.ones(3, 4))
        manifest = site_of(compiled).programs[0].variants[0].manifest
        parts = {role: digest for role, digest in manifest.graphs["forward"].blobs.items() if role.startswith("part")}
        assert len(parts) == 2 and set(parts.values()) <= set(manifest.blobs)
        for path in tmp_path.rglob(f"*{next(iter(parts.values()))[2:]}*"):
            path.chmod(0o600)
            path.unlink()
        precast.reset()
        with pytest.raises(precast.GuardMiss):
            precast.load(programs.branch, store=tmp_path)(torch.ones(3, 4))


@torch.no_grad()
def test_through_torch_compile_bodies_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two graphs that differ in a branch only are two artifacts at torch's own door too."""
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path))

    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))

    def second(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos(), (x,))

    for program in (first, second, first):
        compiled = torch.compile(program, backend=torch_backend)
        for x in (torch.rand(3), -torch.rand(3)):
            torch.testing.assert_close(compiled(x), program(x))
