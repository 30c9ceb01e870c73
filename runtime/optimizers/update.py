"""One compiled update: found in the store or compiled on a miss, and launched over all tensors that it fits, in one native call."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from precast.runtime.common.errors import GuardMiss, InProcess, LoadError, Refused
from precast.runtime.common.log import logger
from precast.runtime.common.upward_imports import COMPILE_UPDATE
from precast.runtime.executable.blob_source import MemoryBlobs
from precast.runtime.loading.stored_graph import find_artifact, open_update, prepare_native
from precast.runtime.native import loader
from precast.runtime.optimizers.rules import RULES, Flags, digest_of
from precast.runtime.programs.identity import Settings
from precast.runtime.settings import stance
from precast.runtime.settings.options import key_options
from precast.runtime.targets.ladder import resolve
from precast.target_registry import computes_on


@dataclass(frozen=True)
class Wanted:
    """What an update is compiled for. `tensors`: dtypes by name, in order; `numbers`: names, in order. `on_device`: the rule's numbers are
    computed there, from `scalars` (tensors without dimensions, such as the step: dtypes by name, in order) and from `numbers`, which are
    then the group's options.

    `options`: of the call that wants it, for a check against torch's function; they are no part of what is compiled.
    """

    function: str
    flags: Flags
    tensors: Mapping[str, torch.dtype]
    numbers: tuple[str, ...]
    device: str
    options: Mapping[str, Any]
    on_device: bool = False
    scalars: Mapping[str, torch.dtype] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For people."""
        on = ", ".join(flag for flag, value in self.flags.items() if value)
        return f"torch.optim:{self.function} ({on})" if on else f"torch.optim:{self.function}"

    def key(self, settings: Settings) -> str:
        """Its folder in the store: another one whenever what is compiled could differ."""
        parts = (
            digest_of(RULES[self.function]),
            sorted(self.flags.items()),
            [(name, str(dtype)) for name, dtype in self.tensors.items()],
            self.numbers,
            self.device,
            *((("on device", [(name, str(dtype)) for name, dtype in self.scalars.items()]),) if self.on_device else ()),
            sorted(key_options(settings.options).items()),
        )
        return f"optimizer.{self.function}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"


def opened(wanted: Wanted, settings: Settings, device: torch.device) -> Callable[..., Any]:
    """The launcher of the update: `each(rows, elements, *tensors, *numbers)`. Raises Refused, GuardMiss and what a compile raises."""
    store, key = settings.store, wanted.key(settings)
    gpu = device if device.type != "cpu" else None
    loader.find(store)
    call = find_artifact(store, key, wanted.name, lambda manifest: open_update(manifest, store), gpu)
    if call is None and store.remotes is not None:
        from precast.runtime.programs.remote_lookup import brought_for  # not where there are none

        target = resolve(settings.options["target"])
        call = brought_for(
            store, key, target, lambda: find_artifact(store, key, wanted.name, lambda manifest: open_update(manifest, store), gpu)
        )
    if call is not None:
        logger("store").info("%s: hit", wanted.name)
        return call
    if settings.require_hit or stance.state.stance.name == "fail_on_recompile":
        raise GuardMiss(f"no stored artifact of {wanted.name} fits this step, and compiling it is forbidden")
    return _compiled(wanted, key, settings)


def _compiled(wanted: Wanted, key: str, settings: Settings) -> Callable[..., Any]:
    store = settings.store
    native = threading.Thread(target=prepare_native, args=(store,), name="precast-native-build")
    native.start()
    try:
        outcome = COMPILE_UPDATE.load()(wanted, key, settings.options, resolve(settings.options["target"]), store)
    finally:
        native.join()
    try:
        if isinstance(outcome, InProcess):
            logger("runtime").info("%s: kept in this process only: %s", wanted.name, outcome.reason)
            return open_update(outcome.manifest, MemoryBlobs(outcome.blobs))
        call = open_update(outcome, store)
        store.used(outcome.artifact_id)
        return call
    except LoadError as error:
        raise Refused(f"what was compiled for it cannot be loaded: {error}") from error


def launch(
    call: Any, columns: Sequence[Sequence[torch.Tensor]], sizes: tuple[int, ...] | None, written: Sequence[int], more: Sequence[Any]
) -> None:
    """Run the update on each row of `columns` (one column for each of its tensors). `written`: which columns change.

    `sizes`: elements of each row; None where tensors of a row do not lie alike. `more`: scalars and numbers; a tuple has one for each row.
    """
    device = columns[0][0].device
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    if sizes is None:
        columns = _flat(columns, written, copies)
        sizes = tuple([t.numel() for t in columns[0]])
    if 0 in sizes:
        kept = [i for i, size in enumerate(sizes) if size]
        columns, sizes = [[column[i] for i in kept] for column in columns], tuple([sizes[i] for i in kept])
        more = [tuple([value[i] for i in kept]) if isinstance(value, tuple) else value for value in more]
    with torch.cuda.device(device) if computes_on(device.type) else contextlib.nullcontext():
        call.each(len(sizes), sizes, *map(tuple, columns), *more)
    for original, copy in copies:
        original.copy_(copy)
    changed = [t for i in written for t in columns[i]]
    if torch.is_inference_mode_enabled():
        changed = [t for t in changed if not t.is_inference()]  # others have no version
    torch._C._increment_version(changed)


def _flat(
    columns: Sequence[Sequence[torch.Tensor]], written: Sequence[int], copies: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """The same, with tensors of a row in one order in memory without gaps; `copies`: what has to be copied back, (to, from)."""
    rows = [list(row) for row in zip(*columns, strict=True)]
    for row in rows:
        strides = row[0].stride()
        if is_dense(row[0]) and all(t.stride() == strides for t in row):
            continue
        layout = row[0] if is_dense(row[0]) else torch.empty(row[0].shape, dtype=row[0].dtype, device="meta")
        for i, t in enumerate(row):
            if t.stride() == layout.stride():
                continue
            row[i] = torch.empty_strided(t.shape, layout.stride(), dtype=t.dtype, device=t.device).copy_(t)
            if i in written:
                copies.append((t, row[i]))
    return [list(column) for column in zip(*rows, strict=True)]


def is_dense(t: torch.Tensor) -> bool:
    """Whether its elements fill a piece of memory."""
    strides: Sequence[int] = t.stride()
    order = sorted(range(t.dim()), key=lambda dim: (-strides[dim], dim))
    return t.permute(order).is_contiguous()


__all__ = ["Wanted", "is_dense", "launch", "opened"]
