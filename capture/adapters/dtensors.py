"""DTensors: what torch keeps of how their operators are sharded, and the meshes in them. Private to torch: imported here only."""

from __future__ import annotations

import sys
from typing import Any

import torch


def forget_shardings() -> None:
    """Empties torch's memory of how operators on DTensors are sharded; it fills again."""
    module = sys.modules.get("torch.distributed.tensor._api")
    if module is None:
        return
    module.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()
    sys.modules["torch.distributed.tensor._redistribute"]._gen_transform_infos.cache_clear()


def is_mesh(value: Any) -> bool:
    """Whether it is a device mesh, or stands for one in a trace."""
    module = sys.modules.get("torch.distributed.device_mesh")
    return module is not None and isinstance(value, module.DeviceMesh)


def is_dtensor(value: Any) -> bool:
    """Whether it is a DTensor, and of no class that extends it."""
    module = sys.modules.get("torch.distributed.tensor._api")
    return module is not None and type(value) is module.DTensor


def default_shard_order(placements: Any) -> Any:
    """In which order the dimensions of a mesh shard a DTensor that is made of placements alone; None where that is not plain."""
    spec = sys.modules["torch.distributed.tensor._dtensor_spec"].DTensorSpec
    strided = any(type(placement).__name__ == "_StridedShard" for placement in placements)
    return None if strided else spec.compute_default_shard_order(tuple(placements))


def is_placement(value: Any) -> bool:
    """Whether it says how a DTensor lies on a dimension of its mesh."""
    return type(value).__module__ == "torch.distributed.tensor.placement_types"


__all__ = ["default_shard_order", "forget_shardings", "is_dtensor", "is_mesh", "is_placement"]
