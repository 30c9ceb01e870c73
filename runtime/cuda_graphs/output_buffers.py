"""Static output buffers for captures.

All captures share one pool of work memory, and a later capture may place its temporaries where an earlier one has an output: replaying it
would overwrite an output that the caller holds. So outputs never lie in the pool: the host program writes those that it can into buffers
given to it, and the others are copied at the end. What is kept for a backward graph would be held twice by that, until it is copied: a
capture that keeps what its host program cannot write into given buffers has a pool of its own instead, and leaves it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.runtime.cuda_graphs.recording import flat, shape_of
from precast.runtime.paths.fake_tensors import storage_of


@dataclass(frozen=True)
class Home:
    """The layout of one output buffer. `elements`: of the output's storage, of which the output may be a part."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    elements: int
    dtype: torch.dtype

    def empty(self, device: torch.device, whole: bool) -> torch.Tensor:
        """A new buffer; `whole`: as large as the output's storage, for a host program that writes into it."""
        if not whole:
            return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)
        return torch.empty(self.elements, dtype=self.dtype, device=device).as_strided(self.size, self.stride, self.offset)


def homes_of(raw: Sequence[Any], inputs: Sequence[Any]) -> tuple[Home | None, ...]:
    """The buffer layout of each raw output of a call; None for numbers and for outputs that are views of an input."""
    lent = storages(inputs)
    return tuple(_home(output) if isinstance(output, torch.Tensor) and storage_of(output) not in lent else None for output in raw)


def _home(output: torch.Tensor) -> Home:
    elements = output.untyped_storage().nbytes() // output.element_size()
    return Home(*shape_of(output), int(output.storage_offset()), elements, output.dtype)


def moved_home(raw: Sequence[Any], homes: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    """The raw outputs, copied into their buffers where they are not there already. Raises RuntimeError where a layout has changed."""
    if len(raw) != len(homes):
        raise RuntimeError(f"it gave {len(homes)} outputs before, now {len(raw)}")
    return tuple(
        output if home is None else _moved(output, home, position) for position, (output, home) in enumerate(zip(raw, homes, strict=True))
    )


def _moved(output: torch.Tensor, home: torch.Tensor, position: int) -> torch.Tensor:
    if shape_of(output) != shape_of(home) or output.dtype != home.dtype or output.device != home.device:
        raise RuntimeError(f"output {position} is another one at each call: {_text(home)} before, now {_text(output)}")
    if output.data_ptr() != home.data_ptr():
        flat(home).copy_(flat(output))
    return home


def check_layouts(raw: Sequence[Any], homes: Sequence[Home | None], device: torch.device) -> None:
    """Raises RuntimeError where a raw output is laid out otherwise than at calls before, or is not on the device."""
    for position, (output, home) in enumerate(zip(raw, homes, strict=True)):
        if home is not None and ((*shape_of(output), output.dtype) != (home.size, home.stride, home.dtype) or output.device != device):
            raise RuntimeError(
                f"output {position} is another one at each call: {_text(home.empty(device, False))} before, now {_text(output)}"
            )


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


def storages(values: Sequence[Any]) -> dict[int, int]:
    """The storages of the tensors among `values`, each with the first position that has it."""
    found: dict[int, int] = {}
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            found.setdefault(storage_of(value), i)
    return found
