"""The canary: the first call that a loaded artifact serves is also run eagerly, and an artifact that answers otherwise is not used.

It is for what guards and digests cannot see: a miscompilation, a defective processor, a driver that computes something else. The eager run
comes first, on copies of the call's arguments, with the state of the random number generators and the buffers of modules put back behind
it; then the artifact runs, as it would have. Answers agree where their structure, shapes and types are equal and each floating-point value
differs by at most the tolerance times the largest magnitude that eager has in that tensor; NaN and infinities have to stand where eager
has them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from precast.runtime.common.locks import Lock
from precast.runtime.common.log import logger

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""By type, relative to the largest magnitude of a tensor: far above rounding, far below a wrong kernel."""


@dataclass(eq=False)
class Canary:
    """The artifacts of one program that have been tried. `tolerance`: in place of `TOLERANCES`, for every type."""

    tolerance: float | None = None
    tried: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def wants(self, artifact_id: str) -> bool:
        """Whether it is to be tried; True once for each artifact, for the first thread that asks."""
        if artifact_id in self.tried:
            return False
        with self._lock:
            wanted = artifact_id not in self.tried
            self.tried.add(artifact_id)
            return wanted

    def trial(
        self, eager: Callable[..., Any], compiled: Callable[..., Any], owners: tuple[Any, ...], fails: Callable[[str], None]
    ) -> Callable[..., Any]:
        """What the call runs in place of `compiled`. `owners`: the modules whose buffers eager may write.

        `fails`: told in a sentence's end how the artifact's answer differs, before eager's answer is returned. What eager raises is left
        to the artifact to raise, as without a canary.
        """

        def tried(*args: Any, **kwargs: Any) -> Any:
            try:
                args_of_eager, kwargs_of_eager = copy.deepcopy((args[len(owners) :], kwargs))
            except Exception as error:  # noqa: BLE001 - whatever it is that cannot be copied, the call itself goes on
                logger("runtime").warning("canary: the arguments cannot be copied (%s): not tried", error)
                return compiled(*args, **kwargs)
            with _put_back(owners):
                try:
                    expected = eager(*args[: len(owners)], *args_of_eager, **kwargs_of_eager)
                except Exception as error:  # noqa: BLE001 - the program's own error, which the artifact raises as well
                    logger("runtime").info("canary: eager raises %s: not tried", type(error).__name__)
                    return compiled(*args, **kwargs)
            answer = compiled(*args, **kwargs)
            difference = self.difference(expected, answer)
            if not difference:
                return answer
            fails(difference)
            return expected

        return tried

    def difference(self, expected: Any, answer: Any) -> str:
        """How the answer differs from eager's, as a sentence's end; empty where it does not."""
        wanted, wanted_spec = tree_flatten(expected)
        got, got_spec = tree_flatten(answer)
        if wanted_spec != got_spec:
            return f"its answer has the structure {got_spec}, eager's {wanted_spec}"
        for position, (want, have) in enumerate(zip(wanted, got, strict=True)):
            if why := self._differs(want, have):
                return f"value {position} of its answer {why}"
        return ""

    def _differs(self, want: Any, have: Any) -> str:
        if not isinstance(want, torch.Tensor) or not isinstance(have, torch.Tensor):
            if isinstance(want, torch.Tensor) or isinstance(have, torch.Tensor):
                return f"is a {type(have).__name__}, eager's a {type(want).__name__}"
            return ""  # what is no tensor is Python's own work in both
        if (want.shape, want.dtype, want.device) != (have.shape, have.dtype, have.device):
            return f"is {have.dtype} {tuple(have.shape)} on {have.device}, eager's {want.dtype} {tuple(want.shape)} on {want.device}"
        want, have = want.detach(), have.detach()
        if want.dtype.is_complex:
            want, have = torch.view_as_real(want.resolve_conj()), torch.view_as_real(have.resolve_conj())
        if not want.is_floating_point():
            different = int((want != have).sum())
            return f"differs at {different} of {want.numel()} places" if different else ""
        if not torch.equal(want.isfinite(), have.isfinite()) or not torch.equal(want.isnan(), have.isnan()):
            return "has NaN or infinity at other places than eager's"
        allowed = self.tolerance if self.tolerance is not None else TOLERANCES.get(want.dtype, max(TOLERANCES.values()))
        a, b = (torch.where(t.isfinite(), t, torch.zeros_like(t)).double() for t in (want, have))
        largest, off = (float(t.abs().max()) if t.numel() else 0.0 for t in (a, a - b))
        return f"is off by {off:.3g}, where eager's largest magnitude is {largest:.3g}" if off > allowed * largest else ""


@contextmanager
def _put_back(owners: tuple[Any, ...]) -> Iterator[None]:
    """Within, what a run may change besides its arguments: behind it, generators and the buffers of these modules are as they were."""
    modules = [owner for owner in owners if isinstance(owner, torch.nn.Module)]
    buffers: Mapping[str, torch.Tensor] = {
        f"{i}.{name}": buffer for i, module in enumerate(modules) for name, buffer in module.named_buffers() if buffer.device.type != "meta"
    }
    kept = {name: buffer.detach().clone() for name, buffer in buffers.items() if not buffer.is_inference()}
    places = {buffer.device for buffer in buffers.values() if buffer.device.index is not None}  # on accelerators
    with ExitStack() as generators:
        generators.enter_context(torch.random.fork_rng(devices=()))
        for kind in {place.type for place in places}:
            indices = sorted(place.index for place in places if place.type == kind)
            generators.enter_context(torch.random.fork_rng(devices=indices, device_type=kind))
        yield
    with torch.no_grad():
        for name, value in kept.items():
            if not torch.equal(buffers[name], value):  # batch norm writes its statistics without a new version
                buffers[name].copy_(value)


__all__ = ["TOLERANCES", "Canary"]
