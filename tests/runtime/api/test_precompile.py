"""What `precompile`, `load` and `explain_miss` say of slips, and that preparing an artifact is no use of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.artifact_store.maintenance.index import open_index


def sines(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return torch.sin(x) * scale


CALL: list[Any] = [((torch.ones(4),), {})]


def test_what_is_prepared_is_not_used(store: Store) -> None:
    """The second target is one that the first one's artifact serves here; asking for it is no use of it, nor is building it again."""
    for _ in range(2):
        precast.precompile(sines, CALL, targets=["cpu:x86-64", "cpu:native"], store=store)
    with open_index(store) as index:
        assert [entry.hits for entry in index.entries(store)] == [0, 0]
    precast.load(sines, store=store)(torch.ones(4))
    with open_index(store) as index:
        assert sum(entry.hits for entry in index.entries(store)) == 1


def test_a_target_by_itself_is_no_list(store: Store) -> None:
    with pytest.raises(precast.OptionError, match=r"targets is a list, for example \['cpu:native'\]"):
        precast.precompile(sines, CALL, targets="cpu:native", store=store)


def test_load_of_a_path(store: Store) -> None:
    with pytest.raises(precast.OptionError, match="give the model, .* and the folder as store="):
        precast.load(store.root)


def test_a_missing_argument_is_told_by_the_functions_own_name(store: Store) -> None:
    with pytest.raises(TypeError, match=r"^sines\(\) missing 1 required positional argument: 'x'$"):
        precast.explain_miss(precast.compile(sines, store=store))


def test_the_report_of_what_was_not_stored(store: Store) -> None:
    without_data = [((torch.ones(4, 4, device="meta"),), {})]
    assert ": eager in " in str(precast.precompile(sines, without_data, store=store))


def test_no_estimate_of_kernels_whose_sizes_are_unknown(store: Store) -> None:
    for shapes, count in ((None, 1), ({"x": {0: "n"}}, 0)):
        report = precast.precompile(sines, CALL, dynamic_shapes=shapes, options={"dynamic": "no"} if shapes is None else None, store=store)
        manifest = store.get(report.signatures[0].artifact_id)
        assert manifest is not None and len(manifest.evidence["kernel_serial_ns"]) == count
