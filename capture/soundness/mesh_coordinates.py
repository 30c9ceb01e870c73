"""Where a process stands in a device mesh, asked by the code behind DTensors while an operator is traced.

What depends on the answer (which rows of a replicated tensor are this rank's, how long an uneven shard is) becomes a constant of the graph,
and nothing guards it. Whoever asks makes the graph one rank's; a program whose shards are equal asks nothing, and is traced for all ranks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from precast.capture.adapters.dtensors import forget_shardings
from precast.capture.common.patching import patched
from precast.capture.soundness.process_groups import Questions

_METHODS = ("get_local_rank", "get_rank", "_sym_get_coordinate")
"""Methods of a mesh whose result differs between its ranks."""
_SHAPES = "_compute_local_shape_and_global_offset"


class _Coordinate(tuple[int, ...]):
    """A position in a mesh that says when it is looked at: whether there is one at all is the same on all ranks of the mesh."""

    ask: Callable[[], None]

    def __getitem__(self, index: Any) -> Any:
        self.ask()
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[int]:
        self.ask()
        return super().__iter__()

    def __eq__(self, other: object) -> bool:
        self.ask()
        return super().__eq__(other)

    def __hash__(self) -> int:
        self.ask()
        return super().__hash__()


@contextlib.contextmanager
def recorded_coordinates(asked: Questions) -> Iterator[None]:
    """Notes, while a frame is traced, whether anything but the traced code itself, whose questions are noted elsewhere, asks a mesh where
    this process stands.
    """
    module = sys.modules.get("torch.distributed.device_mesh")
    mesh: Any = getattr(module, "DeviceMesh", None)
    if not hasattr(mesh, "_sym_get_coordinate"):  # there is none in this process, or it is of a torch that traces no meshes
        yield
        return

    def ask() -> None:
        asked.plain["get_rank"] = None

    def noted(original: Any) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not _by_tracer():
                ask()
            return original(self, *args, **kwargs)

        return method

    position = mesh.get_coordinate

    def get_coordinate(self: Any) -> Any:
        found = position(self)
        if found is None or _by_tracer():
            return found
        watched = _Coordinate(found)
        watched.ask = ask
        return watched

    forget_shardings()  # what torch has kept of them was made without our seeing it
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(mesh, "get_coordinate", get_coordinate))
        for name in _METHODS:
            stack.enter_context(patched(mesh, name, noted(getattr(mesh, name))))
        if (sizes := sys.modules.get("torch.distributed.tensor._utils")) is not None:
            stack.enter_context(patched(sizes, _SHAPES, _of_any_rank(getattr(sizes, _SHAPES))))
        yield


def _of_any_rank(original: Any) -> Any:
    """The function that says how large a shard is, and where it begins: it asks for no rank where shards are equal and only their size is
    wanted.
    """

    def local_shape(size: Any, mesh_size: Any, coordinate: Any, placements: Any, skip_offset: bool = False) -> Any:
        if skip_offset and _evenly(size, mesh_size, placements):
            coordinate = [0] * len(mesh_size)
        return original(size, mesh_size, coordinate, placements, skip_offset)

    return local_shape


def _evenly(size: Any, mesh_size: Any, placements: Any) -> bool:
    """Whether each dimension is sharded into equal parts."""
    left = list(size)
    for count, placement in zip(mesh_size, placements, strict=True):
        dim = getattr(placement, "dim", None)
        if dim is not None:
            if type(left[dim]) is not int or left[dim] % count:
                return False
            left[dim] //= count
    return True


def _by_tracer() -> bool:
    """Whether the tracer itself called the function that asks this, for a call that the traced code makes."""
    return str(sys._getframe(2).f_globals.get("__name__")).startswith("torch._dynamo.")


__all__ = ["recorded_coordinates"]
