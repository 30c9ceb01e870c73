"""The `precast` command. Commands live in the modules beside this one and are loaded when called, so that `precast ls` imports no torch."""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

import click

from precast.cli.output import ANSWERED

# command -> (module, attribute); the order is that of `precast --help`
COMMANDS = {
    "build": ("precast.cli.programs.build_commands", "build"),
    "check": ("precast.cli.programs.build_commands", "check"),
    "explain": ("precast.cli.programs.build_commands", "explain"),
    "ls": ("precast.cli.store.store_commands", "ls"),
    "show": ("precast.cli.store.show", "show"),
    "prune": ("precast.cli.store.store_commands", "prune"),
    "rm": ("precast.cli.store.keeping", "rm"),
    "pin": ("precast.cli.store.keeping", "pin"),
    "unpin": ("precast.cli.store.keeping", "unpin"),
    "pins": ("precast.cli.store.keeping", "list_pins"),
    "uses": ("precast.cli.store.uses", "uses"),
    "verify": ("precast.cli.store.store_commands", "verify"),
    "stats": ("precast.cli.store.stats", "stats"),
    "record": ("precast.cli.programs.record", "record"),
    "doctor": ("precast.cli.health.doctor", "doctor"),
    "dir": ("precast.cli.store.store_commands", "dir_"),
    "clean": ("precast.cli.store.store_commands", "clean"),
    "export": ("precast.cli.fleet.bundle_commands", "export_"),
    "import": ("precast.cli.fleet.bundle_commands", "import_"),
    "keygen": ("precast.cli.fleet.trust_commands", "keygen"),
    "sign": ("precast.cli.fleet.trust_commands", "sign"),
    "trust": ("precast.cli.fleet.trust_commands", "trust"),
    "push": ("precast.cli.fleet.move_commands", "push"),
    "pull": ("precast.cli.fleet.move_commands", "pull"),
    "sync": ("precast.cli.fleet.move_commands", "sync"),
    "diff": ("precast.cli.fleet.diff", "diff"),
    "options": ("precast.cli.programs.options", "options"),
    "tune": ("precast.cli.programs.tune", "tune"),
    "profile": ("precast.cli.programs.profile", "profile"),
    "rates": ("precast.cli.programs.chips", "rates"),
    "report": ("precast.cli.programs.report", "report"),
    "demo": ("precast.cli.programs.demo_and_bench", "demo"),
    "bench": ("precast.cli.programs.demo_and_bench", "bench"),
}


class Lazy(click.Group):
    """A group that imports a command's module when it is asked for. With --json, whatever fails is `{"error": …}` on stdout as well."""

    _as_json = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:
        self._as_json = "--json" in args
        with self._errors({}):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with self._errors(ctx.meta):
            return super().invoke(ctx)

    @contextmanager
    def _errors(self, meta: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if self._as_json and not meta.get(ANSWERED):
                known = isinstance(error, click.ClickException)
                said = error.format_message() if isinstance(error, click.ClickException) else f"{type(error).__name__}: {error}"
                click.echo(json.dumps({"error": said if known else f"{said} (an error of precast: the traceback is on stderr)"}))
            raise


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(version("precast"))
        ctx.exit()


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version.")
def main() -> None:
    """Compile PyTorch programs ahead of time, and look after the store that keeps them.

    Exit codes: 0 done, 1 the answer is no or it could not be done, 2 wrong usage. Data goes to stdout, everything else to stderr.
    PRECAST_LOGS=store,driver,… shows what goes on inside.
    """
    from precast.runtime.common.log import configure

    configure()


def run() -> None:
    """Entry point: as `main`, and quiet when the reader of our output goes away (`precast ls | head`); one sentence on a full disk."""
    sys.stdout = cast(TextIO, Patient(sys.stdout or open(os.devnull, "w")))  # None where the caller closed it (`precast ls >&-`)
    sys.stderr = cast(TextIO, Patient(sys.stderr or open(os.devnull, "w")))
    try:
        main(prog_name="precast")
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _forget(sys.stdout)
        click.echo(f"error: the output cannot be written: {error.strerror}", err=True)
        sys.exit(1)


class Patient:
    """An output whose reader may go away (`precast show ID | head -1`): what is written from then on is lost, and the command goes on to
    its exit code.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            _forget(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            _forget(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _forget(stream: TextIO) -> None:
    """Discards the rest of the buffer of a stream whose reader is gone, so that it does not fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
