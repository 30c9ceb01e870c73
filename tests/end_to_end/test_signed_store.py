"""A compiled program in a store that asks for signatures: what is not signed by a trusted key neither runs nor is waited for."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.artifact_store.trust import keyring as rings
from precast.artifact_store.trust import keys
from tests.artifact_store.trust.known_keys import known_key


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x) * 3


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who trusts ci, and a store that asks for signatures."""
    monkeypatch.setenv("PRECAST_TRUST", str(tmp_path / "trust"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "system"))
    monkeypatch.setenv("PRECAST_TRUST_POLICY", "signed")
    rings.change(tmp_path / "trust", lambda ring: rings.add(ring, known_key("ci").public))
    return tmp_path / "store"


def test_only_what_is_signed_is_served(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(7, 5)
    monkeypatch.setenv(keys.ENVIRONMENT, keys.to_pem(known_key("ci")).decode())
    precast.precompile(scaled, [((x,), {})], store=policy)
    monkeypatch.delenv(keys.ENVIRONMENT)
    copied = policy.with_name("server")  # this process trusts what it made itself, in the store in which it put it
    shutil.copytree(policy, copied)
    served = precast.load(scaled, store=copied, require="hit")
    assert torch.allclose(served(x), scaled(x), atol=1e-6)
    assert [one.key for manifest in Store.open(policy).manifests() for one in Store.open(policy).signatures(manifest)] != []

    precast.reset()
    for path in (copied / "programs").rglob("*.sig"):
        path.unlink()
    refused = precast.load(scaled, store=copied, require="hit")
    with pytest.raises(precast.GuardMiss, match="it is not signed, and only what a trusted key signed"):
        refused(x)


def test_what_cannot_be_signed_is_compiled_and_runs_here(policy: Path) -> None:
    """This process trusts what it made itself; the next compiles again."""
    x = torch.randn(4, 3)
    for _ in range(2):
        compiled = precast.compile(scaled, store=policy)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it does not run eagerly
            assert torch.allclose(compiled(x), scaled(x), atol=1e-6)
        precast.reset()
    store = Store.open(policy)
    assert [store.signatures(manifest) for manifest in store.manifests()] == [()]
    assert all(not store.serves(manifest) for manifest in store.manifests())
