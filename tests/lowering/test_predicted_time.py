"""Predicted times: curves of rates, what reuse does, what bounds a step, and the records of chips."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from precast.lowering.costs.chip_records import CHIPS, STANDS_FOR, chip_of
from precast.lowering.costs.chips import Chip, Curve, from_data, to_data
from precast.lowering.costs.predicted_time import predicted, predictions, reuse_distances
from precast.lowering.costs.records import StepRecord, Work

MEGABYTE = 10**6
CHIP = Chip(
    name="of a test",
    source="made up",
    units=4,
    call=1e-6,
    memory=Curve(((MEGABYTE, 1e12), (100 * MEGABYTE, 1e11))),
    products={"f32": Curve(((1e9, 1e13),)), "tf32": Curve(((1e9, 1e14),))},
    loops={"f32": 1e12, "f64": 5e11},
)


def work(read: dict[str, int], written: dict[str, int], operations: int | None = 0, products: bool = False) -> Work:
    return Work(read, written, operations, "f32", products)


def test_between_points_a_rate_follows_the_logarithm() -> None:
    curve = Curve(((1.0, 10.0), (100.0, 30.0)))
    assert [curve(amount) for amount in (0.1, 1, 10, 100, 1000)] == pytest.approx([10, 10, 20, 30, 30])
    assert curve.scaled(2)(20) == pytest.approx(40)


@pytest.mark.parametrize(
    ("step", "seconds", "bound"),
    [
        (work({"a": 50 * MEGABYTE}, {"b": 50 * MEGABYTE}), 1e-6 + 1e-3, "memory"),
        (work({"a": 8}, {"b": 8}), 1e-6, "call"),
        (work({"a": 8}, {"b": 8}, 10**9), 1e-6 + 1e-3, "compute"),
        (work({"a": 8}, {"b": 8}, 10**10, products=True), 1e-6 + 1e-3, "compute"),
        (work({"a": 50 * MEGABYTE}, {"b": 50 * MEGABYTE}, None), 1e-6 + 1e-3, "memory"),
        (work({}, {}), 1e-6, "call"),
    ],
)
def test_a_step_takes_the_longer_of_both_and_a_call(step: Work, seconds: float, bound: str) -> None:
    found = predicted(step, CHIP)
    assert found.seconds == pytest.approx(seconds, rel=1e-3) and found.bound == bound


def test_what_was_just_written_comes_from_a_cache() -> None:
    """The second step reads what the first one wrote; what the first reads was used a whole call ago."""
    steps = [work({"a": 50 * MEGABYTE}, {"b": MEGABYTE}), work({"b": MEGABYTE}, {"c": 50 * MEGABYTE})]
    first, second = reuse_distances(steps)
    assert first["a"] == 102 * MEGABYTE and second["b"] == 51 * MEGABYTE and second["c"] == 102 * MEGABYTE
    alone = [predicted(step, CHIP, {name: 10**9 for name in ("a", "b", "c")}).seconds for step in steps]
    together = [predicted(step, CHIP, own).seconds for step, own in zip(steps, (first, second), strict=True)]
    assert together[1] < alone[1]


def test_buffers_at_one_place_are_the_same_memory() -> None:
    steps = [work({}, {"a": MEGABYTE}), work({"a": MEGABYTE}, {}), work({}, {"b": MEGABYTE}), work({"w": 500 * MEGABYTE}, {})]
    apart, shared = reuse_distances(steps), reuse_distances(steps, {"a": 0, "b": 0})
    assert shared[2]["b"] == MEGABYTE and apart[2]["b"] == 503 * MEGABYTE


def test_distances_are_those_of_a_walk_through_many_calls() -> None:
    """Against three calls written out, each touch looked up in the list of those before."""
    made = random.Random(7)
    steps = [work({made.choice("abcdef"): made.randrange(1, 50) * 2}, {made.choice("uvw"): made.randrange(1, 50) * 2}) for _ in range(12)]
    middles, total = [], 0
    for step in steps * 3:
        middles.append(total + step.bytes // 2)
        total += step.bytes
    for number, found in enumerate(reuse_distances(steps)):
        at = number + 2 * len(steps)
        for name, distance in found.items():
            before = max(n for n in range(at) if name in {**(steps * 3)[n].read, **(steps * 3)[n].written})
            assert distance == min(middles[at] - middles[before], total // 3)


def test_convolutions_round_to_tf32_where_products_do_not() -> None:
    def record(name: str) -> StepRecord:
        own = work({"x": 8}, {"y": 8}, 10**10, products=True)
        return StepRecord(kind="library", name=name, how="aten", **vars(own))

    product, convolution = predictions([record("gemm"), record("conv")], CHIP)
    assert product.seconds == pytest.approx(1e-6 + 1e-3) and convolution.seconds == pytest.approx(1e-6 + 1e-4)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_records_are_whole(chip: Chip) -> None:
    assert from_data(json.loads(json.dumps(to_data(chip)))) == chip
    for curve in (chip.memory, *chip.products.values()):
        assert all(low < high for (low, _), (high, _) in itertools.pairwise(curve.points))
    assert chip.source and chip.units and {"f32", "f64", "bf16", "f16"} <= set(chip.products)
    assert max(chip.product_rate(name, 1e12) for name in ("f32", "bf16")) > chip.loop_rate("f32") and chip.product_rate(
        "i8", 1e9
    ) == chip.product_rate("f32", 1e9)
    more = chip.with_units(2 * chip.units)
    assert more.loop_rate("f32") == 2 * chip.loop_rate("f32") and more.memory.points[-1] == chip.memory.points[-1]


@pytest.mark.parametrize("wrong", [{}, {"call": -1.0}, {"memory": {"points": []}}, {"products": {}}, {"loops": {"f32": "fast"}}])
def test_what_is_no_record_is_refused(wrong: dict[str, object]) -> None:
    data = {**to_data(CHIP), **wrong} if wrong else {}
    with pytest.raises(ValueError):
        from_data(data)


def test_a_chip_goes_by_its_own_name_or_stands_for_a_target() -> None:
    assert chip_of("cuda:sm_90", "NVIDIA H200") is CHIPS["NVIDIA H200"] and chip_of("cuda:sm_90") is CHIPS["NVIDIA H100"]
    assert chip_of("cuda:sm_80", "NVIDIA A100-SXM4-80GB") is CHIPS["NVIDIA A100"], "and not an A10, of whose name it begins with"
    assert chip_of("cuda:sm_90", "NVIDIA H100 80GB HBM3") is CHIPS["NVIDIA H100"]
    assert chip_of("riscv:64") is None and set(STANDS_FOR.values()) <= set(CHIPS)
