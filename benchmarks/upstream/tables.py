"""The results as markdown."""

from __future__ import annotations

from typing import Any

from cases import Case
from report import table
from ways import WAYS

Results = dict[str, dict[str, Any]]


def word(outcome: dict[str, Any]) -> str:
    """One cell: what the case gave, with a new compilation or the place of an error."""
    kind = outcome["outcome"]
    if kind == "right":
        return "right, compiled anew" if outcome.get("anew") else "right"
    if kind == "wrong":
        return "**wrong**"
    if kind == "error":
        return f"error at the {outcome['at']}" if "at" in outcome else "process ends"
    return {"unbuilt": "cannot be built", "lacking": "–", "untried": "not tried", "broken": "no first answer"}[kind]


def outcome_table(cases: list[Case], ways: list[str], results: Results) -> str:
    """A row a case, a column a way; then every sentence that is behind a cell, once."""
    body = [[case.title, *(word(results[case.name][way]) for way in ways)] for case in cases]
    lines = [table(["", *(WAYS[way].title for way in ways)], body), ""]
    for case in cases:
        for way in ways:
            outcome = results[case.name][way]
            said = [outcome.get("detail", ""), *outcome.get("notes", ())]
            if any(said):
                lines.append(f"- {case.name}, {way}: {outcome['outcome']}: {' | '.join(s[:300] for s in said if s)}")
    return "\n".join(lines) + "\n"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _ratio(value: float | None, other: float | None) -> str:
    return f"{value / other:.2f}" if value and other else "–"


def timing_table(row: str, results: Results) -> str:
    """All figures of one model; ratios are the way's time over eager's and over precast's."""
    eager = results.get("eager", {}).get("steady")
    ours = next((results[w]["steady"] for w in ("precast_load", "precast") if "steady" in results.get(w, {})), None)
    body = []
    for way, r in results.items():
        if "error" in r:
            body.append([WAYS[way].title, f"no: {r['error'][:160]}", *["–"] * 10])
            continue
        tracer = "yes" if any(n.startswith("torch._dynamo") for n in r["imports"]) else "no"
        body.append(
            [
                WAYS[way].title,
                r["wrong"] or "yes",
                "–" if way == "eager" else f"{r['built']:.1f}",
                f"{r['bytes'] / 2**20:.2f}" if way != "eager" else "–",
                f"{r['torch'] + r['own']:.1f}",
                _ms(r["load"]),
                _ms(r["seconds"]),
                _ms(r.get("steady")),
                _ratio(r.get("steady"), eager),
                _ratio(r.get("steady"), ours),
                tracer,
                str(r["traced"]),
            ]
        )
    names = ["", "right", "build s", "MiB", "imports s", "load ms", "load and first answer ms", "steady ms"]
    disturbed = sum(r.get("disturbed", 0) for r in results.values())
    note = f"\n({disturbed} steady blocks were disturbed by other processes)" if disturbed else ""
    return f"### {row}\n\n{table([*names, '÷ eager', '÷ precast', 'imports Dynamo', 'graphs traced'], body)}{note}\n"
