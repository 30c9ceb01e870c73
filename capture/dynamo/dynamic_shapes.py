"""Which sizes and numbers of a capture are symbolic: torch's rules, with precast's own knowledge in place of torch's process-wide one.

torch remembers per code object how sizes changed (`torch._dynamo.pgo`), for the whole process. That memory is neither read nor written
here: what is known comes in as an argument, the paths whose sizes or numbers differed between calls
(`runtime/programs/automatic_dynamic.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from precast.artifact_store.format.guards import Path
from precast.capture.adapters.dynamo import pgo
from precast.capture.adapters.variables import builder
from precast.capture.common.patching import patched


@dataclass(frozen=True)
class Dynamic:
    """`mode`: "yes" everything is symbolic, "no" nothing, "auto" what `varied` and marks say.

    `varied`: path -> ("size" | "stride", dim) of a tensor that are symbolic, or () for a number. `floats`: whether a float may be, too.
    `scalar_outputs`, `output_shapes`: capture `.item()` and operators with data-dependent sizes also where graph breaks are allowed.
    """

    mode: str = "no"
    varied: Mapping[Path, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    floats: bool = False
    scalar_outputs: bool = False
    output_shapes: bool = False

    @property
    def numbers(self) -> bool:
        """Whether a plain int may become symbolic."""
        return self.mode == "yes" or (self.mode == "auto" and () in self.varied.values())

    def config(self) -> dict[str, Any]:
        """The settings of `torch._dynamo.config` that it means."""
        return {
            "automatic_dynamic_shapes": self.mode != "no",
            "assume_static_by_default": self.mode != "yes",
            "automatic_dynamic_exclusion_guard": False,
            "automatic_dynamic_local_pgo": False,
            "automatic_dynamic_remote_pgo": False,
            "specialize_int": not self.numbers,
            "specialize_float": not self.floats,
            "capture_scalar_outputs": self.scalar_outputs,
            "capture_dynamic_output_shape_ops": self.output_shapes,
        }


@contextlib.contextmanager
def known_changes(dynamic: Dynamic, path_of: Callable[[Any, Any], Path | None]) -> Iterator[None]:
    """While it lasts, Dynamo takes what changed from `dynamic.varied`. `path_of(source name, translator)`: the path, None without one."""

    def process(tx: Any, name: str, entry: Any, *, is_unspecialized_nn_module: bool = False) -> Any:
        path = path_of(name, tx)
        varied = dynamic.varied.get(path) if path is not None else None
        if varied is None:
            return entry
        if isinstance(entry.size, tuple):
            size, stride = (
                tuple(pgo.auto_dynamic if (what, i) in varied else n for i, n in enumerate(numbers))
                for what, numbers in (("size", entry.size), ("stride", entry.stride))
            )
            return pgo.FrameStateSizeEntry(scalar=pgo.auto_dynamic, size=size, stride=stride)
        return pgo.FrameStateSizeEntry(scalar=pgo.auto_dynamic, size=pgo.auto_dynamic, stride=pgo.auto_dynamic)

    with contextlib.ExitStack() as stack:
        for module in (pgo, builder):
            stack.enter_context(patched(module, "process_automatic_dynamic", process))
        yield


__all__ = ["Dynamic", "known_changes"]
