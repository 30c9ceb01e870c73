"""Each callable of the table: captured, rebuilt from its record, run with the FX graph, compared with eager (aliasing too)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from precast.artifact_store.format.guards import Guard
from precast.artifact_store.format.records import FrameRecord, GraphInput, GraphOutput
from precast.capture import CaptureRefused, capture
from precast.capture.bytecode import frame_record
from precast.runtime.guards.evaluate import compile_checker, first_failing
from tests.capture import programs
from tests.capture.harness import locals_of, rebuilt
from tests.capture.programs import PROGRAMS


def tensors_in(*trees: Any) -> list[torch.Tensor]:
    return [leaf for tree in trees for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def flat(value: Any) -> Any:
    """Results as nested builtins, so that `==` and tensor comparison reach all of it."""
    if isinstance(value, programs.Result):
        return {"logits": value.logits, "label": value.label}
    return value


def assert_same(got: Any, expected: Any) -> None:
    got_leaves, got_spec = pytree.tree_flatten(flat(got))
    leaves, spec = pytree.tree_flatten(flat(expected))
    assert type(got) is type(expected)
    assert got_spec == spec
    for a, b in zip(got_leaves, leaves, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
            assert a.stride() == b.stride() and a.requires_grad == b.requires_grad
        else:
            assert type(a) is type(b) and a == b


def sharing(results: list[torch.Tensor], given: list[torch.Tensor]) -> list[list[bool]]:
    """Which results share memory with which other results and arguments, and which are the very same object."""
    everything = results + given
    return [[a.untyped_storage()._cdata == b.untyped_storage()._cdata for b in everything] + [a is b for b in everything] for a in results]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    torch.manual_seed(0)
    fn, args, kwargs = PROGRAMS[name]()
    programs.COUNTER["calls"] = 0
    eager_fn, eager_args, eager_kwargs = copy.deepcopy((fn, args, kwargs))
    namespace_before = set(programs.__dict__)
    with torch.no_grad():
        values = locals_of(fn, args, kwargs)
        frame = capture(fn, args, kwargs)
        assert set(programs.__dict__) == namespace_before, "capture leaves names in the module"
        assert frame.uncacheable == ()
        assert first_failing(frame.guards, values) == -1
        assert compile_checker(frame.guards)(values, values)
        assert all(torch.equal(a, b) for a, b in zip(tensors_in(args, kwargs), tensors_in(eager_args, eager_kwargs), strict=True)), (
            "capture ran the code"
        )

        call = rebuilt(through_msgpack(frame), fn, values)
        got = call(*args, **kwargs)
        programs.COUNTER["calls"] = 0
        expected = eager_fn(*eager_args, **eager_kwargs)
    assert_same(got, expected)
    assert sharing(tensors_in(flat(got)), tensors_in(args, kwargs)) == sharing(
        tensors_in(flat(expected)), tensors_in(eager_args, eager_kwargs)
    )
    for a, b in zip(tensors_in(args, kwargs), tensors_in(eager_args, eager_kwargs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    if isinstance(fn, torch.nn.Module):
        for key, value in fn.state_dict().items():
            torch.testing.assert_close(value, eager_fn.state_dict()[key], rtol=0, atol=0)


def through_msgpack(frame: Any) -> Any:
    """The frame as it comes back from the store."""
    import dataclasses

    import msgpack

    def trip(value: Any) -> Any:
        return msgpack.unpackb(msgpack.packb(value), strict_map_key=False)

    return dataclasses.replace(
        frame,
        code=FrameRecord.from_data(trip(frame.code.to_data())),
        inputs=tuple(GraphInput.from_data(trip(i.to_data())) for i in frame.inputs),
        outputs=tuple(GraphOutput.from_data(trip(o.to_data())) for o in frame.outputs),
        guards=tuple(Guard.from_data(trip(g.to_data())) for g in frame.guards),
    )


def test_round_trip_keeps_the_guard_hash() -> None:
    fn, args, kwargs = PROGRAMS["nested modules"]()
    with torch.no_grad():
        frame = capture(fn, args, kwargs)
    assert through_msgpack(frame).guard_hash == frame.guard_hash
    assert through_msgpack(frame).guards == frame.guards


def graph_break(x: Any) -> Any:
    y = x + 1
    print("now")
    return y * 2


def data_dependent(x: Any) -> Any:
    return x + 1 if x.sum() > 0 else x - 1


def data_dependent_window(x: Any, start: Any) -> Any:
    x.add_(1)
    return x.narrow(0, start, 2)


def resizes(x: Any) -> Any:
    x.t_()
    return x + 1


@pytest.mark.parametrize(
    ("fn", "args", "words"),
    [
        (graph_break, (torch.ones(3),), "print"),
        (data_dependent, (torch.ones(3),), "branching"),
        (data_dependent_window, (torch.ones(5), torch.tensor(2)), "depends on data"),
        (resizes, (torch.ones(3, 2),), "inplace view"),
    ],
)
def test_refusal_names_reason_and_place(fn: Any, args: Any, words: str) -> None:
    with pytest.raises(CaptureRefused) as refused:
        capture(fn, args)
    assert words in str(refused.value)
    assert __file__ in refused.value.where or "programs.py" in refused.value.where


def test_a_check_that_only_raises_stays() -> None:
    def unused_inverse(x: torch.Tensor) -> torch.Tensor:
        torch.linalg.inv(x)
        return x + 1

    with torch.no_grad():
        frame = capture(unused_inverse, (torch.eye(3),))
    assert torch.equal(rebuilt(frame, unused_inverse, {})(torch.eye(3)), torch.eye(3) + 1)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        rebuilt(frame, unused_inverse, {})(torch.zeros(3, 3))


def test_without_tensors_there_is_no_graph() -> None:
    frame = capture(programs.nothing_but_numbers, (3,))
    assert frame.graph is None and frame.inputs == ()
    assert rebuilt(frame, programs.nothing_but_numbers, {"n": 3})(3) == 4


def test_gradients_are_recorded_where_eager_records_them() -> None:
    fn, args, kwargs = PROGRAMS["module"]()
    frame = capture(fn, args, kwargs)
    assert frame.graph is not None and frame.backward is not None and frame.autograd is not None
    assert any(frame.autograd.results) and len(frame.autograd.gradients) == len(frame.autograd.inputs) > 0
    with torch.no_grad():
        assert capture(fn, args, kwargs).backward is None
    with torch.inference_mode():
        assert capture(fn, args, kwargs).backward is None


def test_bound_inputs_stay_out_of_the_call() -> None:
    fn, args, kwargs = PROGRAMS["nested modules"]()
    with torch.no_grad():
        frame = capture(fn, args, kwargs)
    assert [i.position for i in frame.inputs if not i.bound] == [0]
    assert sum(i.bound for i in frame.inputs) > 10
    assert {"linear", "weight"} <= {part for i in frame.inputs for step in i.path for part in step if isinstance(part, str)}


def test_modules_are_listed_once_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each traced function: thousands are imported."""
    listed: list[int] = []
    real = frame_record._module_of_file
    monkeypatch.setattr(frame_record, "_module_of_file", lambda: listed.append(1) or real())
    capture(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).requires_grad_(False).forward, (torch.randn(2, 2),), {})
    assert listed == [1]
