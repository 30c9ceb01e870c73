"""Kinds of Dynamo guards without a portable form: a frame that needs one is not stored, and the reason names guard and source."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch._dynamo import source as S
from torch._dynamo.guards import GuardBuilder

import precast
from precast.capture import CapturedFrame, capture
from precast.capture.common.source_paths import SourceContext
from precast.capture.guards.translate import _IDENTITY, _RULES, DROPPED, GuardContext, translate

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def by_keys(x: torch.Tensor, keys: Any) -> torch.Tensor:
    return x * 2 if keys.has(torch._C.DispatchKey.CPU) else x * 3


def by_length(x: torch.Tensor, other: Any) -> torch.Tensor:
    return x * 2 if other.shape[0] == 3 else x * 3


def by_presence(x: torch.Tensor, thing: Any) -> torch.Tensor:
    return x * 2 if thing is not None else x * 3


def x() -> torch.Tensor:
    return torch.ones(3)


def key_set() -> Call:
    return by_keys, (x(), torch._C._dispatch_keys(x()))


@functools.cache
def opaque_type() -> Any:
    """A class registered as one of whose objects torch sees nothing but what a function says."""
    opaque = pytest.importorskip("torch._library.opaque_object")

    base = getattr(opaque, "CustomClassBase", None) or getattr(opaque, "OpaqueBase", object)

    class Opaque(base):  # type: ignore[misc, valid-type]
        value = 3.0

    try:
        if hasattr(opaque, "register_custom_class"):  # from torch 2.14 on
            opaque.register_custom_class(Opaque, typ="symbolic", guard_fn=lambda o: [o.value])
        else:
            opaque.register_opaque_type(Opaque, typ="reference", guard_fn=lambda o: [o.value])
    except TypeError:
        pytest.skip("this torch knows no guards of opaque objects")
    return Opaque


def opaque() -> Call:
    return by_presence, (x(), opaque_type()())


def by_memory(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch._C._is_cow_tensor(x) else x * 3


def distributed() -> Call:
    """What a sharded embedding gives: its placement holds the mask of the words that this rank has."""
    from torch.distributed.tensor import DTensor, init_device_mesh
    from torch.distributed.tensor.placement_types import _MaskPartial

    masked = [_MaskPartial(offset_shape=torch.Size((3,)), offset_dim=0)]
    return by_length, (x(), DTensor.from_local(x(), init_device_mesh("cpu", (1,)), masked, run_check=False))


@contextmanager
def one_process() -> Iterator[None]:
    """A process group of this process alone, which talks to nobody."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", rank=0, world_size=1, store=fake.FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


TRIGGERED: dict[str, tuple[Callable[[], Call], str, Callable[[], Any]]] = {
    "DISPATCH_KEY_SET_MATCH": (key_set, "L['keys']", nullcontext),
    "FAKE_SCRIPT_TYPE_MATCH": (opaque, "L['thing']", nullcontext),
    "OPAQUE_OBJ_GUARD_FN_MATCH": (opaque, "L['thing']", nullcontext),
    "COW_TENSOR_MATCH": (lambda: (by_memory, (x(),)), "L['x']", nullcontext),
    "DTENSOR_SPEC_MATCH": (distributed, "L['other']._spec", one_process),
}
"""Kind -> a call that needs such a guard, the guard's source, and what the call needs around it."""

BY_HAND = ("DICT_VERSION", "WEAKREF_ALIVE", "CURRENT_STREAM_MATCH")
"""Dynamo makes the first nowhere, the second for its own globals only, the third where there is a GPU."""

NO_FORM = "this kind of guard has no portable form"
REASONS = {
    "COW_TENSOR_MATCH": "whether a tensor's memory is shared until it is written depends on what this process did before",
    "DTENSOR_SPEC_MATCH": "the placement _MaskPartial of a DTensor has no form of its own",
}


@pytest.mark.parametrize("kind", TRIGGERED)
def test_a_refused_guard_is_named_with_its_source(kind: str) -> None:
    if not hasattr(GuardBuilder, kind):
        pytest.skip(f"this torch has no guard {kind}")
    make, source, around = TRIGGERED[kind]
    with around(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program, args = make()
        frame = capture(program, args)
    assert isinstance(frame, CapturedFrame)
    sentence = f"guard {kind} on {source}: {REASONS.get(kind, NO_FORM)}"
    assert sentence in frame.uncacheable and sentence in frame.unchecked


@pytest.mark.parametrize("kind", BY_HAND)
def test_a_guard_that_no_program_makes_is_refused_too(kind: str) -> None:
    if not hasattr(GuardBuilder, kind):
        pytest.skip(f"this torch has no guard {kind}")
    guard = S.LocalSource("thing").make_guard(getattr(GuardBuilder, kind))
    found = translate([guard], GuardContext(SourceContext("m", {}, {"thing": {}}), frozenset(), {}))
    (sentence,) = found.uncacheable
    assert sentence.startswith(f"guard {kind} on L['thing']: ") and found.unchecked == [sentence] and not found.guards


def test_the_user_is_told_the_kind_and_the_source() -> None:
    program, args = key_set()
    compiled = precast.compile(program)
    with torch.no_grad(), pytest.warns(UserWarning) as caught:
        for _ in range(2):
            torch.testing.assert_close(compiled(*args), program(*args))
    (message,) = [str(w.message) for w in caught]
    assert f"runs eagerly: guard DISPATCH_KEY_SET_MATCH on L['keys']: {NO_FORM}" in message
    with torch.no_grad(), pytest.raises(precast.PrecastError, match=r"guard DISPATCH_KEY_SET_MATCH on L\['keys'\]"):
        precast.compile(program, fullgraph=True)(*args)


def test_every_dynamo_guard_kind_is_known() -> None:
    kinds = {name for name in vars(GuardBuilder) if name.isupper() and callable(getattr(GuardBuilder, name))}
    unknown = kinds - set(_RULES) - DROPPED - _IDENTITY - set(TRIGGERED) - set(BY_HAND)
    assert not unknown, "decide for each: a rule in capture/guards/translate.py, or the table of kinds that make a frame uncacheable"
