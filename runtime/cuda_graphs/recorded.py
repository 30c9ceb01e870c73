"""CUDA graphs of calls that record gradients: what a capture of the forward graph keeps, and which captures of the backward graph read it.

A capture of the forward graph has memory of its own for what it keeps, and is in use, as with any output, while autograd holds that: until
the backward pass has run, or can no longer run. A second call meanwhile takes another capture, so that nothing is overwritten. The backward
graph reads what is kept where it lies, and so has captures of its own for each capture of the forward graph. Where what is kept lies
elsewhere (the forward graph was launched, or hooks on saved tensors gave others), the backward graph is launched, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from precast.artifact_store.format.records import AutogradRecord
from precast.runtime.cuda_graphs.output_buffers import storages
from precast.runtime.executable.calling_convention import GraphSpec
from precast.runtime.paths.fake_tensors import storage_of


@dataclass(frozen=True)
class Keeps:
    """Of a forward graph: `outputs`, the raw outputs that its backward graph reads, in the order of its inputs; `results`, those that the
    caller gets and that are not kept.
    """

    outputs: tuple[int, ...]
    results: frozenset[int]

    def places(self, raw: Sequence[Any], inputs: Sequence[Any]) -> tuple[int, ...]:
        """The addresses of what a capture with these raw outputs keeps; empty where one lies in an input, and so elsewhere at each call."""
        lent = storages(inputs)
        if any(storage_of(raw[i]) in lent for i in self.outputs):
            return ()
        return tuple(raw[i].data_ptr() for i in self.outputs)


@dataclass(frozen=True)
class Kept:
    """Of a backward graph: `inputs`, what the forward graph keeps; `homes`, where the captures of the forward graph have that now;
    `lasting`, inputs that lie still (weights), so that a change of address takes a new capture; `tangents`, the gradients of results.
    """

    inputs: tuple[int, ...] = ()
    homes: Callable[[], Collection[tuple[int, ...]]] = tuple
    lasting: frozenset[int] = frozenset()
    tangents: frozenset[int] = frozenset()

    def is_at_home(self, words: Sequence[int]) -> bool:
        """Whether these addresses, one per graph input, are where a capture of the forward graph keeps what it keeps."""
        return not self.inputs or tuple(words[i] for i in self.inputs) in self.homes()


def keeps_of(record: AutogradRecord) -> Keeps:
    """What the forward graph of this record keeps."""
    outputs = tuple(i for source, i in record.saved if source == "raw")
    written = {result for _, result, _ in record.written}  # the caller does not keep these
    return Keeps(outputs, frozenset(range(len(record.results))) - written - set(outputs))


def kept_of(record: AutogradRecord, forward: GraphSpec, homes: Callable[[], Collection[tuple[int, ...]]]) -> Kept:
    """What the backward graph of this record reads of its forward graph, whose captures have it at `homes`."""
    saved = list(enumerate(record.saved, len(record.numbers)))
    inputs = tuple(place for place, (source, _) in saved if source == "raw")
    lasting = frozenset(place for place, (source, i) in saved if source == "input" and forward.inputs[i].bound)
    first = len(record.numbers) + len(record.saved)
    return Kept(inputs, homes, lasting, frozenset(range(first, first + len(record.tangents))))


__all__ = ["Keeps", "Kept", "keeps_of", "kept_of"]
