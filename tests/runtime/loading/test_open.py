"""What a manifest says that nothing can be made of is a miss with a reason, and not an error of the call, nor a library that reads too
much.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

import precast
from precast.artifact_store.format.manifest import _checksum


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * y, -1)


def _outputs(body: dict[str, Any]) -> None:
    body["frames"][0]["outputs"] = "x"


def _output(body: dict[str, Any]) -> None:
    body["frames"][0]["outputs"][0] = None


def _no_inputs(body: dict[str, Any]) -> None:
    body["frames"][0]["inputs"] = []


def _more_inputs(body: dict[str, Any]) -> None:
    body["frames"][0]["inputs"] *= 2


def _rewritten(store: Path, section: int, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edits a section of the store's one manifest, whose checksum holds again."""
    (path,) = (store / "programs").rglob("*.msgpack")
    outer = msgpack.unpackb(path.read_bytes())
    data = msgpack.unpackb(outer[section], strict_map_key=False)
    edit(data)
    outer[section] = msgpack.packb(data)
    outer[2] = _checksum(outer[3:])
    path.chmod(0o644)
    path.write_bytes(msgpack.packb(outer))
    precast.reset()


@pytest.mark.parametrize("edit", [_outputs, _output, _no_inputs, _more_inputs])
def test_it_is_a_miss_and_compiled_anew(edit: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    given = (torch.randn(3, 4), torch.randn(3, 4))
    precast.compile(program, store=tmp_path)(*given)
    _rewritten(tmp_path, 5, edit)
    with pytest.raises(precast.GuardMiss, match="cannot be read"):
        precast.load(program, store=tmp_path)(*given)
    precast.reset()
    torch.testing.assert_close(precast.compile(program, store=tmp_path)(*given), program(*given))


def test_a_predicate_of_another_version_is_a_miss_with_the_reason(tmp_path: Path) -> None:
    given = (torch.randn(3, 4), torch.randn(3, 4))
    precast.compile(program, store=tmp_path)(*given)

    def renamed(table: dict[str, Any]) -> None:
        table["predicates"][0] = "sounds_like"

    _rewritten(tmp_path, 4, renamed)
    with pytest.raises(precast.GuardMiss, match="unknown predicate 'sounds_like'"):
        precast.load(program, store=tmp_path)(*given)
    precast.reset()
    torch.testing.assert_close(precast.compile(program, store=tmp_path)(*given), program(*given))
