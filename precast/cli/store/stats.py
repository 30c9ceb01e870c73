"""`precast stats`: what is stored, and how it is used: calls, the hit rate, misses by cause, seconds spent and saved, what is bypassed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precast.artifact_store import Store
from precast.artifact_store.statistics.causes import WORDS, cause_of
from precast.artifact_store.statistics.openmetrics import metrics_text
from precast.artifact_store.statistics.sheets import read
from precast.artifact_store.statistics.summary import Summary, Totals, summarise, summary_of
from precast.cli.output import Output, errors_to_json, human_option, json_option, store_option
from precast.cli.store.store_commands import duration_of, for_index, in_remote_option, tell_unknown, tell_unreadable
from precast.report.units import human_age, human_moment, human_seconds, human_size

if TYPE_CHECKING:
    from precast.artifact_store.maintenance.stats import Stats

_SPANS = {"hour": 3600, "day": 86400}
_SIZES = {"size", "saved", "disk_size", "quarantined_size"}
_MOMENTS = {"oldest", "newest", "last_use"}


@click.command(short_help="Figures: artifacts, calls, hit rate, misses by cause.")
@click.option(
    "--by", type=click.Choice(["cause", "program", "tier", "hour", "day"]), help="Calls and misses by this, in place of all figures."
)
@click.option("--bypass", is_flag=True, help="What can never be cached: why, how many calls, seconds lost.")
@click.option("--openmetrics", is_flag=True, help="Print OpenMetrics text, for Prometheus and its kin.")
@click.option("--since", callback=duration_of, metavar="AGE", help="Count only what was counted in this time: 24h, 7d.")
@click.option(
    "--from", "folder", metavar="FOLDER", help="Count what lies in this folder (PRECAST_STATS_DIR of servers), and not the store's."
)
@in_remote_option
@store_option
@human_option
@json_option
@errors_to_json
def stats(
    by: str | None,
    bypass: bool,
    openmetrics: bool,
    since: float | None,
    folder: str | None,
    remote: str | None,
    store_path: str | None,
    human: bool,
    as_json: bool,
) -> None:
    """Figures over all processes and machines that use the store: what is stored, calls served, the hit rate, misses by cause, seconds.

    docs/statistics.md says what each figure is.
    """
    if sum((by is not None, bypass, openmetrics)) > 1:
        raise click.UsageError("--by, --bypass and --openmetrics exclude one another")
    out = Output(as_json, human)
    if remote is not None:
        if by is not None or bypass or openmetrics or since is not None or folder is not None:
            raise click.UsageError("--remote gives what is stored in a remote; calls are counted where they are served")
        from precast.cli.store import remote_keeping

        remote_keeping.stats(out, remote)
        return
    begin = time.time() - since if since is not None else 0.0
    if folder is not None:
        counted, place, store = summarise(_sheets(folder), begin), folder, None
    else:
        store = for_index(store_path)
        counted, place = summary_of(store.root, begin), str(store.root)
    if bypass:
        _bypass(out, counted, place)
    elif openmetrics:
        out.data({"openmetrics": _openmetrics(counted, store), "store": place})
        out.text(_openmetrics(counted, store).removesuffix("\n"))
    elif by is not None:
        _by(out, counted, by, place)
    else:
        _figures(out, counted, store, place)


def _sheets(folder: str) -> Any:
    path = Path(folder)
    if not path.is_dir():
        raise click.BadParameter(
            f"{folder} is no folder: name the one that PRECAST_STATS_DIR names where calls are served", param_hint="--from"
        )
    return read(path)


# -- everything


def _figures(out: Output, counted: Summary, store: Store | None, place: str) -> None:
    from precast.artifact_store.maintenance.stats import stats as figures_of

    figures = figures_of(store) if store is not None else None
    stored = vars(figures) if figures is not None else {}
    out.data({**stored, "store": place, "service": counted.to_dict()})
    raw = _stored_rows(figures) if figures is not None else []
    readable = [(name.replace("_", " "), _shown(figures, name, value)) for name, value in raw] if figures is not None else []
    service = _service_rows(counted)
    raw += [(name, value) for name, value, _ in service]
    readable += [(name, text) for name, _, text in service]
    out.table(("FIGURE", place), raw, readable)
    if figures is not None and store is not None:
        tell_unknown(out, figures.uses_unknown)
        tell_unreadable(out, store)
    if not counted.sums:
        out.note("No calls are counted yet: processes write what they count after a minute, every ten minutes, and when they end")
    elif counted.end is not None:
        out.note(
            f"Calls are counted from {human_moment(counted.begin or 0)} to {human_moment(counted.end)}, by {counted.processes} processes"
        )


def _stored_rows(figures: Stats) -> list[tuple[str, Any]]:
    raw = [(name, "" if value is None else value) for name, value in vars(figures).items() if name not in ("by_target", "uses_unknown")]
    return raw + [(f"artifacts for {target}", count) for target, count in figures.by_target.items()]


def _shown(figures: Stats, name: str, value: Any) -> str:
    if figures.uses_unknown and name in ("hits", "never_used", "last_use"):
        return "?"
    if name in _MOMENTS:
        return human_age(float(value) if value != "" else None)
    return human_size(int(value)) if name in _SIZES else str(value)


def _service_rows(counted: Summary) -> list[tuple[str, Any, str]]:
    """(name, raw, readable) of what was counted while calls were served; nothing where nothing was."""
    if not counted.sums:
        return []
    total = counted.total
    rows: list[tuple[str, Any, str]] = [("calls", total.calls, str(total.calls)), ("calls_hit", total.hits, str(total.hits))]
    if total.hit_rate is not None:
        rows.append(("hit_rate", round(total.hit_rate, 6), _percent(total.hit_rate)))
    for name, value in total.to_dict().items():
        if name in ("calls", "hits", "hit_rate"):
            continue
        text = human_seconds(value) if name.endswith("seconds") else human_size(int(value)) if name.endswith("bytes") else str(value)
        rows.append((name, value, text))
    causes: dict[str, int] = {}
    for cause, _, outcomes in counted.misses():
        causes[cause] = causes.get(cause, 0) + sum(outcomes.values())
    rows += [(f"misses: {cause}", count, str(count)) for cause, count in causes.items()]
    return rows


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if share < 0.99995 or share == 1 else f"{100 * share:.4f} %"


# -- by something


def _by(out: Output, counted: Summary, by: str, place: str) -> None:
    if by == "cause":
        _by_cause(out, counted, place)
        return
    groups: dict[Any, Totals]
    if by == "program":
        groups = {key: totals for key, totals in counted.by_program().items() if key}
        names = {key: counted.names.get(key, key) for key in groups}
    elif by == "tier":
        groups = dict(counted.by_tier())
        names = {key: key for key in groups}
    else:
        groups = dict(counted.over_time(_SPANS[by]))
        names = {key: human_moment(key) for key in groups}
    out.data({"store": place, by: [{by: key, "name": names[key], **totals.to_dict()} for key, totals in groups.items()]})
    if not groups:
        out.note(_NOTHING)
        return
    raw, readable = [], []
    for key, totals in groups.items():
        figures = totals.figures
        rate = totals.hit_rate
        seconds = [round(figures.get(name, 0), 3) for name in ("compile_seconds", "saved_seconds")]
        size = int(figures.get("load_bytes", 0) + figures.get("fetch_bytes", 0))
        raw.append((key, totals.calls, totals.hits, "" if rate is None else round(rate, 6), round(totals.misses), *seconds, size))
        shown = "-" if rate is None else _percent(rate)
        told = [human_seconds(value) for value in seconds]
        readable.append((names[key], str(totals.calls), str(totals.hits), shown, str(round(totals.misses)), *told, human_size(size)))
    out.table((by.upper(), "CALLS", "HITS", "HIT RATE", "MISSES", "COMPILING", "SAVED", "READ"), raw, readable)


def _by_cause(out: Output, counted: Summary, place: str) -> None:
    out.data({"store": place, "causes": counted.to_dict()["causes"]})
    rows = [(cause, detail, sum(outcomes.values()), outcomes) for cause, detail, outcomes in counted.misses()]
    if not rows:
        out.note("No misses" if counted.sums else _NOTHING)
        return
    raw = [
        (cause, detail, count, *(outcomes.get(name, 0) for name in ("compiled", "waited", "eager", "raised")))
        for cause, detail, count, outcomes in rows
    ]
    readable = [
        (cause, detail, str(count), ", ".join(f"{value} {name}" for name, value in outcomes.items()))
        for cause, detail, count, outcomes in rows
    ]
    out.table(("CAUSE", "WHERE", "MISSES", "OUTCOME"), raw, readable)
    if out.human:
        for cause in dict.fromkeys(cause for cause, *_ in rows):
            words = WORDS[cause_of(cause)]
            out.note(f"{cause}: {words.meaning} {words.fix}")


_NOTHING = "Nothing is counted yet: processes write what they count after a minute, every ten minutes, and when they end"


# -- what can never be cached


def _bypass(out: Output, counted: Summary, place: str) -> None:
    rows = counted.bypasses()
    out.data({"store": place, "bypasses": [vars(row) for row in rows], "seconds": round(sum(row.seconds for row in rows), 3)})
    if not rows:
        out.note("Nothing was bypassed" if counted.sums else _NOTHING)
        return
    raw = [(row.program, row.key, row.kind, row.attempts, row.calls, row.seconds, row.reason) for row in rows]
    readable = [(row.program, row.kind, str(row.attempts), str(row.calls), human_seconds(row.seconds), row.reason) for row in rows]
    out.table(("PROGRAM", "KIND", "ATTEMPTS", "CALLS", "LOST", "WHY"), raw, readable)
    lost = human_seconds(sum(row.seconds for row in rows))
    out.note(f"{lost} were spent on compiling what could not be kept; docs/limits.md says what to do about most reasons")


def _openmetrics(counted: Summary, store: Store | None) -> str:
    gauges: list[tuple[str, str, str, float]] = []
    if store is not None:
        from precast.artifact_store.maintenance.stats import stats as figures_of

        figures = figures_of(store)
        gauges = [
            ("artifacts", "", "Artifacts in the store.", figures.artifacts),
            ("programs", "", "Programs with at least one artifact.", figures.programs),
            ("artifact_bytes", "bytes", "Bytes of all artifacts, shared blobs once.", figures.size),
            ("disk_bytes", "bytes", "Bytes of all files of the store.", figures.disk_size),
            ("quarantined", "", "Damaged files that were set aside.", figures.quarantined),
        ]
    if counted.total.hit_rate is not None:
        gauges.append(("hit_ratio", "ratio", "Calls that a stored artifact served at once, of all.", counted.total.hit_rate))
    return metrics_text(counted.sums, counted.names, gauges)
