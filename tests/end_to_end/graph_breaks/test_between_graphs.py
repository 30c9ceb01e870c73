"""What surrounds graph breaks: the region in which calls are looked at, misses after a break, limits, threads, ahead-of-time builds."""

from __future__ import annotations

import functools
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._dynamo import eval_frame

import precast
from precast.runtime.api.compile import site_of


def scale(x: torch.Tensor, *rest: torch.Tensor, by: float = 2.0, **named: torch.Tensor) -> torch.Tensor:
    y = x * by
    for other in (*rest, *named.values()):
        y = y + other
    return y.sin()


def mark() -> None:
    print("marked")


def calls_scale(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        mark()
        x = scale(x, x + 1, by=0.5, other=x)
    return x


def names(compiled: Any) -> list[str]:
    return [program.name.rpartition(":")[2] for program in site_of(compiled).all_programs]


def test_callees_with_every_kind_of_parameter(tmp_path: Path) -> None:
    compiled = precast.compile(calls_scale, store=tmp_path)
    for _ in range(6):
        x = torch.randn(7)
        torch.testing.assert_close(compiled(x), calls_scale(x))
    assert names(compiled) == ["calls_scale", "scale"]
    (callee,) = site_of(compiled).all_programs[1:]
    assert len(callee.variants) == 1 and callee.variants[0].hits > 0


def test_outside_of_the_region_nothing_is_replaced(tmp_path: Path) -> None:
    code = scale.__code__
    compiled = precast.compile(calls_scale, store=tmp_path)
    x = torch.randn(7)
    compiled(x)
    (callee,) = site_of(compiled).all_programs[1:]
    hits = callee.variants[0].hits
    scale(x)
    assert scale.__code__ is code and callee.variants[0].hits == hits
    for size in (3, 4):  # torch.compile of the same function, new and recompiled, knows nothing of the region's entries
        y = torch.randn(size)
        torch.testing.assert_close(torch.compile(scale, backend="eager", dynamic=False)(y), scale(y))
    torch.testing.assert_close(torch.compile(calls_scale, backend="eager")(x), calls_scale(x))
    assert callee.variants[0].hits == hits
    torch.testing.assert_close(compiled(x), calls_scale(x))


@torch.no_grad()
def test_torchs_stance_names_a_replaced_function_as_any_other(tmp_path: Path) -> None:
    compiled, x = precast.compile(calls_scale, store=tmp_path), torch.randn(7)
    for _ in range(3):
        compiled(x)
    theirs = torch.compile(calls_scale, backend="eager")
    theirs(x)
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="Detected recompile") as caught:
        theirs(torch.randn(9, 2))
    assert "precast's replacement of this function" in str(caught.value)


def test_an_exception_leaves_the_region(tmp_path: Path) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        y = scale(x)
        mark()
        if y.sum() < 1e9:
            raise KeyError("from the program")
        return y

    compiled = precast.compile(fails, store=tmp_path)
    for _ in range(5):
        with pytest.raises(KeyError, match="from the program"):
            compiled(torch.randn(3))
        assert eval_frame.get_eval_frame_callback() is None


def test_recursion(tmp_path: Path) -> None:
    def descend(x: torch.Tensor, depth: int) -> torch.Tensor:
        y = x.sin() + depth
        mark()
        return y if depth == 0 else scale(descend(y, depth - 1)) * 2

    compiled = precast.compile(descend, store=tmp_path)
    for _ in range(3):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, 2), descend(x, 2))


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    mark()
    return y * 2 if y.sum() < 0 else y + 1


def test_threads(tmp_path: Path) -> None:
    compiled = precast.compile(broken, store=tmp_path)
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(30):
                x = torch.randn(4) + (number + turn) % 3 - 1
                with torch.no_grad():
                    torch.testing.assert_close(compiled(x), broken(x))
        except BaseException as error:  # noqa: BLE001 - carried over to the test's own thread
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads) and not problems


def test_a_miss_after_a_break(tmp_path: Path) -> None:
    x = torch.rand(4) + 0.1
    precast.compile(broken, store=tmp_path)(x)
    loaded = precast.load(broken, store=tmp_path)
    torch.testing.assert_close(loaded(x), broken(x))
    with pytest.raises(precast.GuardMiss, match="resumed at line"):
        loaded(-x)
    torch.testing.assert_close(precast.compile(broken, store=tmp_path)(-x), broken(-x))
    torch.testing.assert_close(loaded(-x), broken(-x), msg="another process may add to the store meanwhile")


def test_a_miss_in_what_a_program_calls_that_is_not_compiled_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(7)
    precast.compile(calls_scale, store=tmp_path)(x)
    torch.testing.assert_close(precast.load(calls_scale, store=tmp_path)(x), calls_scale(x))

    def edited(x: torch.Tensor, *rest: torch.Tensor, by: float = 2.0, **named: torch.Tensor) -> torch.Tensor:
        return (x * by + sum(rest)).sin()

    precast.reset()
    monkeypatch.setitem(globals(), "scale", edited)
    with pytest.raises(precast.GuardMiss, match="edited"):
        precast.load(calls_scale, store=tmp_path)(x)


def test_the_limit_holds_for_each_part(tmp_path: Path) -> None:
    def item(x: torch.Tensor, n: list[int]) -> torch.Tensor:
        y = x.sin()
        mark()
        return y * n[0]

    compiled = precast.compile(item, store=tmp_path, recompile_limit=2, dynamic=False)
    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(2, 8):
            torch.testing.assert_close(compiled(x, [n]), item(x, [n]))
    root, rest = site_of(compiled).all_programs
    assert (len(root.variants), len(rest.variants)) == (1, 2)
    assert [str(w.message) for w in caught if "recompile_limit (2)" in str(w.message) and "resumed" in str(w.message)]


def test_precompile_runs_past_the_breaks_on_copies(tmp_path: Path) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            y = scale(x)
            mark()
            return calls_scale(y) + self.calls

    model, x = Counting().eval(), torch.randn(5)
    with torch.no_grad():
        report = precast.precompile(model, [((x,), {})], store=tmp_path)
        assert report.ok and model.calls == 0
        loaded = precast.load(model, store=tmp_path)
        got = loaded(x)
        assert model.calls == 1
        model.calls.zero_()
        torch.testing.assert_close(got, model(x))
        report = precast.precompile(calls_scale, [((x,), {})], store=tmp_path)
        assert report.ok and report.signatures[0].outcome == "skipped"
        torch.testing.assert_close(precast.load(calls_scale, store=tmp_path)(x), calls_scale(x))


@functools.lru_cache
def factor(n: int) -> int:
    return n * 2


def breaks_behind_a_cached_call(x: torch.Tensor) -> torch.Tensor:
    n = factor(3)
    mark()
    return x * n


def test_a_break_in_what_calls_a_cached_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return breaks_behind_a_cached_call(x.sin()) + 1

    x = torch.randn(7)
    compiled = precast.compile(program, store=tmp_path)
    torch.testing.assert_close(compiled(x), program(x))
    assert all(variant.stored for part in site_of(compiled).all_programs for variant in part.variants)
    loaded = precast.load(program, store=tmp_path)
    torch.testing.assert_close(loaded(x), program(x))
    precast.reset()
    monkeypatch.setitem(globals(), "factor", functools.lru_cache(lambda n: n * 5))
    compiled = precast.compile(program, store=tmp_path)
    torch.testing.assert_close(compiled(x), x.sin() * 15 + 1)


def test_reset(tmp_path: Path) -> None:
    compiled = precast.compile(calls_scale, store=tmp_path)
    x = torch.randn(7)
    for _ in range(3):
        compiled(x)
        precast.reset()
    torch.testing.assert_close(compiled(x), calls_scale(x))
    assert names(compiled) == ["calls_scale", "scale"]


def test_programs_with_the_same_settings_share_what_they_call(tmp_path: Path) -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        y = scale(x, x + 1, by=0.5, other=x)
        mark()
        return scale(y * 2, y, by=0.5, other=y)

    first, second = (precast.compile(f, store=tmp_path) for f in (calls_scale, other))
    for _ in range(5):
        x = torch.randn(7)
        torch.testing.assert_close(first(x), calls_scale(x))
        torch.testing.assert_close(second(x), other(x))
    assert site_of(first).all_programs[1] is site_of(second).all_programs[-1]
    assert len(eval_frame._debug_get_precompile_entries(scale.__code__)) > 0
