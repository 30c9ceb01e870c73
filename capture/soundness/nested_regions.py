"""Regions that `nested_compile_region` marks: each call is traced by itself.

Dynamo stamps out what it traced for an earlier call where it looks alike, and the constants of the second region then have no guards: a
number that changes in one of two equal blocks would go unnoticed.
"""

from __future__ import annotations

import contextlib
from typing import Any

from precast.capture.adapters.variables import invoke_subgraph
from precast.capture.common.patching import patched


def regions_traced_anew() -> contextlib.AbstractContextManager[Any]:
    """No region is kept for later calls. So is none that a `reuse_hash_fn` would find."""
    return patched(invoke_subgraph, "save_reuse_entry", _keep_nothing)


def _keep_nothing(*args: Any, **kwargs: Any) -> None:
    """In the place of `save_reuse_entry`."""


__all__ = ["regions_traced_anew"]
