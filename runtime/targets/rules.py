"""What a family of targets brings to the runtime: which targets it has, and which of them this machine and its devices run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from precast.artifact_store.trust.trusted import Trusted

if TYPE_CHECKING:
    import torch


class Fit(NamedTuple):
    """Whether a device runs a target; what would be needed, and what is there, as ends of sentences."""

    holds: bool
    wanted: str
    found: str


class TargetRules(ABC):
    """The compatibility of one family. Targets are given by their full names ("cpu:x86-64-v3"); methods that a family whose graphs compute
    in host memory never needs have a default that says so.
    """

    @abstractmethod
    def names(self) -> Iterable[str]:
        """The targets that can be asked for, in the order in which a message lists them."""

    @abstractmethod
    def resolve(self, target: str) -> str | None:
        """The name that manifests hold for what was asked for; None where the family has no such target."""

    @abstractmethod
    def ladder_of(self, machine: str) -> tuple[str, ...]:
        """What a machine of exactly the target `machine` runs of the family, best first."""

    @abstractmethod
    def rank(self, target: str) -> int | None:
        """The place of `target` among what this machine runs of the family (0 is best); None where it cannot run here."""

    @abstractmethod
    def why_unfit(self, target: str) -> str:
        """Why this machine cannot run `target`, which has no rank here, as the end of a sentence."""

    def codegen_name(self, target: str) -> str:
        """What code generation calls `target`."""
        return target

    def serves_only(self, target: str) -> str:
        """Which machines alone run `target`, where that is narrower than its name says: the end of a sentence. Else empty."""
        return ""

    def undecided(self) -> bool:
        """Whether more of the family's targets may turn out to run in this process later."""
        return False

    def at_hand(self) -> Iterable[str]:
        """What is compiled for the devices of this machine where a program's target names the host; empty for a family on the host."""
        return ()

    def beside(self) -> str:
        """What graphs without a tensor on the family's device are compiled for in a program for the family."""
        raise NotImplementedError(f"{type(self).__name__} computes in host memory: a graph for it needs no other target beside it")

    def target_for(self, device: torch.device) -> str:
        """What is compiled for tensors on `device` where no target of the family was asked for. Raises Refused where there is none."""
        raise NotImplementedError(f"{type(self).__name__} computes in host memory: {device} is not of its kind")

    def runs_on(self, target: str, device: torch.device) -> Fit:
        """Whether `device`, one of the family's, runs `target`, though the machine may have others that do."""
        return Fit(True, f"a device that runs {target}", str(device))

    def several_kinds(self) -> bool:
        """Whether this machine has devices that run different targets, so that an artifact is right for tensors on some of them only."""
        return False


class DeviceLoader(ABC):
    """How the libraries of a family whose kernels run on a device are loaded."""

    @abstractmethod
    def address(self, name: str) -> int | None:
        """The address of a function of the device's driver; None where it lacks that, or is not there."""

    @abstractmethod
    def problem(self, missing: Sequence[str]) -> str:
        """Why a library whose symbols `missing` could not be found does not run here, as the end of a sentence about it."""

    @abstractmethod
    def images(self, images: Sequence[Trusted[bytes]], source: Any) -> list[Trusted[bytes]]:
        """The images of a library's kernels as the driver takes them; `source`: the store or the memory that they come from. Raises
        LoadError.
        """


__all__ = ["DeviceLoader", "Fit", "TargetRules"]
