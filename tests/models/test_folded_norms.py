"""Evaluated batch norms of a captured model are part of its convolutions, whatever form capture gave them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import precast
from precast.artifact_store import Store


class Stem(nn.Module):
    """Convolutions with norms before a relu, a pooling, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(3, 64, 7, 2, 3, bias=False), *(nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2))]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(64) for _ in range(3)])
        for norm in self.norms:
            assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and norm.running_var is not None
            for t in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
                t.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.norms[0](self.convs[0](x)).relu(), 3, 2, 1)
        y = self.norms[1](self.convs[1](x)).relu()
        return (self.norms[2](self.convs[2](y)) + x).relu().mean((2, 3))


@pytest.mark.parametrize("freeze", [False, True])
def test_no_norm_is_left(tmp_path: Path, freeze: bool) -> None:
    torch.manual_seed(0)
    model, x = Stem().eval(), torch.randn(4, 3, 64, 64)
    compiled = precast.compile(model, store=tmp_path, options={"freeze": freeze})
    with torch.no_grad():
        got = compiled(x)
        want = model.double()(x.double())
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    store = Store.open(tmp_path)
    (path,) = (tmp_path / "programs").glob("*/*.msgpack")
    manifest = store.get(path.stem, path.parent.name)
    assert manifest is not None
    source = store.blob(manifest.graphs["forward"].host_source)
    assert source is not None
    lines = source.decode().splitlines()
    calls = [line for line in lines if "conv(" in line or "winograd(" in line]
    assert len(calls) == 3 and not any("None, " in line.partition("(")[2] for line in calls)
    in_place = [line for line in lines if re.fullmatch(r" +library_\d+\(\w+\)", line)]  # oneDNN's own relu would make 0 of NaN
    assert sum("relu(" in line for line in calls) + len(in_place) >= 2  # the last sum may belong to the mean
