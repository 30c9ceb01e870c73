"""The figures over processes and machines: calls, the hit rate, misses by cause, seconds spent and saved, by program, tier and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precast.artifact_store.statistics.causes import WORDS, Outcome, cause_of
from precast.artifact_store.statistics.fold import DAY, HOUR
from precast.artifact_store.statistics.places import folders_to_read
from precast.artifact_store.statistics.series import Series
from precast.artifact_store.statistics.sheets import Sheet, read

_AFTER_A_MISS = (Outcome.COMPILED, Outcome.WAITED)
"""Outcomes of a miss whose call is then served by compiled code, so that it counts among the calls, too."""


@dataclass
class Totals:
    """Sums over some sheets. `calls`: all of them, served or not; `hits`: those that an artifact served that was there before."""

    figures: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    misses_served: float = 0
    misses: float = 0

    def add(self, series: Series, value: float) -> None:
        """Count one sum in."""
        self.figures[series.figure] += value
        if series.figure == "misses":
            self.misses += value
            self.misses_served += value if series.outcome in _AFTER_A_MISS else 0

    @property
    def hits(self) -> int:
        return max(0, round(self.figures.get("calls", 0) - self.misses_served))

    @property
    def calls(self) -> int:
        return self.hits + round(self.misses)

    @property
    def hit_rate(self) -> float | None:
        """Hits of all calls; None without calls."""
        return self.hits / self.calls if self.calls else None

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        others = {name: _number(value) for name, value in sorted(self.figures.items()) if name not in ("calls", "misses")}
        rate = None if self.hit_rate is None else round(self.hit_rate, 6)
        return {"calls": self.calls, "hits": self.hits, "misses": round(self.misses), "hit_rate": rate, **others}


@dataclass
class Summary:
    """Everything that was counted. `sums`: all series; `spans`: from when to when; `processes`, `machines`: how many have counted."""

    sums: dict[Series, float]
    names: dict[str, str]
    hours: dict[int, Totals]
    begin: float | None
    end: float | None
    processes: int
    machines: int

    @property
    def total(self) -> Totals:
        return _totals(self.sums, lambda series: "").get("", Totals())

    def by_program(self) -> dict[str, Totals]:
        """By program key, the most called first."""
        found = _totals(self.sums, lambda series: series.program)
        return dict(sorted(found.items(), key=lambda item: (-item[1].calls, item[0])))

    def by_tier(self) -> dict[str, Totals]:
        """By tier: "local", or a remote's URL."""
        return dict(sorted(_totals(self.sums, lambda series: series.tier or "local").items()))

    def over_time(self, span: int = DAY) -> dict[int, Totals]:
        """By the beginning of each span, in unix seconds."""
        found: dict[int, Totals] = {}
        for hour, totals in sorted(self.hours.items()):
            merged = found.setdefault(hour // span * span, Totals())
            merged.misses += totals.misses
            merged.misses_served += totals.misses_served
            for name, value in totals.figures.items():
                merged.figures[name] += value
        return found

    def misses(self) -> list[tuple[str, str, dict[str, int]]]:
        """Causes of misses with the kind of guard, version … and how often they had which outcome; the most frequent first."""
        found: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for series, value in self.sums.items():
            if series.figure == "misses":
                found[series.reason, series.detail][series.outcome] += round(value)
        rows = [(cause, detail, dict(sorted(outcomes.items()))) for (cause, detail), outcomes in found.items()]
        return sorted(rows, key=lambda row: (-sum(row[2].values()), row[:2]))

    def bypasses(self) -> list[Bypass]:
        """What could not be cached, the dearest first."""
        found: dict[tuple[str, str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for series, value in self.sums.items():
            if series.figure in ("bypasses", "lost_seconds", "bypassed_calls"):
                found[series.program, series.outcome, series.reason][series.figure] += value
        rows = [_bypass(*key, self.names, figures) for key, figures in found.items()]
        return sorted(rows, key=lambda row: (-row.seconds, -row.calls, row.program, row.reason))

    def to_dict(self) -> dict[str, Any]:
        """For programs; `causes` have their meaning and what to do."""
        causes = []
        for cause, detail, outcomes in self.misses():
            words = WORDS[cause_of(cause)]
            causes.append({"cause": cause, "detail": detail, "outcomes": outcomes, "meaning": words.meaning, "fix": words.fix})
        return {
            **self.total.to_dict(),
            "since": self.begin,
            "until": self.end,
            "processes": self.processes,
            "machines": self.machines,
            "causes": causes,
            "programs": [
                {"key": key, "name": self.names.get(key, key), **totals.to_dict()} for key, totals in self.by_program().items() if key
            ],
            "tiers": [{"tier": tier, **totals.to_dict()} for tier, totals in self.by_tier().items()],
            "days": [{"begin": begin, **totals.to_dict()} for begin, totals in self.over_time().items()],
        }


@dataclass(frozen=True)
class Bypass:
    """What of one program cannot be cached. `kind`: "refused", "in process", "skipped", "failed"; `attempts` to compile it, and `seconds`
    that they took; `calls` that ran for this reason eagerly, or from their process only.
    """

    key: str
    program: str
    kind: str
    reason: str
    attempts: int
    calls: int
    seconds: float


def summarise(sheets: Iterable[Sheet], since: float = 0.0) -> Summary:
    """The figures of the sheets that end after `since`."""
    sums: dict[Series, float] = defaultdict(float)
    names: dict[str, str] = {}
    hours: dict[int, Totals] = {}
    begin: float | None = None
    end: float | None = None
    machines: set[str] = set()
    processes: set[tuple[str, int]] = set()
    folded = 0
    for sheet in sheets:
        if sheet.end < since:
            continue
        begin = sheet.begin if begin is None else min(begin, sheet.begin)
        end = sheet.end if end is None else max(end, sheet.end)
        names |= sheet.names
        machines |= {sheet.machine} if sheet.machine else set()
        processes |= {(sheet.machine, sheet.process)} if sheet.process else set()
        folded += 0 if sheet.process else sheet.processes
        hour = hours.setdefault(int(sheet.end // HOUR * HOUR), Totals())
        for series, value in sheet.sums.items():
            sums[series] += value
            hour.add(series, value)
    return Summary(dict(sums), names, hours, begin, end, len(processes) + folded, len(machines))


def summary_of(root: Path, since: float = 0.0) -> Summary:
    """The figures of the store at `root`, from beside it and from the places of processes that could not write there."""
    place = str(root)
    sheets = [sheet for folder, whole in folders_to_read(root) for sheet in read(folder) if whole or sheet.store == place]
    return summarise(sheets, since)


def _bypass(key: str, kind: str, reason: str, names: Mapping[str, str], figures: Mapping[str, float]) -> Bypass:
    attempts, calls = round(figures.get("bypasses", 0)), round(figures.get("bypassed_calls", 0))
    return Bypass(key, names.get(key, key), kind, reason, attempts, calls, round(figures.get("lost_seconds", 0.0), 3))


def _totals(sums: Mapping[Series, float], group: Callable[[Series], str]) -> dict[str, Totals]:
    found: dict[str, Totals] = {}
    for series, value in sums.items():
        found.setdefault(group(series), Totals()).add(series, value)
    return found


def _number(value: float) -> float | int:
    return int(value) if float(value).is_integer() else round(value, 3)


__all__ = ["Bypass", "Summary", "Totals", "summarise", "summary_of"]
