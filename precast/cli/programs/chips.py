"""`precast rates`, which measures what this machine does in a second, and the option that names the chip that predicts times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from precast.artifact_store.format.text import many
from precast.cli.output import Failure, Output, errors_to_json, finish, json_option
from precast.report.units import human_size

if TYPE_CHECKING:
    from precast.lowering.costs.chips import Chip

P = ParamSpec("P")
R = TypeVar("R")


def chip_option(command: Callable[P, R]) -> Callable[P, R]:
    """Adds --chip; its value is for `chip_named`."""
    told = "Predict times of this chip: a name that is known, or a file of `precast rates`."
    return click.option("--chip", metavar="NAME | FILE.json", help=told)(command)


def chip_named(name: str | None) -> Chip | None:
    """The chip that --chip means. Raises UsageError where there is none."""
    from precast.lowering.costs.chip_records import CHIPS
    from precast.lowering.costs.chips import from_data

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


def chip_for(target: str, here: bool) -> Chip | None:
    """The chip whose record predicts times of an artifact for this target: that of this machine where it runs `here`, or is made for this
    very CPU, else the one that stands for the target. None where none is known.
    """
    from precast.lowering.costs.chip_records import chip_of
    from precast.profiling.chip_rates import chip_here
    from precast.runtime.targets.cpu import native_target
    from precast.target_registry import family_of

    on_host = family_of(target).on_host
    found = chip_here("cpu" if on_host else target.partition(":")[0]) if here or target == native_target() else None
    return found or chip_of(target)


@click.command(short_help="Measure what this machine does in a second.")
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda", help="What to measure.")
@json_option
@errors_to_json
def rates(device: str, as_json: bool) -> None:
    """Measure this machine: bytes a second by how much is touched, operations a second of products by type and size, simple operations a
    second of generated code, and what a step costs at least. Takes half a minute, and an idle machine.

    With --json it prints the record from which `--chip FILE.json` of show, profile and report predicts times.
    """
    from precast.lowering.costs.chips import to_data
    from precast.profiling.chip_rates import measured_chip

    out = Output(as_json)
    try:
        found = measured_chip(device, out.note)
    except (RuntimeError, AssertionError) as error:
        raise Failure(f"{device} cannot be measured: {' '.join(str(error).split())}") from error
    out.data(to_data(found))
    out.text(f"{found.name}, {many(found.units, 'unit')}: {found.source}")
    out.text(f"a step costs {found.call * 1e6:.2f} µs at least")
    for amount, rate in found.memory.points:
        out.text(f"{human_size(int(amount))} touched\t{rate / 1e9:.1f} GB/s")
    for name, curve in found.products.items():
        amount, rate = max(curve.points, key=lambda point: point[1])
        out.text(f"products in {name}\t{rate / 1e9:.0f} GFLOP/s, of {amount:.1g} operations")
    for name, rate in found.loops.items():
        out.text(f"loops in {name}\t{rate / 1e9:.0f} G simple operations/s")
    finish(0)


__all__ = ["chip_for", "chip_named", "chip_option", "rates"]
