"""`precast report`: an artifact as one HTML page that people can show each other."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from precast.artifact_store import RecordError, Store
from precast.artifact_store.format.text import many
from precast.cli.output import Failure, Output, errors_to_json, file_store_option, finish, json_option, named, open_store, verbose_option
from precast.cli.programs.build_commands import each_signature, plan_of, replay_of, store_of
from precast.cli.programs.chips import chip_for, chip_named, chip_option
from precast.cli.programs.profile import profiles_of
from precast.cli.store.show import find
from precast.report.units import human_size

if TYPE_CHECKING:
    from precast.building.build_file import BuildFile
    from precast.profiling.profiler import Profile
    from precast.report.page.facts import Measured, Shown

_ID = re.compile(r"[0-9a-fA-F]{1,64}")


@click.command(short_help="Write what an artifact is as one HTML page.")
@click.argument("source", metavar="ID | FILE.toml | pkg.mod:factory")
@click.option("-o", "--output", metavar="PAGE.html", required=True, callback=named, help="The file to write.")
@click.option("--only", metavar="NAME", multiple=True, help="Only this program of the file; may be repeated.")
@click.option("--signature", type=click.IntRange(min=1), help="Only this signature of each program, counted from 1.")
@click.option("--mode", metavar="MODE", help="Compile mode, instead of the file's. CUDA graphs are left out in any.")
@click.option("--calls", type=click.IntRange(min=1), default=20, show_default=True, help="Calls that are timed.")
@chip_option
@click.option("--no-run", is_flag=True, help="Do not compile or call anything: pages of what the store has, without times.")
@verbose_option
@file_store_option
@json_option
@errors_to_json
def report(
    source: str,
    output: str,
    only: tuple[str, ...],
    signature: int | None,
    mode: str | None,
    calls: int,
    chip: str | None,
    no_run: bool,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Write one HTML page about an artifact, or about those that serve a build file's signatures: the fused graph with the lines of the
    program and the code that was generated from them, memory over time, guards, choices, and what would make it miss.

    Made from a file, the page also has the time of each step beside what the machine could do, as `precast profile` measures it. The
    page is whole: it loads nothing from anywhere. Needs the extra `report`.
    """
    out = Output(as_json)
    chosen = chip_named(chip)
    _check_installed()
    _check_writable(Path(output))
    if _ID.fullmatch(source):
        if only or signature is not None or mode is not None:
            raise click.UsageError("--only, --signature and --mode choose among the programs of a file; an ID is one artifact")
        store = open_store(store_path, existing=True)
        shown = [_of_id(store, source)]
    else:
        plan = plan_of(source, (), mode, only)
        store = open_store(store_of(store_path, plan), readonly=no_run)
        shown = list(_stored(out, plan, store, signature) if no_run else _called(out, plan, store, signature, calls))
    text = _page(store, [replace(one, chip=chosen or chip_for(one.manifest.target, one.measured is not None)) for one in shown])
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{output} cannot be written: {error.strerror}") from error
    size = len(text.encode())
    out.data({"page": os.path.abspath(output), "bytes": size, "artifacts": [one.manifest.artifact_id for one in shown]})
    out.text(f"{output}: {many(len(shown), 'artifact')}, {human_size(size)}")
    finish(0)


def _check_installed() -> None:
    """Before a long run, and not after it."""
    from precast.report.page.layout import LayoutMissing, check_installed

    try:
        check_installed()
    except LayoutMissing as error:
        raise Failure(str(error)) from error


def _check_writable(page: Path) -> None:
    if page.is_dir():
        raise Failure(f"{page} cannot be written: it is a folder")
    if not os.access(page if page.exists() else page.parent, os.W_OK):
        raise Failure(f"{page} cannot be written: {os.strerror(errno.EACCES if page.parent.exists() else errno.ENOENT)}")


def _page(store: Store, shown: list[Shown]) -> str:
    from precast.report.page.facts import facts
    from precast.report.page.render import page

    try:
        return page([facts(store, one) for one in shown])
    except (RecordError, ValueError, OSError) as error:
        raise Failure(f"what the store has cannot be read: {error}; `precast verify --repair` sets it aside") from error


def _of_id(store: Store, source: str) -> Shown:
    from precast.report.page.facts import Shown

    manifest = find(store, source)
    return Shown(manifest, manifest.program_name)


def _stored(out: Output, plan: BuildFile, store: Store, signature: int | None) -> Iterator[Shown]:
    """The artifacts that would serve the signatures; nothing is compiled, and no program is called."""
    from precast.report.page.facts import Shown

    plan = replay_of(plan, evidence=False)
    outcomes = each_signature(out, plan, store, "looking for", lambda job, number, target: job.check(number, target))
    chosen = [outcome for outcome in outcomes if signature in (None, outcome.signature)]
    if not chosen:
        raise click.UsageError(f"no program has a signature {signature}")
    for outcome in chosen:
        if outcome.artifact is None:
            raise Failure(f"{outcome.program}, signature {outcome.signature}: no artifact fits; `precast build` makes it\n{outcome.reason}")
        yield Shown(find(store, outcome.artifact), f"{outcome.program}, signature {outcome.signature}, {outcome.target}")


def _called(out: Output, plan: BuildFile, store: Store, signature: int | None, calls: int) -> Iterator[Shown]:
    """The artifacts that served calls of the signatures, with times."""
    from precast.report.page.facts import Shown

    for profile in profiles_of(out, plan, store, signature, calls):
        label = f"{profile.program}, signature {profile.signature}"
        ids = list(dict.fromkeys(graph.artifact for graph in profile.graphs))
        if not ids:
            raise Failure(f"{label}: no compiled graph ran; `precast explain` says why")
        measured = _measured(profile)
        for number, artifact in enumerate(ids, start=1):
            yield Shown(find(store, artifact), label + (f", part {number}" if len(ids) > 1 else ""), measured)


def _measured(profile: Profile) -> Measured:
    from precast.report.page.facts import GraphTimes, Measured, StepTime

    peaks = profile.peaks
    return Measured(
        profile.call,
        profile.eager,
        profile.recorded,
        profile.in_graphs,
        peaks.bytes,
        peaks.elementwise("f32"),
        dict(peaks.operations),
        {
            (graph.artifact, graph.role): GraphTimes(
                graph.runs, graph.entry, tuple(StepTime(step.seconds, step.least, step.bound) for step in graph.steps)
            )
            for graph in profile.graphs
        },
    )


__all__ = ["report"]
