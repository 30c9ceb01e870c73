"""`precast tune`: measure on this machine's GPU what decides the code of a build file's programs. It imports torch when it works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from precast.artifact_store.format.text import many
from precast.cli.output import (
    ANSWER_NO,
    Failure,
    Output,
    errors_to_json,
    file_store_option,
    finish,
    json_option,
    open_store,
    verbose_option,
)
from precast.cli.programs.build_commands import load_program, plan_of, store_of

if TYPE_CHECKING:
    from precast.building.build_file import BuildFile, Loaded
    from precast.building.tune import Outdated, Tuned


@click.command(short_help="Measure choices on this machine's GPU, and keep them.")
@click.option("--only", metavar="NAME", multiple=True, help="Only this program of the file; may be repeated.")
@click.option("--mode", metavar="MODE", help="Compile mode, instead of the file's.")
@click.option("--budget", type=click.FloatRange(min=0), default=300.0, show_default=True, help="Seconds of measuring at most.")
@click.option("--again", is_flag=True, help="Measure what the store has an answer to as well.")
@click.option("--rebuild", is_flag=True, help="Compile anew the store's artifacts that were built with other choices.")
@click.argument("source", metavar="FILE.toml | pkg.mod:factory")
@verbose_option
@file_store_option
@json_option
@errors_to_json
def tune(
    source: str, only: tuple[str, ...], mode: str | None, budget: float, again: bool, rebuild: bool, store_path: str | None, as_json: bool
) -> None:
    """Measure tilings and library calls on this machine's GPU, and keep the answers in the store.

    Builds for this architecture use them from then on, on machines without a GPU too when they get the store. Answers that are there
    already stay; a run that is cut off goes on where it stopped.
    """
    out = Output(as_json)
    plan = plan_of(source, (), mode, only)
    store = open_store(store_of(store_path, plan), readonly=False)
    target, measure = device_lab()
    from precast.building.tune import outdated
    from precast.building.tune import rebuild as rebuild_artifact
    from precast.building.tune import tune as run

    jobs = _jobs(plan)
    tuned = run(jobs, store, target, measure, budget=budget, say=out.note, again=again)
    old = outdated(jobs, store, tuned)
    rebuilt = [rebuild_artifact(store, item, target) for item in old] if rebuild else []
    _report(out, tuned, old, rebuilt)
    failed = bool(tuned.failures) or not all(outcome.good for outcome in rebuilt)
    finish(ANSWER_NO if failed else 0)


def device_lab() -> tuple[str, Any]:
    """The target of this machine's GPU, and what measures on it. Raises Failure where there is none."""
    from precast.codegen import backend_of
    from precast.runtime.targets.ladder import at_hand

    for target in at_hand():
        tuner = backend_of(target).tuner
        if tuner is not None:
            try:
                return target, tuner.lab(target)
            except RuntimeError as error:
                raise Failure(f"tuning needs the GPU: {error}") from error
    raise Failure("tuning measures on a GPU, and this machine has none; builds here use what was tuned elsewhere, with its store")


def _jobs(plan: BuildFile) -> list[Loaded]:
    return [load_program(program, plan) for program in plan.programs]


def _report(out: Output, tuned: Tuned, old: Sequence[Outdated], rebuilt: Sequence[Any]) -> None:
    out.data(
        {
            "target": tuned.target,
            "record": tuned.record,
            "seconds": tuned.seconds,
            "questions": [
                {"key": q.problem.key, "status": q.status, "answer": q.answer, "gain": round(q.gain, 3), "reason": q.reason,
                 "default": q.problem.default, "us": (q.record or {}).get("us", {}), "asked_by": sorted({name for name, _ in q.asked})}
                for q in tuned.questions
            ],
            "failures": tuned.failures,
            "outdated": [{"program": o.job.name, "signature": o.signature, "artifact": o.artifact, "choices": o.choices} for o in old],
            "rebuilt": [outcome.artifact for outcome in rebuilt],
        }
    )  # fmt: skip
    for q in sorted(tuned.questions, key=lambda q: -q.gain):
        if q.status in ("measured", "known") and q.answer != q.problem.default:
            out.text(f"{q.gain:.2f}x\t{q.problem.key}\t{q.answer}")
        elif q.status == "failed":
            out.text(f"failed\t{q.problem.key}\t{q.reason}")
    for failure in tuned.failures:
        out.text(f"not captured\t{failure}")
    counts = ", ".join(f"{tuned.count(status)} {status}" for status in ("measured", "known", "failed", "left"))
    out.note(f"{many(len(tuned.questions), 'question')} for {tuned.target}: {counts}; {tuned.seconds:.0f} s")
    if old and not rebuilt:
        names = ", ".join(dict.fromkeys(o.job.name for o in old))
        built = many(len(old), "stored artifact was", "stored artifacts were")
        out.note(f"{built} built with other choices ({names}): `precast tune --rebuild` compiles them anew")
    if rebuilt:
        out.note(f"{sum(o.good for o in rebuilt)} of {many(len(rebuilt), 'artifact')} compiled anew")


__all__ = ["tune"]
