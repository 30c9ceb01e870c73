"""A store that a process without a device built, served here by a process that cannot import Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from precast.runtime.targets import native_cuda
from tests.gpu.device import DEVICE

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(DEVICE == "cpu", reason="tests/models/test_travel.py is the CPU's")]
ROOT = Path(__file__).resolve().parents[2]
PTX = "cuda:ptx_80"

WORKER = """
import json, sys
kind, store, target, names = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
if kind == "serve":
    class Hides:
        def __init__(self, finder):
            self.finder = finder
        def find_spec(self, name, path=None, target=None):
            return None if name.split(".")[0] == "triton" else self.finder.find_spec(name, path, target)
        def __getattr__(self, name):
            return getattr(self.finder, name)
    sys.meta_path[:] = [Hides(finder) for finder in sys.meta_path]
import torch, precast
torch.backends.cudnn.allow_tf32 = False  # what is compared is float32
from tests.models.zoo import build, tensors
found = {}
with torch.no_grad():
    for name in names:
        model, inputs = build(name)
        model.requires_grad_(False)
        if kind == "build":
            assert not torch.cuda.is_available()
            report = precast.precompile(model, [((), inputs)], targets=[target], store=store)
            found[name] = "" if report.ok else str(report)
            continue
        model, inputs = model.cuda(), {k: v.cuda() for k, v in inputs.items()}
        try:
            got = tensors(precast.load(model, store=store, require="hit")(**inputs))
        except precast.GuardMiss as miss:
            found[name] = f"missed: {miss}"
            continue
        want = tensors(model(**inputs))
        exact = tensors(model.double()(**{k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}))
        def error(ts): return max(float((t.double() - e).norm() / e.norm()) for t, e in zip(ts, exact))
        found[name] = "" if error(got) <= 2 * error(want) + 1e-6 else f"error {error(got):.3g}, eager's {error(want):.3g}"
if kind == "serve":
    assert "triton" not in sys.modules
print(json.dumps(found))
"""
NAMES = ("plain", "gpt2", "bert", "resnet", "vit", "llama", "t5", "convnext", "mamba")


def _run(kind: str, store: Path, target: str, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-c", WORKER, kind, str(store), target, *NAMES]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", ["image", "ptx"])
def test_built_without_a_device_served_without_triton(kind: str, tmp_path: Path) -> None:
    """Images for this architecture, and the fall-back that the driver compiles."""
    target = native_cuda(torch.cuda.get_device_capability()) if kind == "image" else PTX
    built = _run("build", tmp_path, target, CUDA_VISIBLE_DEVICES="")
    assert not any(built.values()), built
    served = _run("serve", tmp_path, target)
    assert not any(served.values()), served
