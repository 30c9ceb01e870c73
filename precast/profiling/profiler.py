"""Runs a program's signature, and says of each step of its compiled graphs how long it took and how near that is to its rates.

The steps are those of the stored artifacts, timed where they lie in the call, with the caches as the call leaves them.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from precast.artifact_store import GraphRecord, Manifest, Store
from precast.building.build_file import Loaded
from precast.lowering.costs.chips import Chip
from precast.lowering.costs.predicted_time import predictions
from precast.lowering.costs.records import STEPS, StepRecord, from_json
from precast.profiling.chip_rates import chip_here
from precast.profiling.marks import Recorder, Run
from precast.profiling.peaks import Peaks, wait
from precast.runtime.api.compile import compile as compiled_form
from precast.runtime.api.compile import site_of
from precast.runtime.programs.variant import Variant
from precast.runtime.settings.options import list_mode_options
from precast.target_registry import family_of

WARM_UP = 3


@dataclass(frozen=True)
class StepProfile:
    """One step: seconds (median over the runs), the least that the roofline model allows it, what bounds that, and the seconds that were
    to be expected by the chip's record, where there is one.
    """

    record: StepRecord
    seconds: float
    least: float
    bound: str
    predicted: float | None = None

    @property
    def gap(self) -> float:
        """Seconds above the least."""
        return max(self.seconds - self.least, 0.0)

    @property
    def of_peak(self) -> float:
        """The part of the machine's rate that it reaches; above 1 where a cache holds its data."""
        return self.least / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class GraphProfile:
    """One graph of one artifact. `runs`: how often a call runs it; seconds are of one run."""

    artifact: str
    program: str
    role: str
    target: str
    runs: float
    entry: float
    steps: tuple[StepProfile, ...]

    @property
    def seconds(self) -> float:
        return self.entry + sum(step.seconds for step in self.steps)


@dataclass(frozen=True)
class Profile:
    """One signature. `call`, `eager`: seconds of a call compiled and eagerly, medians of calls in turns, nothing recorded meanwhile.
    `recorded`: of the calls whose steps are told (on a device as `call`, as its events are apart from the host's time).
    `unrecorded`: graphs that ran and whose steps are not known: branches that a graph calls, and what the store does not have. `chip`:
    the one whose record predicts times.
    """

    program: str
    signature: int
    call: float
    eager: float
    recorded: float
    peaks: Peaks
    graphs: tuple[GraphProfile, ...]
    unrecorded: int = 0
    chip: Chip | None = None

    @property
    def in_graphs(self) -> float:
        """Seconds of a call that its graphs take."""
        return sum(graph.seconds * graph.runs for graph in self.graphs)

    @property
    def outside(self) -> float:
        """Seconds of a call that are in no graph: guards, Python, what runs eagerly."""
        return max(self.recorded - self.in_graphs, 0.0)

    @property
    def predicted(self) -> float | None:
        """Seconds that all steps of a call were to take; None without a chip."""
        if self.chip is None:
            return None
        return sum((step.predicted or 0.0) * graph.runs for graph in self.graphs for step in graph.steps)

    @property
    def errors(self) -> list[float]:
        """Predicted over measured seconds of each step, in order."""
        steps = (step for graph in self.graphs for step in graph.steps)
        return sorted(step.predicted / step.seconds for step in steps if step.predicted is not None and step.seconds > 0)


@dataclass(frozen=True)
class _Graph:
    manifest: Manifest
    role: str
    record: GraphRecord


def profile(loaded: Loaded, number: int, store: Store, *, calls: int = 20, mode: str | None = None, chip: Chip | None = None) -> Profile:
    """Profiles signature `number` (from 1) of a program: compiles it into the store unless it is there, and calls it `calls` times in each
    of two rounds, of which the second is recorded. CUDA graphs are left out: their replays are one launch. `chip`: the one that predicts,
    where it is not to be the one that is known of this machine.

    Raises what the program raises, and OptionError.
    """
    spec = loaded.spec
    chosen = mode or spec.mode
    options = {**(list_mode_options(chosen) if chosen is not None else spec.options or {}), "triton.cudagraphs": False}
    args, kwargs = loaded.signatures[number - 1]
    program = compiled_form(_copied(loaded.callable), store=store, options=options, name=spec.label)
    device = device_of((args, kwargs, list(parameters_of(loaded.callable))))
    call = _Call(program, args, kwargs, spec.train)
    eager = _Call(_copied(loaded.callable), args, kwargs, spec.train)
    try:
        return _measured(spec.name, number, call, eager, calls, device, store, chip or chip_here(device))
    finally:
        eager.restore()
        call.restore()  # the one that was called first has what was there before both


def _measured(name: str, number: int, call: _Call, eager: _Call, calls: int, device: str, store: Store, chip: Chip | None) -> Profile:
    for _ in range(WARM_UP):
        call()
        eager()
    times = _in_turns([call, eager], calls, device)
    graphs = _graphs(call.program, store)
    on_device = frozenset(digest for digest, graph in graphs.items() if not family_of(graph.manifest.target).on_host)
    recorder = Recorder(on_device, needed=frozenset(graphs))
    peaks = Peaks.measured(device)
    runs: dict[str, list[Run]] = {}
    walls = []
    with _ahead(device, peaks) as give_way:
        for _ in range(calls):
            give_way(times[0])
            with recorder.recording() as found:
                began = time.perf_counter()
                call()
                walls.append(time.perf_counter() - began)
            for digest, own in found.items():
                runs.setdefault(digest, []).extend(own)
    profiles = [_graph_profile(graphs[digest], own, calls, store, peaks, chip) for digest, own in runs.items() if digest in graphs]
    known = tuple(item for item in profiles if item is not None)
    recorded = statistics.median(walls) if device == "cpu" else times[0]
    return Profile(name, number, times[0], times[1], recorded, peaks, known, len(runs) - len(known), chip)


def _graphs(program: Any, store: Store) -> dict[str, _Graph]:
    """Graphs by their libraries' digests: those that the program has loaded, then all others of the store, which functions that it calls
    may have, as equal code of several programs is one library.
    """
    entry, _ = site_of(program).program_for_call()
    own = (v.manifest for member in entry.family() for v in member.variants if isinstance(v, Variant))
    others = (manifest for key in store.programs() for manifest in store.variants(key))
    found: dict[str, _Graph] = {}
    for manifest in (*own, *others):
        for role, record in manifest.graphs.items():
            if "library" in record.blobs:
                found.setdefault(record.blobs["library"], _Graph(manifest, role, record))
    return found


def _graph_profile(graph: _Graph, runs: list[Run], calls: int, store: Store, peaks: Peaks, chip: Chip | None) -> GraphProfile | None:
    data = store.blob(graph.record.blobs[STEPS]) if STEPS in graph.record.blobs else None
    if data is None:
        return None
    records = from_json(data)
    whole = [run for run in runs if len(run.steps) == len(records)]
    if not whole:
        return None
    expected = [None] * len(records) if chip is None else [own.seconds for own in predictions(records, chip)]
    steps = []
    for position, record in enumerate(records):
        seconds = statistics.median(run.steps[position] for run in whole)
        steps.append(StepProfile(record, seconds, *peaks.least(record), expected[position]))
    manifest = graph.manifest
    entry = statistics.median(run.entry for run in whole)
    return GraphProfile(manifest.artifact_id, manifest.program_name, graph.role, manifest.target, len(whole) / calls, entry, tuple(steps))


def parameters_of(program: Callable[..., Any]) -> Iterator[torch.Tensor]:
    """Of a module, or of the module that a method is bound to."""
    module = program if isinstance(program, torch.nn.Module) else getattr(program, "__self__", None)
    if isinstance(module, torch.nn.Module):
        yield from module.parameters()


def device_of(values: Any) -> str:
    """The kind of device of the tensors in `values`: the first that is not the host, if any."""
    kinds = {leaf.device.type for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)} - {"cpu", "meta"}
    return min(kinds, default="cpu")


def _copied(value: Any) -> Any:
    """A copy of a program, or of arguments, which a call may write to. Tensors that were computed become leaves. What has no copy, such
    as a module that holds a lock, is used as it is.
    """

    def leaf(item: Any) -> Any:
        computed = isinstance(item, torch.Tensor) and not item.is_leaf
        return item.detach().requires_grad_() if computed else item

    try:
        return copy.deepcopy(tree_map(leaf, value))
    except (TypeError, RuntimeError):
        return value


class _Call:
    """Calls a program with copies of the arguments; where it trains, with a backward pass from the sum of its results, whose gradients are
    forgotten. `restore` gives tensors that are no copies the gradients that they had.
    """

    def __init__(self, program: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], train: bool) -> None:
        self.program = program
        self.train = train
        self.args, self.kwargs = _copied((args, dict(kwargs)))
        self._before: dict[torch.Tensor, torch.Tensor | None] | None = None

    def __call__(self) -> None:
        with torch.set_grad_enabled(self.train):
            found = self.program(*self.args, **self.kwargs)
            if not self.train:
                return
            results = [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            if self._before is None:
                self._before = {tensor: tensor.grad for tensor in _takers(results)}
                self._forget()
            torch.autograd.backward(results, [torch.ones_like(leaf) for leaf in results])
        self._forget()

    def _forget(self) -> None:
        for tensor in self._before or ():
            tensor.grad = None

    def restore(self) -> None:
        for tensor, grad in (self._before or {}).items():
            tensor.grad = grad


def _takers(results: Sequence[torch.Tensor]) -> set[torch.Tensor]:
    """The leaves of the autograd graph behind these results, which get gradients."""
    found = {leaf for leaf in results if leaf.is_leaf}
    seen: set[Any] = set()
    stack: list[Any] = [leaf.grad_fn for leaf in results]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(node.variable)
        stack += [further for further, _ in node.next_functions]
    return found


def _in_turns(runs: Sequence[Callable[[], None]], rounds: int, device: str) -> list[float]:
    """Median seconds of each."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for own, run in zip(times, runs, strict=True):
            wait(device)
            began = time.perf_counter()
            run()
            wait(device)
            own.append(time.perf_counter() - began)
    return [statistics.median(own) for own in times]


@contextmanager
def _ahead(device: str, peaks: Peaks) -> Iterator[Callable[[float], None]]:
    """Yields what keeps the device busy for about that many seconds, so that the host is ahead of it when a call's steps begin, and the
    time between two events is that of a step and not of its launch.
    """
    if device == "cpu":
        yield lambda seconds: None
        return
    side = 4096
    a = torch.randn(side, side, device=device)
    each = 2 * side**3 / peaks.products("f32")

    def keep_busy(seconds: float) -> None:
        wait(device)
        for _ in range(min(int(2 * seconds / each) + 1, 200)):
            torch.mm(a, a)

    yield keep_busy


__all__ = ["GraphProfile", "Profile", "StepProfile", "device_of", "parameters_of", "profile"]
