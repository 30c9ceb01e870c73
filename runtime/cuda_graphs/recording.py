"""Recordings (captured CUDA graphs with what a replay needs to know), and the player that replays them without the native runtime.

An input is *fixed* (the graph reads it at its address of the capture, and serves only calls with that address), *copied* (into a buffer of
the recording's before each replay), or a number, which is part of what was captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from precast.runtime.common.locks import Lock
from precast.runtime.executable.calling_convention import scalar_word
from precast.runtime.paths.fake_tensors import storage_of


@dataclass(frozen=True)
class FromInput:
    """A raw output that shares the storage of graph input `input`, `offset` elements behind that tensor's first one."""

    input: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


Output = torch.Tensor | FromInput | int
"""A raw output as captured: the tensor, which keeps its storage alive for the graph; its place in an input; or a number."""


@dataclass(eq=False)
class Recording:
    """A capture on device `index`.

    `words`: the address or number of each graph input at capture; `buffers`: of the copied inputs; `shapes`: the (size, stride) that inputs
    must have, where symbolic integers do not determine it. `launch`: the executable graph for the driver, 0 where only `replay` may be used
    (it draws random numbers). `copied`: positions of outputs of which callers get copies; `clones`: that is so of all, so that it is never
    in use. `stamp`: the version of packed weights. `kept`: the addresses of what the graph keeps for its backward graph.
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
    copied: frozenset[int] = frozenset()
    kept: tuple[int, ...] = ()
    storages: tuple[torch.UntypedStorage, ...] = field(init=False)
    idle: tuple[tuple[int, int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.clones:
            self.copied = frozenset(range(len(self.outputs)))
        made = (t.untyped_storage() for i, t in enumerate(self.outputs) if isinstance(t, torch.Tensor) and i not in self.copied)
        self.storages = tuple({s._cdata: s for s in made}.values())
        del made
        self.nobody_holds()

    def nobody_holds(self) -> None:
        """Note the present holders of its output storages as those that are always there."""
        self.idle = self.holders()

    def holders(self) -> tuple[tuple[int, int, int], ...]:
        """For each output storage: the reference count of the storage, that of its Python storage object, and its address.

        torch keeps one Python object per storage, which counts as one reference to the storage however many references it has itself. The
        recording's own references are included.
        """
        return tuple((torch._C._storage_Use_Count(s._cdata), sys.getrefcount(s), s.data_ptr()) for s in self.storages)

    def reads(self, words: Sequence[int], stamp: Any, but: Collection[int] = ()) -> bool:
        """Whether it was captured for these addresses and numbers, whatever those of the inputs `but`, and for this version of packed
        weights.
        """
        pairs = enumerate(zip(self.words, words, strict=True))
        return self.stamp == stamp and all(a == b or i in self.buffers or i in but for i, (a, b) in pairs)

    @property
    def in_use(self) -> bool:
        """Whether the caller still holds an output of an earlier replay, or a view of one."""
        return self.holders() != self.idle

    def lends(self, outputs: Collection[int]) -> bool:
        """Whether the caller still holds one of these outputs of an earlier replay, or a view of one."""
        own = [output for i, output in enumerate(self.outputs) if i in outputs and i not in self.copied]
        among = {storage_of(output) for output in own if isinstance(output, torch.Tensor)}
        held = [now != then for now, then in zip(self.holders(), self.idle, strict=True)]
        return any(busy and storage._cdata in among for busy, storage in zip(held, self.storages, strict=True))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A one-dimensional view of the memory from the first element of `tensor` to its last one, gaps included."""
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return torch.as_strided(tensor, (span,), (1,), tensor.storage_offset())


def shape_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(size, stride)."""
    return tuple(tensor.shape), tensor.stride()


def word_of(value: Any) -> int:
    """What identifies an input: a tensor's address, an integer itself, the bits of a float."""
    return value.data_ptr() if isinstance(value, torch.Tensor) else scalar_word(value, "float" if isinstance(value, float) else "int")


def outputs_of(recording: Recording, values: Sequence[Any]) -> tuple[Any, ...]:
    """New tensors on the storages of the recording's outputs; copies of those that are `copied`."""
    return tuple(_fresh(output, i in recording.copied, values) for i, output in enumerate(recording.outputs))


def _fresh(output: Output, copied: bool, values: Sequence[Any]) -> Any:
    reinterpret = torch.ops.inductor._reinterpret_tensor.default  # a C++ op of torch itself: a new tensor on the storage, no view
    if isinstance(output, int):
        return output
    if isinstance(output, FromInput):
        return reinterpret(values[output.input], output.size, output.stride, output.offset)
    if not copied:
        return reinterpret(output, output.shape, output.stride(), 0)
    copy = torch.empty_strided(output.shape, output.stride(), dtype=output.dtype, device=output.device)
    flat(copy).copy_(flat(output))
    return copy


class Player(Protocol):
    """Keeps recordings and answers calls with them."""

    def add(self, recording: Recording) -> None:
        """Keep a recording, which may serve the next call."""

    def drop(self, recording: Recording) -> None:
        """Drop a recording; outputs that the caller holds stay valid."""

    @property
    def plays(self) -> int:
        """The number of replays so far."""

    def play(self, values: Sequence[Any], stamp: Any) -> tuple[Any, ...] | None:
        """Raw outputs, by replaying a recording that fits these graph inputs and is not in use; one that copies its outputs is tried last.

        None where no recording fits.
        """


class PythonPlayer:
    """The player without the native runtime; a call takes some tens of microseconds of host time."""

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
    """Whether replaying `recording` computes the same as running the graph on these inputs."""
    first = next(value for value in values if isinstance(value, torch.Tensor))
    return (
        recording.reads(words, stamp)
        and first.get_device() == recording.index
        and all(shape_of(values[i]) == shape for i, shape in recording.shapes.items())
    )
