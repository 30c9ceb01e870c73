"""Real model code from transformers: one frame, no reason against storing it, the same results."""

from __future__ import annotations

import pytest
import torch

from precast.capture import capture
from precast.runtime.guards.evaluate import compile_checker, first_failing
from tests.capture import models
from tests.capture.harness import locals_of, rebuilt


@pytest.mark.parametrize("name", models.MODELS)
def test_model(name: str) -> None:
    model, args, kwargs = models.make(name)
    with torch.no_grad():
        frame = capture(model, args, kwargs)
        values = locals_of(model, args, kwargs)
        assert frame.uncacheable == ()
        assert first_failing(frame.guards, values) == -1
        assert compile_checker(frame.guards)(values, values)
        got = rebuilt(frame, model, values)(*args, **kwargs)
        expected = model(*args, **kwargs)
    assert type(got) is type(expected) and list(got) == list(expected)
    first = next(iter(expected))
    torch.testing.assert_close(got[first], expected[first], rtol=0, atol=0)
    parameters = sum(1 for _ in model.parameters())
    assert sum(not i.bound for i in frame.inputs) == len([v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)])
    assert sum(i.parameter for i in frame.inputs) >= 0.8 * parameters
    model.load_state_dict({n: t + 1 for n, t in model.state_dict().items()})
    with torch.no_grad():
        assert compile_checker(frame.guards)(values, values), "new weights must hit"
