"""Fresh processes, the whole way through: cold with the tracer, then warm without tracer, compiler or native runtime."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.processes import REFUSE

PROGRAM = """
import sys
{before}
import torch
import precast

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, scale=2.0):
        self.seen += 1
        return {{"out": helper(torch.nn.functional.gelu(self.norm(self.lin(x)))) * scale, "sum": x.sum()}}

def helper(x):
    return x {operator} 1

torch.manual_seed({seed})
net = Net().eval()
x = torch.randn(3, 8)
compiled = {compile}
delta = set(sys.modules)
with torch.no_grad():
    for call in range(3):
        got, want = compiled(x), net(x)
        assert all(torch.allclose(got[k], want[k], rtol=1e-4, atol=1e-5) for k in want) and list(got) == list(want)
        assert call or "precast.runtime.guards.table.recorder" not in sys.modules  # tables are made from the second hit on
    assert net.seen == 6, net.seen
    if {other_shape}:
        y = torch.randn(5, 8)
        assert torch.allclose(compiled(y)["out"], net(y)["out"], rtol=1e-4, atol=1e-5)
heavy = [name for name in sys.modules if name.startswith(("sympy", "triton", "torch._dynamo", "torch._inductor"))]
site = precast.runtime.api.compile.site_of(compiled)
variants = site.programs[0].variants
stored = "stored" if variants and variants[0].stored else "eager"
print("heavy" if heavy else "light", stored, type(site.call).__name__, "then", type(site.quickest).__name__)
"""


def run(
    folder: Path, store: Path, *, environment: dict[str, str] | None = None, hash_seed: str = "0", expect: int = 0, **fields: object
) -> str:
    settings: dict[str, object] = {
        "before": "",
        "operator": "+",
        "seed": 0,
        "compile": f"precast.compile(net, store={str(store)!r})",
        "other_shape": False,
        **fields,
    }
    (folder / "travelling_program.py").write_text(textwrap.dedent(PROGRAM.format(**settings)))
    done = subprocess.run(
        [sys.executable, "-c", "import travelling_program"],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == expect, done.stderr[-3000:]
    print(done.stderr[-3000:])  # pytest shows it where what comes back is not what was expected
    return done.stdout.strip() if expect == 0 else done.stderr


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with a store that one cold process has filled."""
    folder = tmp_path_factory.mktemp("cold")
    store = folder / "store"
    assert run(folder, store) == "heavy stored function then Dispatcher"
    return folder, store


LOAD = "precast.load(net, store={store!r})"


def test_warm_without_tracer(cold: tuple[Path, Path]) -> None:
    folder, store = cold
    out = run(folder, store, before=REFUSE + "refuse_tracer()", compile=LOAD.format(store=str(store)), hash_seed="77")
    assert out == "light stored Dispatcher then Dispatcher"


COLD_ONLY = (
    "precast.runtime.common.background",
    "precast.runtime.executable.control_flow",
    "precast.runtime.programs.explain_miss",
    "precast.runtime.guards.text",
    "precast.runtime.api.precompile",
    "precast.runtime.api.repeated_blocks",
    "precast.compiling.driver",
    "precast.compiling.build_graph",
    "precast.report.trace_folder",
    "precast.report.diagram",
    "precast.cli.main",
)
"""What a warm hit has no use for: each module is milliseconds of a server's first answer."""


def test_warm_imports_only_what_a_hit_needs(cold: tuple[Path, Path]) -> None:
    folder, store = cold
    before = f"sys.modules.update(dict.fromkeys({COLD_ONLY!r}))  # None: importing it raises"
    assert run(folder, store, before=before) == "light stored Dispatcher then Dispatcher"


def test_warm_without_any_compiler_and_with_other_weights(cold: tuple[Path, Path]) -> None:
    folder, store = cold
    out = run(folder, store, environment={"PATH": "/nowhere", "CC": ""}, compile=LOAD.format(store=str(store)), seed=5)
    assert out == "light stored Dispatcher then Dispatcher"


def test_warm_without_the_native_runtime(cold: tuple[Path, Path]) -> None:
    folder, store = cold
    out = run(folder, store, environment={"PATH": "/nowhere", "CC": "", "PRECAST_NATIVE": "0"}, compile=LOAD.format(store=str(store)))
    assert out == "light stored function then function"


def test_a_miss_without_a_compiler_runs_eagerly(cold: tuple[Path, Path]) -> None:
    folder, store = cold
    assert run(folder, store, environment={"PATH": "/nowhere", "CC": "", "CXX": ""}, other_shape=True).startswith("heavy stored")


def test_an_edited_helper_misses(cold: tuple[Path, Path], tmp_path: Path) -> None:
    _, store = cold
    assert "GuardMiss" in run(tmp_path, store, operator="-", compile=LOAD.format(store=str(store)), expect=1)


def test_the_store_may_move(cold: tuple[Path, Path], tmp_path: Path) -> None:
    _, store = cold
    moved = tmp_path / "elsewhere"
    subprocess.run(["cp", "-r", str(store), str(moved)], check=True)
    assert run(tmp_path, moved, compile=LOAD.format(store=str(moved))) == "light stored Dispatcher then Dispatcher"


def test_importing_precast_imports_nothing_heavy() -> None:
    code = "import sys, precast; print([m for m in ('torch', 'sympy', 'triton', 'msgpack') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
