"""`precast build`, `check` and `explain`: the ahead-of-time commands. They import torch when they start to work, not before."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.text import many
from precast.building.build_file import BuildFile, BuildFileError, ProgramSpec, load, read
from precast.cli.output import (
    ANSWER_NO,
    Failure,
    Output,
    colour,
    errors_to_json,
    file_store_option,
    finish,
    json_option,
    named,
    open_store,
    remote_option,
    verbose_option,
)
from precast.cli.programs.build_progress import build_display
from precast.report.user_frames import frames_of

if TYPE_CHECKING:
    from precast.artifact_store.remote.settings import Setting
    from precast.building.build_file import Loaded
    from precast.building.build_job import Job, Outcome

log = logging.getLogger("precast.driver")

Step = Callable[["Job", int, str], "Outcome"]


evidence_option = click.option(
    "--evidence", is_flag=True, help="Try each artifact: its answer to golden inputs, and how much faster than eager it is."
)


def _remotes() -> Sequence[Setting]:
    """The remotes of a farm's build, by precedence; `--remote` is in the environment. Wrong ones are wrong usage."""
    from precast.artifact_store.remote.attach import open_tiers
    from precast.artifact_store.remote.settings import chosen

    try:
        settings = chosen()
        for tier in open_tiers(settings):  # what is wrong is said now
            tier.endpoint.close()
    except StoreError as error:
        raise click.UsageError(str(error)) from error
    return settings


def shown_url(setting: Setting) -> str:
    """A remote as it can be shown: without a user, a password and settings."""
    parts = urlsplit(setting.url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _source(command: Any) -> Any:
    for option in (
        verbose_option,
        click.option("--only", metavar="NAME", multiple=True, help="Only this program of the file; may be repeated."),
        click.option("--mode", metavar="MODE", help="Compile mode, instead of the file's."),
        click.option("--target", "targets", metavar="TARGET", multiple=True, help="Target, instead of the file's; may be repeated."),
        click.argument("source", metavar="FILE.toml | pkg.mod:factory"),
    ):
        command = option(command)
    return command


@click.command(short_help="Compile every signature of a build file for every target.")
@_source
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes that compile at a time (default: as many as pay, by what there is to build, cores and memory).",
)
@click.option(
    "--executor", metavar="URL", help="Compile on a farm: dask://host:port, ray://host:port, dask://local?workers=2, ray://local."
)
@evidence_option
@click.option("--provenance", is_flag=True, help="Record builder, run of CI, digests of sources and git revision in each artifact.")
@click.option("--builder", metavar="ID", callback=named, help="Who builds, for --provenance, which it implies.")
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="With --executor: how often what a lost worker was at is run again.",
)
@file_store_option
@remote_option
@json_option
@errors_to_json
def build(
    source: str,
    targets: tuple[str, ...],
    mode: str | None,
    only: tuple[str, ...],
    jobs: int | None,
    executor: str | None,
    retries: int,
    evidence: bool,
    provenance: bool,
    builder: str | None,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Compile every signature of every program for every target; what the store has already is left as it is."""
    out = Output(as_json)
    plan = plan_of(source, targets, mode, only, evidence)
    store = open_store(store_of(store_path, plan), readonly=False)
    if store.remotes is not None:
        store.remotes.uploads.paused = True  # until no process is forked any more
    if provenance or builder is not None:
        from precast.compiling.provenance import asked_by, wish

        wish.asked = asked_by(builder or "")
    remotes: Sequence[Setting] = ()
    farm: dict[str, Any] = {}
    outcomes: list[Outcome] | None
    if executor is not None:
        if jobs is not None:
            raise click.UsageError(
                "--jobs is for processes of this machine, and --executor for a farm: for one of N workers here, dask://local?workers=N"
            )
        remotes = _remotes()
        outcomes, farm["farm"] = _on_farm(out, plan, store, executor, retries, remotes)
    else:
        outcomes = _in_processes(out, plan, store, jobs) if jobs != 1 else None
    if outcomes is None:
        outcomes = each_signature(out, plan, store, "compiling", lambda job, number, target: job.build(number, target))
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in ("compiled", "there already", "taken")}
    counts["failed"] = sum(not outcome.good for outcome in outcomes)
    place = ", ".join(shown_url(setting) for setting in remotes) if executor is not None and remotes else str(store.root)
    _report(out, outcomes, place, counts=counts, **farm)
    taken = f"{counts['taken']} taken from another build, " if counts["taken"] else ""
    out.note(f"{counts['compiled']} compiled, {counts['there already']} there already, {taken}{counts['failed']} failed; store {place}")
    if counts["failed"] < len(outcomes) and place == str(store.root):
        chosen = store_path or plan.store
        out.note(f"To see what it holds: precast ls{f' --store {shlex.quote(_short(store.root))}' if chosen else ''}")
    unsent = _send(out, store) if executor is None else 0
    finish(ANSWER_NO if counts["failed"] or unsent else 0)


def _send(out: Output, store: Store) -> int:
    """Send what was built to the store's remotes. How much could not be sent, which is noted and said."""
    if store.remotes is None:
        return 0
    left = store.remotes.uploads.drain()
    for place in sorted({item.remote for item in left}):
        count = sum(item.remote == place for item in left)
        said = f"{many(count, 'artifact or record', 'artifacts and records')} could not be sent to {place}"
        out.note(f"{said}: PRECAST_LOGS=store says why; they are noted, and the next build or `precast push` sends them")
    return len(left)


@click.command(short_help="Prove that every signature would hit; compiles nothing.")
@_source
@evidence_option
@file_store_option
@json_option
@errors_to_json
def check(
    source: str, targets: tuple[str, ...], mode: str | None, only: tuple[str, ...], evidence: bool, store_path: str | None, as_json: bool
) -> None:
    """Prove that every signature would hit. Compiles nothing; exit code 1 and an explanation where one would miss.

    With --evidence each artifact answers the golden inputs of its build once more.
    """
    out = Output(as_json)
    plan = replay_of(plan_of(source, targets, mode, only), evidence)
    store = open_store(store_of(store_path, plan))
    outcomes = each_signature(out, plan, store, "checking", lambda job, number, target: job.check(number, target))
    _report(out, outcomes, str(store.root))
    missing = [outcome for outcome in outcomes if not outcome.good]
    hitting = "signature hits" if len(outcomes) == 1 else "signatures hit"
    out.note(f"{len(outcomes) - len(missing)} of {len(outcomes)} {hitting}; store {store.root}")
    finish(ANSWER_NO if missing else 0)


@click.command(short_help="Say which artifact serves each signature, or why none does.")
@_source
@file_store_option
@json_option
@errors_to_json
def explain(source: str, targets: tuple[str, ...], mode: str | None, only: tuple[str, ...], store_path: str | None, as_json: bool) -> None:
    """Say for each signature which artifact serves it, or why none does: guard by guard, nearest variants first.

    With an artifact's ID instead of a file: what a call must look like to hit it.
    """
    if not source.endswith(".toml") and ":" not in source:
        from precast.cli.store.show import explain_artifact

        explain_artifact(source, store_path, as_json)
        return
    out = Output(as_json)
    plan = replay_of(plan_of(source, targets, mode, only), evidence=False)
    store = open_store(store_of(store_path, plan))
    outcomes = each_signature(out, plan, store, "explaining", lambda job, number, target: job.check(number, target))
    out.data([asdict(outcome) for outcome in outcomes])
    for outcome in outcomes:
        out.text(f"{_label(outcome)}: {f'hit by {outcome.artifact[:12]}' if outcome.artifact else 'miss'}")
        if outcome.reason:
            out.text(outcome.reason)
    finish(0 if all(outcome.good for outcome in outcomes) else ANSWER_NO)


def _short(path: Path) -> str:
    """The path as it is best typed here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) and path != Path.cwd() else str(path)


def store_of(option: str | None, plan: BuildFile) -> str | Path | None:
    """The store that the command line names, else the build file; None for the default one."""
    return option or (Path(plan.store) if plan.store else None)


def replay_of(plan: BuildFile, evidence: bool) -> BuildFile:
    """A check runs programs where that is asked for by --evidence, and not where the file has some recorded."""
    return replace(plan, programs=tuple(replace(program, evidence=evidence and not program.train) for program in plan.programs))


def plan_of(source: str, targets: Sequence[str], mode: str | None, only: Sequence[str], evidence: bool = False) -> BuildFile:
    """The build file with the command line's choices over it. A wrong file is wrong usage: exit code 2."""
    try:
        plan = read(source)
    except BuildFileError as error:
        raise click.UsageError(str(error)) from error
    programs = plan.programs
    if only:
        names = {program.name for program in programs}
        if unknown := [name for name in only if name not in names]:
            raise click.UsageError(f"{source}: no program is called {unknown[0]!r}; it has {', '.join(sorted(names))}")
        programs = tuple(program for program in programs if program.name in only)
    if targets:
        programs = tuple(replace(program, targets=tuple(targets)) for program in programs)
    for program in programs if mode is not None else ():
        if program.options is not None:
            raise click.UsageError(
                f"{program.where}: --mode {mode} and the file's `options` exclude one another: a mode is a set of options (see `precast "
                "options`); leave one of them away, or choose other programs by --only"
            )
    if mode is not None:
        programs = tuple(replace(program, mode=mode) for program in programs)
    if evidence:
        programs = tuple(replace(program, evidence=not program.train) for program in programs)
    _check_settings(programs)
    return replace(plan, programs=programs)


def _check_settings(programs: Sequence[ProgramSpec]) -> None:
    """Modes, options and targets of all programs, before the first factory makes a model. What is wrong is wrong usage: exit code 2."""
    from precast.runtime.common.errors import OptionError
    from precast.runtime.settings.options import merge_options
    from precast.runtime.targets.ladder import resolve

    for program in programs:
        try:
            for target in program.targets:
                merge_options(program.mode, program.options, target=resolve(target))
        except OptionError as error:
            raise click.UsageError(f"{program.where}: {error}") from error


def each_signature(out: Output, plan: BuildFile, store: Store, doing: str, step: Step) -> list[Outcome]:
    """`step` for every signature and target, under a progress bar that names what is being done."""
    from precast.building.update_job import job_of
    from precast.runtime.common.errors import CompilerBroken, OptionError, StoreUnwritable

    outcomes: list[Outcome] = []
    with _progress(out, len(plan.programs)) as progress:
        for program in plan.programs:
            progress.say(f"{program.name}: making the program")
            job = job_of(load_program(program, plan), store)
            pairs = [(number, target) for target in program.targets for number in range(1, len(job.loaded.signatures) + 1)]
            for position, (number, target) in enumerate(pairs):
                progress.say(f"{program.name}: {doing} signature {number} of {len(job.loaded.signatures)} for {target}")
                try:
                    outcomes.append(step(job, number, target))
                except OptionError as error:
                    raise click.UsageError(f"{program.where}: {error}") from error
                except (StoreUnwritable, CompilerBroken) as error:
                    raise Failure(str(error)) from error
                progress.advance(1 / len(pairs), position == len(pairs) - 1)
    return outcomes


def load_program(program: ProgramSpec, plan: BuildFile) -> Loaded:
    """Calls the program's factory. Raises UsageError where the file is wrong, and Failure, with the user's lines of the traceback, where
    the factory raised.
    """
    try:
        return load(program, plan.path)
    except BuildFileError as error:
        lines = frames_of(error.__cause__) if isinstance(error.__cause__, ImportError) else []
        raise click.UsageError("\n".join([str(error), *lines, *whole_stack(error.__cause__, lines)])) from error
    except (Exception, SystemExit) as error:  # a factory is the user's code and may raise anything; say whose it was
        lines = frames_of(error)
        said = f"{program.where}: factory {program.factory} failed: {type(error).__name__}: {error}"
        raise Failure("\n".join([said, *lines, *whole_stack(error, lines)])) from error


def whole_stack(error: BaseException | None, lines: list[str]) -> list[str]:
    """The lines of an error: logs the whole traceback with `-v`, otherwise adds how to get it where only a part is shown."""
    log.info("the whole stack:", exc_info=error)
    return [] if log.isEnabledFor(logging.INFO) or not lines else ["(-v or PRECAST_LOGS=driver shows the whole stack)"]


def _in_processes(out: Output, plan: BuildFile, store: Store, jobs: int | None) -> list[Outcome] | None:
    """The outcomes of a build by several workers; None where one process is as good. `jobs`: how many; None lets precast choose."""
    from precast.building.build_order import Lines
    from precast.building.ledger import Ledger, Stopped
    from precast.building.worker_pool import Crew, FactoryFailed, Pool

    def loaded(program: ProgramSpec) -> Any:
        try:
            return load_program(program, plan)
        except click.UsageError as error:
            raise Stopped(error.format_message(), usage=True) from error
        except Failure as error:
            raise FactoryFailed(error.format_message()) from error

    lines = Lines(plan.programs)
    crew = Crew.of(jobs, lines)
    if crew.most == 1 or not (len(lines) > 1 or lines.splits):
        return None
    try:
        with build_display(out) as display:
            display.note(f"compiling {many(len(plan.programs), 'program')}, {len(lines)} times in all, in up to {crew.most} processes")
            return Pool(plan.programs, store, loaded, Ledger(plan.programs, lines, display), lines, crew, ends=jobs is None).run()
    except Stopped as error:
        raise click.UsageError(str(error)) if error.usage else Failure(str(error)) from error


def _on_farm(out: Output, plan: BuildFile, store: Store, url: str, retries: int, remotes: Sequence[Setting]) -> tuple[list[Outcome], Any]:
    """The outcomes of a build by an engine's workers, and the farm's part of the report."""
    from precast.building.build_order import Lines
    from precast.building.farm.engines import connect
    from precast.building.farm.executor import place_of
    from precast.building.farm.farm import Farm
    from precast.building.ledger import Ledger, Stopped

    try:
        store.check_writable()
        place, lines = place_of(url), Lines(plan.programs)
        with build_display(out) as display, closing(connect(place)) as engine:
            display.note(f"compiling {many(len(plan.programs), 'program')}, {len(lines)} times in all, on {url}")
            farm = Farm(plan.programs, plan.path, store, engine, Ledger(plan.programs, lines, display), lines, retries, remotes)
            outcomes = farm.run()
    except Stopped as error:
        raise click.UsageError(str(error)) if error.usage else Failure(str(error)) from error
    summary = farm.summary()
    busy = [worker for worker in summary.workers if worker["jobs"]]
    lost = sum(worker["state"] == "lost" for worker in summary.workers)
    again = f"{many(lost, 'worker')} lost, {many(summary.again, 'job')} run again"
    out.note(f"{many(len(busy), 'worker')} of {url} in {summary.seconds:.1f} s; {again}")
    return outcomes, summary


def _report(out: Output, outcomes: Sequence[Outcome], place: str, **more: Any) -> None:
    programs = [asdict(outcome) for outcome in outcomes]
    out.data({"store": place, "programs": programs, "good": all(o.good for o in outcomes), **more})
    for outcome in outcomes:
        out.text(f"{_label(outcome)}\t{outcome.status}\t{(outcome.artifact or '-')[:12]}\t{outcome.seconds:.2f} s")
        for line in outcome.reason.splitlines():
            out.text(f"    {line}")


def _label(outcome: Outcome) -> str:
    return f"{outcome.program}\tsignature {outcome.signature}\t{outcome.target}"


class _Progress:
    """A bar on a terminal, lines in a log."""

    def __init__(self, bar: Any, task: Any, note: Callable[[str], None] | None) -> None:
        self._bar, self._task, self._note = bar, task, note

    def say(self, what: str) -> None:
        if self._note is not None:
            self._note(what)
        else:
            self._bar.update(self._task, description=what)

    def advance(self, part: float, whole: bool) -> None:
        """`part` of a program more is done; `whole` rounds off at a program's end."""
        if self._bar is None:
            return
        done = self._bar.tasks[0].completed + part
        self._bar.update(self._task, completed=round(done) if whole else done)


@contextmanager
def _progress(out: Output, programs: int) -> Iterator[_Progress]:
    if not sys.stderr.isatty():
        yield _Progress(None, None, out.note)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, color_system="auto" if colour() else None)
    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Progress(bar, bar.add_task("starting", total=programs), None)
