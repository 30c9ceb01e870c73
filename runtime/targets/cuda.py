"""CUDA targets: images for one compute capability, PTX text for the rest, and which of them the GPUs of this machine run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from precast.runtime.common.errors import Refused
from precast.runtime.targets import nvidia_devices
from precast.runtime.targets.cpu import PORTABLE
from precast.runtime.targets.rules import Fit, TargetRules

if TYPE_CHECKING:
    import torch

PTX = "cuda:ptx_80"
"""The fall-back for GPUs that no image was made for: text that their driver compiles."""
PTX_CUDA = (12, 0)
"""The oldest CUDA whose drivers read it."""
ARCHITECTURES = (80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
"""Compute capabilities (major and minor in one number) that images can be made for."""
_NAME = re.compile(r"cuda:(sm|ptx)_(\d+)")
_EXACT_SINCE = 90
"""From here on images use what one architecture alone has (sm_90a, sm_100a), and run on no other."""


def cuda_ladder(capability: tuple[int, int]) -> tuple[str, ...]:
    """GPU targets that run on a device of this compute capability, best first."""
    exact = 10 * capability[0] + capability[1]
    family = [a for a in reversed(ARCHITECTURES) if a < exact and a // 10 == capability[0] and a < _EXACT_SINCE]
    images = [exact, *family] if exact >= ARCHITECTURES[0] else []
    return (*(f"cuda:sm_{number}" for number in images), *((PTX,) if exact >= 80 else ()))


def native_cuda(capability: tuple[int, int]) -> str:
    """What is compiled for a device of this compute capability that is at hand: its own images where they can be made."""
    best = cuda_ladder(capability)
    number = 10 * capability[0] + capability[1]
    return best[0] if best and number in ARCHITECTURES else best[-1] if best else ""


class CudaRules(TargetRules):
    def names(self) -> Iterable[str]:
        return (*(f"cuda:sm_{number}" for number in ARCHITECTURES), PTX)

    def resolve(self, target: str) -> str | None:
        name = _NAME.fullmatch(target)
        return target if name is not None and (target == PTX or (name[1] == "sm" and int(name[2]) in ARCHITECTURES)) else None

    def ladder_of(self, machine: str) -> tuple[str, ...]:
        number = machine.removeprefix("cuda:sm_")
        return cuda_ladder(divmod(int(number), 10)) if number.isdecimal() else (machine,)

    def rank(self, target: str) -> int | None:
        """Of several GPUs the best counts."""
        ladders = map(cuda_ladder, nvidia_devices.capabilities())
        return min((steps.index(target) for steps in ladders if target in steps), default=None)

    def why_unfit(self, target: str) -> str:
        found = nvidia_devices.capabilities()
        if found:
            runs = dict.fromkeys(step for capability in found for step in cuda_ladder(capability))
            kinds = ", ".join(f"{major}.{minor}" for major, minor in found)
            return f"this machine's GPUs have compute capability {kinds}, which runs {', '.join(runs) or 'nothing that precast makes'}"
        if nvidia_devices.machine().devices:
            return "this torch is built without CUDA, or CUDA_VISIBLE_DEVICES hides every GPU"
        return "this machine has no GPU"

    def undecided(self) -> bool:
        return nvidia_devices.unknown()

    def at_hand(self) -> Iterable[str]:
        return filter(None, map(native_cuda, nvidia_devices.capabilities()))

    def beside(self) -> str:
        return PORTABLE

    def target_for(self, device: torch.device) -> str:
        import torch

        if torch.version.cuda is None or (device.index or 0) >= torch.cuda.device_count():
            raise Refused("its tensors are on a GPU that this machine does not have", 'say what to compile for: targets=["cuda:sm_90"]')
        capability = torch.cuda.get_device_capability(device.index or 0)
        found = native_cuda(capability)
        if not found:
            raise Refused(f"its tensors are on a GPU of compute capability {capability[0]}.{capability[1]}", "precast needs 8.0 or newer")
        return found

    def runs_on(self, target: str, device: torch.device) -> Fit:
        import torch

        capability = torch.cuda.get_device_capability(device)
        found = f"{device}, of compute capability {capability[0]}.{capability[1]}"
        return Fit(target in cuda_ladder(capability), f"a GPU that runs {target}", found)

    def several_kinds(self) -> bool:
        return len(nvidia_devices.capabilities()) > 1


RULES = CudaRules()

__all__ = ["ARCHITECTURES", "PTX", "PTX_CUDA", "RULES", "CudaRules", "cuda_ladder", "native_cuda"]
