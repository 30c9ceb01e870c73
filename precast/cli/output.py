"""Output of the commands: data on stdout (a table for people, tab-separated raw numbers for pipes, or JSON), everything else on stderr."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import click

from precast.artifact_store import Store, StoreError
from precast.artifact_store.place import ENVIRONMENT, default_root, what_is_at

_REMOTES = "PRECAST_REMOTE"
P = ParamSpec("P")
R = TypeVar("R")
ANSWER_NO = 1
ANSWERED = "precast.answered"
"""In the context's `meta`: the command has printed its JSON."""


class Failure(click.ClickException):
    """The command could not do its work, or the answer is no: exit code 1 and one clear sentence on stderr."""

    exit_code = ANSWER_NO

    def show(self, file: Any = None) -> None:
        click.echo(f"{style('error:', fg='red', bold=True)} {self.format_message()}", err=True)


class Output:
    """The output of one command, by its --json and -H options."""

    def __init__(self, as_json: bool = False, human: bool = False) -> None:
        self.as_json = as_json
        self.human = human or sys.stdout.isatty()

    def data(self, value: Any) -> None:
        """Print `value` as JSON; nothing without --json."""
        if self.as_json:
            if (context := click.get_current_context(silent=True)) is not None:
                context.meta[ANSWERED] = True  # which the contexts of a command line share
            click.echo(json.dumps(plain(value), indent=2, sort_keys=True))

    def text(self, line: str = "") -> None:
        """A line of the answer; nothing with --json."""
        if not self.as_json:
            click.echo(line)

    def note(self, line: str) -> None:
        """What is going on, on stderr."""
        click.echo(line, err=True)

    def table(self, titles: Sequence[str], raw: Sequence[Sequence[Any]], human: Sequence[Sequence[str]]) -> None:
        """`raw` rows tab-separated for a pipe, or `human` ones as a table; nothing with --json."""
        if self.as_json:
            return
        if not self.human:
            for row in raw:
                click.echo("\t".join(str(cell) for cell in row))
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(*titles, box=None, pad_edge=False, header_style="bold")
        for cells in human:
            table.add_row(*(cell.replace("[", "\\[") for cell in cells))
        terminal = sys.stdout.isatty()
        Console(width=None if terminal else 200, color_system="auto" if terminal and colour() else None, highlight=False).print(table)


def colour() -> bool:
    """Whether to style at all: not with NO_COLOR (https://no-color.org), not on a dumb terminal."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def style(text: str, **how: Any) -> str:
    return click.style(text, **how) if colour() else text


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: dataclasses to maps, bytes to hex, paths to text."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return str(value)
    return value


def json_option(command: Callable[P, R]) -> Callable[P, R]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")(command)


def human_option(command: Callable[P, R]) -> Callable[P, R]:
    return click.option("-H", "--human", is_flag=True, help="A table with readable numbers, also into a pipe.")(command)


def _verbose(_: click.Context, __: click.Parameter, value: bool) -> None:
    """As PRECAST_LOGS=driver, beside what that says; in the environment, for processes that this one starts."""
    if value:
        from precast.runtime.common.log import configure

        os.environ["PRECAST_LOGS"] = ",".join(filter(None, (os.environ.get("PRECAST_LOGS"), "driver")))
        configure(os.environ["PRECAST_LOGS"])


def verbose_option(command: Callable[P, R]) -> Callable[P, R]:
    help_text = "Show the whole stack of what fails, as PRECAST_LOGS=driver does."
    option = click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=_verbose, help=help_text)
    return option(command)


def named(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Refuses an empty name, which is a mistake (`--store "$STORE"` where STORE is not set) and would select the default store."""
    if value == "":
        raise click.BadParameter("is empty: name a folder, or leave the option away")
    return value


def store_option(command: Callable[P, R]) -> Callable[P, R]:
    help_text = "The store's folder (default: PRECAST_STORE, else the platform's cache folder)."
    return click.option("--store", "store_path", metavar="PATH", callback=named, help=help_text)(command)


def file_store_option(command: Callable[P, R]) -> Callable[P, R]:
    """`--store` of a command that reads a build file, which may name a store itself."""
    help_text = "The store's folder (default: the file's `store`, else PRECAST_STORE, else the platform's cache folder)."
    return click.option("--store", "store_path", metavar="PATH", callback=named, help=help_text)(command)


def _remotes(context: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    """Into the environment while the command runs, for this process and those that it starts."""
    if value:
        from precast.artifact_store.remote.attach import checked

        try:
            checked(value, "--remote")
        except StoreError as error:
            raise click.BadParameter(str(error).removeprefix("--remote: ")) from error
        context.call_on_close(functools.partial(_set_remotes, os.environ.get(_REMOTES)))
        _set_remotes(" ".join(value))


def _set_remotes(urls: str | None) -> None:
    if urls is None:
        os.environ.pop(_REMOTES, None)
    else:
        os.environ[_REMOTES] = urls


def remote_option(command: Callable[P, R]) -> Callable[P, R]:
    help_text = "A remote behind the store, by its URL; may be repeated, nearest first (default: PRECAST_REMOTE, else precast.toml)."
    option = click.option("--remote", metavar="URL", multiple=True, expose_value=False, callback=_remotes, help=help_text)
    return option(command)


def errors_to_json(command: Callable[P, R]) -> Callable[P, R]:
    """What the store cannot do is a failure of the command. (With --json, the group makes every failure `{"error": …}` on stdout.)"""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except StoreError as error:
            raise Failure(str(error)) from error

    return wrapped


def open_store(path: str | os.PathLike[str] | None, readonly: bool = True, existing: bool = False) -> Store:
    """The store for a command. Raises Failure with the reason where it cannot be used.

    `existing`: the command is about what is stored, so that a folder which is no store is a slip. Only the default folder may be absent,
    or empty: then nothing was ever built, and that is said.
    """
    try:
        store = Store.open(path, readonly=readonly, strict=True)
        there = what_is_at(store.root)
    except StoreError as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"store {path or default_root()}: cannot be looked into ({error.strerror}); check the permissions") from error
    if there == "store":
        return store
    if existing and (is_chosen(path) or there == "other folder"):
        raise Failure(no_store(store.root, there))
    if existing or (readonly and there == "nothing"):
        _tell_missing(store.root)
    return store


def is_chosen(path: str | os.PathLike[str] | None) -> bool:
    """Whether the store's folder was named, and is not the platform's default."""
    return path is not None or bool(os.environ.get(ENVIRONMENT))


def no_store(root: Path, there: str) -> str:
    """That a folder is no store, with what to do."""
    what = {"nothing": f"there is no store at {root}", "empty folder": f"{root} is no store: the folder is empty"}
    said = what.get(there, f"{root} is no precast store: it has no file 'format'")
    return f"{said}: check --store and {ENVIRONMENT} (and whether it is mounted), or `precast build` something into it first"


@functools.cache
def _tell_missing(root: Path) -> None:
    """Once, although a command may open its store twice."""
    click.echo(f"There is no store yet at {root}: nothing was built; the first build makes one", err=True)


def finish(code: int) -> NoReturn:
    """End the command with this exit code."""
    raise click.exceptions.Exit(code)
