"""A store that a process without a device built, served here by a process that cannot import Triton.

A store that really comes from another machine: `python -m tests.gpu.test_built_elsewhere FOLDER cuda:sm_90 cuda:ptx_80` builds it there,
with this version of the code, torch and Python; with `PRECAST_CARRIED_STORE=FOLDER` it is served here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.runtime.targets.cuda import native_cuda
from tests.gpu.device import DEVICE
from tests.gpu.training_net import Net, batches

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(DEVICE == "cpu", reason="tests/models/test_store_relocation.py is the CPU's")]
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
from precast.runtime.executable import ptx
texts, compiled = [], ptx._compiled
def counting(given):
    texts.extend(given)
    return compiled(given)
ptx._compiled = counting
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
print(json.dumps({"wrong": {name: why for name, why in found.items() if why}, "served": len(found), "compiled": len(texts)}))
"""
STEPS = """
import json, sys
kind, store, target = sys.argv[1:4]
import torch, precast
from tests.gpu.training_net import Net, batches
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
torch.manual_seed(0)
if kind == "build":
    assert not torch.cuda.is_available()
    report = precast.precompile(Net(), [(batches()[0][:1], {})], targets=[target], store=store)
    print(json.dumps({"wrong": "" if report.ok else str(report), "artifacts": [item.artifact_id for item in report.signatures]}))
    raise SystemExit
def losses(compiled):
    torch.manual_seed(0)
    net = Net().cuda()
    called = precast.load(net, store=store, require="hit") if compiled else net
    optimizer, found = torch.optim.SGD(net.parameters(), 0.1), []
    for x, wanted in batches():
        loss = torch.nn.functional.cross_entropy(called(x.cuda()), wanted.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found
print(json.dumps({"losses": [losses(False), losses(True)]}))
"""
NAMES = ("plain", "gpt2", "bert", "resnet", "vit", "llama", "t5", "convnext", "mamba")


CARRIED = os.environ.get("PRECAST_CARRIED_STORE", "")


def _run(kind: str, store: Path, target: str, **environment: str) -> dict[str, Any]:
    """What was wrong with which model, how many there were, and how many kernels the driver compiled from PTX."""
    return _worker([WORKER, kind, str(store), target, *NAMES], **environment)


def _worker(arguments: list[str], **environment: str) -> dict[str, Any]:
    """What the process says in its last line."""
    command = [sys.executable, "-c", *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _build(store: Path, target: str) -> dict[str, Any]:
    return _run("build", store, target, CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("kind", ["image", "ptx"])
def test_built_without_a_device_served_without_triton(kind: str, tmp_path: Path) -> None:
    """Images for this architecture, and the fall-back, which the driver compiles for the first process alone."""
    target = native_cuda(torch.cuda.get_device_capability()) if kind == "image" else PTX
    built = _build(tmp_path, target)
    assert not built["wrong"], built
    first, second = (_run("serve", tmp_path, target) for _ in range(2))
    assert not first["wrong"] and not second["wrong"], (first, second)
    assert (first["compiled"] > 0) == (kind == "ptx") and second["compiled"] == 0


@pytest.mark.parametrize("kind", ["image", "ptx"])
def test_a_training_step_that_was_built_without_a_device(kind: str, tmp_path: Path) -> None:
    """It hits, forward and backward, and ten steps have eager's losses. What is built here, with the device, is the same artifact."""
    target = native_cuda(torch.cuda.get_device_capability()) if kind == "image" else PTX
    built = _worker([STEPS, "build", str(tmp_path), target], CUDA_VISIBLE_DEVICES="")
    assert not built["wrong"], built
    eager, ours = _worker([STEPS, "serve", str(tmp_path), target])["losses"]
    assert eager[-1] < eager[0] - 0.1
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(eager), rtol=1e-4, atol=1e-5)
    with torch.enable_grad():
        here = precast.precompile(Net().cuda(), [((batches()[0][0].cuda(),), {})], targets=[target], store=tmp_path)
    assert [(item.outcome, item.artifact_id) for item in here.signatures] == [("hit", built["artifacts"][0])]


@pytest.mark.skipif(not CARRIED, reason="PRECAST_CARRIED_STORE names no store that another machine built (how: the head of this file)")
def test_a_store_that_another_machine_built(tmp_path: Path) -> None:
    """All of its programs hit and agree with eager; it is served from a copy, and stays as it came."""
    store = tmp_path / "store"
    shutil.copytree(CARRIED, store)
    served = _run("serve", store, "")
    assert not served["wrong"] and served["served"] == len(NAMES), served


def main() -> int:
    """Builds the store; 1 where a program could not be built."""
    folder, *targets = sys.argv[1:]
    good = True
    for target in targets or [PTX]:
        built = _build(Path(folder), target)
        print(f"{target}: {built['served'] - len(built['wrong'])} of {built['served']} programs", *built["wrong"].items(), sep="\n  ")
        good = good and not built["wrong"]
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
