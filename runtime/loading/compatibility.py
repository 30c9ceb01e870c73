"""Whether a stored artifact can run here: its target, its versions, and the code that was inlined into it. Each refusal is a sentence."""

from __future__ import annotations

import types
from typing import Protocol

from precast.artifact_store import Manifest, Versions
from precast.runtime.fingerprint.validate import changed_code
from precast.runtime.targets import ladder
from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor


def why_not(manifest: Manifest, code: types.CodeType, elsewhere: bool = False) -> str:
    """Why `manifest` cannot serve the program of this code on this machine, or an empty string.

    `elsewhere`: on a machine of the artifact's own target, with versions and code as they are here.
    """
    return why_unfit(manifest, elsewhere) or changed_code(manifest.digests, code)


class Made(Protocol):
    """What is asked of an artifact here: a manifest has it, and so has what a remote says of one."""

    @property
    def target(self) -> str:
        """What it was compiled for."""

    @property
    def versions(self) -> Versions:
        """What it was compiled with."""


def why_unfit(manifest: Made, elsewhere: bool = False) -> str:
    """Why `manifest` cannot run on this machine, with these versions, or an empty string. `elsewhere`: whatever its target."""
    versions = manifest.versions
    unfit = "" if elsewhere else ladder.why_unfit(manifest.target)
    if unfit:
        return f"it was compiled for {manifest.target}, and {unfit}"
    if versions.torch != torch_minor():
        return f"it was compiled for torch {versions.torch}, and this is torch {torch_minor()}"
    if versions.python is not None and versions.python != python_minor():
        return f"its bytecode is for Python {versions.python}, and this is Python {python_minor()}"
    if versions.lowering != LOWERING_VERSION:
        return f"it was made by lowering version {versions.lowering}, and this precast has {LOWERING_VERSION}"
    return ""


__all__ = ["why_not", "why_unfit"]
