"""C functions and operators of torch that generated code calls: which are there, and what is done without those that are not."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from precast.codegen.cpu.missing_calls import ATEN, FLASH, ONEDNN
from precast.codegen.host.shims import DISPATCHER, SHIMS
from precast.runtime.common.torch_support import Difference, FactFails, differs
from precast.runtime.native.torch_symbols import resolve_symbol
from precast.torch_facts.fact import EAGER, OK, Answer, Fact

_MKLDNN: Any = torch.backends.mkldnn
OWN = frozenset({"precast_call_python"})
THROUGH_ATEN = "torch's dispatcher calls the operators of ATen"
THROUGH_PYTHON = "Python calls the operators that have no C function"
NO_ONEDNN = "oneDNN is not called: products and convolutions are ATen's, and their epilogues kernels"
REFUSED = "graphs for a GPU that need it are refused, and run as torch has them"


def instead_of(name: str) -> str:
    """What is done without a function or an operator."""
    if name in ONEDNN:
        return NO_ONEDNN
    if name in DISPATCHER:
        return THROUGH_PYTHON
    if name in ATEN or name == FLASH:
        return THROUGH_ATEN
    return REFUSED if name not in SHIMS else EAGER


def called() -> tuple[str, ...]:
    """All that generated code for a CPU may call of torch: C functions and operators."""
    operators = [name for name in ONEDNN if "::" in name] if _MKLDNN.is_available() else []
    return (*filter(_is_torchs, SHIMS), *sorted(operators))


def called_for_cuda() -> tuple[str, ...]:
    """The C functions that generated code for a GPU calls besides, where this torch was built with CUDA."""
    from precast.codegen.cuda.host.shims import CUDA_SHIMS  # what compiles for a CPU imports nothing of CUDA's

    return (
        tuple(name for name in filter(_is_torchs, CUDA_SHIMS) if name not in SHIMS and not name.startswith("cu"))
        if torch.version.cuda
        else ()
    )


def _is_torchs(name: str) -> bool:
    return not name.startswith("?") and name not in OWN


def is_missing(name: str) -> bool:
    """Whether torch lacks it."""
    if "::" not in name:
        return not resolve_symbol(name)
    space, _, operator = name.partition("::")
    return not hasattr(getattr(torch.ops, space), operator)


@functools.cache
def missing_calls() -> frozenset[str]:
    """Those of `called` that are missing, each with a warning that says what is done without it. Where oneDNN is missing as a whole, all of
    what calls it is.
    """
    found = frozenset(filter(is_missing, called()))
    for name in sorted(found):
        if (instead := instead_of(name)) != EAGER:
            differs(Difference(f"generated code calls {name}", "this torch does not have it", instead))
    return found if _MKLDNN.is_available() else found | ONEDNN


def require() -> None:
    """Raises FactFails where a C function is missing without which no graph can be called."""
    lacking = [name for name in called() if instead_of(name) == EAGER and is_missing(name)]
    if lacking:
        raise FactFails(f"torch {torch.__version__} lacks what generated code calls, so that nothing can be compiled: {', '.join(lacking)}")


def facts() -> Iterator[Fact]:
    """One for each function and operator."""
    for name in (*called(), *called_for_cuda()):
        instead = instead_of(name)
        needed_for = (
            "products and convolutions by oneDNN" if name in ONEDNN else "graphs for a GPU" if name not in SHIMS else "generated code"
        )
        yield Fact("calls", name, needed_for, instead, functools.partial(_check, name), stops=instead == EAGER)


def _check(name: str) -> Answer:
    return Answer("fails", "this torch does not have it") if is_missing(name) else OK


__all__ = ["called", "called_for_cuda", "facts", "instead_of", "is_missing", "missing_calls", "require"]
