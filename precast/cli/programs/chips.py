"""`precast rates`, which measures what this machine does in a second, and the option that names the chip that predicts times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from precast.cli.output import Failure, Output, errors_to_json, finish

if TYPE_CHECKING:
    from precast.lowering.analysis.chips import Chip

P = ParamSpec("P")
R = TypeVar("R")


def chip_option(command: Callable[P, R]) -> Callable[P, R]:
    """Adds --chip; its value is for `chip_named`."""
    told = "Predict times of this chip: a name that is known, or a file of `precast rates`."
    return click.option("--chip", metavar="NAME | FILE.json", help=told)(command)


def chip_named(name: str | None) -> Chip | None:
    """The chip that --chip means. Raises UsageError where there is none."""
    from precast.lowering.analysis.chip_records import CHIPS
    from precast.lowering.analysis.chips import from_data

    if name is None:
        return None
    if name.endswith(".json"):
        try:
            return from_data(json.loads(Path(name).read_text()))
        except (OSError, ValueError) as error:
            raise click.UsageError(f"--chip {name}: {error}") from error
    found = [chip for own, chip in CHIPS.items() if name.lower() in own.lower()]
    exact = [chip for chip in found if chip.name.lower() == name.lower()]
    if len(exact or found) != 1:
        which = "several are called so" if found else "no chip of that name is known"
        raise click.UsageError(f"--chip {name}: {which}; there are {', '.join(CHIPS)}, and files of `precast rates`")
    return (exact or found)[0]


@click.command(short_help="Measure what this machine does in a second, for predictions.")
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda", help="What to measure.")
@errors_to_json
def rates(device: str) -> None:
    """Measure this machine, and print its record as JSON: bytes a second by how much is touched, operations a second of products by
    type and size, simple operations a second of generated code, and what a step costs at least. Takes half a minute, on an idle machine.

    `--chip FILE` of show, profile and report predicts times by such a record.
    """
    from precast.lowering.analysis.chips import to_data
    from precast.profiling.chip_rates import measured_chip

    out = Output(as_json=True)
    try:
        found: dict[str, Any] = to_data(measured_chip(device, out.note))
    except (RuntimeError, AssertionError) as error:
        raise Failure(f"{device} cannot be measured: {str(error).splitlines()[0]}") from error
    out.data(found)
    finish(0)


__all__ = ["chip_named", "chip_option", "rates"]
