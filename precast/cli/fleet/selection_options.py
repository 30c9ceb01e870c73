"""The options by which push, pull, sync and diff choose artifacts, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from precast.artifact_store import Store
from precast.artifact_store.moving.selection import Build, Selection
from precast.report.units import parse_duration

P = ParamSpec("P")
R = TypeVar("R")


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def selection_options(command: Callable[P, R]) -> Callable[P, R]:
    """--program, --target, --newer-than, --older-than, --build; together they are `choice`'s arguments."""
    for option in (
        click.option("--build", "build_file", metavar="FILE", help="Only what this build file lists, for its targets; compiles nothing."),
        click.option("--older-than", callback=_duration, metavar="AGE", help="Only artifacts that were put there longer ago: 30d, 12h."),
        click.option("--newer-than", callback=_duration, metavar="AGE", help="Only artifacts that were put there since then."),
        click.option(
            "--target", "targets", metavar="PATTERN", multiple=True, help="Only artifacts for this target; * matches anything; repeatable."
        ),
        click.option(
            "--program", "programs", metavar="TEXT", multiple=True, help="Only programs whose key or name contains this; repeatable."
        ),
    ):
        command = option(command)
    return command


def trust_option(command: Callable[P, R]) -> Callable[P, R]:
    help_text = "Whose signatures are needed on what comes from elsewhere: signed (the default), any, by:KEY."
    return click.option("--trust", metavar="POLICY", help=help_text)(command)


def plain_http_option(command: Callable[P, R]) -> Callable[P, R]:
    help_text = "Talk to a registry without encryption (this machine's own needs no option)."
    return click.option("--plain-http", is_flag=True, help=help_text)(command)


def jobs_option(command: Callable[P, R]) -> Callable[P, R]:
    help_text = "Artifacts on their way at a time (default: 8)."
    return click.option("--jobs", type=click.IntRange(min=1), default=8, metavar="N", help=help_text)(command)


def choice(
    store: Callable[[], Store],
    programs: tuple[str, ...],
    targets: tuple[str, ...],
    newer_than: float | None,
    older_than: float | None,
    build_file: str | None,
) -> Selection:
    """The selection that the options name. `store`: the local one, for a build file, whose programs are made for it. --target stands in
    place of the file's targets, as for `precast build`.
    """
    patterns = tuple("cpu:native-*" if target == "cpu:native" else target for target in targets)
    build = None if build_file is None else _of_build_file(build_file, store(), any_target=bool(targets))
    return Selection(programs, patterns, newer_than, older_than, build)


def _of_build_file(source: str, store: Store, any_target: bool) -> Build:
    from precast.building.chosen_programs import chosen_programs  # imports torch
    from precast.cli.programs.build_commands import load_program, plan_of

    plan = plan_of(source, (), None, ())
    return chosen_programs(plan, store, lambda program: load_program(program, plan), any_target=any_target)


def store_of_build_file(source: str | None) -> str | Path | None:
    """The store that a build file names; None for the default one."""
    if source is None:
        return None
    from precast.building.build_file import BuildFileError, read

    try:
        named = read(source).store
    except BuildFileError as error:
        raise click.UsageError(str(error)) from error
    return Path(named) if named else None
