"""torch.compile's own door, found by name through the entry point `torch_dynamo_backends`: `torch.compile(model, backend="precast")`.

What it does stands in precast/compiling/torch_graphs.py. Where precast does not work with this torch, graphs run as torch traced them, and
one warning says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from precast.runtime.common import torch_support

if TYPE_CHECKING:
    import torch.fx

    from precast.compiling.torch_graphs import precast
else:

    def precast(gm: torch.fx.GraphModule, example_inputs: list[Any], **given: Any) -> Callable[..., Any]:
        """In the place of the backend: the graph as torch traced it."""
        torch_support.tell(torch_support.unsupported() or torch_support.broken())
        return gm.forward

    if not torch_support.unsupported():
        try:
            from precast.compiling.torch_graphs import precast
        except Exception as error:  # noqa: BLE001 - whatever the import of private names of torch raises is noted, and told at the first call
            torch_support.note_broken(error)


__all__ = ["precast"]
