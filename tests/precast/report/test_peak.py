"""What dominates the peak of memory, as `precast show` says it."""

from __future__ import annotations

from pathlib import Path

import torch

import precast
from precast.artifact_store import Store
from precast.cli.store.show import overview
from precast.report.peak import Peak, peak_of


def widened(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The product of the wide rows is the busiest step: they and its result are there at once."""
    wide = torch.relu(x @ w) + 1
    return (wide @ v).softmax(-1).sum(0)


def test_the_largest_buffers_of_the_busiest_step_are_named(tmp_path: Path) -> None:
    made = torch.randn(64, 48), torch.randn(48, 512), torch.randn(512, 32)
    precast.compile(widened, store=tmp_path, dynamic=False)(*made)
    store = Store.open(tmp_path)
    (manifest,) = store.manifests()
    peak = peak_of(store, manifest.graphs["forward"])
    assert isinstance(peak, Peak)
    largest = peak.buffers[0]
    assert largest.bytes >= 64 * 512 * 4 and largest.type == "f32[64, 512]" and largest.first <= peak.step <= largest.last
    assert "wide" in largest.source or "relu" in largest.source
    assert peak.bytes >= largest.bytes and [b.bytes for b in peak.buffers] == sorted((b.bytes for b in peak.buffers), reverse=True)
    text = "\n".join(overview(store, manifest))
    assert f"at step {peak.step} of {peak.steps} ({peak.name})" in text and "f32[64, 512], steps" in text and "test_peak.py" in text


def test_a_graph_without_records_has_none(tmp_path: Path) -> None:
    precast.compile(torch.neg, store=tmp_path, dynamic=False)(torch.randn(3))
    store = Store.open(tmp_path)
    (manifest,) = store.manifests()
    graph = manifest.graphs["forward"]
    assert peak_of(store, graph) is not None
    del graph.blobs["steps"]
    assert peak_of(store, graph) is None
