"""What remote tiers are asked for, sent and fail at is counted by tier, and is a cause of misses."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from precast.artifact_store.remote.endpoint import Unreachable
from precast.artifact_store.statistics import series, spans
from tests.artifact_store.remote.test_remotes import KEY, Machine, endpoint, tier


def counted(machine: Machine) -> dict[tuple[str, str], float]:
    """(figure, reason) -> sum of the tier."""
    ledger = series.ledger_of(str(machine.store.root))
    assert {item.tier for item in ledger.sums()} <= {"memory://near"}
    return {(item.figure, item.reason): value for item, value in ledger.sums().items()}


def test_fetches_uploads_and_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans, "_tracer", lambda: provider.get_tracer("precast"))
    monkeypatch.setenv("PRECAST_OTEL", "1")
    shared = tier()
    one, other = Machine(tmp_path / "one", shared), Machine(tmp_path / "other", shared)
    one.put()
    assert one.sent()
    other.look()
    up, down = counted(one), counted(other)
    assert up["uploads", ""] == 1 and up["upload_bytes", ""] > 100
    assert down["fetches", ""] == 1 and down["fetch_bytes", ""] > 100 and down["fetch_seconds", ""] > 0
    names = sorted(span.name for span in exporter.get_finished_spans())
    assert names == ["precast.fetch", "precast.upload"]
    for machine in (one, other):
        machine.remotes.close()


def test_a_tier_that_fails_is_counted_and_named(tmp_path: Path) -> None:
    shared = tier()

    def fails(verb: str, name: str) -> None:
        if verb != "close":
            raise Unreachable("no answer")

    endpoint(shared).before = fails
    machine = Machine(tmp_path / "one", shared)
    machine.look()
    assert counted(machine)["fetch_failures", "Unreachable"] >= 1
    failure = machine.remotes.failure(KEY)
    assert failure is not None and failure[0] == "memory://near" and isinstance(failure[1], Unreachable)
    assert machine.remotes.failure("another-program") is None
    machine.remotes.close()
