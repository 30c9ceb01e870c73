"""Whether a stored artifact can run here: target ladder, versions, inlined code. Each refusal is a sentence."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from precast.artifact_store import Manifest
from precast.runtime.fingerprint.validate import changed_code
from precast.runtime.targets import ladder

if TYPE_CHECKING:
    from precast.runtime.programs.program import Program

LOWERING_VERSION = "21"
"""Goes up when lowering, codegen or the runtime change what a stored artifact means; part of every artifact's key."""


@functools.cache
def torch_minor() -> str:
    """torch's version as manifests hold it: "2.13"."""
    import torch

    return ".".join(torch.__version__.split("+")[0].split(".")[:2])


@functools.cache
def python_minor() -> str:
    """Python's version as manifests hold it: "3.11"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def why_not(manifest: Manifest, program: Program, elsewhere: bool = False) -> str:
    """Why `manifest` cannot serve `program` on this machine, or an empty string. `elsewhere`: on one of its own target, else like this."""
    return why_unfit(manifest, elsewhere) or changed_code(manifest.digests, program.code)


def why_unfit(manifest: Manifest, elsewhere: bool = False) -> str:
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
