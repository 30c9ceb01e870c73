"""A warning for modules that are sharded before they are compiled: what torch's hooks do around a block cannot be stored."""

from __future__ import annotations

import sys

import torch

from precast.runtime.common.log import warn


def warn_of_sharded(module: torch.nn.Module) -> None:
    """One warning where `fully_shard` was called on the module, or on one within it, before it is compiled."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = getattr(fsdp, "FSDPModule", None)
    found = next((name for name, part in module.named_modules() if isinstance(part, sharded)), None) if sharded is not None else None
    if found is None:
        return
    block = f"its module {found}" if found else "it"
    warn(
        f"precast: {type(module).__name__} is compiled after fully_shard was called on {block}: the hooks that gather and free weights cut "
        "it into pieces, some of which cannot be stored, so that each process compiles anew. Compile what is sharded first: "
        "block.forward = precast.compile(block.forward), then fully_shard(block)"
    )


__all__ = ["warn_of_sharded"]
