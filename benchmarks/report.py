"""Tables, ratios and verdicts from the measurements. Markdown, so that it can be pasted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from contenders import CONTENDERS, EXPORTED
from rounds import Result
from rows import ROWS

Rows = dict[str, dict[str, Result]]


def steady(result: Result) -> float | None:
    """Median over the quiet blocks when there are at least three, else over all blocks."""
    quiet = [t for t, ok in zip(result.blocks, result.quiet, strict=True) if ok]
    blocks = quiet if len(quiet) >= 3 else result.blocks
    return statistics.median(blocks) if blocks else None


def spread(result: Result) -> float:
    """Half of the interquartile range over the median, of the single calls."""
    if len(result.steady) < 4:
        return 0.0
    low, _, high = statistics.quantiles(result.steady, n=4)
    return (high - low) / 2 / statistics.median(result.steady)


def geomean(values: Iterable[float]) -> float:
    """Geometric mean; nan of nothing."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def table(head: list[str], body: list[list[str]]) -> str:
    """A markdown table with aligned columns."""
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [[c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in [head, ["-" * w for w in widths], *body]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _mib(size: float | None) -> str:
    return "–" if size is None else f"{size / 2**20:.1f}"


def _warm(result: Result) -> float | None:
    return min(result.warm) if result.warm else None


def best_rival(results: dict[str, Result]) -> tuple[str, float] | None:
    """The fastest of torch's own modes in the steady state; None where torch.compile was not measured."""
    if "inductor" not in results or steady(results["inductor"]) is None:
        return None
    return _fastest(results, [n for n in results if not CONTENDERS[n].ours and n not in EXPORTED])


def _fastest(results: dict[str, Result], names: Iterable[str]) -> tuple[str, float] | None:
    times = [(t, n) for n in names if n in results and (t := steady(results[n])) is not None]
    return (min(times)[1], min(times)[0]) if times else None


def row_table(name: str, results: dict[str, Result]) -> str:
    """All figures of one row; the ratio is the contender's time over default precast's."""
    ours = steady(results["precast"]) if "precast" in results else None
    body = []
    for key, r in results.items():
        t = steady(r)
        if r.error or r.absent:
            body.append([CONTENDERS[key].title, f"failed: {r.error[:80]}" if r.error else f"{r.absent}", *["–"] * 8])
            continue
        body.append(
            [
                CONTENDERS[key].title,
                _ms(t),
                f"±{spread(r) * 100:.0f} %",
                f"{t / ours:.2f}" if t and ours else "–",
                "–" if r.cold is None else f"{r.cold:.2f}",
                "–" if key == "eager" else _ms(_warm(r)),
                _mib(r.cold_peak),
                _mib(r.warm_peak),
                _mib(r.size),
                "–" if r.max_error is None else f"{r.max_error:.1e}",
            ]
        )
    head = ["", "steady ms", "spread", "÷ precast", "cold s", "warm ms", "cold peak MiB", "peak MiB", "on disk MiB", "max error"]
    noisy = sum(not q for r in results.values() for q in r.quiet)
    note = f"\n({noisy} of {sum(len(r.quiet) for r in results.values())} blocks were disturbed by other processes)" if noisy else ""
    return f"### {ROWS[name].title}\n\n{table(head, body)}{note}\n"


def _verdict(text: str, met: bool | None) -> str:
    return f"- {'not measured' if met is None else 'met' if met else 'NOT met'}: {text}"


def steady_bars(rows: Rows, bar: float) -> list[str]:
    lines = []
    for setting in ("precast", "precast_freeze"):
        ratios = {}
        for name, results in rows.items():
            rival, t = best_rival(results), steady(results[setting]) if setting in results else None
            if rival and t:
                ratios[name] = rival[1] / t
        if not ratios:
            lines.append(_verdict(f"steady state, {setting}", None))
            continue
        mean = geomean(ratios.values())
        each = ", ".join(f"{n} {v:.2f}" for n, v in ratios.items())
        lines.append(
            _verdict(f"steady, {setting} against the best rival of each row: geomean {mean:.2f}x, bar {bar}x ({each})", mean >= bar)
        )
        lines.append(_verdict(f"no row slower ({setting})", all(v >= 1 for v in ratios.values())))
    return lines + _exported_bars(rows)


def _exported_bars(rows: Rows) -> list[str]:
    """`freeze` against the engines that take an exported model, where one was measured."""
    ratios = {}
    for name, results in rows.items():
        rival, ours = _fastest(results, EXPORTED), _fastest(results, ["precast_freeze"])
        if rival and ours:
            ratios[name] = rival[1] / ours[1]
    if not ratios:
        return []
    each = ", ".join(f"{n} {v:.2f}" for n, v in ratios.items())
    mean, titles = geomean(ratios.values()), " and ".join(CONTENDERS[n].title for n in EXPORTED)
    return [
        _verdict(f"steady, precast_freeze against the faster of {titles}: geomean {mean:.2f}x, bar 1.05x ({each})", mean >= 1.05),
        _verdict(f"no row slower than {titles} (precast_freeze)", all(v >= 1 for v in ratios.values())),
    ]


def _worst_ratio(rows: Rows, figure: str) -> tuple[float, str] | None:
    """The row where ours over torch.compile's is largest, for `cold`, `warm` or `warm_peak`."""
    worst = None
    for name, results in rows.items():
        if "precast" not in results or "inductor" not in results:
            continue
        ours, theirs = (_warm(r) if figure == "warm" else getattr(r, figure) for r in (results["precast"], results["inductor"]))
        if ours is not None and theirs:
            worst = max(worst or (0.0, ""), (ours / theirs, name))
    return worst


def _disturbed(rows: Rows) -> list[str]:
    """A warning that names the rows whose steady figures had to be taken from disturbed blocks."""
    names = [name for name, results in rows.items() if any(sum(r.quiet) < 3 for r in results.values() if r.quiet)]
    return [f"- CAUTION: other processes disturbed {', '.join(names)}: measure these rows again on a quiet machine"] if names else []


def bars(rows: Rows, bar: float) -> str:
    """Whether each promised bar is met, with the figure that decides."""
    lines = [*_disturbed(rows), *steady_bars(rows, bar)]
    for figure, limit, text in (
        ("cold", 1 / 3, "cold compile over torch.compile's"),
        ("warm", 1 / 10, "warm first call over torch.compile's"),
        ("warm_peak", 1.0, "peak memory over torch.compile's"),
    ):
        worst = _worst_ratio(rows, figure)
        shown = f"worst {worst[0]:.3f} ({worst[1]}), limit {limit:.3f}" if worst else ""
        lines.append(_verdict(f"{text}: {shown}", worst[0] <= limit if worst else None))
    warm = [(w, n) for n, results in rows.items() if "precast" in results and (w := _warm(results["precast"])) is not None]
    lines.append(_verdict(f"warm first call at most 0.3 s: worst {_ms(max(warm)[0])} ms ({max(warm)[1]})" if warm else "warm <= 0.3 s",
                          max(warm)[0] <= 0.3 if warm else None))  # fmt: skip
    return "### Bars\n\n" + "\n".join(lines) + "\n"
