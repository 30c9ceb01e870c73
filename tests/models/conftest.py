"""One cold process and one warm process for all models: the store travels between them, the process does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
NAMES = ("plain", "minilm", "gpt2", "bert", "resnet", "vit", "llama", "t5", "whisper", "convnext", "mamba")
Reports = dict[str, dict[str, Any]]


def offline(**more: str) -> dict[str, str]:
    """The environment of a child process: no network, no bars."""
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **quiet, **more}


def _run(store: Path, kind: str, names: tuple[str, ...], environment: dict[str, str]) -> Reports:
    command = [sys.executable, str(HERE / "worker.py"), str(store), kind, *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=540, check=False)
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {report["name"]: report for report in reports}
    for name in names:
        found.setdefault(name, {"failed": f"the {kind} process ended (exit {done.returncode}) before it:\n{done.stderr[-2000:]}"})
    return found


@pytest.fixture(scope="session")
def model_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that the cold process fills and the warm one reads."""
    return tmp_path_factory.mktemp("models") / "store"


@pytest.fixture(scope="session")
def cold(model_store: Path) -> Reports:
    """All models compiled in one process."""
    return _run(model_store, "cold", NAMES, offline())


@pytest.fixture(scope="session")
def warm(model_store: Path, cold: Reports, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """All models served by another process, in the reverse order, without a compiler on PATH and with another hash seed."""
    empty = tmp_path_factory.mktemp("no-compilers")
    return _run(model_store, "warm", NAMES[::-1], offline(PATH=str(empty), CXX="", CC="", PYTHONHASHSEED="77"))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Each model of the zoo in turn."""
    return str(request.param)
