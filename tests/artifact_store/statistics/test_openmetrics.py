"""OpenMetrics text, read by a strict parser; the parser itself refuses what the standard forbids."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precast.artifact_store.statistics.openmetrics import CONTENT_TYPE, metrics_text
from precast.artifact_store.statistics.series import FIGURES, Series
from tests.artifact_store.statistics.openmetrics_parser import parse


def test_every_figure_is_a_family_with_its_unit() -> None:
    sums = {Series(figure, "key-1", "local", "why", "where", "compiled"): 1.5 for figure in FIGURES}
    families = parse(metrics_text(sums, {"key-1": "app:f"}, [("artifacts", "", "How many.", 3), ("disk_bytes", "bytes", "All.", 1e12)]))
    assert set(families) == {f"precast_{figure}" for figure in FIGURES} | {"precast_artifacts", "precast_disk_bytes"}
    labels = (("program", "app:f"), ("key", "key-1"), ("tier", "local"), ("reason", "why"), ("detail", "where"), ("outcome", "compiled"))
    assert families["precast_misses"] == ("counter", {labels: 1.5})
    assert families["precast_artifacts"] == ("gauge", {(): 3.0})
    assert CONTENT_TYPE.startswith("application/openmetrics-text; version=1.0.0")


def test_nothing_counted_is_a_valid_text() -> None:
    assert metrics_text({}, {}) == "# EOF\n" and parse("# EOF\n") == {}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a machine that others keep busy
@given(
    st.dictionaries(st.sampled_from(["plain", 'quo"te', "back\\slash", "line\nfeed", "\\n", "ünï", '\\"']), st.floats(0, 1e15), max_size=5)
)
def test_labels_come_back_as_they_were(reasons: dict[str, float]) -> None:
    text = metrics_text({Series("misses", reason=reason): value for reason, value in reasons.items()}, {})
    found = parse(text).get("precast_misses", ("counter", {}))[1]
    assert {dict(labels)["reason"]: value for labels, value in found.items()} == pytest.approx(reasons, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# EOF",
        "# TYPE a counter\na 1\n# EOF\n",
        "# TYPE a counter\na_total -1\n# EOF\n",
        "# TYPE a counter\na_total 1\na_total 1\n# EOF\n",
        "# TYPE a_seconds counter\n# UNIT a_seconds bytes\n# EOF\n",
        '# TYPE a gauge\na{x="1",x="2"} 1\n# EOF\n',
        '# TYPE a gauge\na{x="\n"} 1\n# EOF\n',
        "# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\n# TYPE a gauge\na 1\n# EOF\n",
    ],
)
def test_the_parser_is_strict(text: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        parse(text)
