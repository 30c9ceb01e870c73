"""`precast record`: record the calls of a command, or show what was recorded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import click

from precast.artifact_store.format.text import many
from precast.artifact_store.statistics.recorded_calls import read
from precast.cli.output import ANSWER_NO, Failure, Output, finish, human_option, json_option

RECORD = "PRECAST_RECORD"


@click.command(short_help="Record what calls look like, for the next build.")
@click.argument("path", metavar="PATH")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]")
@click.option("--misses", is_flag=True, help="Show only calls that no artifact served.")
@human_option
@json_option
def record(path: str, command: tuple[str, ...], misses: bool, human: bool, as_json: bool) -> None:
    """Show the calls that were recorded in PATH, a file or a folder; with a COMMAND, run it first and record its calls there.

    Recorded are shapes, dtypes, strides, devices and scalars, and never a tensor's content. `recorded = "PATH"` in a build file makes
    `precast build` compile for them. A server records by PRECAST_RECORD=PATH in its environment.
    """
    out = Output(as_json, human)
    code = 0
    if command:
        code = _run(path, command, as_json)
    place = Path(path)
    if not place.exists() and not command:
        raise Failure(f"there is no {path}: give the file or folder that PRECAST_RECORD names where calls are served")
    try:
        calls = read([place]) if place.exists() else []
    except OSError as error:
        raise Failure(f"{path}: cannot be read ({error.strerror})") from error
    calls = [call for call in calls if not (misses and call.hit)]
    out.data({"path": path, "calls": [{**vars(call), "unknown": call.unknown, "shown": str(call)} for call in calls], "exit_code": code})
    rows = [(call.program, "hit" if call.hit else "miss", str(call), "; ".join(call.unknown)) for call in calls]
    if rows:
        out.table(("PROGRAM", "SERVED", "CALL", "CANNOT BE BUILT"), rows, rows)
    missed = sum(not call.hit for call in calls)
    out.note(f"{many(len(calls), 'kind')} of calls recorded, of which {missed} missed" if calls else f"No calls recorded in {path}")
    finish(ANSWER_NO if code else 0)


def _run(path: str, command: tuple[str, ...], as_json: bool) -> int:
    """The command's exit code. What it prints goes to stderr where stdout is for JSON."""
    try:
        environment = {**os.environ, RECORD: os.path.abspath(path) + ("/" if path.endswith("/") else "")}
        return subprocess.run(command, env=environment, stdout=2 if as_json else None, check=False).returncode
    except OSError as error:
        raise Failure(f"{command[0]}: cannot be run ({error.strerror})") from error


__all__ = ["record"]
