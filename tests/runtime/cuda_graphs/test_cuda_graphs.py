"""CUDA graphs: what is captured, which capture answers, that outputs may be kept, and every reason to leave a graph alone."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.artifact_store.format.records import GraphInput
from precast.runtime.common.log import configure
from precast.runtime.cuda_graphs import call as cuda_call
from precast.runtime.cuda_graphs import graphs as cuda_graphs
from precast.runtime.cuda_graphs.device import device_of, unfit
from precast.runtime.cuda_graphs.graphs import MOVES, RING, SIZES, WARM_UPS, Unfit
from precast.runtime.cuda_graphs.recording import PythonPlayer, Recording
from precast.runtime.native import loader
from precast.runtime.programs.program import Program
from precast.runtime.targets import nvidia_devices
from tests.runtime import hand_made_artifacts as standin
from tests.runtime.fake_cuda import FakeDevice, Graphs, bound, given, graphs

X = given("x", 0)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Lines of the topic cudagraphs."""
    configure("cudagraphs")
    logging.getLogger("precast").propagate = True
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Lines()
    logging.getLogger("precast.cudagraphs").addHandler(handler)
    yield lines
    logging.getLogger("precast.cudagraphs").removeHandler(handler)
    configure("")


def double(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * 2,)


def warmed(device: FakeDevice, x: torch.Tensor, run: Any = double, inputs: Any = (X,), **more: Any) -> Graphs:
    """After its warm-ups with `x`."""
    call = graphs(device, run, inputs, **more)
    for _ in range(WARM_UPS):
        call(x)
    return call


def test_the_first_calls_run_as_they_are_then_one_capture_serves_all(device: FakeDevice) -> None:
    x = torch.arange(4.0)
    call = warmed(device, x)
    assert (device.captures, device.spared) == (0, WARM_UPS)
    for step in range(5):
        x.fill_(step)
        torch.testing.assert_close(call(x)[0], torch.full((4,), 2.0 * step))
    assert (device.captures, device.replays) == (1, 5)
    assert device.events[0] == ("capture", "first", "no")


def test_outputs_may_be_kept(device: FakeDevice) -> None:
    """Ten calls whose outputs all live on: each keeps its values, past the ring too."""
    x = torch.zeros(3)
    call = warmed(device, x)
    kept = []
    for step in range(10):
        x.fill_(step)
        kept.append(call(x)[0])
    for step, output in enumerate(kept):
        torch.testing.assert_close(output, torch.full((3,), 2.0 * step))
    assert len({output.data_ptr() for output in kept}) == 10
    assert device.captures == RING + 1 and device.replays == 10


def test_storage_objects_may_be_kept(device: FakeDevice) -> None:
    x = torch.zeros(3)
    call = warmed(device, x)
    kept = []
    for step in range(6):
        x.fill_(step)
        kept.append(call(x)[0].untyped_storage())
    for step, storage in enumerate(kept):
        torch.testing.assert_close(torch.empty(0).set_(storage, 0, (3,)), torch.full((3,), 2.0 * step))


@pytest.mark.parametrize("size", [0, 4096])
def test_an_output_whose_memory_was_replaced_is_not_written_again(device: FakeDevice, size: int) -> None:
    x = torch.ones(3)
    call = warmed(device, x)
    for step in range(6):
        call(x)[0].untyped_storage().resize_(size)
        x.fill_(step)
        torch.testing.assert_close(call(x)[0], torch.full((3,), 2.0 * step))


def test_memory_is_used_again_when_the_caller_has_let_go(device: FakeDevice) -> None:
    x = torch.zeros(3)
    call = warmed(device, x)
    first = call(x)[0]
    address = first.data_ptr()
    del first
    assert call(x)[0].data_ptr() == address and device.captures == 1
    output = None
    for _ in range(6):  # as in a loop that rebinds one name: the last output is alive during the next call
        output = call(x)[0]
    assert device.captures == 2 and output is not None


def test_outputs_never_lie_in_work_memory(device: FakeDevice) -> None:
    """Captures share a pool: what one allocates there, a replay of another writes over."""
    pool = torch.zeros(3)
    x = torch.zeros(3)
    call = warmed(device, x, lambda x: (torch.mul(x, 2, out=pool),))
    kept = []
    for step in range(6):
        x.fill_(step)
        kept.append(call(x)[0])
    for step, output in enumerate(kept):
        torch.testing.assert_close(output, torch.full((3,), 2.0 * step))


def test_outputs_that_are_others_each_time_are_not_captured(device: FakeDevice) -> None:
    count = [0]

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count[0] += 1
        return (x.new_zeros(count[0]),)

    call = graphs(device, run, (X,))
    for _ in range(6):
        call(torch.ones(3))
    assert "output 0 is another one at each call: float32[4] on cpu before, now float32[5] on cpu" in call.refused


def test_a_view_of_an_output_keeps_its_memory(device: FakeDevice) -> None:
    x = torch.ones(4)
    call = warmed(device, x)
    view = call(x)[0][1:]
    x.fill_(5)
    call(x)
    torch.testing.assert_close(view, torch.full((3,), 2.0))
    assert device.captures == 2


def test_an_output_is_a_tensor_of_its_own(device: FakeDevice) -> None:
    """What the caller does to the object does not show in later outputs."""
    x = torch.ones(4)
    call = warmed(device, x)
    output = call(x)[0]
    output.unsqueeze_(0).requires_grad_(True)
    del output
    again = call(x)[0]
    assert again.shape == (4,) and not again.requires_grad and again._version == 0 and again._base is None
    torch.testing.assert_close(again, torch.full((4,), 2.0))


@torch.inference_mode()
def test_under_inference_mode_outputs_are_inference_tensors(device: FakeDevice) -> None:
    x = torch.ones(4)
    call = warmed(device, x)
    assert call(x)[0].is_inference()


def test_inputs_that_move_are_copied_and_others_read_where_they_lie(device: FakeDevice) -> None:
    y = torch.ones(3)
    xs = [torch.full((3,), float(i)) for i in range(6)]
    call = graphs(device, lambda x, y: (x + y,), (X, given("y", 1)))
    for i, x in enumerate(xs):
        torch.testing.assert_close(call(x, y)[0], torch.full((3,), i + 1.0))
    (recording,) = call.recordings()
    assert set(recording.buffers) == {0} and device.captures == 1


def test_every_input_that_moves_is_copied_before_the_replay(device: FakeDevice) -> None:
    calls = [tuple(torch.full((3,), float(10 * i + k)) for k in range(4)) for i in range(6)]
    call = graphs(device, lambda a, b, c, d: (a + 2 * b + 4 * c + 8 * d,), tuple(given(name, i) for i, name in enumerate("abcd")))
    for a, b, c, d in calls:
        torch.testing.assert_close(call(a, b, c, d)[0], a + 2 * b + 4 * c + 8 * d)
    (recording,) = call.recordings()
    assert set(recording.buffers) == {0, 1, 2, 3} and device.replays == len(calls) - WARM_UPS


def kept(output: torch.Tensor, clones: bool, shape: tuple[int, ...] = (3,)) -> Recording:
    """What a capture of one input that is copied leaves; its replay does nothing."""
    buffer = torch.zeros(shape)
    return Recording(
        device=FakeDevice(),
        index=buffer.get_device(),
        words=(buffer.data_ptr(),),
        buffers={0: buffer},
        shapes={0: (shape, buffer.stride())},
        outputs=(output,),
        replay=lambda: None,
        clones=clones,
    )


def test_a_capture_of_another_shape_does_not_answer(device: FakeDevice) -> None:
    call = graphs(device, double, (X,))
    alive = [torch.full((2, 3), float(i)) for i in range(5)]
    for x in alive:
        call(x)
    (recording,) = call.recordings()
    assert set(recording.buffers) == {0}, "whose place does not tell it from others"
    player = call.policy.player
    assert player.play([torch.zeros(2, 3)], None) is not None
    for other in (torch.zeros(3, 2), torch.zeros(6), torch.zeros(3, 2).t(), torch.zeros(2, 4), torch.zeros(2, 3, 1)):
        assert player.play([other], None) is None


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_a_capture_that_copies_its_outputs_answers_last(order: tuple[bool, bool]) -> None:
    player, own = PythonPlayer(), torch.ones(3)
    for clones in order:
        player.add(kept(torch.zeros(3) if clones else own, clones))
    first = player.play([torch.ones(3)], None)
    assert first is not None and first[0].data_ptr() == own.data_ptr()
    second = player.play([torch.ones(3)], None)
    assert second is not None and second[0].data_ptr() != own.data_ptr(), "the caller holds the other's output"


def test_an_input_that_starts_to_move_costs_one_more_capture(device: FakeDevice) -> None:
    x, other = torch.ones(3), torch.full((3,), 7.0)
    call = warmed(device, x)
    call(x)
    for _ in range(3):
        torch.testing.assert_close(call(other)[0], other * 2)
        torch.testing.assert_close(call(x)[0], x * 2)
    assert device.captures == 2


LAYOUTS = {
    "gaps": lambda: torch.rand(4, 6)[:, 1:4],
    "expanded": lambda: torch.rand(4, 1).expand(4, 5),
    "transposed": lambda: torch.rand(5, 4).t(),
    "empty": lambda: torch.rand(0, 3),
    "a number": lambda: torch.rand(()),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=list(LAYOUTS))
def test_copied_inputs_of_every_layout(device: FakeDevice, make: Any) -> None:
    call = graphs(device, double, (X,))
    alive = []
    for _ in range(5):
        x = make()
        alive.append(x)
        torch.testing.assert_close(call(x)[0], x * 2)
    assert device.replays == 3


def test_weights_that_are_written_are_read_and_weights_that_move_are_captured_anew(device: FakeDevice) -> None:
    weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    x = torch.ones(3)
    call = warmed(device, x, lambda x: (x * weight,), (X, bound("w")), weights=(weight,))
    call(x)
    weight.fill_(3)  # as load_state_dict does
    torch.testing.assert_close(call(x)[0], torch.full((3,), 3.0))
    assert device.captures == 1
    (recording,) = call.recordings()
    weight.data = torch.full((3,), 4.0)  # as Module.to does
    torch.testing.assert_close(call(x)[0], torch.full((3,), 4.0))
    assert device.captures == 2 and device.replays == 3
    assert device.retired == [recording.outputs[0].data_ptr()]


def test_the_memory_of_copied_inputs_is_retired_with_their_capture(device: FakeDevice) -> None:
    weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    xs = [torch.full((3,), float(i)) for i in range(6)]
    call = graphs(device, lambda x: (x * weight,), (X, bound("w")), weights=(weight,))
    for x in xs[:4]:
        call(x)
    (recording,) = call.recordings()
    weight.data = torch.full((3,), 4.0)
    torch.testing.assert_close(call(xs[4])[0], xs[4] * 4)
    assert device.retired == [recording.outputs[0].data_ptr(), recording.buffers[0].data_ptr()]


def _elsewhere_in_its_storage(weight: torch.Tensor) -> None:
    weight.set_(weight.untyped_storage(), 3, (3,), (1,))  # type: ignore[call-overload]


def _another_storage(weight: torch.Tensor) -> None:
    weight.set_(torch.full((3,), 5.0))  # type: ignore[call-overload]


def _other_memory_of_its_storage(weight: torch.Tensor) -> None:
    weight.untyped_storage().resize_(1 << 20)
    weight.fill_(5)


@pytest.mark.parametrize("move", [_elsewhere_in_its_storage, _another_storage, _other_memory_of_its_storage])
def test_a_weight_that_moves_under_its_tensor_is_noticed(device: FakeDevice, move: Callable[[torch.Tensor], None]) -> None:
    weight = torch.tensor([1.0, 1, 1, 5, 5, 5])[:3]
    empty, x = torch.empty(0), torch.ones(3)
    call = warmed(device, x, lambda x: (x * weight + empty.sum(),), (X, bound("w"), bound("e")), weights=(weight, empty))
    for _ in range(3):
        torch.testing.assert_close(call(x)[0], torch.ones(3))
    assert device.captures == 1 and device.replays == 3
    move(weight)
    for _ in range(3):
        torch.testing.assert_close(call(x)[0], torch.full((3,), 5.0))
    assert device.captures == 2 and device.replays == 6


def test_constants_in_the_hosts_memory_do_not_matter(device: FakeDevice) -> None:
    seen = []

    def device_of(tensors: Any) -> FakeDevice:
        seen.append(list(tensors))
        return device

    constant = GraphInput((("constant", 0),), False, None, "constant")
    x = torch.ones(3)
    call = warmed(device, x, lambda x: (x * 2,), (X, constant), weights=(torch.tensor(2.0),), device_of=device_of)
    call(x)
    assert seen == [["input x"]] and device.replays == 1


def test_prepared_weights_are_prepared_anew(device: FakeDevice) -> None:
    version = [1]
    x = torch.ones(2)
    call = warmed(device, x, lambda x: (x * version[0],), stamp=lambda: version[0])
    call(x)
    version[0] = 2
    torch.testing.assert_close(call(x)[0], torch.full((2,), 2.0))
    assert device.captures == 2


def test_mutated_inputs_are_written_in_place(device: FakeDevice) -> None:
    cache = torch.zeros(3)

    def run(x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not device.capturing:
            cache.add_(x)
        return (cache * 2,)

    x = torch.ones(3)
    call = graphs(device, run, (X, given("cache", 1, mutated=True)))
    for step in range(1, 7):
        torch.testing.assert_close(call(x, cache)[0], torch.full((3,), 2.0 * step))
    torch.testing.assert_close(cache, torch.full((3,), 6.0))
    assert device.captures == 1 and device.replays == 4


def test_a_written_weight_that_shares_its_memory_until_then_gets_its_own(device: FakeDevice) -> None:
    cache, x = torch.ones(3), torch.ones(3)
    written = GraphInput((("local", "self"), ("buffer", "cache")), True, None, mutated=True)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not device.capturing:
            cache.add_(x)
        return (cache * 2,)

    call = warmed(device, x, run, (X, written), weights=(cache,))
    call(x)
    address, clone = cache.untyped_storage()._cdata, torch._lazy_clone(cache)
    call(x)
    assert cache.untyped_storage()._cdata == address and device.captures == 2, "a replay would have written the clone's memory"
    torch.testing.assert_close(clone, torch.full((3,), 4.0))
    torch.testing.assert_close(cache, torch.full((3,), 5.0))


class _AsksPython(torch.Tensor):
    """Is given other memory by whoever asks for its storage while `then` is set."""

    then: torch.Tensor | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if cls.then is not None and getattr(func, "__name__", "") == "untyped_storage" and sys._getframe(1).f_code.co_name == "add":
            with torch._C.DisableTorchFunctionSubclass():
                args[0].data = cls.then
            cls.then = None
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_weight_that_moves_while_a_capture_is_kept_is_noticed(native_device: FakeDevice) -> None:
    weight = torch.ones(3).as_subclass(_AsksPython)
    x = torch.ones(3)

    def plain() -> torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return weight.detach().as_subclass(torch.Tensor)

    call = warmed(native_device, x, lambda x: (x * plain(),), (X, bound("w")), weights=(weight,))
    _AsksPython.then = torch.full((3,), 5.0)
    call(x)
    assert _AsksPython.then is None, "nobody asked"
    torch.testing.assert_close(call(x)[0], torch.full((3,), 5.0))
    assert native_device.captures == 2


def test_a_mutated_input_that_keeps_moving_ends_captures(device: FakeDevice, said: list[str]) -> None:
    caches = [torch.zeros(2) for _ in range(20)]
    call = graphs(device, lambda cache: (cache + 1,), (given("cache", 0, mutated=True),))
    for cache in caches:
        call(cache)
    assert "which the graph writes, is found elsewhere again and again" in call.refused
    assert device.captures <= MOVES and len([line for line in said if "runs without" in line]) == 1


def test_moves_that_pay_go_on(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "PLAYS_A_MOVE", 3)
    call = graphs(device, lambda cache: (cache + 1,), (given("cache", 0, mutated=True),))
    caches = [torch.zeros(2) for _ in range(2 * MOVES)]  # requests that bring a cache of their own
    for cache in caches:
        for _ in range(6):
            call(cache)
    assert not call.refused and device.captures > MOVES


def test_an_output_that_lies_in_an_input(device: FakeDevice) -> None:
    """The callers' own memory comes back, not that of the call that was captured."""
    call = graphs(device, lambda x: (x[1:], x + 1), (X,), kinds="tt")
    for i in range(5):
        x = torch.full((4,), float(i))
        part, more = call(x)
        assert part.untyped_storage()._cdata == x.untyped_storage()._cdata and part.storage_offset() == 1
        torch.testing.assert_close(more, x + 1)
    assert device.replays == 3


def test_numbers_and_sizes_have_captures_of_their_own(device: FakeDevice) -> None:
    inputs = (X, GraphInput((("size",),), False, None, "int", read=("size", 0, 0)), GraphInput((("local", "k"),), False, 1, "float"))
    call = graphs(device, lambda x, k: (x * k,), inputs, finish=lambda raw, values: (raw[0], values[1]))
    given_sizes = (3, 5, 3, 5, 3, 5, 3, 5)
    for size in given_sizes:
        output, number = call(torch.ones(size), 2.5)
        torch.testing.assert_close(output, torch.full((size,), 2.5))
        assert number == size
    assert device.captures == 2
    for _ in range(4):
        torch.testing.assert_close(call(torch.ones(3), 4.0)[0], torch.full((3,), 4.0))
    assert device.captures == 3


def sized(count: int) -> tuple[GraphInput, ...]:
    return (X, GraphInput((("size",),), False, None, "int", read=("size", 0, 0)))


def test_sizes_have_a_limit_and_a_warning_before(device: FakeDevice, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "SIZES", 10)
    call = graphs(device, double, sized(1))
    for size in range(1, 13):
        for _ in range(4):
            torch.testing.assert_close(call(torch.ones(size))[0], torch.full((size,), 2.0))
    assert device.captures == 10 < SIZES
    assert len([line for line in said if "8 distinct sizes" in line]) == 1
    assert len([line for line in said if "others will run without" in line]) == 1


def test_symbolic_sizes_are_skipped_when_asked(device: FakeDevice, said: list[str]) -> None:
    call = warmed(device, torch.ones(3), inputs=sized(1), skip_dynamic=True)
    call(torch.ones(3))
    assert device.captures == 0 and "triton.cudagraph_skip_dynamic_graphs is set" in said[0]
    other = warmed(device, torch.ones(3), skip_dynamic=True)
    other(torch.ones(3))
    assert not other.refused, "a static graph is captured all the same"


def test_a_failing_capture_is_tried_again_once_then_given_up_with_its_reason(device: FakeDevice, said: list[str]) -> None:
    device.fails = ["no handle yet"]
    x = torch.ones(3)
    call = warmed(device, x)
    for _ in range(3):
        torch.testing.assert_close(call(x)[0], x * 2)
    assert not call.refused and device.captures == 2
    device.fails = ["it synchronises"] * 2
    other = warmed(device, x)
    for _ in range(4):
        torch.testing.assert_close(other(x)[0], x * 2)
    assert [line for line in said if "runs without" in line] == ["net: runs without CUDA graphs: it cannot be captured: it synchronises"]
    assert device.captures == 4


def test_random_graphs_are_replayed_by_torch_unless_the_host_reads_the_generator(device: FakeDevice) -> None:
    def drawing(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        device.offset += 0 if device.capturing else 4
        return (x * 2,)

    x = torch.ones(3)
    call = warmed(device, x, drawing)
    call(x)
    assert ("capture", "first", "yes") in device.events and not call.refused

    device.events.clear()
    noise = iter([4, 8, 0])

    def beside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        device.offset += 0 if device.capturing else next(noise)  # another thread's
        return (x * 2,)

    warmed(device, x, beside)(x)
    assert device.events == [("capture", "first", "maybe")]
    noise = iter([4, 4, 0])
    warmed(device, x, beside, may_draw=False)(x)
    assert device.events[-1] == ("capture", "first", "no"), "a graph that cannot draw does not, whatever the generator does"

    def reading(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        device.offset += 4
        return (x * 2,)

    other = warmed(device, x, reading)
    for _ in range(3):
        other(x)
    assert "state of the random generator on the host" in other.refused


def test_another_stream_waits_for_the_last_one(device: FakeDevice) -> None:
    x = torch.ones(3)
    call = warmed(device, x)
    call(x)
    device.stream = "side"
    call(x)
    call(x)
    device.stream = "main"
    call(x)
    assert [event for event in device.events if event[0] == "wait"] == [("wait", "side", "main"), ("wait", "main", "side")]


def test_an_obstacle_concerns_one_call(device: FakeDevice, said: list[str]) -> None:
    x = torch.ones(3)
    call = warmed(device, x)
    device.trouble = "its stream is being captured"
    torch.testing.assert_close(call(x)[0], x * 2)
    assert device.captures == 0 and "its stream is being captured" in said[-1]
    device.trouble = ""
    call(x)
    assert device.replays == 1 and not call.refused


def test_threads_get_outputs_of_their_own(device: FakeDevice) -> None:
    call = graphs(device, double, (X,))
    wrong: list[float] = []

    def work(number: int) -> None:
        x = torch.full((64,), float(number))
        kept = [call(x)[0] for _ in range(50)]
        wrong.extend(float(k[0]) for k in kept if not torch.equal(k, x * 2))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    assert device.replays >= 200 - 4 * WARM_UPS


def test_dropped_captures_free_their_outputs(device: FakeDevice) -> None:
    x = torch.ones(3)
    call = warmed(device, x)
    kept = call(x)[0]
    storage = kept.untyped_storage()._cdata
    before = torch._C._storage_Use_Count(storage)
    call.policy._refuse("a test")
    gc.collect()
    assert torch._C._storage_Use_Count(storage) < before
    torch.testing.assert_close(kept, x * 2)


@pytest.fixture
def native_device(native_store: Store) -> FakeDevice:
    return FakeDevice(loader.loaded())


def test_the_native_runtime_says_what_the_driver_says(native_device: FakeDevice) -> None:
    x = torch.ones(3)
    call = warmed(native_device, x)
    call(x)
    native_device.error = 700
    with pytest.raises(RuntimeError, match="cannot be launched: error 700 of the driver"):
        call(x)
    native_device.error = 0
    torch.testing.assert_close(call(x)[0], x * 2)
    assert native_device.captures == 1, "the outputs of the call that failed are free again"


def test_a_thread_of_another_context_is_given_its_own_back(native_device: FakeDevice) -> None:
    x = torch.ones(3)
    call = warmed(native_device, x)
    call(x)
    native_device.contexts = [9]
    call(x)
    assert native_device.contexts == [9, 1, 9]
    native_device.contexts = [0]
    call(x)
    assert native_device.contexts == [0, 1]


def test_native_calls_do_not_reach_python(native_device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    call = warmed(native_device, x, finish=lambda raw, values: (*raw, *values))
    call(x)
    monkeypatch.setattr(call.policy, "_lock", None)  # the slow path would fail
    output, same = call(x)
    assert same is x and torch.equal(output, x * 2)
    with pytest.raises(TypeError, match="expected a tensor, got list"):
        call([1.0])
    with pytest.raises(TypeError, match="wants 1 arguments, got 0"):
        call()


def test_several_copies_take_one_launch(native_device: FakeDevice) -> None:
    """Of inputs that move, 32 at a time, and of outputs that are copied out; large ones and single ones are the driver's."""
    count = 35
    inputs = tuple(given(f"x{i}", i) for i in range(count))
    call = graphs(native_device, lambda *xs: tuple(x + i for i, x in enumerate(xs)), inputs, kinds="t" * count)
    for step in range(5):
        xs = [torch.full((i % 3,), float(step)) for i in range(count - 1)] + [torch.full((1 << 20,), float(step))]
        for i, (x, y) in enumerate(zip(xs, call(*xs), strict=True)):
            torch.testing.assert_close(y, x + i)
    copied = [event[1] for event in native_device.events if event[0] == "copy"]
    assert copied == [22] * 3, "a third of 34 is empty, one is large"
    more = tuple(given(f"x{i}", i) for i in range(40))
    call = graphs(native_device, lambda *xs: tuple(x * 2 for x in xs), more, kinds="t" * 40)
    native_device.events.clear()
    kept = []
    for step in range(8):
        xs = [torch.full((2,), float(step + i)) for i in range(40)]
        kept.append((xs, call(*xs)))
    for xs, ys in kept:
        torch.testing.assert_close(torch.stack(ys), torch.stack(xs) * 2)
    copied = [event[1] for event in native_device.events if event[0] == "copy"]
    assert copied == [32, 8] * 3 + [32, 8, 32, 8] * 3


def test_graphs_that_are_never_captured(device: FakeDevice, said: list[str]) -> None:
    x = torch.ones(3)
    call = warmed(device, x, unfit="aten::nonzero waits")
    call(x)
    assert said == ["net: runs without CUDA graphs: aten::nonzero waits"]
    number = GraphInput((("local", "n"),), False, 0, "int")
    assert "no tensor" in graphs(device, double, (number,)).refused
    on_the_cpu = warmed(device, x, device_of=device_of)
    assert on_the_cpu.refused == "input x is on the cpu"
    assert device.captures == 0


def test_several_gpus() -> None:
    class On:
        def __init__(self, index: int) -> None:
            self.device, self.index = torch.device("cuda", index), index

        def get_device(self) -> int:
            return self.index

    with pytest.raises(Unfit, match=r"several GPUs \(0, 1\)"):
        device_of({"a": On(1), "b": On(0)})  # type: ignore[dict-item]


def test_operators_that_a_replay_would_not_repeat() -> None:
    @torch.library.custom_op("precast_graph_tests::noisy", mutates_args=())
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    assert unfit(["aten::sort.stable", "aten::add.Tensor"]) == ""
    assert "aten::nonzero waits for the GPU" in unfit(["aten::sort.stable", "aten::nonzero"])
    assert "aten::_local_scalar_dense waits" in unfit(["aten::_local_scalar_dense"])
    assert "decides on the host" in unfit(["control::cond"])
    assert "written in Python" in unfit(["precast_graph_tests::noisy"])
    assert "not registered" in unfit(["precast_graph_tests::gone"])


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


@pytest.mark.parametrize("target", ["cuda:sm_90", "cpu:x86-64-v3"])
@pytest.mark.parametrize("mode", ["reduce-overhead", "default"])
def test_an_artifact_for_a_gpu_is_replayed_when_asked(
    mode: str, target: str, device: FakeDevice, set_compiler: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def compiled(program: Program, args: tuple[Any, ...], kwargs: Any) -> Any:
        call = "(graph(x)[0],)"
        return standin.in_process(*standin.manifest_for(program, [], [X, bound("w")], call, standin.library(1.0), target=target))

    monkeypatch.setattr(cuda_call, "device_of", device.of)
    monkeypatch.setattr(loader, "loaded", lambda: device.native)
    monkeypatch.setattr(nvidia_devices, "capabilities", lambda: ((9, 0),))
    set_compiler(compiled)
    model = Scaled()
    call = precast.compile(model, mode=mode, store=Store.open(tmp_path))
    x = torch.ones(3)
    kept = []
    for step in range(1, 7):
        model.w.fill_(step)
        kept.append(call(x)[0])
    torch.testing.assert_close(torch.stack(kept)[:, 0], torch.arange(1.0, 7) + 1)
    assert device.replays == (6 - WARM_UPS if (mode, target) == ("reduce-overhead", "cuda:sm_90") else 0)


@pytest.mark.parametrize("skipped", [True, False])
def test_the_option_to_skip_symbolic_sizes_reaches_the_graphs(
    skipped: bool, device: FakeDevice, said: list[str], set_compiler: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inputs = [X, bound("w"), sized(1)[1]]

    def compiled(program: Program, args: tuple[Any, ...], kwargs: Any) -> Any:
        artifact = standin.manifest_for(program, [], inputs, "(graph(x)[0],)", standin.library(1.0), target="cuda:sm_90")
        return standin.in_process(*artifact)

    monkeypatch.setattr(cuda_call, "device_of", device.of)
    monkeypatch.setattr(loader, "loaded", lambda: device.native)
    monkeypatch.setattr(nvidia_devices, "capabilities", lambda: ((9, 0),))
    set_compiler(compiled)
    options = {"triton.cudagraphs": True, "triton.cudagraph_skip_dynamic_graphs": skipped}
    call = precast.compile(Scaled(), options=options, store=Store.open(tmp_path))
    for _ in range(6):
        torch.testing.assert_close(call(torch.ones(3))[0], torch.full((3,), 3.0))
    assert (device.captures, device.replays) == ((0, 0) if skipped else (1, 6 - WARM_UPS))
    assert any("triton.cudagraph_skip_dynamic_graphs is set" in line for line in said) == skipped
