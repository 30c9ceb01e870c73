"""Which engine an executor's URL means."""

from __future__ import annotations

from precast.building.farm.executor import Executor, Place


def connect(place: Place) -> Executor:
    """The engine at this place. Raises Stopped where its package is not installed, or nothing answers."""
    if place.engine == "ray":
        from precast.building.farm.ray_engine import Ray

        return Ray(place)
    from precast.building.farm.dask_engine import Dask

    return Dask(place)
