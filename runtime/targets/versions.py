"""The versions that are part of every artifact's key: of precast's own lowering, of torch and of Python."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import sys

from precast.runtime.common.supported_torch import minor_of

LOWERING_VERSION = "28"
"""Goes up when lowering, codegen or the runtime change what a stored artifact means; part of every artifact's key."""


@functools.cache
def torch_minor() -> str:
    """torch's version as manifests hold it: "2.13". Where torch is not imported, what is installed says it: commands about stores start
    without waiting for torch.
    """
    if "torch" not in sys.modules:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # torch from a source tree: it has to be asked itself
            return minor_of(importlib.metadata.version("torch"))
    import torch

    return minor_of(torch.__version__)


@functools.cache
def python_minor() -> str:
    """Python's version as manifests hold it: "3.11"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


__all__ = ["LOWERING_VERSION", "python_minor", "torch_minor"]
