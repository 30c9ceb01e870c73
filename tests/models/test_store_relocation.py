"""A store travels: where it lies, who runs it and from where do not matter; the code that was traced and nothing else does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("travel")

HELPER = """
import torch

def shift(x):
    return x.tanh() + 1.0

def unused(x):
    return x - 1.0
"""
PROGRAM = """
import torch
import helper

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)

    def forward(self, x):
        return helper.shift(self.linear(x)).sum(-1)
"""
MAIN = """
import json, sys
import torch, precast, program

store, kind, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(seed)
net = program.Net().eval()
x = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 24
with torch.no_grad():
    f = precast.compile(net, store=store) if kind == "compile" else precast.load(net, store=store, require="hit")
    try:
        got = f(x)
        result = {"hit": True, "difference": float((got - net(x)).abs().max()), "answer": got.tolist()}
    except precast.GuardMiss as miss:
        result = {"hit": False, "why": str(miss)}
print(json.dumps(result))
"""


class Site:
    """A folder with the program's source and a store, and a way to run the program there in a fresh process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.source = folder / "source"
        self.source.mkdir(parents=True)
        for name, text in (("helper.py", HELPER), ("program.py", PROGRAM), ("main.py", MAIN)):
            (self.source / name).write_text(text)

    def run(self, kind: str, seed: int = 0, cwd: Path | None = None, **environment: str) -> dict[str, Any]:
        """Run main.py; its report."""
        command = [sys.executable, str(self.source / "main.py"), str(self.store), kind, str(seed)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=cwd or self.source, env={**os.environ, **environment}, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return report


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site whose store holds the compiled program."""
    site = Site(tmp_path_factory.mktemp("built"))
    assert site.run("compile")["difference"] < 1e-6
    return site


def _copy(built: Site, folder: Path) -> Site:
    site = Site(folder / "another" / "place")
    shutil.copytree(built.store, site.store)
    return site


ELSEWHERE = {
    "same place": {},
    "hash seed": {"PYTHONHASHSEED": "4711"},
    "home, user and host names": {"HOME": "/nonexistent", "USER": "somebody", "LOGNAME": "somebody", "HOSTNAME": "elsewhere"},
    "no compiler": {"PATH": "/nonexistent"},
    "time zone and locale": {"TZ": "Pacific/Auckland", "LC_ALL": "C"},
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_a_copied_store_hits_under_another(what: str, built: Site, tmp_path: Path) -> None:
    """The store and the program's source at other paths, another working folder, and one change of environment each."""
    report = _copy(built, tmp_path).run("load", cwd=tmp_path, **ELSEWHERE[what])
    assert report["hit"], report["why"]
    assert report["difference"] < 1e-6


def test_changed_weights_hit_and_give_the_new_answer(built: Site, tmp_path: Path) -> None:
    site = _copy(built, tmp_path)
    first, second = site.run("load", seed=0), site.run("load", seed=5)
    assert first["hit"] and second["hit"]
    assert second["difference"] < 1e-6
    assert first["answer"] != second["answer"]


def test_editing_an_inlined_helper_misses(built: Site, tmp_path: Path) -> None:
    site = _copy(built, tmp_path)
    (site.source / "helper.py").write_text(HELPER.replace("+ 1.0", "+ 2.0"))
    report = site.run("load")
    assert not report["hit"]
    assert "shift" in report["why"], "the explanation must name the function that changed"


def test_editing_what_was_not_traced_hits(built: Site, tmp_path: Path) -> None:
    site = _copy(built, tmp_path)
    (site.source / "helper.py").write_text("# a comment moves every line\n" + HELPER.replace("x - 1.0", "x - 3.0"))
    report = site.run("load")
    assert report["hit"], report["why"]
