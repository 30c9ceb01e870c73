"""Two builds of one program, each into a store of its own: equal artifact ids, equal heads and guards, and every blob byte for byte.

A manifest's last part, `info`, differs: it says how many seconds each stage of the build took, and no loader reads it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import precast
from precast.artifact_store import Manifest
from precast.codegen.common.options import CodegenOptions
from precast.compiling import build_graph
from precast.lowering.options import LoweringOptions
from tests.support.needs import has

ROOT = Path(__file__).parents[3]
TARGETS = ["cpu:x86-64-v3", *(["cuda:sm_90"] if has("triton") else [])]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32), torch.nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.a(x).view(2, 8, 4, 8).transpose(1, 2)
        o = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
        return self.norm(self.b(o) + x).softmax(-1)


def build(folder: str) -> None:
    """Puts the program's artifacts into a store. CPU products are not timed here: which library is faster may differ from run to run."""
    options_of = build_graph.options_of

    def unmeasured(options: Mapping[str, Any]) -> tuple[LoweringOptions, CodegenOptions]:
        lowering, codegen = options_of(options)
        return lowering, replace(codegen, measure=False)

    build_graph.options_of = unmeasured
    with torch.no_grad():
        report = precast.precompile(Block().eval(), [((torch.randn(2, 8, 32),), {})], targets=TARGETS, store=folder)
    assert report.ok and [item.outcome for item in report.signatures] == ["compiled"] * len(TARGETS), report


def read(folder: Path) -> tuple[dict[str, Manifest], dict[str, bytes]]:
    """Manifests by target, and the content-addressed files by name."""
    manifests = (Manifest.from_bytes(path.read_bytes()) for path in (folder / "programs").rglob("*.msgpack"))
    return {m.target: m for m in manifests}, {p.name: p.read_bytes() for p in (folder / "objects").rglob("*") if p.is_file()}


def test_two_builds_are_equal(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "a folder of another name"]
    builds = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.precast.compiling.test_reproducible_builds", str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        )
        for seed, folder in enumerate(folders, 1)
    ]
    assert [build.wait(timeout=300) for build in builds] == [0, 0]
    (one, files), (other, others) = map(read, folders)
    assert set(one) == set(other) == set(TARGETS)
    assert len(files) >= 4 * len(TARGETS) and files == others
    for target, manifest in one.items():
        same = other[target]
        assert manifest.artifact_id == same.artifact_id
        assert manifest._sections[:3] == same._sections[:3], f"{target}: head, guards or body differ"
        assert set(manifest.graphs["forward"].blobs.values()) <= set(files)
        images = [role for role in manifest.graphs["forward"].blobs if role.startswith("image")]
        assert bool(images) is target.startswith("cuda:")


if __name__ == "__main__":
    build(sys.argv[1])
