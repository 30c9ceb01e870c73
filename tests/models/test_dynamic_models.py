"""One artifact for every length: tiny language models compiled once with symbolic sizes, run at many, against eager."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import precast
from tests.models.dynamic_models import MODELS, SIZES, agree
from tests.support.processes import selected

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dynamic")


@pytest.mark.parametrize("name", MODELS)
def test_one_artifact_for_every_length(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    agree(precast.compile(model, dynamic=True, store=folder / name), model, SIZES)
    assert len(list((folder / name / "programs").rglob("*.msgpack"))) == 1


def test_from_the_store_without_the_tracer(folder: Path, request: pytest.FixtureRequest) -> None:
    """Every model that the test above stored, in one fresh process. Runs after it."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.models.dynamic_models", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == sorted(selected(request, "test_one_artifact_for_every_length")), done.stdout
