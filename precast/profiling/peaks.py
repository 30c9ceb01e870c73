"""What a machine reaches at most, measured: bytes a second between memory and its units, and operations a second in products."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from precast.lowering.costs.records import StepRecord

_ON_HOST, _ON_DEVICE = (128 << 20, 1024, 1), (1 << 30, 8192, 5)
"""Bytes of a copy, side of a product's matrices, runs between two readings of the clock."""
_TYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_ROUNDS, _SECONDS = 12, 0.4


@dataclass
class Peaks:
    """Of one device ("cpu", "cuda"). `bytes`: a second, read and written together, in a copy that no cache holds. `operations`: a second,
    of square products by the operands' type, each measured when it is first asked for. A cache gives more bytes than `bytes`, so that
    a step whose data it holds can be faster than its predicted time.
    """

    device: str
    bytes: float = 0.0
    operations: dict[str, float] = field(default_factory=dict)

    @classmethod
    def measured(cls, device: str) -> Peaks:
        """Takes about half a second."""
        room, _, _ = _sizes(device)
        source = torch.ones(room // 4, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        return cls(device, 2 * room / _fastest(device, lambda: target.copy_(source)))

    def products(self, arithmetic: str) -> float:
        """Operations a second in products of this type; of a type that products are not measured in, float32's."""
        name = arithmetic if arithmetic in _TYPES else "f32"
        if name not in self.operations:
            _, side, _ = _sizes(self.device)
            a = torch.randn(side, side, device=self.device).to(_TYPES[name])
            self.operations[name] = 2 * side**3 / _fastest(self.device, lambda: a @ a)
        return self.operations[name]

    def elementwise(self, arithmetic: str) -> float:
        """Simple operations a second of generated loops: half of what float32 (float64) products reach, of whose operations two are one
        instruction.
        """
        return self.products("f64" if arithmetic == "f64" else "f32") / 2

    def least(self, step: StepRecord) -> tuple[float, str]:
        """Seconds that the step takes at least by the roofline model, and what bounds it: "memory" or "compute"."""
        memory = step.bytes / self.bytes
        rate = self.products(step.arithmetic) if step.products else self.elementwise(step.arithmetic)
        compute = (step.operations or 0) / rate
        return (compute, "compute") if compute > memory else (memory, "memory")


def _fastest(device: str, run: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    best, until = float("inf"), time.perf_counter() + _SECONDS
    _, _, repeat = _sizes(device)
    for number in range(_ROUNDS):
        wait(device)
        began = time.perf_counter()
        for _ in range(repeat):
            run()
        wait(device)
        took = (time.perf_counter() - began) / repeat
        best = min(best, took) if number else best  # the first one pays for pages and libraries
        if number > 2 and time.perf_counter() > until:
            break
    return best


def _sizes(device: str) -> tuple[int, int, int]:
    return _ON_HOST if device == "cpu" else _ON_DEVICE


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device != "cpu":
        torch.accelerator.synchronize()


__all__ = ["Peaks", "wait"]
