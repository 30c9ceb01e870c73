"""The backends that run a row: lowering alone, with the scheduler, and the whole compiler."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tests.ops.check import Expected, check, copied, expect
from tests.ops.rows import Row
from tests.ops.trace import tensors_of, trace

Runner = Callable[[Row, tuple[Any, ...]], Any]
"""Runs the row's function on these inputs (written in place where the function does) and returns its result."""


def base_seed() -> int:
    """Fresh for each process; `PRECAST_TEST_SEED` repeats a failure."""
    return int(os.environ.get("PRECAST_TEST_SEED") or int.from_bytes(os.urandom(4), "little"))


SEED = base_seed()


def interpreted(row: Row, inputs: tuple[Any, ...]) -> Any:
    """lower -> interpret."""
    return _run_program(row, inputs, scheduled=False)


def scheduled(row: Row, inputs: tuple[Any, ...]) -> Any:
    """lower -> schedule -> interpret, with the memory plan."""
    return _run_program(row, inputs, scheduled=True)


def program_of(
    fn: Callable[..., Any],
    inputs: tuple[Any, ...],
    *,
    schedule: bool,
    target: str = "cpu:x86-64-v3",
    symbolic: bool = False,
    instead: Mapping[str, Any] | None = None,
) -> tuple[Any, Callable[[list[Any]], Any]]:
    """The lowered (and, where asked, scheduled) program, verified; and what rebuilds fn's result from the program's outputs."""
    from precast.lowering.lower import lower
    from precast.lowering.pipeline import planned
    from precast.lowering.pipeline import schedule as run_schedule
    from precast.lowering.verify.verify import verify

    graph, rebuild = trace(fn, inputs, symbolic=symbolic)
    program = lower(graph, "row")
    verify(program)
    if schedule:
        program = planned(run_schedule(program, target, instead=instead or {}), target)
        verify(program)
    return program, rebuild


def _run_program(row: Row, inputs: tuple[Any, ...], scheduled: bool) -> Any:
    from precast.lowering.verify.interpret import run

    program, rebuild = program_of(row.fn, inputs, schedule=scheduled)
    return rebuild(run(program, tensors_of(inputs)))


def compare_row(row: Row, runner: Runner, *, aliasing: bool = False, seed: int | None = None) -> None:
    """Fresh inputs, eager and `runner` on copies of them, and the comparison. The seed is in the message of a failure."""
    seed = SEED if seed is None else seed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = expect(row, seed)
        inputs = copied(expected.inputs)
        try:
            got = runner(row, inputs)
            check(row, expected, got, inputs, aliasing=aliasing)
        except Exception as error:
            error.add_note(f"row {row.id}; repeat with PRECAST_TEST_SEED={seed}")
            raise


def compare_batch(
    rows: Sequence[Row], compile_function: Callable[[Callable[..., Any]], Callable[..., Any]], *, seed: int | None = None
) -> list[str]:
    """Runs several rows as one compiled function, and those singly that the batch got wrong. Returns the failures, one message a row."""
    seed = SEED if seed is None else seed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [expect(row, seed) for row in rows]
        try:
            problems = _batch(rows, expected, compile_function, seed)
        except Exception as error:  # noqa: BLE001  (whatever it is, the single rows will say whose it is)
            problems = {row.id: f"the batch failed: {type(error).__name__}: {str(error)[:300]}" for row in rows}
        failures = [message for row in rows if row.id in problems and (message := _single(row, compile_function, seed))]
        alone_fine = problems and not failures
        return [f"only together: {m}" for m in problems.values()] if alone_fine else failures


def _batch(rows: Sequence[Row], expected: Sequence[Expected], compile_function: Callable[..., Any], seed: int) -> dict[str, str]:
    functions = [row.fn for row in rows]

    def together(*all_inputs: tuple[Any, ...]) -> list[Any]:
        return [function(*inputs) for function, inputs in zip(functions, all_inputs, strict=True)]

    all_inputs = [copied(e.inputs) for e in expected]
    first_said = [[t.detach().clone() for t in tensors_of((e.result,))] for e in expected]
    results = compile_function(together)(*all_inputs)
    problems: dict[str, str] = {}
    for row, e, first, result, inputs in zip(rows, expected, first_said, results, all_inputs, strict=True):
        try:
            check(row, e, result, inputs)
        except AssertionError as error:
            if not _same_bits(e.result, first):
                problems[row.id] = f"eager's result was written to while compiled code ran: {error}"
            elif problem := _again(row, result, inputs, seed):
                problems[row.id] = problem
    return problems


def _again(row: Row, result: Any, inputs: tuple[Any, ...], seed: int) -> str:
    """What is wrong with a result by what eager says when it is asked again. Seen in torch 2.13: the first call of `remainder` in a process
    that has run for long gave NaN for 1.4 at the place where its vectorised loop ends, and never again.
    """
    try:
        check(row, expect(row, seed), result, inputs)
    except AssertionError as error:
        return str(error)
    warnings.warn(f"{row.id}: eager gave another result at first than when it was asked again", stacklevel=2)
    return ""


def _same_bits(a: Any, b: Any) -> bool:
    """Whether two results hold the same values, NaN where NaN is."""
    pairs = zip(tensors_of((a,)), tensors_of((b,)), strict=True)
    return all(torch.equal(x, y) or bool(((x == y) | (x.isnan() & y.isnan())).all()) for x, y in pairs)


def _single(row: Row, compile_function: Callable[..., Any], seed: int) -> str | None:
    try:
        compare_row(row, lambda r, inputs: compile_function(r.fn)(*inputs), aliasing=True, seed=seed)
    except Exception as error:  # noqa: BLE001  (collected, and reported together)
        return f"{row.id} (PRECAST_TEST_SEED={seed}): {type(error).__name__}: {str(error)[:600]}"
    return None


def batches(rows: Sequence[Row], size: int) -> list[tuple[Row, ...]]:
    """Rows dealt in order, so that a batch mixes neighbours of one kind."""
    return [tuple(rows[start : start + size]) for start in range(0, len(rows), size)]
