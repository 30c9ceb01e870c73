"""`precast demo` and `precast bench`: they only start what lives elsewhere."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import click

import precast
from precast.artifact_store.place import default_root
from precast.cli.output import Failure, errors_to_json, finish, json_option, named


@click.command(short_help="Run a real model: eager, cold, warm in a fresh process.")
@click.option("--store", "store_path", metavar="PATH", callback=named, help="Keep what is compiled here (default: a temporary folder).")
@json_option
@errors_to_json
def demo(store_path: str | None, as_json: bool) -> None:
    """A real model with its real weights: eager, cold, warm in a fresh process, and what is in the store."""
    if importlib.util.find_spec("torch") is None:
        raise Failure("torch is not installed: pip install torch")
    from precast.cli.programs.demo import DemoError, run

    try:
        code = run(default_root(store_path) if store_path else None, as_json)
    except DemoError as error:
        raise Failure(str(error)) from error
    finish(code)


@click.command(context_settings={"ignore_unknown_options": True}, short_help="Measure side by side with torch.compile and others.")
@click.option(
    "--json",
    "figures",
    is_flag=False,
    flag_value="-",
    metavar="[PATH]",
    help="Write the figures as JSON into this file; without a file, or with -, to stdout.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(figures: str | None, arguments: tuple[str, ...]) -> None:
    """Measure side by side with torch.compile, its freezing option, AOTInductor and eager.

    Takes the benchmark's own options, for instance --quick or --rows resnet50,bert. Needs a checkout of the source repository.
    """
    as_json = figures == "-"
    if figures is not None and not as_json:
        arguments = ("--json", figures, *arguments)
    script = Path(precast.__file__).resolve().parents[1] / "benchmarks" / "run.py"
    if not script.is_file():
        raise Failure("the benchmarks are not part of the installed package: clone the source repository and run `make bench` there")
    command = [sys.executable, str(script), *arguments]
    if not as_json:
        finish(subprocess.run(command, check=False).returncode)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "figures.json"
        done = subprocess.run([*command, "--json", str(written)], stdout=sys.stderr.fileno(), check=False)
        if written.is_file():
            click.echo(written.read_text("utf-8"))
        finish(done.returncode)
