"""What the bytecode gets of a graph's raw outputs, what the graph gets of a call, and when its weights are others."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch

from precast.artifact_store.format.records import GraphInput, GraphOutput
from precast.runtime.executable.calling_convention import GraphSpec, graph_inputs, graph_outputs, is_plain, raw_kinds, scalar_word
from precast.runtime.executable.graph_call import weights_stamp

WHOLE = torch.arange(24.0)


def base() -> torch.Tensor:
    """A part of a larger storage: its first element is number 6."""
    return WHOLE[6:18].view(3, 4)


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        (GraphOutput("view", 0, (4,), (1,), 0), lambda x: x[0]),
        (GraphOutput("view", 0, (4,), (1,), 4), lambda x: x[1]),
        (GraphOutput("view", 0, (3,), (4,), 2), lambda x: x[:, 2]),
        (GraphOutput("view", 0, (4, 3), (1, 4), 0), lambda x: x.t()),
        (GraphOutput("view", 0, (("size", 0, 1),), (1,), ("*", 2, ("size", 0, 1))), lambda x: x[2]),
        (GraphOutput("view", 0, (4,), (1,), 0, "int32"), lambda x: x[0].view(torch.int32)),
        (GraphOutput("view", 0, (4,), (1,), 4, "int32"), lambda x: x[1].view(torch.int32)),
        (GraphOutput("view", 0, (8,), (1,), 8, "int16"), lambda x: x[1].view(torch.int16)),
        (GraphOutput("view", 0, (2,), (1,), 2, "int64"), lambda x: x[1].view(torch.int64)),
    ],
)
def test_a_view_lies_where_eagers_does(output: GraphOutput, wanted: Any) -> None:
    x = base()
    for kind, raw in (("view", []), ("output_view", [x])):
        given = GraphOutput(kind, output.index, output.size, output.stride, output.offset, output.dtype)  # type: ignore[arg-type]
        (view,) = graph_outputs([given], raw, [x])
        right = wanted(x)
        assert view.dtype == right.dtype and torch.equal(view, right)
        assert (view.data_ptr(), view.shape, view.stride()) == (right.data_ptr(), right.shape, right.stride())


def test_objects_stay_the_objects_that_they_are() -> None:
    x, made = base(), torch.ones(2)
    outputs = [GraphOutput("input", 0), GraphOutput("raw", 0), GraphOutput("none"), GraphOutput("raw", 1), GraphOutput("int", value=7)]
    first, second, nothing, number, constant = graph_outputs(outputs, [made, 5], [x])
    assert first is x and second is made and nothing is None and (number, constant) == (5, 7)


def test_a_number_is_computed_of_inputs_and_raw_outputs() -> None:
    outputs = [GraphOutput("int", 1), GraphOutput("int", value=("+", ("size", 0, 1), ("*", 10, ("stride", 0, 0))))]
    assert graph_outputs(outputs, [None, 9], [base()]) == (9, 44)


@pytest.mark.parametrize("detach", [True, False])
def test_a_view_of_a_parameter_carries_its_history_or_none(detach: bool) -> None:
    parameter = torch.nn.Parameter(torch.arange(6.0))
    with torch.enable_grad():
        (view,) = graph_outputs([GraphOutput("view", 0, (3,), (1,), 3, detach=detach)], [], [parameter])
    assert view.requires_grad is not detach and view.data_ptr() == parameter[3:].data_ptr()


@pytest.mark.parametrize("left", [True, False])
def test_a_grad_mode_that_stays_is_set_when_all_is_made(left: bool) -> None:
    x = torch.ones(2, requires_grad=True)
    outputs = [GraphOutput("view", 0, (2,), (1,)), GraphOutput("grad_mode", value=left)]
    with torch.set_grad_enabled(not left):
        made = graph_outputs(outputs, [], [x])
        assert torch.is_grad_enabled() is left and len(made) == 1
        assert (made[0].grad_fn is None) is left, "it was made before"


@pytest.mark.parametrize(
    ("outputs", "plain"),
    [
        ([GraphOutput("raw", 0), GraphOutput("raw", 1)], True),
        ([GraphOutput("raw", 1), GraphOutput("raw", 0)], False),
        ([GraphOutput("raw", 0), GraphOutput("raw", 0)], False),
        ([GraphOutput("raw", 0), GraphOutput("input", 1)], False),
        ([], True),
    ],
)
def test_when_the_raw_outputs_are_all(outputs: list[GraphOutput], plain: bool) -> None:
    assert is_plain(outputs) is plain


def test_which_raw_outputs_are_numbers() -> None:
    outputs = [GraphOutput("raw", 1), GraphOutput("int", 0), GraphOutput("view", 0, (("raw", 3),), (1,))]
    assert raw_kinds(outputs, {}) == "itti"
    assert raw_kinds([], {"outputs": [{}, {}]}) == "tt"


def test_inputs_come_bound_passed_and_read() -> None:
    path = (("local", "x"),)
    inputs = (
        GraphInput(path, True, None),
        GraphInput(path, False, 1),
        GraphInput(path, False, None, "int", read=("size", 0, 1)),
        GraphInput(path, False, 0),
        GraphInput(path, False, None, "int", read=("stride", 3, 0)),
        GraphInput(path, True, None, "constant"),
    )
    bound, constant, first, second = torch.zeros(2, 3), torch.zeros(1), torch.zeros(4, 5), torch.zeros(6)
    values = graph_inputs(inputs, (bound, constant), (first, second))
    assert values[0] is bound and values[1] is second and values[3] is first and values[5] is constant
    assert (values[2], values[4]) == (3, 5)


@pytest.mark.parametrize(("value", "kind"), [(2.75, "float"), (-0.0, "float"), (3, "float"), (-1, "int"), (2**40, "int")])
def test_numbers_travel_as_words(value: Any, kind: str) -> None:
    word = scalar_word(value, kind)
    assert 0 <= word < 2**64
    packed = struct.pack("<Q", word)
    assert struct.unpack("<d" if kind == "float" else "<q", packed)[0] == value
    assert struct.unpack("<d" if kind == "float" else "<q", packed)[0].hex() == float(value).hex() if kind == "float" else True


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.add_(1),
        lambda t: t.set_(torch.zeros(3).untyped_storage(), 0, (3,), (1,)),
        lambda t: setattr(t, "data", torch.zeros(3)),
    ],
    ids=["written", "other storage", "other data"],
)
def test_a_weight_that_changed_is_another_one(change: Any) -> None:
    weights = [torch.ones(3), torch.ones(3)]
    before = weights_stamp(weights)
    assert weights_stamp(weights) == before
    with torch.no_grad():
        change(weights[1])
    assert weights_stamp(weights) != before
    assert weights_stamp(weights[:1]) == before[:1]


def test_weights_are_prepared_of_what_the_graph_only_reads() -> None:
    path = (("local", "self"),)
    inputs = (
        GraphInput(path, True, None),
        GraphInput(path, False, 0),
        GraphInput(path, True, None, mutated=True),
        GraphInput(path, True, None),
    )
    bound = (torch.zeros(1), torch.zeros(2), torch.zeros(3))
    assert GraphSpec(inputs, "t", None).lasting(bound) == (bound[0], bound[2])
