"""Judges one module of torch's module_db, in train or eval mode, on one backend: results, gradients of its parameters and inputs, buffers.

The verdicts are those of opdb_judge.py; a module that is no single graph is called in pieces, too, and is "wrong" where these are.
"""

from __future__ import annotations

import copy
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.ops.opdb_judge import TOLERANCES, Refused, difference

MODES = ("train", "eval")
Call = Callable[..., Any]
SEED = 3


@cache
def every() -> dict[str, Any]:
    """Name to ModuleInfo."""
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


@cache
def cases() -> list[str]:
    """Each module in each mode, such as "nn.Linear train"."""
    return [f"{name} {mode}" for name, info in every().items() if torch.float32 in info.dtypes for mode in MODES]


@cache
def _store() -> str:
    return tempfile.mkdtemp(prefix="modules-store-")


def precast(module: torch.nn.Module, whole: bool) -> Call:
    from tests.ops.compiled import compiled

    if whole:
        return compiled(module, _store())
    import precast as compiler

    return compiler.compile(module, store=_store())


def torchs_door(module: torch.nn.Module, whole: bool) -> Call:
    """`torch.compile` with our backend: torch traces and guards."""
    os.environ["PRECAST_STORE"] = _store()
    torch._dynamo.reset()
    return torch.compile(module, backend="precast", fullgraph=whole)


def inductor(module: torch.nn.Module, whole: bool) -> Call:
    torch._dynamo.reset()
    torch._inductor.config.fallback_random = True  # dropout draws eager's numbers
    return torch.compile(module, fullgraph=whole)


def eager(module: torch.nn.Module, whole: bool) -> Call:
    return module


BACKENDS: dict[str, Callable[[torch.nn.Module, bool], Call]] = {
    "precast-modules": precast,
    "torch-door-modules": torchs_door,
    "inductor-modules": inductor,
}


def judge(name: str, backend: str, samples: int) -> dict[str, Any]:
    """The verdict on the first samples of a case: the worst of them, with its reason."""
    module, mode = name.split(" ")
    order = ("pass", "refused", "error", "wrong")
    worst, reason, judged = "pass", "", 0
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(_samples(every()[module], mode == "train")[:samples]):
            verdict, why = _one(every()[module].module_cls, sample, mode == "train", BACKENDS[backend])
            if verdict == "eager refuses":
                continue
            judged += 1
            if order.index(verdict) > order.index(worst):
                worst, reason = verdict, f"sample {number} ({sample.desc}): {why}"
    return {"verdict": worst if judged else "no sample", "reason": reason[:700], "samples": judged}


def _samples(info: Any, training: bool) -> list[Any]:
    torch.manual_seed(0)
    found = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    return [sample for sample in found if sample.forward_input is not None]


def _one(made: type[torch.nn.Module], sample: Any, training: bool, backend: Callable[[torch.nn.Module, bool], Call]) -> tuple[str, str]:
    torch.manual_seed(1)
    given = sample.constructor_input
    module = made(*given.args, **given.kwargs).float().train(training)
    try:
        want = _step(copy.deepcopy(module), sample, eager, whole=True)
    except Exception:  # noqa: BLE001  (an input that eager refuses judges nobody)
        return "eager refuses", ""
    exact = _precise(module, sample)
    refusal = ""
    try:
        got = _step(copy.deepcopy(module), sample, backend, whole=True)
    except Exception as error:  # noqa: BLE001  (that is the verdict)
        if not _declines(error):
            return "error", f"{type(error).__name__}: {error}"
        refusal = str(error)
        try:
            got = _step(copy.deepcopy(module), sample, backend, whole=False)
        except Exception as inner:  # noqa: BLE001
            return "error", f"{type(inner).__name__}: {inner}"
    if why := difference(want, got, exact):
        return "wrong", why
    return ("refused", refusal) if refusal else ("pass", "")


def _declines(error: Exception) -> bool:
    """Whether the backend says that it does not compile the call as one graph."""
    from precast import PrecastError

    if isinstance(error, PrecastError):
        return "does not compile" not in str(error) and "did not compile" not in str(error)
    return isinstance(error, (Refused, torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError))


def _step(module: torch.nn.Module, sample: Any, backend: Callable[[torch.nn.Module, bool], Call], whole: bool, wide: bool = False) -> Any:
    """What a call and its backward pass leave. `wide`: in double precision."""
    args, kwargs = tree_map(lambda v: _own(v, wide), (list(sample.forward_input.args), dict(sample.forward_input.kwargs)))
    call = backend(module, whole)
    torch.manual_seed(SEED)
    result = call(*args, **kwargs)
    leaves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad] + [*module.parameters()]
    recorded = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.rand(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in recorded]
    gradients = torch.autograd.grad(recorded, leaves, weights, allow_unused=True) if recorded and leaves else ()
    return tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, (result, gradients, dict(module.named_buffers()), args))


def _own(value: Any, wide: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    made = value.detach().clone()
    made = made.double() if wide and made.dtype in TOLERANCES else made
    return made.requires_grad_(value.requires_grad)


def _precise(module: torch.nn.Module, sample: Any) -> Any:
    """The same in double precision; None where there is none."""
    try:
        return _step(copy.deepcopy(module).double(), sample, eager, whole=True, wide=True)
    except Exception:  # noqa: BLE001  (not every module has float64)
        return None
