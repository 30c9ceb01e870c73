"""`precast profile`: where a call's time goes, step by step, beside what the machine could do. It imports torch when it works."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.text import many
from precast.cli.output import (
    Failure,
    Output,
    errors_to_json,
    file_store_option,
    finish,
    human_option,
    json_option,
    open_store,
    verbose_option,
)
from precast.cli.programs.build_commands import load_program, plan_of, store_of, whole_stack
from precast.cli.programs.chips import chip_named, chip_option
from precast.report.user_frames import frames_of

if TYPE_CHECKING:
    from precast.building.build_file import BuildFile
    from precast.lowering.costs.chips import Chip
    from precast.profiling.profiler import GraphProfile, Profile, StepProfile

ORDERS = ("gap", "time", "program")


@click.command(short_help="Show where a call's time goes, kernel by kernel.")
@click.option("--only", metavar="NAME", multiple=True, help="Only this program of the file; may be repeated.")
@click.option("--signature", type=click.IntRange(min=1), help="Only this signature of each program, counted from 1.")
@click.option("--mode", metavar="MODE", help="Compile mode, instead of the file's. CUDA graphs are left out in any.")
@click.option("--calls", type=click.IntRange(min=1), default=20, show_default=True, help="Calls that are timed.")
@click.option("--top", type=click.IntRange(min=0), default=15, show_default=True, help="Steps to show; 0 shows all.")
@click.option("--each", is_flag=True, help="A line for each step, where equal ones of equal layers would share one.")
@chip_option
@click.option("--by", type=click.Choice(ORDERS), default="gap", show_default=True, help="Order of the steps.")
@click.argument("source", metavar="FILE.toml | pkg.mod:factory")
@verbose_option
@file_store_option
@human_option
@json_option
@errors_to_json
def profile(
    source: str,
    only: tuple[str, ...],
    signature: int | None,
    mode: str | None,
    calls: int,
    top: int,
    each: bool,
    by: str,
    chip: str | None,
    store_path: str | None,
    human: bool,
    as_json: bool,
) -> None:
    """Call each signature of each program, and print of each step of its compiled graphs: seconds, share of the call, the part of the
    machine's rate that it reaches, what bounds it, what it fuses, and the line of the program it comes from. Steps with the largest gap
    to what the machine could do come first. Beside the time stands what was to be expected by the record of this machine's kind.

    What the store lacks is compiled into it. The machine's rates are measured first: a copy that no cache holds, and square products.
    """
    out = Output(as_json, human)
    plan = plan_of(source, (), mode, only)
    store = open_store(store_of(store_path, plan), readonly=False)
    found: list[Profile] = []
    for one in profiles_of(out, plan, store, signature, calls, chip_named(chip)):
        found.append(one)
        _print(out, one, top, by, each)
    out.data([data_of(item) for item in found])
    finish(0)


def profiles_of(
    out: Output, plan: BuildFile, store: Store, signature: int | None, calls: int, chip: Chip | None = None
) -> Iterator[Profile]:
    """Of each signature of each program of a build file, or of the one with this number. Raises UsageError, and Failure with the user's
    lines where a program raises.
    """
    from precast.profiling.marks import Lost
    from precast.profiling.profiler import profile as run
    from precast.runtime.common.errors import PrecastError

    for program in plan.programs:
        loaded = load_program(program, plan)
        numbers = range(1, len(loaded.signatures) + 1)
        if signature is not None and signature not in numbers:
            raise click.UsageError(f"{program.name} has {many(len(loaded.signatures), 'signature')}; there is no {signature}")
        for number in numbers if signature is None else (signature,):
            out.note(f"{program.name}: signature {number} of {len(loaded.signatures)}")
            try:
                found = run(loaded, number, store, calls=calls, mode=program.mode, chip=chip)
            except Lost as error:
                raise Failure(f"{program.name}, signature {number}: {error}") from error
            except PrecastError:
                raise
            except (Exception, SystemExit) as error:  # a program is the user's code and may raise anything
                said = f"{program.name}, signature {number}: calling it raised {type(error).__name__}: {error}"
                lines = frames_of(error)
                raise Failure("\n".join([said, *lines, *whole_stack(error, lines)])) from error
            if found.unrecorded and not found.graphs:
                _must_be_writable(store)
            yield found


def _must_be_writable(store: Store) -> None:
    """Raises Failure where what was compiled could not be stored, so that nothing is known of it."""
    try:
        store.check_writable()
    except StoreError as error:
        raise Failure(f"{error}. What is compiled has to be stored to be profiled") from error


def data_of(profile: Profile) -> dict[str, Any]:
    """The whole profile for --json; seconds, bytes, and rates a second."""
    return {
        "program": profile.program,
        "signature": profile.signature,
        "seconds": {
            "call": profile.call,
            "eager": profile.eager,
            "recorded": profile.recorded,
            "graphs": profile.in_graphs,
            "outside": profile.outside,
        },
        "peaks": asdict(profile.peaks),
        "unrecorded_graphs": profile.unrecorded,
        "prediction": None
        if profile.chip is None
        else {
            "chip": profile.chip.name,
            "source": profile.chip.source,
            "seconds": profile.predicted,
            "median_of_measured": statistics.median(profile.errors) if profile.errors else None,
        },
        "graphs": [
            {
                "artifact": graph.artifact,
                "program": graph.program,
                "graph": graph.role,
                "target": graph.target,
                "runs_a_call": graph.runs,
                "entry_seconds": graph.entry,
                "steps": [
                    {
                        "seconds": step.seconds,
                        "least_seconds": step.least,
                        "predicted_seconds": step.predicted,
                        "bound": step.bound,
                        **asdict(step.record),
                    }
                    for step in graph.steps
                ],
            }
            for graph in profile.graphs
        ],
    }


@dataclass(frozen=True)
class Row:
    """Steps that are one line of the table: one step, or the equal ones of equal layers. Seconds are of all of them in one call."""

    graph: GraphProfile
    numbers: tuple[int, ...]
    steps: tuple[StepProfile, ...]

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps) * self.graph.runs

    @property
    def least(self) -> float:
        return sum(step.least for step in self.steps) * self.graph.runs

    @property
    def predicted(self) -> float | None:
        """None where no chip's record predicts."""
        known = [step.predicted for step in self.steps if step.predicted is not None]
        return sum(known) * self.graph.runs if known else None

    @property
    def gap(self) -> float:
        return sum(step.gap for step in self.steps) * self.graph.runs

    @property
    def of_peak(self) -> float:
        return self.least / self.seconds if self.seconds else 0.0

    @property
    def place(self) -> str:
        """The first step's, and how many there are."""
        return f"{self.graph.role}.{self.numbers[0]}" + (f" x{len(self.numbers)}" if len(self.numbers) > 1 else "")


def rows_of(profile: Profile, each: bool) -> list[Row]:
    """The table's rows in the order of the program. Steps are equal that do the same amount of the same work for the same lines."""
    found: dict[tuple[Any, ...], list[int]] = {}
    graphs = list(profile.graphs)
    for which, graph in enumerate(graphs):
        for number, step in enumerate(graph.steps):
            record = step.record
            name = "" if record.kind == "kernel" else record.name
            same = (record.kind, name, record.how if record.kind == "library" else "", record.sources, record.bytes, record.operations)
            found.setdefault((which, number) if each or not record.sources else (which, *same), []).append(number)
    return [Row(graphs[key[0]], tuple(own), tuple(graphs[key[0]].steps[n] for n in own)) for key, own in found.items()]


def _print(out: Output, profile: Profile, top: int, by: str, each: bool) -> None:
    peaks, call = profile.peaks, profile.recorded
    ratio = f"{profile.eager / profile.call:.2f}x"
    out.text(f"{profile.program}, signature {profile.signature}: {_ms(profile.call)} a call, eager {_ms(profile.eager)} ({ratio})")
    rates = "".join(f", {rate / 1e9:.0f} GFLOP/s in {name} products" for name, rate in peaks.operations.items())
    out.text(f"machine: {peaks.bytes / 1e9:.1f} GB/s in a copy{rates}")
    inside = f"in compiled graphs {_ms(profile.in_graphs)} ({profile.in_graphs / call:.0%} of a recorded call)"
    out.text(f"{inside}, outside of them {_ms(profile.outside)}")
    if profile.chip is not None and profile.errors:
        out.text(f"{_ms(profile.predicted or 0)} were to be expected of {_told(profile.chip)}; {believable(profile.errors)}")
    if profile.unrecorded:
        out.text(f"{many(profile.unrecorded, 'graph')} of whose steps nothing is known: branches that a graph calls, or not in the store")
    rows = sorted(rows_of(profile, each), key=_KEYS[by])
    shown = rows[:top] if top else rows
    titles = ("TIME", "PREDICTED", "SHARE", "OF PEAK", "BOUND", "STEP", "WHAT", "SOURCE")
    out.table(titles, [_raw(row, call) for row in shown], [_human(row, call) for row in shown])
    if len(shown) < len(rows):
        rest = sum(row.seconds for row in rows) - sum(row.seconds for row in shown)
        out.note(f"{many(len(rows) - len(shown), 'further line')}, {_ms(rest)} together: --top 0 shows all, --by time the slowest first")


def _told(chip: Chip) -> str:
    return f"{chip.name} ({chip.source})"


def believable(errors: Sequence[float]) -> str:
    """How near predictions were, from the sorted quotients of predicted and measured seconds."""
    low, middle, high = (errors[round(part * (len(errors) - 1))] for part in (0.25, 0.5, 0.75))
    return f"predicted over measured {middle:.2f} in the median of {many(len(errors), 'step')}, {low:.2f} to {high:.2f} in half of them"


_KEYS: dict[str, Callable[[Row], float]] = {"gap": lambda row: -row.gap, "time": lambda row: -row.seconds, "program": lambda row: 0}


def _raw(row: Row, call: float) -> tuple[Any, ...]:
    first = row.steps[0]
    sources = "; ".join(first.record.sources)
    expected = f"{row.predicted:.9f}" if row.predicted is not None else ""
    share = f"{row.seconds / call:.4f}"
    return f"{row.seconds:.9f}", expected, share, f"{row.of_peak:.3f}", first.bound, row.place, what(first), sources


def _human(row: Row, call: float) -> tuple[str, ...]:
    first, sources = row.steps[0], row.steps[0].record.sources
    more = f" (+{len(sources) - 1})" if len(sources) > 1 else ""
    source = sources[-1] + more if sources else ""
    expected, share = _ms(row.predicted) if row.predicted is not None else "", f"{row.seconds / call:.1%}"
    return _ms(row.seconds), expected, share, f"{row.of_peak:.0%}", first.bound, row.place, what(first), source


def what(step: StepProfile) -> str:
    """The step in a few words: its name, who computes it, and what it fuses."""
    record = step.record
    name = f"{record.name} by {record.how}" if record.kind == "library" else record.name
    fused = ", ".join(record.origins[:4]) + (f" … {len(record.origins)} nodes" if len(record.origins) > 4 else "")
    return f"{name}: {fused}" if fused else name


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


__all__ = ["data_of", "profile", "profiles_of", "rows_of"]
