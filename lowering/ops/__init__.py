"""One rule for each ATen operator, by family.

Importing this package fills `registry.LOWERINGS`.
"""

from precast.lowering.ops import (
    creation,
    indexing,
    joining,
    linear,
    norms,
    pointwise,
    pool_gradients,
    pooling,
    random,
    reductions,
    resampling,
    scans,
    special,
    views,
)

__all__ = [
    "creation",
    "indexing",
    "joining",
    "linear",
    "norms",
    "pointwise",
    "pool_gradients",
    "pooling",
    "random",
    "reductions",
    "resampling",
    "scans",
    "special",
    "views",
]
