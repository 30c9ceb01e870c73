"""A compiled model asks for no more memory than eager holds at its peak: planned (the workspace and the outputs), and measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import precast
from precast.runtime.api.compile import site_of
from tests.models.zoo import build, tensors

pytestmark = pytest.mark.xdist_group("models")


def peak(call: Callable[[], Any]) -> int:
    """Bytes that torch's CPU allocator has given out at most during the call, beyond what there was before; the outputs are among them."""
    call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            result = call()
    held = highest = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            highest = max(highest, held)
    del result
    return highest


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet"])
def test_no_more_than_eager(name: str, tmp_path: Path) -> None:
    model, inputs = build(name)
    compiled = precast.compile(model, store=tmp_path)
    results = compiled(**inputs)
    (variant,) = site_of(compiled).programs[0].variants
    planned = variant.manifest.graphs["forward"].io["workspace_bytes"]
    outputs = sum(t.numel() * t.element_size() for t in tensors(results))
    eager = peak(lambda: model(**inputs))
    assert outputs < eager and 0 < planned
    assert planned + outputs <= eager
    assert peak(lambda: compiled(**inputs)) <= eager
