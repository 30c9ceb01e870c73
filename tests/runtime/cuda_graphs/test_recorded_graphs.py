"""CUDA graphs of calls that record gradients: memory that the forward graph keeps, captures of the backward graph that read it there."""

from __future__ import annotations

import logging

import pytest
import torch

from precast.artifact_store.format.records import AutogradRecord, GraphInput, GraphOutput
from precast.runtime.common.log import configure
from precast.runtime.cuda_graphs.graphs import LARGE, RING, SETTLING, WARM_UPS
from precast.runtime.cuda_graphs.recorded import Keeps, Kept, keeps_of, kept_of
from precast.runtime.executable.calling_convention import GraphSpec
from tests.runtime.fake_cuda import FakeDevice, Graphs, bound, given, graphs

X = given("x", 0)


def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A result, and what is kept."""
    return x * 2, x + 1


def forward_graph(device: FakeDevice, **more: object) -> Graphs:
    """After its warm-ups."""
    call = graphs(device, forward, (X,), kinds="tt", keeps=Keeps((1,), frozenset({0})), **more)
    for _ in range(WARM_UPS):
        call(torch.zeros(3))
    return call


def test_what_is_kept_is_not_written_while_somebody_holds_it(device: FakeDevice, caplog: pytest.LogCaptureFixture) -> None:
    """Further calls take captures of their own, and are launched after RING of them."""
    configure("cudagraphs")
    logging.getLogger("precast").propagate = True
    call = forward_graph(device)
    kept = [call(torch.full((3,), float(step))) for step in range(6)]
    for step, (result, saved) in enumerate(kept):
        torch.testing.assert_close((result, saved), (torch.full((3,), 2.0 * step), torch.full((3,), step + 1.0)))
    assert device.captures == RING and device.replays == RING and not call.refused
    assert f"{RING} before it wait for their backward pass" in caplog.text
    del kept, result, saved
    call(torch.ones(3))
    assert device.captures == RING and device.replays == RING + 1, "they are free again"
    configure("")


def test_results_that_are_held_longer_than_what_is_kept_are_copied(device: FakeDevice) -> None:
    call = forward_graph(device)
    results, addresses = [], set()
    for step in range(6):
        result, saved = call(torch.full((3,), float(step)))
        results.append(result)
        addresses.add(saved.data_ptr())
        torch.testing.assert_close(saved, torch.full((3,), step + 1.0))
        del saved
    torch.testing.assert_close(torch.stack(results), torch.arange(6.0).mul(2)[:, None].expand(6, 3))
    (recording,) = call.recordings()
    assert device.captures == 2 and recording.copied == {0} and recording.kept == (recording.outputs[1].data_ptr(),)
    assert len(addresses) <= 2, "the first capture's, and the second's"


def test_a_capture_has_a_pool_of_its_own_where_it_keeps_what_cannot_be_written_into_given_memory(device: FakeDevice) -> None:
    forward_graph(device)(torch.ones(3))
    assert device.alone == 1
    forward_graph(device, lent=(1,), into=lambda homes, x: (x * 2, torch.add(x, 1, out=homes[1])))(torch.ones(3))
    assert device.alone == 1 and device.captures == 2


def test_a_capture_that_keeps_another_layout_than_calls_before_is_refused(device: FakeDevice) -> None:
    count = [0]

    def growing(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count[0] += 1
        return x * 2, x.new_zeros(count[0])

    call = graphs(device, growing, (X,), kinds="tt", keeps=Keeps((1,), frozenset({0})))
    for _ in range(6):
        call(torch.ones(3))
    assert "output 1 is another one at each call" in call.refused


def test_what_is_kept_in_an_input_has_no_home(device: FakeDevice) -> None:
    call = graphs(device, lambda x: (x * 2, x[1:]), (X,), kinds="tt", keeps=Keeps((1,), frozenset({0})))
    for _ in range(WARM_UPS + 1):
        call(torch.ones(3))
    assert call.policy.homes() == {()}


def backward_graph(device: FakeDevice, homes: set[tuple[int, ...]], **more: object) -> Graphs:
    """Of a kept tensor, a weight and a tangent."""
    inputs = (given("kept", 0), given("weight", 1), given("tangent", 2))
    kept = Kept((0,), lambda: homes, lasting=frozenset({1}), tangents=frozenset({2}))
    return graphs(device, lambda kept, weight, tangent: (kept * weight * tangent,), inputs, kept=kept, **more)


def test_the_backward_graph_is_captured_for_each_home_and_launched_elsewhere(device: FakeDevice) -> None:
    ours = [torch.full((3,), float(n)) for n in (1, 2)]
    homes = {(home.data_ptr(),) for home in ours}
    call, weight = backward_graph(device, homes), torch.full((3,), 3.0)
    alive = []
    for step in range(WARM_UPS + 6):
        tangent, elsewhere = torch.full((3,), float(step)), torch.full((3,), 7.0)
        alive += [tangent, elsewhere]
        for kept in (*ours, elsewhere):
            torch.testing.assert_close(call(kept, weight, tangent)[0], kept * weight * tangent)
    assert len(call.recordings()) == 2 and all(set(recording.buffers) == {2} for recording in call.recordings())
    replays = device.replays
    homes.remove((ours[0].data_ptr(),))
    torch.testing.assert_close(call(alive[-1], weight, tangent)[0], alive[-1] * weight * tangent)
    assert len(call.recordings()) == 1 and device.replays == replays, "a capture whose home is gone goes, too"


def test_a_weight_that_moves_takes_a_new_capture_of_the_backward_graph_and_is_not_copied(device: FakeDevice) -> None:
    kept, tangent = torch.full((3,), 2.0), torch.ones(3)
    call = backward_graph(device, {(kept.data_ptr(),)})
    weights = [torch.full((3,), float(n)) for n in range(4)]
    for weight in weights:
        for _ in range(WARM_UPS + 1):
            torch.testing.assert_close(call(kept, weight, tangent)[0], kept * weight)
    (recording,) = call.recordings()
    assert not recording.buffers and device.captures == 4


def test_a_large_gradient_of_a_result_is_copied_where_it_does_not_settle(device: FakeDevice) -> None:
    kept, weight = torch.full((LARGE // 4,), 2.0), torch.ones(LARGE // 4)
    call = backward_graph(device, {(kept.data_ptr(),)})
    tangents = [torch.full((LARGE // 4,), float(n)) for n in range(WARM_UPS + SETTLING + 4)]
    for tangent in tangents[: WARM_UPS + 1 + SETTLING]:
        for _ in range(1 if device.captures == 0 else 2):
            torch.testing.assert_close(call(kept, weight, tangent)[0], kept * tangent)
    assert device.captures == 1 + SETTLING and not call.recordings()[0].buffers
    for tangent in tangents[WARM_UPS + 1 + SETTLING :]:
        torch.testing.assert_close(call(kept, weight, tangent)[0], kept * tangent)
    assert device.captures == 2 + SETTLING and set(call.recordings()[0].buffers) == {2}


def test_what_is_kept_in_the_hosts_memory_at_first_does_not_matter(device: FakeDevice) -> None:
    """The seed of an attention's dropout is there where the forward graph was launched, and on the GPU where it was replayed."""
    asked = []

    def device_of(tensors: object) -> FakeDevice:
        asked.append(list(tensors))  # type: ignore[call-overload]
        return device

    kept, weight = torch.ones(3), torch.ones(3)
    call = backward_graph(device, {(kept.data_ptr(),)}, device_of=device_of)
    call(torch.ones(3), weight, torch.ones(3))
    assert asked == [["input weight", "input tangent"]]


def test_what_a_record_says_of_both_graphs() -> None:
    record = AutogradRecord(
        results=(True, False, True),
        inputs=(0,),
        saved=(("input", 0), ("raw", 3), ("input", 1), ("raw", 2)),
        numbers=(("raw", 4),),
        tangents=((0, (0,), ()),),
        written=((1, 1, False),),
        backward=tuple(GraphInput((("input", i),), False, i) for i in range(6)),
        gradients=(GraphOutput("raw", 0),),
    )
    assert keeps_of(record) == Keeps((3, 2), frozenset({0}))
    kept = kept_of(record, GraphSpec((bound("w"), X), "ttti", None), set)
    assert kept.inputs == (2, 4) and kept.lasting == {1} and kept.tangents == {5}
