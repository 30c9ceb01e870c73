"""A strict parser of OpenMetrics text 1.0, as far as counters and gauges go: what the standard forbids raises AssertionError."""

from __future__ import annotations

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL}(?:,{_LABEL})*)?)\}})? (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text: str) -> dict[str, tuple[str, dict[tuple[tuple[str, str], ...], float]]]:
    """Family -> (type, {labels: value})."""
    assert text.endswith("# EOF\n"), "the text ends in # EOF and a line feed"
    families: dict[str, tuple[str, dict[tuple[tuple[str, str], ...], float]]] = {}
    current, told = "", set[str]()
    for line in text.removesuffix("# EOF\n").splitlines():
        assert "# EOF" not in line and line == line.strip()
        if line.startswith("# "):
            _, kind, name, value = line.split(" ", 3)
            assert kind in ("TYPE", "UNIT", "HELP") and re.fullmatch(_NAME, name)
            if name != current:
                assert kind == "TYPE" and name not in families, "a family begins with its type, and stands in one piece"
                current, told = name, set()
                families[name] = (value, {})
                assert value in ("counter", "gauge") and not (value == "counter" and name.endswith("_total"))
            assert kind not in told and not families[name][1], "each line about a family once, and before its samples"
            told.add(kind)
            if kind == "UNIT":
                assert name.endswith(f"_{value}"), "a family with a unit has it at the end of its name"
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, f"no sample: {line}"
        name, labels, value = match[1], match[2] or "", match[3]
        kind, samples = families[current]
        assert name == (f"{current}_total" if kind == "counter" else current), "a sample belongs to the family above it"
        pairs = tuple(
            (label, re.sub(r"\\.", lambda escape: _UNESCAPED[escape[0]], text))
            for label, text in re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\.)*)"', labels)
        )
        assert len(dict(pairs)) == len(pairs) and pairs not in samples, "labels, and samples, are there once"
        assert kind != "counter" or float(value) >= 0
        samples[pairs] = float(value)
    return families
