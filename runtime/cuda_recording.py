"""One captured CUDA graph with what a call needs to replay it, and the player that replays them without the native runtime.

An input is *fixed* (the graph reads it where it lay at capture, and answers only calls whose tensor lies there), *copied* (into a buffer
of ours before each replay), or a number, which is part of what was captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from precast.runtime.calling_convention import scalar_word
from precast.runtime.locks import Lock


@dataclass(frozen=True)
class FromInput:
    """A raw output that lies in the storage of graph input `input`, `offset` elements from that tensor's first one."""

    input: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


Output = torch.Tensor | FromInput | int
"""A raw output as captured: the tensor itself, which keeps its storage for the graph; where it lies in an input; a number."""


@dataclass(eq=False)
class Recording:
    """A capture on the device number `index`.

    `words`: per graph input the address or the number at capture; `buffers`: those of the copied inputs; `shapes`: what inputs have to
    have, (size, stride), where numbers do not say it. `launch`: the executable graph for the driver, 0 where only `replay` may be used
    (it draws random numbers). `clones`: its outputs are copied out, so that it is never in use. `stamp`: of prepared weights.
    """

    device: Any
    index: int
    words: tuple[int, ...]
    buffers: dict[int, torch.Tensor]
    shapes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
    outputs: tuple[Output, ...]
    replay: Callable[[], None]
    launch: int = 0
    clones: bool = False
    stamp: Any = None
    storages: tuple[torch.UntypedStorage, ...] = field(init=False)
    idle: tuple[tuple[int, int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        made = (t.untyped_storage() for t in self.outputs if isinstance(t, torch.Tensor))
        self.storages = tuple({s._cdata: s for s in made}.values())
        del made
        self.idle = self.holders()

    def holders(self) -> tuple[tuple[int, int, int], ...]:
        """For each output storage: how many tensors and views hold it, and how many its storage object, ours among them; its address.

        torch keeps one storage object for each storage, which counts as one holder, however many hold that object.
        """
        return tuple((torch._C._storage_Use_Count(s._cdata), sys.getrefcount(s), s.data_ptr()) for s in self.storages)

    def reads(self, words: Sequence[int], stamp: Any) -> bool:
        """Whether it reads its inputs and prepared weights where these are now, and was captured for these numbers."""
        return self.stamp == stamp and all(a == b or i in self.buffers for i, (a, b) in enumerate(zip(self.words, words, strict=True)))

    @property
    def in_use(self) -> bool:
        """Whether the caller still has an output, or a view of one, of an earlier replay."""
        return not self.clones and self.holders() != self.idle


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from the first element of `tensor` to its last one, gaps included, as one row."""
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return torch.as_strided(tensor, (span,), (1,), tensor.storage_offset())


def shape_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(size, stride)."""
    return tuple(tensor.shape), tensor.stride()


def word_of(value: Any) -> int:
    """What identifies an input: a tensor's address, an integer itself, the bits of a float."""
    return value.data_ptr() if isinstance(value, torch.Tensor) else scalar_word(value, "float" if isinstance(value, float) else "int")


def outputs_of(recording: Recording, values: Sequence[Any]) -> tuple[Any, ...]:
    """New tensors on the recording's outputs, or, of one whose outputs are copied, with storages of their own."""
    return tuple(_fresh(output, recording.clones, values) for output in recording.outputs)


def _fresh(output: Output, clones: bool, values: Sequence[Any]) -> Any:
    reinterpret = torch.ops.inductor._reinterpret_tensor.default  # a C++ op of torch itself: a new tensor on the storage, no view
    if isinstance(output, int):
        return output
    if isinstance(output, FromInput):
        return reinterpret(values[output.input], output.size, output.stride, output.offset)
    if not clones:
        return reinterpret(output, output.shape, output.stride(), 0)
    copy = torch.empty_strided(output.shape, output.stride(), dtype=output.dtype, device=output.device)
    flat(copy).copy_(flat(output))
    return copy


class Player(Protocol):
    """Keeps recordings and answers calls with them."""

    def add(self, recording: Recording) -> None:
        """Keep it; it may answer the next call."""

    def drop(self, recording: Recording) -> None:
        """Forget it; outputs that the caller has stay."""

    @property
    def plays(self) -> int:
        """Replays so far."""

    def play(self, values: Sequence[Any], stamp: Any) -> tuple[Any, ...] | None:
        """Raw outputs by a recording that fits these graph inputs and is not in use; one whose outputs are copied comes last.

        None: there is none.
        """


class PythonPlayer:
    """The player where there is no native runtime: some tens of microseconds."""

    def __init__(self) -> None:
        self.plays = 0
        self._recordings: list[Recording] = []
        self._lock = Lock()

    def add(self, recording: Recording) -> None:
        with self._lock:
            self._recordings.append(recording)
            self._recordings.sort(key=lambda r: r.clones)

    def drop(self, recording: Recording) -> None:
        with self._lock:
            self._recordings.remove(recording)

    def play(self, values: Sequence[Any], stamp: Any) -> tuple[Any, ...] | None:
        words = [word_of(value) for value in values]
        with self._lock:
            for recording in self._recordings:
                if fits(recording, words, values, stamp) and not recording.in_use:
                    return self._replay(recording, values)
        return None

    def _replay(self, recording: Recording, values: Sequence[Any]) -> tuple[Any, ...]:
        self.plays += 1
        with recording.device.entered():
            for i, buffer in recording.buffers.items():
                flat(buffer).copy_(flat(values[i]))
            recording.replay()
            return outputs_of(recording, values)


def fits(recording: Recording, words: Sequence[int], values: Sequence[Any], stamp: Any) -> bool:
    """Whether replaying `recording` is what running the graph on these inputs would do."""
    first = next(value for value in values if isinstance(value, torch.Tensor))
    return (
        recording.reads(words, stamp)
        and first.get_device() == recording.index
        and all(shape_of(values[i]) == shape for i, shape in recording.shapes.items())
    )
