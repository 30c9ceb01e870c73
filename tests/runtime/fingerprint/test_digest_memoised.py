"""Code that two programs have in common is digested once in a process."""

from __future__ import annotations

import types

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from precast.runtime.fingerprint import bytecode


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 3


def first(x: torch.Tensor) -> torch.Tensor:
    return helper(x) + 1


def second(x: torch.Tensor) -> torch.Tensor:
    return helper(x) - 1


@torch.no_grad()
def test_a_helper_is_digested_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digested: list[types.CodeType] = []
    plain = bytecode._text
    monkeypatch.setattr(bytecode, "_text", lambda code: (digested.append(code), plain(code))[1])
    bytecode.digest.cache_clear()
    x = torch.randn(4)
    for program in (first, second):
        for _ in range(2):  # compiled; then found in the store
            compiled = precast.compile(program, store=store)
            for _ in range(3):
                torch.testing.assert_close(compiled(x), program(x))
            (variant,) = site_of(compiled).programs[0].variants
            assert variant.stored
            assert any("helper" in name for name in variant.manifest.digests), "the helper is part of what is checked"
    assert [code for code in digested if code is helper.__code__] == [helper.__code__]
