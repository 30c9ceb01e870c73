"""Tables and verdicts of the GPU benchmark, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from gpu_contenders import CONTENDERS, OURS, THEIRS
from gpu_measure import Result
from gpu_rows import ROWS
from report import geomean, table

Rows = dict[str, dict[str, Result]]
Facts = dict[str, float]
"""Of one row: "flops", "weight_bytes", and the chip's "bf16_tflops", "tf32_tflops", "copy_tbps"."""

DEFAULT_BAR = 1.35
COLD, WARM = 1 / 3, 1 / 10


def middle(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _with_spread(values: list[float]) -> str:
    """The median in ms, and half of the interquartile range over it where there are rounds enough for one."""
    if len(values) < 4:
        return _ms(middle(values))
    low, _, high = statistics.quantiles(values, n=4)
    return f"{_ms(middle(values))} ±{100 * (high - low) / 2 / statistics.median(values):.1f} %"


def _ms(seconds: float | None, digits: int = 3) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.{digits}f}"


def _mib(size: float | None) -> str:
    return "–" if size is None else f"{size / 2**20:.0f}"


def _share(amount: float | None, peak: float | None) -> str:
    return "–" if not amount or not peak else f"{100 * amount / peak:.0f} %"


def steady_table(name: str, results: dict[str, Result], facts: Facts) -> str:
    """Steady state of one row: times of a call, what the device did, how much of the chip's measured peaks, errors."""
    eager = results["eager"].difference if "eager" in results else None
    body = []
    for key, r in results.items():
        sync = middle(r.sync)
        if sync is None:
            body.append([CONTENDERS[key].title, f"failed: {r.error}" if r.error else "–", *["–"] * 9])
            continue
        matrix = facts.get("flops", 0) / sync / 1e12
        memory = facts.get("weight_bytes", 0) / sync / 1e12
        body.append(
            [
                CONTENDERS[key].title,
                _with_spread(r.sync),
                _with_spread(r.b2b),
                "–" if r.kernels is None else f"{r.kernels:.0f}",
                _ms(r.busy),
                "–" if r.busy is None else _ms(statistics.median(r.b2b) - r.busy),
                _share(matrix, facts.get(ROWS[name].peak)),
                _share(memory, facts.get("copy_tbps")),
                "–" if r.difference is None else f"{r.difference:.2e}",
                "–" if r.difference is None or not eager else f"{r.difference / eager:.2f}",
                "–" if r.prepared is None else f"{r.prepared:.1f}",
            ]
        )
    head = [
        "",
        "sync ms",
        "back to back ms",
        "kernels",
        "busy ms",
        "gaps ms",
        "matrix peak",
        "weights ÷ copy peak",
        "error",
        "÷ eager's",
        "prepared s",
    ]
    return table(head, body)


def fresh_table(results: dict[str, Result]) -> str:
    """Cold and warm first calls and memory; empty where neither was measured."""
    body = [
        [
            CONTENDERS[key].title,
            "–" if r.cold is None else f"{r.cold:.2f}",
            "–" if not r.warm else f"{_ms(min(r.warm), 0)} ({', '.join(_ms(w, 0) for w in r.warm)})",
            _mib(r.warm_peak),
            _mib(r.device_bytes),
            _mib(r.cold_peak),
            _mib(r.size),
        ]
        for key, r in results.items()
        if r.cold is not None
    ]
    head = ["", "cold s", "warm ms, best (all)", "peak MiB", "device MiB", "cold peak MiB", "on disk MiB"]
    return table(head, body) if body else ""


def row_text(name: str, results: dict[str, Result], facts: Facts) -> str:
    """Everything about one row."""
    rounds = max((len(r.sync) for r in results.values()), default=0)
    runs = {r.run for r in results.values() if r.sync}
    lines = [f"### {ROWS[name].title}", "", steady_table(name, results, facts)]
    if "flops" in facts:
        lines.append(f"\n{facts['flops'] / 1e9:.0f} GFLOP of matrix work, {facts['weight_bytes'] / 1e6:.0f} MB of weights; {rounds} rounds")
    if len(runs) > 1:
        lines.append("(contenders of different runs: these were not interleaved)")
    fresh = fresh_table(results)
    lines += ["", fresh] if fresh else []
    lines += [f"- {CONTENDERS[key].title}: {r.error}" for key, r in results.items() if r.error]
    return "\n".join(lines) + "\n"


def dearest(results: dict[str, Result]) -> str:
    """Where each contender's device time goes: its dearest kernels, calls and microseconds per call."""
    lines = []
    for key, r in results.items():
        if r.top:
            lines.append(f"{CONTENDERS[key].title}:")
            lines += [f"    {1e6 * seconds:9.1f} us  {count:5.1f}x  {name}" for name, count, seconds in r.top]
    return "\n".join(lines)


def ratio(theirs: Result, ours: Result) -> float | None:
    """How many times faster: the median over rounds of the two medians' quotient where both are of one run, else of the medians."""
    if not theirs.sync or not ours.sync:
        return None
    if theirs.run == ours.run and len(theirs.sync) == len(ours.sync):
        return statistics.median(t / o for t, o in zip(theirs.sync, ours.sync, strict=True))
    return statistics.median(theirs.sync) / statistics.median(ours.sync)


def best(results: dict[str, Result], names: Iterable[str]) -> str | None:
    """The fastest of the measured ones."""
    known = [(statistics.median(results[n].sync), n) for n in names if n in results and results[n].sync]
    return min(known)[1] if known else None


def _verdict(text: str, met: bool | None) -> str:
    return f"- {'not measured' if met is None else 'met' if met else 'NOT met'}: {text}"


def _default_bars(rows: Rows) -> list[str]:
    found = {n: q for n, r in rows.items() if {"inductor", "precast"} <= set(r) and (q := ratio(r["inductor"], r["precast"])) is not None}
    if not found:
        return [_verdict("default against default", None)]
    mean = geomean(found.values())
    each = ", ".join(f"{n} {q:.2f}" for n, q in found.items())
    return [
        _verdict(f"default against default: geomean {mean:.2f}x, bar {DEFAULT_BAR}x ({each})", mean >= DEFAULT_BAR),
        _verdict(f"default against default: slowest row {min(found.values()):.2f}x, bar 1x", min(found.values()) >= 1),
    ]


def _best_bars(rows: Rows) -> list[str]:
    lines = []
    for name, results in rows.items():
        bar, ours, theirs = ROWS[name].bar, best(results, OURS), best(results, THEIRS)
        if bar is None:
            continue
        if ours is None or theirs is None:
            lines.append(_verdict(f"best against best, {name}, bar {bar}x", None))
            continue
        q = ratio(results[theirs], results[ours])
        assert q is not None
        lacking = [n for n in THEIRS if n not in results or not results[n].sync]
        note = f"; not measured: {', '.join(lacking)}" if lacking else ""
        lines.append(_verdict(f"best against best, {name}: {q:.2f}x ({ours} over {theirs}{note}), bar {bar}x", q >= bar))
    return lines


def _error_bar(rows: Rows) -> str:
    found = [
        (r.difference / results["eager"].difference, f"{name}/{key}")
        for name, results in rows.items()
        if "eager" in results and results["eager"].difference
        for key, r in results.items()
        if key in OURS and r.difference is not None
    ]
    if not found:
        return _verdict("error no larger than eager's", None)
    worst = max(found)
    return _verdict(f"error against float32 over eager's own: worst {worst[0]:.3f} ({worst[1]}), limit 1", worst[0] <= 1)


def _fresh_bars(rows: Rows) -> list[str]:
    lines = []
    for figure, limit, text in (("cold", COLD, "cold compile"), ("warm", WARM, "warm first call"), ("device_bytes", 1.0, "device memory")):
        for ours, theirs in (("precast", "inductor"), ("precast_ro", "inductor_ro")):
            found = []
            for name, results in rows.items():
                pair = [_figure(results[k], figure) if k in results else None for k in (ours, theirs)]
                if pair[0] is not None and pair[1]:
                    found.append((pair[0] / pair[1], name))
            if found:
                worst = max(found)
                each = ", ".join(f"{n} {q:.3f}" for q, n in found)
                lines.append(_verdict(f"{text}, {ours} over {theirs}: worst {worst[0]:.3f}, limit {limit:.3f} ({each})", worst[0] <= limit))
    return lines or [_verdict("cold compile and warm first call", None)]


def _figure(result: Result, figure: str) -> float | None:
    value = getattr(result, figure)
    return (min(value) if value else None) if isinstance(value, list) else value


def bars(rows: Rows) -> str:
    """Whether each promised bar is met, with the figure that decides."""
    return "### Bars\n\n" + "\n".join([*_default_bars(rows), *_best_bars(rows), _error_bar(rows), *_fresh_bars(rows)]) + "\n"
