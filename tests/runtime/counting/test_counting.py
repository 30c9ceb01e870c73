"""What a process counts: every call once, native ones and those of programs that are gone; written at its end, by a thread, by forks."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import precast
from precast.artifact_store import Store
from precast.artifact_store.statistics import series, spans
from precast.artifact_store.statistics.series import Series
from precast.artifact_store.statistics.summary import Summary, summary_of
from precast.runtime.common import upward_imports
from precast.runtime.counting import tallies, write_counts
from precast.runtime.counting.write_counts import write
from precast.runtime.native import loader
from tests.artifact_store.statistics.openmetrics_parser import parse
from tests.support.processes import child

PROGRAM = """
import torch

def f(x):
    return torch.sin(x) * 2 + 1
"""
X = torch.ones(4, 8)


@pytest.fixture(autouse=True)
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PRECAST_STATS", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_counts.collect()
    series.forget_all()
    with torch.no_grad():
        yield
    series.forget_all()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, native_store: Store) -> Path:
    """A folder with a module, and a store with its function and the native runtime."""
    folder = tmp_path_factory.mktemp("counting")
    (folder / "counted.py").write_text(PROGRAM)
    code = """
    import sys, torch, precast, counted
    from precast.runtime.native import loader
    from precast.artifact_store import Store
    with torch.no_grad():
        assert precast.precompile(counted.f, [((torch.ones(4, 8),), {})], store="store").ok
    assert loader.ensure(Store.open("store")) is not None
    """
    child(folder, code)
    return folder


def sums(root: Path) -> dict[tuple[str, str, str], float]:
    """(figure, reason, outcome) -> sum, of what is written."""
    write()
    found: dict[tuple[str, str, str], float] = {}
    for item, value in summary_of(root).sums.items():
        key = (item.figure, item.reason, item.outcome)
        found[key] = found.get(key, 0) + value
    return found


def in_memory(figure: str) -> float:
    write_counts.collect()
    total = [value for ledger in series.ledgers().values() for item, value in ledger.sums().items() if item.figure == figure]
    return sum(total)


SERVE = """
import os, sys, time
import torch, precast, counted
from precast.runtime.counting import tallies
loaded = precast.load(counted.f, store="store")
x = torch.ones(4, 8)
torch.set_grad_enabled(False)
def serve(times):
    for _ in range(times):
        loaded(x)
"""


def served(folder: Path, code: str, expect: int = 0) -> Summary:
    """What a process that serves has written."""
    for file in (folder / "store" / "statistics").glob("*"):
        file.unlink()
    child(folder, SERVE + code, expect=expect)
    return summary_of(folder / "store")


def test_a_process_writes_its_calls_when_it_ends(built: Path) -> None:
    found = served(built, "serve(100)")
    total = found.total
    assert (total.calls, total.hits, total.misses, total.hit_rate, found.processes) == (100, 100, 0, 1.0, 1)
    assert total.figures["loads"] == 1 and total.figures["saved_seconds"] > 0.01 and total.figures["load_bytes"] > 1000
    assert list(found.names.values()) == ["counted:f"]


def test_a_forked_child_writes_its_own_calls_only(built: Path) -> None:
    code = """
serve(50)
child = os.fork()
serve(7 if child else 3)
if not child:
    sys.exit()
os.waitpid(child, 0)
"""
    found = served(built, code)
    assert (found.total.calls, found.processes) == (60, 2)


def test_a_process_that_is_killed_has_written_what_its_thread_wrote(built: Path) -> None:
    code = """
tallies.FIRST = tallies.LATER = 0.2
serve(20)
while not os.path.isdir("store/statistics"):
    time.sleep(0.05)
time.sleep(0.1)
os.kill(os.getpid(), 9)
"""
    for file in (built / "store" / "statistics").glob("*"):
        file.unlink()
    if (built / "store" / "statistics").exists():
        (built / "store" / "statistics").rmdir()
    child(built, SERVE + code, expect=-9)
    assert summary_of(built / "store").total.calls == 20


def test_a_warm_process_imports_nothing_more_and_opens_no_more_files(built: Path) -> None:
    """Until it ends, counting is a few numbers: no module, no file, whatever is written later."""
    code = """
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" and "statistics" in str(args[0]) else None)
serve(100)
print(opened, sorted(name for name in sys.modules if "statistics" in name and name.startswith("precast")
      or name.endswith((".write_counts", ".count_compiles", ".miss_cause", ".record_calls", ".signatures"))
      or name.startswith("opentelemetry")))
"""
    assert child(built, SERVE + code).strip() == "[] []"


def test_native_calls_are_exact_and_those_that_run_eagerly_are_told_apart(native_store: Store, store: Store) -> None:
    assert loader.find(native_store) is not None and loader.tables_work()  # for all stores of the process

    def g(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 1

    compiled = precast.compile(g, store=store)
    for _ in range(10):
        compiled(X)
    without_data = torch.ones(4, 8, device="meta")
    with pytest.warns(UserWarning, match="meta"):
        for _ in range(6):
            compiled(without_data)
    assert compiled._precast_site.programs[0].tally.numbers() == (10, 5, 0)
    assert compiled._precast_site.programs[0].hooks.on_binding.__self__.tables.dispatcher.eager >= 3
    found = sums(store.root)
    assert found["calls", "", ""] == 10
    assert found["misses", "no artifact", "compiled"] == 1
    assert found["misses", "eager by refusal", "eager"] == 6
    reason = next(reason for figure, reason, _ in found if figure == "bypasses")
    assert "meta" in reason and found["lost_seconds", reason, "refused"] > 0


def test_what_a_program_counted_outlives_it(store: Store) -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return x.tan() + 1

    compiled = precast.compile(g, store=store)
    for _ in range(5):
        compiled(X)
    del compiled
    gc.collect()
    before = len(tallies.tallies)
    assert in_memory("calls") == 5
    assert len(tallies.tallies) < before, "what was counted of a program that is gone is kept no longer"
    assert in_memory("calls") == 5


def test_what_stays_in_the_process_is_a_bypass_with_its_seconds(store: Store) -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return x.tan() + 2

    precast.compile(g, store=store, options={"store_results": False})(X)
    write()
    (bypass,) = summary_of(store.root).bypasses()
    assert (bypass.kind, bypass.attempts, bypass.reason) == ("in process", 1, "store_results is off") and bypass.seconds > 0


def test_statistics_are_off_where_the_environment_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STATS", "0")
    compiled = precast.compile(lambda x: x.tan() + 3, store=store)
    compiled(X)
    write()
    assert not (store.root / "statistics").exists() and not summary_of(store.root).sums


def test_metrics_are_of_this_process_and_valid(store: Store) -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return x.tan() + 4

    compiled = precast.compile(g, store=store)
    for _ in range(3):
        compiled(X)
    families = parse(precast.metrics())
    calls = {dict(labels)["program"]: value for labels, value in families["precast_calls"][1].items()}
    assert next(value for name, value in calls.items() if name.endswith(".g")) == 3.0
    misses = [dict(labels) for labels in families["precast_misses"][1]]
    assert any(labels["reason"] == "no artifact" and labels["outcome"] == "compiled" for labels in misses)
    assert precast.METRICS_TYPE.startswith("application/openmetrics-text")


def test_spans_of_compile_and_load(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans, "_tracer", lambda: provider.get_tracer("precast"))
    monkeypatch.setenv("PRECAST_OTEL", "1")
    upward_imports._span.cache_clear()
    try:
        precast.compile(lambda x: x.tan() + 5, store=store)(X)
    finally:
        monkeypatch.delenv("PRECAST_OTEL")
        upward_imports._span.cache_clear()
    found = {span.name: dict(span.attributes or {}) for span in exporter.get_finished_spans()}
    assert set(found) == {"precast.compile", "precast.load"}
    assert str(found["precast.load"]["precast.target"]).startswith("cpu:") and "lambda" in str(found["precast.compile"]["precast.program"])


def test_spans_without_opentelemetry_are_none_and_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    spans._tracer.cache_clear()
    try:
        for _ in range(2):
            with spans.span("load", program="p") as found:
                assert found is None
    finally:
        spans._tracer.cache_clear()
    assert caplog.text.count("pip install 'precast[otel]'") == 1


def test_a_folder_that_cannot_be_written_is_tried_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = write_counts.ledger_for(store)
    store.check_writable()
    ledger.add("calls", 4, program="key")
    (store.root / "statistics").write_text("in the way")
    with caplog.at_level("INFO", "precast.store"):
        write()
    assert "cannot be written" in caplog.text
    (store.root / "statistics").unlink()
    write()
    assert summary_of(store.root).sums == {Series("calls", "key"): 4}


def test_a_read_only_store_is_counted_beside_it(store: Store) -> None:
    store.check_writable()
    reader = Store.open(store.root, readonly=True)
    write_counts.ledger_for(reader).add("calls", 2, program="key")
    write()
    assert not (store.root / "statistics").exists()
    assert summary_of(store.root).total.calls == 2
    (file,) = (Path(os.environ["XDG_STATE_HOME"]) / "precast" / "statistics").rglob("*.jsonl")
    assert json.loads(file.read_text())["store"] == str(store.root)
