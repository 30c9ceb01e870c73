"""A backend of another package, found by its entry point, in a fresh process: `precast.compile(backend="thirdparty")`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.processes import child

BACKEND = """
asked = []

def compile_fx(gm, example_inputs):
    asked.append([str(node.target) for node in gm.graph.nodes if node.op.startswith("call")])
    return gm.forward
"""

PROGRAM = """
import importlib.metadata, json, sys, warnings
import torch
import precast

def step(x):
    return torch.relu(x * 2)

found = {"none yet": "thirdparty_backend" not in sys.modules, "listed": "thirdparty" in precast.list_backends()}
compiled = precast.compile(step, backend="thirdparty", store="store", dynamic=False)
import thirdparty_backend

with warnings.catch_warnings(record=True) as told, torch.no_grad():
    warnings.simplefilter("always")
    sizes = []
    for n in (3, 3, 4, 3, 4):
        x = torch.randn(n)
        assert torch.equal(compiled(x), step(x))
        sizes.append(len(thirdparty_backend.asked))
    compiled(x.double())
    why = str(precast.explain_miss(compiled, torch.randn(5)))
found["asked"] = sizes + [len(thirdparty_backend.asked)]
found["told"] = [str(w.message) for w in told if "thirdparty" in str(w.message)]
found["why"] = why
found["programs"] = precast.runtime.api.compile.open_store("store").programs()
try:
    precast.compile(step, backend="thirdpart")
except precast.OptionError as error:
    found["misspelt"] = str(error)
print(json.dumps(found))
"""


def test_a_backend_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "thirdparty_backend.py").write_text(BACKEND)
    information = tmp_path / "thirdparty-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[torch_dynamo_backends]\nthirdparty = thirdparty_backend:compile_fx\n")
    found = json.loads(child(tmp_path, PROGRAM))
    assert found["listed"] and found["none yet"]
    assert found["asked"] == [1, 1, 2, 2, 2, 3], "precast's guards choose what it made, and ask it again where none fits"
    (told,) = found["told"]
    assert "the backend 'thirdparty' compiles lives in this process only: nothing is stored" in told
    assert "expected a tensor float32[3]" in found["why"]
    assert found["programs"] == []
    assert "did you mean 'thirdparty'" in found["misspelt"]
