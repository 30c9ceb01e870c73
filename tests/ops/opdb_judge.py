"""Judges one operator of torch's op_db on one backend: its first samples, in the backend's dtype and on its device, against eager.

Verdicts, from best to worst: "pass"; "refused" (the backend says that it cannot and why, and the call would run eagerly); "error" (it
raised what eager does not); "wrong" (another value, shape or dtype); and, from the parent, "timeout" and "crash".
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

Function = Callable[..., Any]
Backend = Callable[[Function, tuple[Any, ...], dict[str, Any]], Any]


UNTRACEABLE = ("item", "stft", "tensor_split", "to_sparse")
"""Operators that the bare tracer of `trace.py` cannot follow (not functional, no fake, a number as result): Dynamo's graphs are judged."""

RANDOM = ("empty", "empty_permuted", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_", "resize_as_")
"""Operators whose results hold whatever memory held: only shape and dtype are compared, as with random ones."""


class Refused(Exception):
    """The backend declines, and says why."""


@cache
def every() -> dict[str, Any]:
    """Name (with its variant) to OpInfo."""
    from torch.testing._internal import common_methods_invocations as invocations

    # Random operators are wrapped in something that seeds, which no tracer follows: the operators themselves are judged.
    invocations.wrapper_set_seed = lambda function, *args, **kwargs: function(*args, **kwargs)
    return {op.full_name: op for op in invocations.op_db}


@cache
def operators(backend: str = "") -> dict[str, Any]:
    """What a backend is judged on: ops with float32 on the CPU, the same list for all; and those of integers where it is of integers."""
    device, dtype = where(backend)
    integers = device != "cpu" and not dtype.is_floating_point
    if backend.endswith(BACKWARD):
        return {name: op for name, op in every().items() if op.supports_autograd and torch.float32 in op.supported_backward_dtypes(device)}
    return {name: op for name, op in every().items() if torch.float32 in op.dtypes or (integers and dtype in op.dtypesIfCUDA)}


def lowered(fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _interpret(fn, args, kwargs, schedule=False)


def scheduled(fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _interpret(fn, args, kwargs, schedule=True)


def _interpret(fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any], *, schedule: bool) -> Any:
    from precast.lowering.ir.sizes import Unsupported
    from precast.lowering.verify.interpret import run
    from tests.ops.runners import program_of
    from tests.ops.trace import tensors_of

    try:
        program, rebuild = program_of(lambda a, k: fn(*a, **k), (args, kwargs), schedule=schedule)
    except Unsupported as error:
        raise Refused(str(error)) from error
    except Exception as error:
        if "data-dependent" in str(error) or "DynamicOutputShape" in type(error).__name__ or "DataDependent" in type(error).__name__:
            raise Refused(f"data-dependent: {type(error).__name__}") from error
        raise
    return rebuild(run(program, tensors_of((args, kwargs))))


@cache
def _store() -> str:
    return tempfile.mkdtemp(prefix="opdb-store-")


def precast(fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any], *, dynamic: bool | None = None) -> Any:
    from precast import PrecastError
    from tests.ops.compiled import compiled

    try:
        return compiled(fn, _store(), fn.__name__, dynamic)(*args, **kwargs)
    except PrecastError as error:
        if "does not compile" in str(error) or "did not compile" in str(error):
            raise
        raise Refused(str(error)) from error


def inductor(fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any], *, dynamic: bool = False) -> Any:
    torch._dynamo.reset()
    compiled = torch.compile(fn, fullgraph=True, dynamic=dynamic)
    try:
        return compiled(*args, **kwargs)
    except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError) as error:
        raise Refused(str(error)) from error


Where = tuple[str, torch.dtype]
"""Device and dtype of the samples."""
CPU: Where = ("cpu", torch.float32)
DEVICES: dict[str, Where] = {
    "cuda": ("cuda", torch.float32),
    "cuda-bf16": ("cuda", torch.bfloat16),
    "cuda-f16": ("cuda", torch.float16),
    "cuda-f64": ("cuda", torch.float64),
    "cuda-i64": ("cuda", torch.int64),
}


BACKWARD = "-backward"
"""Ends the names of backends that are judged with gradients: those of all inputs, from fixed ones of the results."""


def with_gradients(run: Backend, fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results, and the gradients of the inputs that require them."""
    result = run(fn, args, kwargs)
    given = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    recorded = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.rand(t.shape, generator=generator, dtype=torch.float64).to(t.device, t.dtype) for t in recorded]
    gradients = torch.autograd.grad(recorded, given, weights, allow_unused=True) if recorded and given else ()
    return tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, (result, gradients))


def _eager(fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


BACKENDS: dict[str, Backend] = {
    f"precast{BACKWARD}": partial(with_gradients, precast),
    f"inductor{BACKWARD}": partial(with_gradients, inductor),
    "lowered": lowered,
    "scheduled": scheduled,
    "precast": precast,
    "inductor": inductor,
    "precast-dynamic": partial(precast, dynamic=True),
    "inductor-dynamic": partial(inductor, dynamic=True),
    **{f"precast-{device}": precast for device in DEVICES},
    **{f"inductor-{device}": inductor for device in DEVICES},
}


def where(backend: str) -> Where:
    """Device and dtype that a backend is judged on."""
    return DEVICES.get(backend.partition("-")[2], CPU)


def device_lost(backend: str) -> bool:
    """Whether this process's GPU context has ended with an error (a device-side assertion, a wild pointer), as it then stays."""
    if where(backend)[0] == "cpu":
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def judge(name: str, backend: str, samples: int) -> dict[str, Any]:
    """The verdict on the first samples of the operator: the worst of them, with its reason."""
    op, run = every()[name], BACKENDS[backend]
    if name in UNTRACEABLE and backend in ("lowered", "scheduled"):
        return {"verdict": "refused", "reason": "data-dependent or not functional under the bare tracer", "samples": 0, "other_strides": 0}
    order = ("pass", "refused", "error", "wrong")
    worst, reason, judged, strides = "pass", "", 0, 0
    backward = backend.endswith(BACKWARD)
    with warnings.catch_warnings(), torch.set_grad_enabled(backward):
        warnings.simplefilter("ignore")
        for number, sample in enumerate(_samples(op, samples, where(backend), backward)):
            verdict, why, same_strides = _one(op, sample, run, partial(with_gradients, _eager) if backward else _eager)
            if verdict == "eager refuses":
                continue
            judged += 1
            strides += not same_strides
            if order.index(verdict) > order.index(worst):
                worst, reason = verdict, f"sample {number}: {why}"
    return {"verdict": worst if judged else "no sample", "reason": reason[:700], "samples": judged, "other_strides": strides}


def _samples(op: Any, count: int, where: Where, backward: bool = False) -> list[Any]:
    device, dtype = where
    if device != "cpu" and dtype not in op.dtypesIfCUDA:
        return []
    torch.manual_seed(0)
    found = []
    for sample in op.sample_inputs(device, dtype, requires_grad=backward):
        found.append(sample)
        if len(found) == count:
            break
    return found


def _one(op: Any, sample: Any, run: Backend, eager: Backend = _eager) -> tuple[str, str, bool]:
    function = op.op

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return copy.deepcopy(((sample.input, *sample.args), dict(sample.kwargs)))

    call.__name__ = f"opdb.{op.full_name}"
    try:
        torch.manual_seed(1)
        want = eager(call, *(kept := inputs()))
        torch.manual_seed(2)
        again = eager(call, *(other := inputs()))
    except Exception:  # noqa: BLE001  (an input that eager refuses judges nobody)
        return "eager refuses", "", True
    random = op.name in RANDOM or difference((want, kept), (again, other), None) != ""
    given = inputs()
    try:
        got = run(call, *given)
    except Refused as error:
        return "refused", str(error), True
    except Exception as error:  # noqa: BLE001  (that is the verdict)
        return "error", f"{type(error).__name__}: {error}", True
    why = difference(want, got, _precise(partial(eager, call), inputs), values=not random) or difference(
        kept, given, None, values=not random
    )
    return ("wrong", why, True) if why else ("pass", "", _same_strides(want, got))


TOLERANCES = {
    torch.float32: (1e-4, 1e-5, 1e-6),
    torch.bfloat16: (1.6e-2, 1e-2, 1e-2),
    torch.float16: (2e-3, 2e-3, 2e-3),
    torch.float64: (1e-7, 1e-9, 1e-9),
}
"""Of each dtype: relative and absolute distance from eager, and how much farther than eager a result may be from float64. Integers are
compared bit by bit.
"""


def _precise(call: Callable[[tuple[Any, ...], dict[str, Any]], Any], inputs: Callable[[], Any]) -> Any:
    """The result in float64, None where there is none."""

    def widen(value: Any) -> Any:
        return value.double() if isinstance(value, torch.Tensor) and value.dtype in TOLERANCES else value

    args, kwargs = tree_map(widen, inputs())
    try:
        return call(args, kwargs)
    except Exception:  # noqa: BLE001  (not every op has float64)
        return None


def difference(want: Any, got: Any, precise: Any, *, values: bool = True) -> str:
    """What differs, "" where nothing does. Values may be twice as far from float64 as eager, or within `TOLERANCES`."""
    wants, gots = tree_flatten(want)[0], tree_flatten(got)[0]
    if len(wants) != len(gots):
        return f"{len(gots)} results for {len(wants)}"
    references = tree_flatten(precise)[0] if precise is not None else []
    for position, (w, g) in enumerate(zip(wants, gots, strict=True)):
        if not isinstance(w, torch.Tensor):
            plain = w is None or isinstance(w, bool | int | float | complex | str)
            if values and plain and w != g and not (w != w and g != g):
                return f"result {position} is {g!r}, eager's {w!r}"
            continue
        if not isinstance(g, torch.Tensor) or w.shape != g.shape or w.dtype != g.dtype:
            there = f"{g.dtype} {list(g.shape)}" if isinstance(g, torch.Tensor) else repr(g)
            return f"result {position} is {there}, eager's {w.dtype} {list(w.shape)}"
        if not values or w.layout != torch.strided or w.is_quantized:
            continue
        relative, absolute, slack = TOLERANCES.get(w.dtype, TOLERANCES[torch.float32])
        exact = not (w.is_floating_point() or w.is_complex())
        if torch.equal(w, g) if exact else torch.allclose(_wide(w), _wide(g), rtol=relative, atol=absolute, equal_nan=True):
            continue
        r = references[position] if len(references) == len(wants) and isinstance(references[position], torch.Tensor) else None
        if exact and r is not None and r.dtype == w.dtype and r.shape == w.shape and torch.equal(r, w):
            r = None  # eager's is the answer, and in float64 large integers that differ look alike
        if r is not None and r.shape == w.shape and _error(g, r) <= 2 * _error(w, r) + slack:
            continue
        return f"result {position} of shape {list(w.shape)} is off by {_error(g, w):.3g}"
    return ""


def _wide(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128) if t.is_complex() else t.double()


def _error(a: torch.Tensor, b: torch.Tensor) -> float:
    error = (_wide(a) - _wide(b)).abs()
    return float(torch.where(_wide(a) == _wide(b), 0.0, error).max()) if error.numel() else 0.0


def _same_strides(want: Any, got: Any) -> bool:
    pairs = zip(tree_flatten(want)[0], tree_flatten(got)[0], strict=True)
    return all(
        [s for n, s in zip(w.shape, w.stride(), strict=True) if n > 1] == [s for n, s in zip(g.shape, g.stride(), strict=True) if n > 1]
        for w, g in pairs
        if isinstance(w, torch.Tensor) and w.layout == torch.strided and w.numel()
    )
