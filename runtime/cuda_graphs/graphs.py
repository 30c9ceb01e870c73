"""The policy of CUDA graphs: when a compiled graph's kernels are captured, which capture serves which call, and when none does.

A call without a fitting capture runs the graph itself; the first calls of each size are warm-ups. A capture returns outputs in its own
memory, and is replayed again once the caller has released them. While all captures of a size are in use another is made, and after RING of
them one whose outputs are copied serves. So callers may keep outputs as long as they like (docs/cuda-graphs.md). A graph that cannot be
captured always runs itself, and the reason is logged once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import torch

from precast.runtime.common.locks import Lock
from precast.runtime.common.log import logger
from precast.runtime.cuda_graphs.output_buffers import Home, check_layouts, homes_of, moved_home, storages
from precast.runtime.cuda_graphs.recorded import Keeps, Kept
from precast.runtime.cuda_graphs.recording import FromInput, Output, Player, PythonPlayer, Recording, shape_of, word_of
from precast.runtime.executable.calling_convention import GraphSpec, graph_inputs
from precast.runtime.paths.fake_tensors import storage_of
from precast.runtime.paths.paths import describe
from precast.runtime.settings.options import CudaGraphOptions

WARM_UPS = 2
"""Calls of a size before its capture: libraries make their handles and choices, and inputs with a constant address are found."""
RING = 3
"""Captures of a size that return outputs in their own memory; one more copies its outputs, where nothing is kept for a backward graph."""
SIZES_WARNED, SIZES = 8, 64
"""Numbers of distinct sizes: from the first on there is a warning, from the second on further sizes are not captured."""
MOVES = 16
"""How often the address of a weight, or of an input that the graph writes, may change (which takes a new capture) before captures end."""


LARGE = 1 << 20
SETTLING = 2
"""How often the gradient of a result of at least LARGE bytes may be found elsewhere, which takes a new capture, before it is copied: in a
loop the allocator gives it the same address at each step, once captures have taken their memory."""
PLAYS_A_MOVE = 32
"""Average replays per capture from which on changed addresses do not count."""
ATTEMPTS = 2
"""How many captures may fail: a library that the thread has not used yet cannot be initialised during a capture."""


Draws = Literal["no", "maybe", "yes"]
"""Whether a graph draws random numbers: the generator advanced during each warm-up, by the same amount. Other threads draw, too; a capture
that was not expected to draw fails where it does, and one that may draw disturbs other threads (`capture.py`)."""


class Unfit(RuntimeError):
    """The graph is never captured; the message says why."""


class CaptureFailed(RuntimeError):
    """A capture failed; the message says why."""


@dataclass(frozen=True)
class Taken:
    """A finished capture: raw outputs, the function that replays it, and its executable graph (0: only `replay` may be used)."""

    outputs: tuple[Any, ...]
    replay: Callable[[], None]
    launch: int = 0


class Device(Protocol):
    """The operations that the policy needs from a GPU; `device.py` implements them."""

    def obstacle(self) -> str:
        """Why nothing may be replayed on the calling thread's current stream; "" where it may."""

    def capture(self, run: Callable[[], tuple[Any, ...]], draws: Draws, first: bool, alone: bool) -> Taken:
        """Capture the launches of `run`, with outputs in the pool that all captures share. Raises CaptureFailed.

        `draws`: whether it draws random numbers. `first`: whether it is the graph's first capture. `alone`: in a pool of its own, where
        nothing else works.
        """

    def entered(self) -> AbstractContextManager[None]:
        """A context in which the current stream has waited for earlier replays on other streams, and for the work behind them."""

    def drawn(self) -> int:
        """The offset of the default random generator."""

    def spare(self) -> None:
        """Give back memory that libraries cache between calls; later calls allocate it again."""

    def retire(self, tensors: Sequence[torch.Tensor]) -> None:
        """Called when a capture's memory is released: its next use waits for work with it on any stream."""


DeviceOf = Callable[[Mapping[str, torch.Tensor]], Device]
"""The device on which all of these tensors (by what a person calls them) lie. Raises Unfit where they do not lie on one GPU."""


@dataclass
class _Size:
    """The state of calls that have the same sizes and numbers and the same device."""

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
    weights apart. `keeps`: of a forward graph, what its backward graph needs; `kept`: of a backward graph, what it needs.
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
    keeps: Keeps | None = None
    kept: Kept = Kept()


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
        self._keeps = graph.keeps
        self._kept = graph.kept
        self._copied: frozenset[int] = frozenset()
        self._lock = Lock()
        self._sizes: dict[tuple[int, ...], _Size] = {}
        self._moving: set[int] = set()
        self._moves = self._failures = 0
        self._settling = dict.fromkeys(self._kept.tangents, SETTLING)
        self._numbers = [i for i, item in enumerate(self.spec.inputs) if item.kind in ("int", "float")]
        tensors = [i for i, item in enumerate(self.spec.inputs) if item.kind not in ("int", "float")]
        self._tensors = [i for i in tensors if i not in self._kept.inputs]
        if graph.unfit or not self._tensors:
            self._refuse(graph.unfit or "no tensor among its inputs says which device it is for")
        elif self._numbers and options.skip_dynamic:
            self._refuse("its sizes are symbolic, and triton.cudagraph_skip_dynamic_graphs is set")

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        values = graph_inputs(self.spec.inputs, self.bound, args)
        with torch.no_grad():
            raw = self._answer(values, args)
        return raw if self.spec.finish is None else self.spec.finish(raw, values)

    def _answer(self, values: list[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Raw outputs, by a replay where a capture fits."""
        with self._lock:
            failures = self._failures
            size = None if self.refused else self._size(values)
            if size is not None and size.warm_ups >= WARM_UPS and not self._is_at_home(size, values):
                size = None
            if size is not None and self._watch(size, values) and size.warm_ups >= WARM_UPS:
                stamp = self._stamp()
                raw = self.player.play(values, stamp)
                raw = self._record(size, values, args, stamp) if raw is None else raw
                if raw is not None:
                    return raw
                if self._failures == failures:
                    size = None
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
        """The state of calls like this one; None where this call must not be replayed."""
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
        """Positions of the tensors that determine the device. Constants in host memory are not among them: they are read once, at
        capture.
        """
        return [i for i in self._tensors if self.spec.inputs[i].kind != "constant" or values[i].device.type != "cpu"]

    def _watch(self, size: _Size, values: Sequence[Any]) -> bool:
        """Note which inputs have changed their addresses, and drop captures that read the old ones. False: captures have just been given
        up.
        """
        moved = []
        for i in self._tensors:
            address = values[i].data_ptr()
            if i not in self._moving and size.addresses.setdefault(i, address) != address:
                size.addresses[i] = address
                if not self._settles(size, i, values[i]):
                    moved.append(i)
        lasting = [i for i in moved if i in self._kept.lasting or self.spec.inputs[i].mutated or self.spec.inputs[i].position is None]
        self._moving.update(set(moved) - set(lasting))
        if lasting:
            self._moves += 1
            if self._moves > MOVES and self.player.plays < PLAYS_A_MOVE * self._moves:
                item = self.spec.inputs[lasting[0]]
                what = "which the graph writes, " if item.mutated else ""
                self._refuse(f"input {describe(item.path)}, {what}is found elsewhere again and again ({self._moves} times)")
        return not self.refused

    def _settles(self, size: _Size, i: int, value: torch.Tensor) -> bool:
        """Whether this input may yet stay where it is from now on."""
        if not self._settling.get(i) or value.nbytes < LARGE:
            return False
        if size.recordings:
            self._settling[i] -= 1
        return True

    def _record(self, size: _Size, values: list[Any], args: tuple[Any, ...], stamp: Any) -> tuple[Any, ...] | None:
        """Make a capture for this call and replay it. None: the caller runs the graph itself."""
        words = [word_of(value) for value in values]
        self._forget(size, words, stamp)
        self._let_go_of_results(size)
        fitting = [recording for recording in size.recordings if recording.reads(words, stamp)]
        clones = len(fitting) >= RING
        if clones and self._keeps is not None:
            logger("cudagraphs").info("%s: a call runs without a CUDA graph: %d before it wait for their backward pass", self.name, RING)
            return None
        if clones and any(recording.clones for recording in fitting):
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
        recording.nobody_holds()  # but the player
        return self.player.play(values, stamp)

    def _forget(self, size: _Size, words: Sequence[int], stamp: Any) -> None:
        """Drop the size's captures that read an input or packed weights at addresses that are no longer theirs."""
        for recording in tuple(size.recordings):
            if not recording.reads(words, stamp, self._kept.inputs) or not self._kept.is_at_home(recording.words):
                self._drop(recording)
                size.recordings.remove(recording)

    def _is_at_home(self, size: _Size, values: Sequence[Any]) -> bool:
        """Whether a backward graph's call has what it needs of the forward graph from a capture of that."""
        if self._kept.is_at_home([word_of(value) for value in values]):
            return True
        reason = "what the forward graph kept does not lie where a capture of it has that"
        logger("cudagraphs").info("%s: a call runs without a CUDA graph: %s", self.name, reason)
        for recording in tuple(size.recordings):
            if not self._kept.is_at_home(recording.words):
                self._drop(recording)
                size.recordings.remove(recording)
        return False

    def _let_go_of_results(self, size: _Size) -> None:
        """Where only results of a forward graph are held (a loss that lives until the next one), and what it keeps is free: from now on
        callers get copies of results, so that what is kept needs memory once.
        """
        if self._keeps is None or self._copied == self._keeps.results:
            return
        free = [recording for recording in size.recordings if not recording.lends(self._keeps.outputs)]
        if not free:
            return
        self._copied = self._keeps.results
        for recording in free:
            self._drop(recording)
            size.recordings.remove(recording)

    def homes(self) -> set[tuple[int, ...]]:
        """The addresses of what each capture keeps for its backward graph."""
        return {recording.kept for size in tuple(self._sizes.values()) for recording in tuple(size.recordings)}

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
        alone = self._keeps is not None and any(size.homes[i] is not None and i not in self._lent for i in self._keeps.outputs)
        wanted = [None if alone and i not in self._lent else home for i, home in enumerate(size.homes)]
        homes = [None if home is None else home.empty(where, i in self._lent) for i, home in enumerate(wanted)]
        before = size.device.drawn()
        taken = size.device.capture(partial(self._written_home, homes, given, size.homes if alone else (), where), size.draws, first, alone)
        if size.draws == "yes" and size.device.drawn() != before:
            raise CaptureFailed("it reads the state of the random generator on the host, which a replay does not do")
        shaped = [i for i in self._tensors if i in self._moving or (self._numbers and self.spec.inputs[i].position is not None)]
        told = ", whose outputs are copied out" if clones else ", whose results are copied out" if self._copied else ""
        logger("cudagraphs").info(
            "%s: captured (%d of this size%s); copied before each replay: %s", self.name, len(size.recordings) + 1, told,
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
            copied=self._copied,
            kept=() if self._keeps is None else self._keeps.places(taken.outputs, inputs),
        )

    def _written_home(
        self, homes: Sequence[torch.Tensor | None], given: Sequence[Any], layouts: Sequence[Home | None], where: torch.device
    ) -> tuple[Any, ...]:
        """Raw outputs for these per-call inputs, in these buffers; `layouts`: those that they have to have, where there are any."""
        raw = self._into(homes, *given)
        check_layouts(raw[: len(layouts)], layouts, where)
        return moved_home(raw, homes)

    def _refuse(self, reason: str) -> None:
        """End captures of this graph, with one logged reason."""
        self.refused = reason
        logger("cudagraphs").warning("%s: runs without CUDA graphs: %s", self.name, reason)
        for size in self._sizes.values():
            for recording in size.recordings:
                self._drop(recording)
        self._sizes.clear()


def _placed(raw: Any, position: int, inputs: Sequence[Any]) -> Output:
    """The form in which a recording keeps a raw output."""
    if not isinstance(raw, torch.Tensor):
        return int(raw)
    lender = storages(inputs).get(storage_of(raw))
    if lender is None:
        return raw
    if inputs[lender].dtype != raw.dtype:
        raise CaptureFailed(f"output {position} reads the memory of an input as another dtype")
    return FromInput(lender, tuple(raw.shape), raw.stride(), int(raw.storage_offset() - inputs[lender].storage_offset()))
