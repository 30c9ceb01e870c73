"""functorch's partitioner: a joint graph -> a forward and a backward graph. Private to torch: imported here only."""

from __future__ import annotations

from torch._functorch import partitioners
from torch._functorch.partitioners import min_cut_rematerialization_partition

__all__ = ["min_cut_rematerialization_partition", "partitioners"]
