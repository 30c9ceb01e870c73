"""What it means that a backend agrees with eager: values, shape, stride, dtype, aliasing, mutation.

Values of a float result are judged against the function run in float64 on the same inputs: the backend's error may not exceed a
stated multiple (`Row.factor`) of eager's own error plus `Row.ulps` units in the last place. Integers and booleans must be equal.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from tests.ops.rows import Row

Fn = Callable[..., Any]


class Mismatch(AssertionError):
    """A backend's result differs from eager's; the message says where and by how much."""


@dataclass(frozen=True)
class Expected:
    """Eager's result and the float64 reference of one row on one set of inputs."""

    inputs: tuple[Any, ...]  # as the backend must find them (untouched)
    after: tuple[Any, ...]  # the inputs after eager ran
    result: Any
    precise: Any  # result in float64, or None where eager itself is the reference
    precise_after: Any


def copied(values: Any) -> Any:
    """Deep copies of tensors with their strides, storage offsets and sharing kept."""
    return copy.deepcopy(values)


def widened(values: Any) -> Any:
    """The same values with float tensors in float64, on the CPU: functions there are exact where a GPU's take constants in float32."""

    def widen(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.dtype.is_complex:
            return value.to("cpu", torch.complex128)
        return value.to("cpu", torch.float64) if value.is_floating_point() else value.to("cpu", copy=True)

    return tree_map(widen, values)


def expect(row: Row, seed: int) -> Expected:
    """Runs `row` eagerly on fresh inputs of `seed`, and in float64 where that is its reference."""
    inputs = row.inputs(seed)
    after = copied(inputs)
    result = row.fn(*after)
    precise = precise_after = None
    if row.reference != "eager" and "random" not in row.tags and any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in inputs):
        precise_after = widened(inputs)
        precise = (row.fn if isinstance(row.reference, str) else row.reference)(*precise_after)
    return Expected(inputs, after, result, precise, precise_after)


def check(row: Row, expected: Expected, got: Any, got_inputs: tuple[Any, ...], *, aliasing: bool = True) -> None:
    """Raises `Mismatch` unless `got` (and what became of `got_inputs`) agrees with eager."""
    compare_tree(row, expected.result, got, expected.precise, "result")
    mutated = "inputs" if "mutates" in row.tags else "inputs (which eager leaves alone)"
    compare_tree(row, expected.after, got_inputs, expected.precise_after, mutated)
    if aliasing:
        theirs, ours = alias_pattern(expected.result, expected.after), alias_pattern(got, got_inputs)
        if theirs != ours:
            raise Mismatch(
                f"{row.id}: results share storage as {ours}, in eager as {theirs} (each: the first result or input of the same storage)"
            )


def alias_pattern(result: Any, inputs: Iterable[Any]) -> list[str | None]:
    """For each tensor of `result`: the first input, else the first result, that shares its storage."""
    owners: dict[int, str] = {}
    for position, value in enumerate(tree_flatten(tuple(inputs))[0]):
        if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes():
            owners.setdefault(value.untyped_storage().data_ptr(), f"input {position}")
    pattern: list[str | None] = []
    for position, value in enumerate(tree_flatten(result)[0]):
        if not isinstance(value, torch.Tensor):
            pattern.append(None)
        elif value.untyped_storage().nbytes() == 0 or value.numel() == 0:
            pattern.append("empty")
        else:
            pattern.append(owners.setdefault(value.untyped_storage().data_ptr(), f"result {position}"))
    return pattern


def compare_tree(row: Row, want: Any, got: Any, precise: Any, what: str) -> None:
    wants, want_spec = tree_flatten(want)
    gots, got_spec = tree_flatten(got)
    if len(wants) != len(gots) or want_spec != got_spec:
        raise Mismatch(f"{row.id}: {what} has the structure {got_spec}, eager's {want_spec}")
    references = tree_flatten(precise)[0] if precise is not None else [None] * len(wants)
    for position, (w, g, r) in enumerate(zip(wants, gots, references, strict=True)):
        where = f"{row.id}: {what} {position}" if len(wants) > 1 else f"{row.id}: {what}"
        if not isinstance(w, torch.Tensor):
            if type(w) is not type(g) or w != g:
                raise Mismatch(f"{where} is {g!r}, eager's {w!r}")
            continue
        if not isinstance(g, torch.Tensor):
            raise Mismatch(f"{where} is a {type(g).__name__}, eager's a tensor")
        compare_meta(where, w, g, strides="free_strides" not in row.tags)
        if "random" not in row.tags:
            compare_values(where, w, g, r.to(g.device) if isinstance(r, torch.Tensor) else r, row.factor, row.ulps)


def compare_meta(where: str, want: torch.Tensor, got: torch.Tensor, *, strides: bool = True) -> None:
    """Shape, dtype and the strides that matter (dimensions of extent 1 and empty tensors have none)."""
    if want.shape != got.shape or want.dtype != got.dtype:
        raise Mismatch(f"{where} is {got.dtype} {list(got.shape)}, eager's {want.dtype} {list(want.shape)}")
    if want.numel() == 0 or not strides:
        return
    if any(s != g for extent, s, g in zip(want.shape, want.stride(), got.stride(), strict=True) if extent > 1):
        raise Mismatch(f"{where} has strides {got.stride()} at shape {list(got.shape)}, eager's {want.stride()}")


def compare_values(where: str, want: torch.Tensor, got: torch.Tensor, precise: torch.Tensor | None, factor: float, ulps: float) -> None:
    """Values; NaN and infinity must sit where eager has them, or where float64 has them."""
    if want.numel() == 0:
        return
    if want.dtype.is_complex:
        want, got = torch.view_as_real(want.resolve_conj()), torch.view_as_real(got.resolve_conj())
        precise = torch.view_as_real(precise.resolve_conj()) if precise is not None and precise.dtype.is_complex else None
    if not want.is_floating_point():
        wrong = want != got
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise Mismatch(
                f"{where}: {int(wrong.sum())} of {want.numel()} values differ, at {at} {got[at].item()} for eager's {want[at].item()}"
            )
        return
    eps = torch.finfo(want.dtype).eps
    if want.dtype in (torch.float16, torch.bfloat16):
        ulps /= 8  # half types are rounded once from float32, so eager's own rounding is nearly all of the error
    elif want.dtype == torch.float64:
        ulps *= 16  # the reference is no more precise than the result
    w, g = want.double(), got.double()
    r = precise.double() if precise is not None and precise.shape == want.shape else w
    # Where eager leaves the numbers and float64 does not (an overflow on the way, a vectorised function at infinity), both count.
    better = ~w.isfinite() & r.isfinite() & g.isfinite()
    finite = (w.isfinite() & r.isfinite()) | better
    same = finite | (w == g) | (w.isnan() & g.isnan()) | (~r.isfinite() & ((r == g) | (r.isnan() & g.isnan())))
    if not same.all():
        at = tuple((~same).nonzero()[0].tolist())
        raise Mismatch(f"{where}: {int((~same).sum())} non-finite values differ, at {at} {g[at].item()} for eager's {w[at].item()}")
    if not finite.any():
        return
    scale = r[finite].abs().mean()
    floor = scale / 16 + torch.finfo(want.dtype).tiny
    size = r.abs() + floor
    eager_error = ((w - r).abs() / size)[finite & w.isfinite()]
    allowed = (factor * (eager_error.max().item() if eager_error.numel() else 0.0) + ulps * eps) * size
    error = (g - r).abs()
    bad = finite & ~(error <= allowed)
    if bad.any():
        at = tuple(
            ((error / allowed).masked_fill(~bad, 0))
            .eq((error / allowed)[bad].nan_to_num(nan=float("inf")).max())
            .nonzero()[:1]
            .flatten()
            .tolist()
        )
        at = at or tuple(bad.nonzero()[0].tolist())
        raise Mismatch(
            f"{where}: {int(bad.sum())} of {want.numel()} values off, "
            f"at {at} {g[at].item():.9g} for {r[at].item():.9g} (eager {w[at].item():.9g}); "
            f"error {error[at].item():.3g}, allowed {allowed[at].item():.3g}"
        )


M_PERTURB = -6


def poison_allocations(on: bool = True) -> None:
    """Makes glibc fill fresh memory with 0xFE (huge negative floats, invalid booleans), so that unwritten results show."""
    ctypes.CDLL(None).mallopt(M_PERTURB, 0x01 if on else 0x00)
