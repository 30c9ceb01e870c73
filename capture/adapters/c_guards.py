"""The C guards that torch.compile checks. Private to torch: imported here only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._C._dynamo.guards import DictGuardManager, install_no_tensor_aliasing_guard


def install_distinct(managers: Sequence[Any], names: Sequence[str], said: Sequence[str]) -> None:
    """A guard that the objects of these managers are pairwise different ones: any objects, whatever torch's name for it says."""
    install: Any = install_no_tensor_aliasing_guard
    install(managers, names, said, *((None,) if "arg3" in (install.__doc__ or "") else ()))


__all__ = ["DictGuardManager", "install_distinct"]
