"""What a chip does in a second, as data: bytes by the size of what is worked on, products by type, simple operations, and what a step costs
at least. Times are predicted from it (predicted_time.py) for targets that are not at hand.

Every figure is measured (`precast rates` measures a machine and prints its `Chip`) or names where it is from.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curve:
    """A rate as it depends on an amount: between two `points` along a straight line over the logarithm of the amount, level outside of
    them.
    """

    points: Points

    def __call__(self, amount: float) -> float:
        """The rate at this amount."""
        after = bisect_left(self.points, amount, key=lambda point: point[0])
        if after == 0 or after == len(self.points):
            return self.points[min(after, len(self.points) - 1)][1]
        (low, slow), (high, fast) = self.points[after - 1], self.points[after]
        return slow + (fast - slow) * math.log(amount / low) / math.log(high / low)

    def scaled(self, by: float) -> Curve:
        """Of a machine that does `by` times as much at once: both the amounts and the rates are so many times as large."""
        return Curve(tuple((amount * by, rate * by) for amount, rate in self.points))


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One machine, or one architecture. `units`: a GPU's multiprocessors, or the threads of a CPU, all of which the rates take together.

    `call`: seconds that a step takes when there is nothing to do. `memory`: bytes a second, read and written together, by the bytes that
    are touched between two uses of the same ones (what caches see). `products`: operations a second by the type of the operands and
    by the operations of one product, over bytes that are near; "tf32" where float32 is rounded to it. `loops`: simple operations a
    second of generated code by type ("f64", and "f32" for any other). `source`: where the figures are from.
    """

    name: str
    source: str
    units: int
    call: float
    memory: Curve
    products: Mapping[str, Curve] = field(default_factory=dict)
    loops: Mapping[str, float] = field(default_factory=dict)

    def product_rate(self, arithmetic: str, operations: float) -> float:
        """Of a type that no product was measured in: float32's."""
        return self.products.get(arithmetic, self.products["f32"])(operations)

    def loop_rate(self, arithmetic: str) -> float:
        return self.loops["f64" if arithmetic == "f64" else "f32"]

    def with_units(self, units: int) -> Chip:
        """The same with another number of threads: rates grow with them, but for those of memory beyond all caches, which one thread may
        use up. Each step's least time stays.
        """
        by = units / self.units
        if by == 1:
            return self
        far = self.memory.points[-1]
        memory = Curve(tuple((amount, rate * by if (amount, rate) != far else rate) for amount, rate in self.memory.points))
        products = {name: curve.scaled(by) for name, curve in self.products.items()}
        return Chip(
            name=f"{self.name} with {units} threads", source=f"{self.source}, as measured with {self.units} threads", units=units,
            call=self.call, memory=memory, products=products, loops={name: rate * by for name, rate in self.loops.items()},
        )  # fmt: skip


def to_data(chip: Chip) -> dict[str, Any]:
    """The chip as JSON can hold it."""
    return asdict(chip)


def from_data(data: Mapping[str, Any]) -> Chip:
    """Raises ValueError for what is no such data."""
    try:
        known = {f.name: data[f.name] for f in fields(Chip)}
        memory, products = _curve(data["memory"]), {str(name): _curve(own) for name, own in data["products"].items()}
        loops = {str(name): float(rate) for name, rate in data["loops"].items()}
        chip = Chip(**{**known, "memory": memory, "products": products, "loops": loops})
        rates = (chip.call, chip.units, chip.product_rate("f32", 1.0), chip.loop_rate("f32"), chip.loop_rate("f64"))
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise ValueError("rates are positive")
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no record of a chip: {type(error).__name__} {error}") from error
    return chip


def _curve(data: Mapping[str, Any]) -> Curve:
    points = tuple(sorted((float(amount), float(rate)) for amount, rate in data["points"]))
    if not points or not all(math.isfinite(n) and n > 0 for point in points for n in point):
        raise ValueError("a curve has points, all of them positive")
    return Curve(points)


__all__ = ["Chip", "Curve", "from_data", "to_data"]
