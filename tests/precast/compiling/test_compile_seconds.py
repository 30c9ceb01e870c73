"""How long the C++ compiler took, graph by graph, is kept in the artifact, and `precast show` prints it."""

from __future__ import annotations

from pathlib import Path

import torch
from click.testing import CliRunner

import precast
from precast.cli.main import main
from precast.runtime.api.compile import site_of


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos() * 2, (x,))


@torch.no_grad()
def test_the_seconds_of_the_compiler_are_kept(tmp_path: Path) -> None:
    compiled = precast.compile(branches, store=tmp_path, fullgraph=True)
    x = torch.ones(3)
    torch.testing.assert_close(compiled(x), branches(x))
    (variant,) = site_of(compiled).programs[0].variants
    seconds = variant.manifest.provenance["seconds"]
    compilers = {name: spent for name, spent in seconds.items() if name.endswith("compiler")}
    assert len(compilers) == 3 and "codegen.compiler" in compilers, seconds  # the graph and its two bodies
    assert all(0.01 < spent < 600 for spent in compilers.values()), compilers
    shown = CliRunner().invoke(main, ["show", variant.manifest.artifact_id, "--store", str(tmp_path)])
    for name, spent in compilers.items():
        assert any(line.split() == [name, str(spent)] for line in shown.stdout.splitlines()), shown.output
