"""What the GPU benchmark compares: eager, torch.compile's three modes, precast's three modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contenders import COMPILER, RUNTIME, Call, Contender

TRACER = ("torch._dynamo", "torch._inductor", "torch._inductor.compile_fx", "torch._inductor.codecache", "torch._inductor.cudagraph_trees")
Prepare = Callable[[torch.nn.Module, dict[str, Any], Path], Call]


def _inductor(mode: str) -> Prepare:
    return lambda model, inputs, cache: torch.compile(model, mode=mode)


def _precast(mode: str) -> Prepare:
    def prepare(model: torch.nn.Module, inputs: dict[str, Any], cache: Path) -> Call:
        import precast

        return precast.compile(model, mode=mode, store=cache)

    return prepare


def _eager(model: torch.nn.Module, inputs: dict[str, Any], cache: Path) -> Call:
    return model


def _rivals() -> list[Contender]:
    titles = {"inductor": "default", "inductor_ro": "reduce-overhead", "inductor_max": "max-autotune"}
    return [Contender(name, f"torch.compile {mode}", _inductor(mode), TRACER) for name, mode in titles.items()]


def _own() -> list[Contender]:
    titles = {"precast": "default", "precast_ro": "reduce-overhead", "precast_max": "max-autotune"}
    return [Contender(name, f"precast {mode}", _precast(mode), RUNTIME, COMPILER, ours=True) for name, mode in titles.items()]


class RanEagerly(RuntimeError):
    """precast said that a call runs eagerly, so that what would be measured is not precast; the message is its reason."""


def first_answer(prepare: Callable[[], Call], run: Callable[[Call], Any]) -> Call:
    """`prepare` the callable and `run` it once. Raises `RanEagerly` with precast's warning where it gave up on compiling."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call = prepare()
        run(call)
    said = [str(w.message) for w in caught if str(w.message).startswith("precast:")]
    if said:
        raise RanEagerly(" ".join(said[0].split())[:400])
    return call


# In the order in which they are prepared: what a cut-off run loses is the longest compile.
CONTENDERS = {c.name: c for c in (Contender("eager", "eager", _eager), *_own(), *_rivals())}
OURS = tuple(name for name, c in CONTENDERS.items() if c.ours)
THEIRS = ("inductor", "inductor_ro", "inductor_max")
