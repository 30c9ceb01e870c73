"""ATen graphs with symbolic sizes, traced without the capture package, and what runs them at other sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from precast.codegen.common.options import CodegenOptions

Dims = Sequence[int] | None
"""Which dimensions of a tensor are symbolic; None: all of them (0 and 1 are never)."""


def trace_symbolic(fn: Callable[..., Any], inputs: Sequence[torch.Tensor], dynamic: Sequence[Dims] | None = None) -> GraphModule:
    """The functional ATen graph of `fn` over flat tensors. Equal sizes are one symbol, as Dynamo has it. The trace's guards are in the
    symbols' shape environment; the caller keeps them.
    """
    from precast.lowering.decompositions import DECOMPOSITIONS

    env = ShapeEnv(allow_dynamic_output_shape_ops=True, allow_scalar_outputs=True)
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    fakes = []
    for number, tensor in enumerate(inputs):
        chosen = None if dynamic is None else dynamic[number]
        kinds = [DimDynamic.DUCK if chosen is None or d in chosen else DimDynamic.STATIC for d in range(tensor.dim())]
        context = StatelessSymbolicContext(dynamic_sizes=kinds)  # type: ignore[var-annotated]
        fakes.append(mode.from_tensor(tensor, static_shapes=False, symbolic_context=context, source=ConstantSource(f"x{number}")))
    functional = dispatch_functionalize(lambda *a: fn(*a), FunctionalTensorMode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_fx(functional, tracing_mode="symbolic", decomposition_table=DECOMPOSITIONS)(*fakes)


def program_of(fn: Callable[..., Any], inputs: Sequence[torch.Tensor], dynamic: Sequence[Dims] | None = None, *, schedule: bool) -> Any:
    """The verified program of `fn` with symbolic sizes, scheduled where asked."""
    from precast.lowering.lower import lower
    from precast.lowering.pipeline import schedule as run_schedule
    from precast.lowering.verify.verify import verify

    program = lower(trace_symbolic(fn, inputs, dynamic), "symbolic")
    verify(program)
    return run_schedule(program, "cpu:x86-64-v3", check=True) if schedule else program


def runs(fn: Callable[..., Any], inputs: Sequence[torch.Tensor], dynamic: Sequence[Dims] | None = None) -> dict[str, Callable[..., Any]]:
    """Three backends of one trace: the oracle on the lowered and on the scheduled program, and the compiled library."""
    from precast.codegen import compile_program
    from precast.lowering.verify.interpret import run
    from tests.codegen.loader import Loaded

    lowered, scheduled = (program_of(fn, inputs, dynamic, schedule=s) for s in (False, True))
    library = compile_program(scheduled, "cpu:native", CodegenOptions(measure=False))
    loaded = Loaded(library.library, len(scheduled.outputs))
    return {"lowered": lambda *a: run(lowered, a), "scheduled": lambda *a: run(scheduled, a), "compiled": loaded}


def agree(want: Any, got: Any, tolerance: float = 1e-4, *, strides: bool = True) -> None:
    """Values, shapes, dtypes and (where asked) strides of flat results."""
    wants = want if isinstance(want, tuple | list) else (want,)
    for w, g in zip(wants, got, strict=True):
        assert g.shape == w.shape and g.dtype is w.dtype
        assert not strides or all(n < 2 or a == b for n, a, b in zip(w.shape, g.stride(), w.stride(), strict=True)) or w.numel() == 0
        torch.testing.assert_close(g, w, atol=tolerance, rtol=tolerance, equal_nan=True)
