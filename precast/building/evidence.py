"""Evidence in an artifact that it answers right and fast: digests of golden inputs and outputs, the tolerance, the speed-up over eager.

The inputs are the build file's signatures, made by its factory under a fixed seed, so that `precast check --evidence` can make them again.
What is compared is tensors: each output may differ from eager's by the tolerance of its type, relative to the largest magnitude of eager's.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from precast.artifact_store import Manifest, Store
from precast.compiling.exclusive import part
from precast.runtime.api.compile import load
from precast.runtime.common.errors import GuardMiss
from precast.runtime.programs import canary

GOLDEN = "golden"
"""The name under which it stands in a manifest's evidence."""
SEED = 20
TOLERANCES = {str(dtype).removeprefix("torch."): allowed for dtype, allowed in canary.TOLERANCES.items()}
"""By the name of an output's type: those of the canary."""
SAMPLES = 8
"""Values of each output that are kept, evenly spaced, so that another machine can tell without eager."""
ROUNDS, ROUND_SECONDS = 15, 2.0
"""Eager and the artifact are timed in turns, so many times at most and as long as there is time."""


class NoEvidence(Exception):
    """Why there can be none, as a sentence's end."""


@contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """Within, whatever a factory draws from torch, NumPy or `random` is the same each time; what comes after is not affected."""
    states, numpy = random.getstate(), sys.modules.get("numpy")
    kept = numpy.random.get_state() if numpy is not None else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(states)
            if numpy is not None:
                numpy.random.set_state(kept)


@dataclass(frozen=True)
class Golden:
    """One call of a program with and without the artifact. `how`: keyword arguments of `precast.load` beside the store."""

    program: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    how: Mapping[str, Any]

    def eager(self) -> Callable[[], Any]:
        """Calls a copy of the program with copies of the arguments."""
        program, args, kwargs = copy.deepcopy((self.program, tuple(self.args), dict(self.kwargs)))
        return lambda: program(*args, **kwargs)

    def compiled(self, store: Store, manifest: Manifest) -> Callable[[], Any]:
        """The same by this artifact and no other. Raises NoEvidence where it does not serve the call."""
        program, args, kwargs = copy.deepcopy((self.program, tuple(self.args), dict(self.kwargs)))
        loaded = load(program, store=store, require="hit", **self.how)
        try:
            with torch.no_grad():
                loaded(*args, **kwargs)
        except GuardMiss as error:
            raise NoEvidence(f"{manifest.artifact_id[:12]} alone does not serve the call: {error}") from error
        return lambda: loaded(*args, **kwargs)


def recorded(store: Store, manifest: Manifest, golden: Golden) -> dict[str, Any]:
    """The evidence for a manifest. Raises ValueError, in a sentence, where the artifact's answer is wrong, and what the program raises."""
    with only(store, manifest) as alone, torch.no_grad():
        eager, compiled = golden.eager(), golden.compiled(alone, manifest)
        wanted, got = eager(), golden.compiled(alone, manifest)()
        if why := difference(wanted, got):
            raise ValueError(f"its answer is wrong: {why}")
        return {
            "seed": SEED,
            "inputs": digest_of((golden.args, golden.kwargs)),
            "weights": weights_of(golden.program),
            "outputs": [_told(tensor) for tensor in tensors(got)],
            "tolerance": {str(t.dtype).removeprefix("torch."): _tolerance(t) for t in tensors(got)},
            "speed": _timed(eager, compiled),
        }


def replayed(store: Store, manifest: Manifest, golden: Golden) -> tuple[bool, str]:
    """Whether the artifact answers as it did when it was built, and as eager does now, in a sentence. Raises NoEvidence."""
    told = manifest.evidence.get(GOLDEN)
    if not isinstance(told, dict):
        raise NoEvidence("it has no evidence; `precast build --evidence` records some")
    with only(store, manifest) as alone, torch.no_grad():
        wanted, got = golden.eager()(), golden.compiled(alone, manifest)()
    if why := difference(wanted, got):
        return False, f"its answer to the golden inputs is wrong: {why}"
    if told["inputs"] != digest_of((golden.args, golden.kwargs)):
        return True, "its answer is eager's; the inputs are not those of the build (does the factory draw them from the seed?)"
    if told["weights"] != weights_of(golden.program):
        return True, "its answer is eager's; the weights are not those of the build, so that the stored answer says nothing"
    if [item["digest"] for item in told["outputs"]] == [digest_of(tensor) for tensor in tensors(got)]:
        return True, "its answer is that of the build, bit for bit"
    for position, (then, now) in enumerate(zip(told["outputs"], (_told(tensor) for tensor in tensors(got)), strict=False)):
        allowed = told["tolerance"].get(then["dtype"], 0.0) * then["largest"]
        if (then["dtype"], list(then["shape"])) != (now["dtype"], now["shape"]):
            return False, f"output {position} is {now['dtype']} {now['shape']}, and was {then['dtype']} {list(then['shape'])} at the build"
        if off := [(a, b) for a, b in zip(then["samples"], now["samples"], strict=True) if not (a == b or abs(a - b) <= allowed)]:
            return False, f"output {position} holds {off[0][1]:.6g} where it was {off[0][0]:.6g} at the build"
    return True, "its answer is that of the build, to rounding"


@contextmanager
def only(store: Store, manifest: Manifest) -> Iterator[Store]:
    """A store that holds this artifact and no other, so that no other can answer in its place."""
    blobs = {name: data for name in manifest.blobs if (data := store.blob(name)) is not None}
    with tempfile.TemporaryDirectory(prefix="precast-evidence-", ignore_cleanup_errors=True) as folder:
        alone = Store.open(folder, remote=())
        alone.put(Manifest.from_bytes(manifest.to_bytes(), origin=manifest.origin), blobs, store.signatures(manifest))
        yield alone


def tensors(answer: Any) -> list[torch.Tensor]:
    """The tensors of an answer, in order."""
    return [leaf.detach() for leaf in tree_leaves(answer) if isinstance(leaf, torch.Tensor)]


def digest_of(value: Any) -> str:
    """SHA-256 over the tensors in a value, with their types and shapes, and over its numbers and texts."""
    state = hashlib.sha256()
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            state.update(f"{leaf.dtype} {tuple(leaf.shape)} ".encode())
            state.update(_raw(leaf))
        elif isinstance(leaf, bool | int | float | str | bytes | type(None)):
            state.update(f"{leaf!r} ".encode())
    return state.hexdigest()


def weights_of(program: Any) -> str:
    """Of a module: over its parameters and buffers with their names; "" of anything else."""
    if not isinstance(program, torch.nn.Module):
        return ""
    return digest_of(sorted(program.state_dict(keep_vars=True).items()))


def difference(wanted: Any, got: Any) -> str:
    """How an answer differs from eager's beyond the tolerance, as a sentence's end; empty where it does not."""
    wants, gots = tensors(wanted), tensors(got)
    if len(wants) != len(gots):
        return f"it has {len(gots)} tensors, eager's {len(wants)}"
    for position, (want, have) in enumerate(zip(wants, gots, strict=True)):
        if (want.shape, want.dtype) != (have.shape, have.dtype):
            return f"output {position} is {have.dtype} {tuple(have.shape)}, eager's {want.dtype} {tuple(want.shape)}"
        if not (want.is_floating_point() or want.is_complex()):
            if not torch.equal(want, have):
                return f"output {position} differs from eager's at {int((want != have).sum())} of {want.numel()} places"
            continue
        off, largest = _off(want, have), _largest(want)
        if not off <= _tolerance(want) * largest:
            return f"output {position} is off by {off:.3g}, where eager's largest magnitude is {largest:.3g}"
    return ""


def _off(want: torch.Tensor, have: torch.Tensor) -> float:
    """The largest difference; infinite where NaN or infinities stand at other places."""
    a, b = _reals(want), _reals(have)
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return float("inf")
    differing = torch.where(a.isfinite(), (a - b).abs(), torch.zeros_like(a))
    return float(differing.max()) if differing.numel() else 0.0


def _reals(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _largest(tensor: torch.Tensor) -> float:
    finite = _reals(tensor)
    finite = finite[finite.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _tolerance(tensor: torch.Tensor) -> float:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    name = str(tensor.dtype).removeprefix("torch.").replace("complex128", "float64").replace("complex64", "float32")
    return TOLERANCES.get(name, max(TOLERANCES.values()))


def _told(tensor: torch.Tensor) -> dict[str, Any]:
    flat = _reals(tensor).reshape(-1)
    places = [number * flat.numel() // SAMPLES for number in range(min(SAMPLES, flat.numel()))]
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "digest": digest_of(tensor),
        "largest": _largest(tensor),
        "samples": [float(flat[place]) for place in places],
    }


def _raw(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()) if plain.numel() else b""


def _timed(eager: Callable[[], Any], compiled: Callable[[], Any]) -> dict[str, Any]:
    """Medians in milliseconds, measured in turns while other workers of the build stand still where they can."""
    seconds: tuple[list[float], list[float]] = ([], [])
    with part.alone():
        until = time.perf_counter() + ROUND_SECONDS
        while len(seconds[0]) < 3 or (len(seconds[0]) < ROUNDS and time.perf_counter() < until):
            for call, found in zip((eager, compiled), seconds, strict=True):
                begin = time.perf_counter()
                call()
                found.append(time.perf_counter() - begin)
    plain, ours = (1000 * statistics.median(found) for found in seconds)
    return {
        "eager_ms": round(plain, 4),
        "artifact_ms": round(ours, 4),
        "times_as_fast": round(plain / ours, 3),
        "rounds": len(seconds[0]),
        "threads": torch.get_num_threads(),
    }
