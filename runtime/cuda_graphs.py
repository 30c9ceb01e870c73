"""CUDA graphs around a compiled graph: when its kernels are captured, which capture answers which call, and when there is none.

A call runs as it is while there is no capture that fits it; the first calls of each size warm everything up. A capture hands its own
output memory to the caller and is used again when the caller has let go of it; while every one is held, another is made, and past RING one
whose outputs are copied answers. So outputs may be kept without a word (docs/cuda-graphs.md). What may never be captured is left alone,
with one logged reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from precast.runtime.calling_convention import GraphSpec, graph_inputs
from precast.runtime.cuda_homes import Home, homes_of, moved_home, storages
from precast.runtime.cuda_recording import FromInput, Output, Player, PythonPlayer, Recording, shape_of, word_of
from precast.runtime.locks import Lock
from precast.runtime.log import logger
from precast.runtime.options import CudaGraphOptions
from precast.runtime.paths import describe
from precast.runtime.standins import storage_of

WARM_UPS = 2
"""Calls of a size before its capture: libraries make their handles and choices, and it shows which inputs lie still."""
RING = 3
"""Captures of a size that hand out their own memory; the one past them copies its outputs."""
SIZES_WARNED, SIZES = 8, 64
"""Distinct sizes: from the first on a warning, from the second on further sizes run without a capture."""
MOVES = 16
"""How often weights, or inputs that the graph writes, may be found elsewhere (which takes a new capture) before captures are given up."""


PLAYS_A_MOVE = 32
"""Replays that a capture has to serve on average for its moves not to count."""
ATTEMPTS = 2
"""Captures that may fail: a library that a thread had not used yet cannot be set up in the middle of one."""


Draws = Literal["no", "maybe", "yes"]
"""Whether a graph draws random numbers: the generator has moved during a warm-up, and by the same amount during each. Other threads draw,
too; a capture that should not draw fails where it does, one that may draw disturbs them (`cuda_capture.py`)."""


class Unfit(RuntimeError):
    """The graph is never captured; the message says why."""


class CaptureFailed(RuntimeError):
    """A capture failed; the message says why."""


@dataclass(frozen=True)
class Taken:
    """A capture as the device made it: raw outputs, how it is replayed, and its executable graph (0: `replay` only)."""

    outputs: tuple[Any, ...]
    replay: Callable[[], None]
    launch: int = 0


class Device(Protocol):
    """What the policy needs of a GPU (`cuda_device.py`)."""

    def obstacle(self) -> str:
        """Why nothing may be replayed on the calling thread's current stream; "" where it may."""

    def capture(self, run: Callable[[], tuple[Any, ...]], draws: Draws, first: bool) -> Taken:
        """Capture what `run` launches, with outputs in the pool that all captures share. Raises CaptureFailed.

        `draws`: whether it draws random numbers. `first`: of this graph.
        """

    def entered(self) -> AbstractContextManager[None]:
        """A context in which the current stream has waited for all that followed earlier replays on other streams."""

    def drawn(self) -> int:
        """How far the default random generator has come."""

    def spare(self) -> None:
        """Give back memory that libraries hold for later calls, and that these get again."""

    def retire(self, tensors: Sequence[torch.Tensor]) -> None:
        """Memory of a capture is let go of: what was enqueued with it, on whatever stream, comes before its next use."""


DeviceOf = Callable[[Mapping[str, torch.Tensor]], Device]
"""The device on which all of these tensors (by what a person calls them) lie. Raises Unfit where they do not lie on one GPU."""


@dataclass
class _Size:
    """Calls that agree in the graph's numbers and in the device."""

    device: Device
    warm_ups: int = 0
    drawn: list[int] = field(default_factory=list)  # during each warm-up, in the generator's own count
    homes: tuple[Home | None, ...] = ()
    addresses: dict[int, int] = field(default_factory=dict)
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)
    recordings: list[Recording] = field(default_factory=list)

    @property
    def draws(self) -> Draws:
        return "no" if not any(self.drawn) else "yes" if len(set(self.drawn)) == 1 else "maybe"


@dataclass(frozen=True)
class Capturable:
    """A compiled graph, as captures of it are made. `name`: for the logs; `run`: the graph, which gives raw outputs.

    `into`: `run` with memory for its outputs as first argument, of which it writes those in `lent`; None: it writes none. `may_draw`:
    whether it may draw random numbers. `unfit`: why it may not be captured, "" where it may. `stamp`: tells versions of its prepared
    weights apart.
    """

    name: str
    run: Callable[..., tuple[Any, ...]]
    spec: GraphSpec
    bound: Sequence[torch.Tensor]
    into: Callable[..., tuple[Any, ...]] | None = None
    lent: Sequence[int] = ()
    may_draw: bool = True
    unfit: str = ""
    stamp: Callable[[], Any] = lambda: None


class CudaGraphs:
    """A graph callable: takes the per-call inputs, gives what the bytecode expects."""

    def __init__(self, graph: Capturable, options: CudaGraphOptions, device_of: DeviceOf, player: Player | None = None) -> None:
        run = graph.run
        self.name = graph.name
        self.spec = graph.spec
        self.bound = tuple(graph.bound)
        self.refused = ""
        self.player: Player = player or PythonPlayer()
        self._run = run
        self._lent = frozenset(graph.lent)
        self._may_draw = graph.may_draw
        self._into = graph.into or (lambda homes, *args: run(*args))
        self._device_of = device_of
        self._stamp = graph.stamp
        self._lock = Lock()
        self._sizes: dict[tuple[int, ...], _Size] = {}
        self._moving: set[int] = set()
        self._moves = self._failures = 0
        self._numbers = [i for i, item in enumerate(self.spec.inputs) if item.kind in ("int", "float")]
        self._tensors = [i for i, item in enumerate(self.spec.inputs) if item.kind not in ("int", "float")]
        if graph.unfit or not self._tensors:
            self._refuse(graph.unfit or "no tensor among its inputs says which device it is for")
        elif self._numbers and options.skip_dynamic:
            self._refuse("its sizes are symbolic, and triton.cudagraph_skip_dynamic_graphs is set")

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        values = graph_inputs(self.spec.inputs, self.bound, args)
        raw = self._answer(values, args)
        return raw if self.spec.finish is None else self.spec.finish(raw, values)

    def _answer(self, values: list[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Raw outputs, replayed where that can be."""
        with self._lock:
            size = None if self.refused else self._size(values)
            if size is not None and self._watch(size, values) and size.warm_ups >= WARM_UPS:
                stamp = self._stamp()
                raw = self.player.play(values, stamp)
                raw = self._record(size, values, args, stamp) if raw is None else raw
                if raw is not None:
                    return raw
        return self._run(*args) if size is None else self._warm_up(size, values, args)

    def _warm_up(self, size: _Size, values: Sequence[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        before = size.device.drawn()
        size.device.spare()
        raw = self._run(*args)
        size.drawn.append(size.device.drawn() - before if self._may_draw else 0)  # other threads draw, too
        size.homes = homes_of(raw, values)
        size.warm_ups += 1
        return raw

    def _size(self, values: Sequence[Any]) -> _Size | None:
        """What is known of calls like this one. None: they are not replayed, or not here and now."""
        key = (values[self._tensors[0]].get_device(), *(word_of(values[i]) for i in self._numbers))
        size = self._sizes.get(key) or self._new_size(values)
        if size is not None:
            self._sizes[key] = size
        obstacle = size.device.obstacle() if size is not None else ""
        if obstacle:
            logger("cudagraphs").info("%s: a call runs without a CUDA graph: %s", self.name, obstacle)
        return None if obstacle else size

    def _new_size(self, values: Sequence[Any]) -> _Size | None:
        try:
            device = self._device_of({f"input {describe(self.spec.inputs[i].path)}": values[i] for i in self._placed_inputs(values)})
        except Unfit as unfit:
            self._refuse(str(unfit))
            return None
        count = len(self._sizes) + 1
        if count > SIZES:
            return None
        if count == SIZES_WARNED:
            logger("cudagraphs").warning(
                "%s: %d distinct sizes so far, each with a CUDA graph of its own, up to %d; pad the inputs to fewer sizes, or set "
                "triton.cudagraph_skip_dynamic_graphs",
                self.name, count, SIZES,
            )  # fmt: skip
        if count == SIZES:
            logger("cudagraphs").warning("%s: this is its size number %d: others will run without a CUDA graph", self.name, SIZES)
        return _Size(device)

    def _placed_inputs(self, values: Sequence[Any]) -> list[int]:
        """Tensors that say where the graph runs: a constant in the host's memory never changes, and so is read at capture for good."""
        return [i for i in self._tensors if self.spec.inputs[i].kind != "constant" or values[i].device.type != "cpu"]

    def _watch(self, size: _Size, values: Sequence[Any]) -> bool:
        """Learn which inputs move, and forget captures that read them where they lay. False: captures have just been given up."""
        moved = []
        for i in self._tensors:
            address = values[i].data_ptr()
            if i not in self._moving and size.addresses.setdefault(i, address) != address:
                size.addresses[i] = address
                moved.append(i)
        lasting = [i for i in moved if self.spec.inputs[i].mutated or self.spec.inputs[i].position is None]
        self._moving.update(set(moved) - set(lasting))
        if lasting:
            self._moves += 1
            if self._moves > MOVES and self.player.plays < PLAYS_A_MOVE * self._moves:
                item = self.spec.inputs[lasting[0]]
                what = "which the graph writes, " if item.mutated else ""
                self._refuse(f"input {describe(item.path)}, {what}is found elsewhere again and again ({self._moves} times)")
        return not self.refused

    def _record(self, size: _Size, values: list[Any], args: tuple[Any, ...], stamp: Any) -> tuple[Any, ...] | None:
        """Make a capture for this call and answer with it. None: run the graph as it is."""
        self._forget(size, values, stamp)
        clones = len(size.recordings) >= RING
        if clones and any(recording.clones for recording in size.recordings):
            return None  # another thread took its turn between
        try:
            recording = self._capture(size, values, args, stamp, clones)
        except CaptureFailed as failed:
            self._failures += 1
            if self._failures >= ATTEMPTS:
                self._refuse(f"it cannot be captured: {failed}")
            return None
        size.recordings.append(recording)
        self.player.add(recording)
        return self.player.play(values, stamp)

    def _forget(self, size: _Size, values: Sequence[Any], stamp: Any) -> None:
        """Drop the size's captures that read an input or prepared weights where they are no longer."""
        words = [word_of(value) for value in values]
        for recording in tuple(size.recordings):
            if not recording.reads(words, stamp):
                self._drop(recording)
                size.recordings.remove(recording)

    def _drop(self, recording: Recording) -> None:
        self.player.drop(recording)
        own = [output for output in recording.outputs if isinstance(output, torch.Tensor)]
        recording.device.retire([*own, *recording.buffers.values()])

    def _capture(self, size: _Size, values: list[Any], args: tuple[Any, ...], stamp: Any, clones: bool) -> Recording:
        inputs, given = list(values), list(args)
        for i in self._moving:
            if i not in size.buffers:
                size.buffers[i] = torch.empty_strided(*shape_of(values[i]), dtype=values[i].dtype, device=values[i].device)
            inputs[i] = size.buffers[i]
            given[self.spec.inputs[i].position or 0] = inputs[i]
        first = not any(other.recordings for other in self._sizes.values())
        where = values[self._tensors[0]].device
        homes = [None if home is None else home.empty(where, i in self._lent) for i, home in enumerate(size.homes)]
        before = size.device.drawn()
        taken = size.device.capture(lambda: moved_home(self._into(homes, *given), homes), size.draws, first)
        if size.draws == "yes" and size.device.drawn() != before:
            raise CaptureFailed("it reads the state of the random generator on the host, which a replay does not do")
        shaped = [i for i in self._tensors if i in self._moving or (self._numbers and self.spec.inputs[i].position is not None)]
        logger("cudagraphs").info(
            "%s: captured (%d of this size%s); copied before each replay: %s",
            self.name, len(size.recordings) + 1, ", whose outputs are copied out" if clones else "",
            ", ".join(describe(self.spec.inputs[i].path) for i in sorted(self._moving)) or "nothing",
        )  # fmt: skip
        return Recording(
            device=size.device,
            index=values[self._tensors[0]].get_device(),
            words=tuple(word_of(value) for value in inputs),
            buffers={i: inputs[i] for i in sorted(self._moving)},
            shapes={i: shape_of(values[i]) for i in shaped},
            outputs=tuple(_placed(raw, position, inputs) for position, raw in enumerate(taken.outputs)),
            replay=taken.replay,
            launch=taken.launch,
            clones=clones,
            stamp=stamp,
        )

    def _refuse(self, reason: str) -> None:
        """No captures from now on."""
        self.refused = reason
        logger("cudagraphs").warning("%s: runs without CUDA graphs: %s", self.name, reason)
        for size in self._sizes.values():
            for recording in size.recordings:
                self._drop(recording)
        self._sizes.clear()


def _placed(raw: Any, position: int, inputs: Sequence[Any]) -> Output:
    """A raw output as a recording keeps it."""
    if not isinstance(raw, torch.Tensor):
        return int(raw)
    lender = storages(inputs).get(storage_of(raw))
    if lender is None:
        return raw
    if inputs[lender].dtype != raw.dtype:
        raise CaptureFailed(f"output {position} reads the memory of an input as another dtype")
    return FromInput(lender, tuple(raw.shape), raw.stride(), int(raw.storage_offset() - inputs[lender].storage_offset()))
