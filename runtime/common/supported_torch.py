"""Which releases of torch precast is written for."""

from __future__ import annotations

SUPPORTED_TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""Major and minor versions, oldest first."""
RANGE = f"{SUPPORTED_TORCH[0]} to {SUPPORTED_TORCH[-1]}"


def why_unsupported(version: str) -> str:
    """Why precast does nothing with the torch of this version ("2.13.0+cpu"), as a sentence; empty where it works."""
    if ".".join(version.split("+")[0].split(".")[:2]) in SUPPORTED_TORCH:
        return ""
    return f"this is torch {version}, and precast supports torch {RANGE}: nothing is compiled or loaded"


__all__ = ["RANGE", "SUPPORTED_TORCH", "why_unsupported"]
