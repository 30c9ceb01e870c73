"""The families of targets that precast compiles for: one row each. Every layer asks this table, and none tests names of targets itself.

A target is a text such as "cpu:x86-64-v3" or "cuda:sm_90": a family's name, a colon, and a member of the family. A row names, as
"module:attribute", what each layer knows of a family; a layer loads its own part on first use, so that a process which compiles for CPUs
imports nothing of another family's. A third family is one more row: `register_target`.

This file imports nothing of the package: every folder may import it.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

HOST_DEVICE = "cpu"
"""The type of torch's device that every graph may have tensors on, whatever it is compiled for."""


@dataclass(frozen=True)
class Family:
    """One kind of target. `device`: the type of the torch device that its graphs compute on. `devices`: that in words, for messages."""

    name: str
    runtime: str
    """Names a `runtime.targets.rules.TargetRules`: which targets of the family there are, and which this machine runs."""
    lowering: str
    """Names a `lowering.targets.scheduling.Scheduling`: the passes that a program for it goes through."""
    codegen: str
    """Names a `codegen.common.backend.Backend`: how scheduled programs become machine code."""
    device: str = HOST_DEVICE
    devices: str = "CPUs"
    driver_symbols: str = ""
    """A pattern of the names that libraries for it take from the device's driver, and not from torch."""
    loader: str = ""
    """Names a `runtime.targets.rules.DeviceLoader` where there are such names, or images of kernels."""
    cuda_graphs: bool = False
    """Whether its libraries enqueue work that can be captured as a CUDA graph and replayed."""
    images: bool = False
    """Whether its artifacts hold images of kernels (cubins, PTX) beside the shared object."""

    findings: str = ""
    """Names what `precast doctor` says of the family's devices: a function that gives (whether all is well, a line) of each."""

    @property
    def on_host(self) -> bool:
        """Whether its graphs compute on tensors in host memory, so that torch needs no other device to make or to read them."""
        return self.device == HOST_DEVICE


CPU = Family(
    "cpu",
    runtime="precast.runtime.targets.cpu:RULES",
    lowering="precast.lowering.targets.cpu:CPU",
    codegen="precast.codegen.cpu.backend:BACKEND",
)
CUDA = Family(
    "cuda",
    runtime="precast.runtime.targets.cuda:RULES",
    lowering="precast.lowering.targets.gpu:GPU",
    codegen="precast.codegen.cuda.backend:BACKEND",
    device="cuda",
    devices="NVIDIA GPUs",
    driver_symbols=r"cu[A-Z]\w*",
    loader="precast.runtime.executable.cuda_images:LOADER",
    findings="precast.cli.health.doctor_gpu:findings",
    cuda_graphs=True,
    images=True,
)
_families: dict[str, Family] = {family.name: family for family in (CPU, CUDA)}


class UnknownFamily(ValueError):
    """A target's name begins with no registered family's."""


def register_target(family: Family) -> None:
    """Adds a row. Raises ValueError where the name is taken by another row, or where the row cannot be right; its doors are not
    imported.
    """
    _check(family)
    if _families.setdefault(family.name, family) != family:
        raise ValueError(f"there is a target family {family.name!r} already, and it is another one")


_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DOOR = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _check(family: Family) -> None:
    if not isinstance(family, Family):
        raise ValueError(f"a target family is described by a Family, and not by {family!r}")
    where = f"target family {family.name!r}"
    if not _NAME.fullmatch(family.name):
        raise ValueError(f"{where}: its name is lower-case letters, digits and underscores, since targets are called 'name:…'")
    doors = {"runtime": family.runtime, "lowering": family.lowering, "codegen": family.codegen}
    doors |= {field: door for field in ("loader", "findings") if (door := getattr(family, field))}
    for field, door in doors.items():
        if not _DOOR.fullmatch(door):
            raise ValueError(f"{where}: {field}={door!r} does not say 'module:attribute'")
    try:
        pattern = re.compile(family.driver_symbols)
    except re.error as error:
        raise ValueError(f"{where}: driver_symbols={family.driver_symbols!r} is no pattern ({error})") from error
    if family.driver_symbols and not family.loader:
        raise ValueError(f"{where}: its libraries take functions from a driver (driver_symbols), so it needs a loader")
    if family.driver_symbols and pattern.fullmatch(_OF_TORCH):
        raise ValueError(f"{where}: driver_symbols={family.driver_symbols!r} takes functions of torch's, such as {_OF_TORCH}")


_OF_TORCH = "aoti_torch_new_tensor_handle"
"""Stands for the functions that every library takes from torch."""


def unregister_target(name: str) -> None:
    """Takes the row of a family out again (for tests). Raises UnknownFamily where there is none."""
    if _families.pop(name, None) is None:
        raise UnknownFamily(f"no target family is named {name!r}")


def families() -> tuple[Family, ...]:
    """Every row, in order of registration."""
    return tuple(_families.values())


def find_family(target: str) -> Family | None:
    """The family that a target's name begins with; None where none has that name, as of artifacts that another installation made."""
    name, colon, _ = target.partition(":")
    return _families.get(name) if colon else None


def family_of(target: str) -> Family:
    """The family of a target. Raises UnknownFamily."""
    found = find_family(target)
    if found is None:
        raise UnknownFamily(f"no target family is registered for {target!r}; there are {', '.join(_families)}")
    return found


def family_on(devices: Iterable[str]) -> Family | None:
    """The family whose graphs compute on one of these types of torch's devices ("cpu", "cuda") other than the host; None where none does.

    This is where a graph's tensors decide what kind of target the graph is for.
    """
    there = set(devices) - {HOST_DEVICE}
    return next((family for family in _families.values() if family.device in there), None)


def computes_on(device: str) -> bool:
    """Whether graphs compute on this type of torch's devices, the host aside."""
    return family_on((device,)) is not None


def family_of_symbol(name: str) -> Family | None:
    """The family whose device's driver has the function of this name; None for a function of torch's."""
    return next((family for family in _families.values() if re.fullmatch(family.driver_symbols, name)), None) if name else None


@functools.cache
def load(door: str) -> Any:
    """What "module:attribute" names; the module is imported on first use. Raises ImportError with the door in the message."""
    module, _, attribute = door.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"a target family names {door!r}, which cannot be imported ({error})") from error


def load_every_part(target: str) -> None:
    """Imports what every layer knows of the target's family, for work in another thread: a process that forks while a thread imports has,
    in its child, modules that wait for ever.
    """
    family = family_of(target)
    for door in (family.runtime, family.lowering, family.codegen, family.loader):
        if door:
            load(door)


__all__ = [
    "CPU", "CUDA", "HOST_DEVICE", "Family", "UnknownFamily", "computes_on", "families", "family_of", "family_of_symbol", "family_on",
    "find_family", "load", "load_every_part", "register_target", "unregister_target",
]  # fmt: skip
