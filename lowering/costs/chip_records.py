"""The chips whose rates are known, and which stands for a target that is not at hand.

Measured ones are what `precast rates` printed. Of the others only their makers' figures are known: they reach the parts of those that the
H200 reaches of its own, by the same curves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precast.lowering.costs.chips import Chip, Curve

H200 = Chip(
    name="NVIDIA H200",
    source="measured, torch 2.11; memory by kernels of 50 to 800 MB, estimated below",
    units=132,
    call=2.88e-6,
    memory=Curve(((6.55e4, 2.0e11), (1.05e6, 1.5e12), (1.68e7, 4.2e12), (2.68e8, 4.3e12), (4.29e9, 4.35e12))),
    products={
        "f64": Curve(
            (
                (5.24e5, 3.03e11), (3.36e7, 1.07e13), (2.68e8, 3.63e13), (2.15e9, 5.41e13), (1.72e10, 6.09e13), (1.37e11, 6.32e13),
                (1.10e12, 6.35e13),
            )
        ),
        "f32": Curve(
            (
                (5.24e5, 2.19e11), (3.36e7, 4.75e12), (2.68e8, 2.03e13), (2.15e9, 3.90e13), (1.72e10, 5.06e13), (1.37e11, 5.13e13),
                (1.10e12, 5.12e13),
            )
        ),
        "tf32": Curve(
            (
                (5.24e5, 1.11e11), (3.36e7, 8.53e12), (2.68e8, 4.26e13), (2.15e9, 1.61e14), (1.72e10, 3.54e14), (1.37e11, 4.08e14),
                (1.10e12, 3.80e14),
            )
        ),
        "bf16": Curve(
            (
                (5.24e5, 3.64e11), (3.36e7, 1.44e13), (2.68e8, 9.43e13), (2.15e9, 4.30e14), (1.72e10, 7.32e14), (1.37e11, 8.09e14),
                (1.10e12, 7.70e14),
            )
        ),
        "f16": Curve(
            (
                (5.24e5, 3.28e11), (3.36e7, 1.44e13), (2.68e8, 9.43e13), (2.15e9, 4.30e14), (1.72e10, 7.11e14), (1.37e11, 7.76e14),
                (1.10e12, 7.41e14),
            )
        ),
    },
    loops={"f32": 2.94e13, "f64": 1.58e13},
)  # fmt: skip


_XEON = "measured on two cores of a Xeon of family 6, model 207, torch 2.13: the best of several runs beside neighbours"
_XEON_MEMORY = Curve(
    (
        (1.6e4, 7.5e10), (2.6e5, 7.6e10), (1.0e6, 1.3e11), (4.2e6, 8.0e10), (1.7e7, 4.7e10), (6.7e7, 2.3e10), (2.7e8, 1.1e10),
    )
)  # fmt: skip
_AVX512_PRODUCTS = {
    "f32": Curve(((8.2e3, 7.4e9), (5.2e5, 2.1e11), (3.4e7, 2.9e11), (2.7e8, 2.7e11))),
    "f64": Curve(((8.2e3, 8.0e9), (5.2e5, 1.1e11), (3.4e7, 1.3e11), (2.7e8, 1.1e11))),
}
AMX = Chip(
    name="CPU with AVX512 and AMX",
    source=_XEON,
    units=2,
    call=4.5e-7,
    memory=_XEON_MEMORY,
    products={
        **_AVX512_PRODUCTS,
        "bf16": Curve(((8.2e3, 4.6e9), (5.2e5, 5.2e10), (3.4e7, 1.4e12), (2.7e8, 2.1e12), (2.1e9, 2.2e12))),
        "f16": Curve(((8.2e3, 3.6e9), (5.2e5, 4.5e10), (3.4e7, 3.0e11), (2.7e8, 3.1e11))),
    },
    loops={"f32": 5.3e10, "f64": 2.5e10},
)
AVX512 = Chip(
    name="CPU with AVX512",
    source=f"{_XEON}, without its matrix units and types of 16 bits",
    units=2,
    call=4.5e-7,
    memory=_XEON_MEMORY,
    products={
        **_AVX512_PRODUCTS,
        "bf16": Curve(((8.2e3, 4.0e9), (5.2e5, 2.4e10), (3.4e7, 5.0e10))),
        "f16": Curve(((8.2e3, 3.2e9), (5.2e5, 4.0e9))),
    },
    loops={"f32": 5.1e10, "f64": 2.4e10},
)
AVX2 = Chip(
    name="CPU with AVX2",
    source=f"{_XEON}, with nothing beyond AVX2",
    units=2,
    call=4.5e-7,
    memory=_XEON_MEMORY,
    products={
        "f32": Curve(((8.2e3, 7.4e9), (5.2e5, 1.2e11), (3.4e7, 1.6e11), (2.7e8, 1.6e11))),
        "f64": Curve(((8.2e3, 8.0e9), (5.2e5, 7.6e10), (3.4e7, 7.8e10), (2.7e8, 6.2e10))),
        "bf16": Curve(((8.2e3, 4.2e9), (5.2e5, 5.4e9), (3.4e7, 3.2e9))),
        "f16": Curve(((8.2e3, 3.2e9), (5.2e5, 4.2e9), (3.4e7, 3.4e9))),
    },
    loops={"f32": 3.1e10, "f64": 1.3e10},
)
"""Products and loops of the CPUs are those of one core, twice: beside neighbours a barrier waits."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A maker's figures: bytes a second of memory, operations a second at most; of tensor cores without sparsity, in `half` types with sums
    in float32.
    """

    units: int
    memory: float
    f32: float
    f64: float
    tf32: float
    half: float


H200_SHEET = Sheet(units=132, memory=4.8e12, f32=67e12, f64=67e12, tf32=494e12, half=989e12)
"""NVIDIA H200 SXM data sheet, tensor cores in double precision."""
SHEETS: Mapping[str, tuple[str, Sheet]] = {
    "NVIDIA A100": ("A100 80 GB SXM data sheet", Sheet(units=108, memory=2.039e12, f32=19.5e12, f64=19.5e12, tf32=156e12, half=312e12)),
    "NVIDIA A10": ("A10 data sheet", Sheet(units=72, memory=0.6e12, f32=31.2e12, f64=0.49e12, tf32=62.5e12, half=125e12)),
    "NVIDIA L40S": ("L40S data sheet", Sheet(units=142, memory=0.864e12, f32=91.6e12, f64=1.43e12, tf32=183e12, half=362e12)),
    "NVIDIA H100": ("H100 SXM data sheet", Sheet(units=132, memory=3.35e12, f32=67e12, f64=67e12, tf32=494e12, half=989e12)),
    "NVIDIA B200": ("HGX B200 data sheet", Sheet(units=148, memory=7.7e12, f32=75e12, f64=37e12, tf32=1.1e15, half=2.25e15)),
}


def _from_sheet(name: str, told: str, sheet: Sheet) -> Chip:
    """A chip of the H200's curves, each scaled by the makers' figures."""
    theirs = H200_SHEET
    by = {kind: getattr(sheet, kind) / getattr(theirs, kind) for kind in ("f32", "f64", "tf32", "half")}
    products = {kind: curve.scaled(by[kind if kind in by else "half"]) for kind, curve in H200.products.items()}
    loops = {"f32": H200.loops["f32"] * by["f32"], "f64": H200.loops["f64"] * by["f64"]}
    memory = H200.memory.scaled(sheet.memory / theirs.memory)
    return Chip(name=name, source=f"{told}, by the parts that an H200 reaches of its own", units=sheet.units, call=H200.call,
                memory=memory, products=products, loops=loops)  # fmt: skip


_KNOWN = (AVX2, AVX512, AMX, H200, *(_from_sheet(name, *told) for name, told in SHEETS.items()))
CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _KNOWN}

STANDS_FOR: Mapping[str, str] = {
    "cpu:x86-64-v3": "CPU with AVX2",
    "cpu:x86-64-v4": "CPU with AVX512",
    "cuda:sm_80": "NVIDIA A100",
    "cuda:sm_86": "NVIDIA A10",
    "cuda:sm_89": "NVIDIA L40S",
    "cuda:sm_90": "NVIDIA H100",
    "cuda:sm_100": "NVIDIA B200",
}
"""The chip that a target's predictions are of where no other is asked for."""


def chip_of(target: str, name: str = "") -> Chip | None:
    """The chip that calls itself `name` ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"), or else the one that stands for the target; None for a
    target of which no chip is known.
    """
    named = max((own for own in CHIPS if name.startswith(own)), key=len, default="")
    return CHIPS.get(named) or CHIPS.get(STANDS_FOR.get(target, ""))


__all__ = ["CHIPS", "STANDS_FOR", "chip_of"]
