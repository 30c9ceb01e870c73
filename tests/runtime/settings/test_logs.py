"""PRECAST_LOGS: each topic says something useful, and says it in words."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import precast
from precast.artifact_store import Store
from precast.cli.main import main
from precast.runtime.common import log


@pytest.fixture
def logs(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[str], Callable[[], list[str]]]]:
    """Turns topics on; the function that it returns gives the lines since."""
    root = logging.getLogger("precast")
    handlers, propagate, level = root.handlers[:], root.propagate, root.level

    def on(setting: str) -> Callable[[], list[str]]:
        root.handlers = []
        log.configure(setting)
        return lambda: capsys.readouterr().err.splitlines()

    yield on
    log.configure("")
    root.handlers, root.propagate = handlers, propagate
    root.setLevel(level)


def has(lines: list[str], pattern: str) -> bool:
    return any(re.search(pattern, line) for line in lines)


def test_recompiles_name_the_guard_and_both_values(logs: Callable[[str], Callable[[], list[str]]], store: Store) -> None:
    lines = logs("recompiles")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    model = Net()
    compiled = precast.compile(model, store=store, name="net", dynamic=False)
    compiled(torch.ones(2))
    assert lines() == [], "the first compile is none too many"
    compiled(torch.ones(3))
    model.scale = 2.0
    compiled(torch.ones(3))
    found = lines()
    assert has(found, r"^\d\d:\d\d:\d\d precast.recompiles: net: none of 1 variants fits this call.*recompile_limit 8")
    assert has(found, r"net:   x: expected a tensor float32\[2\].*found a tensor float32\[3\]")
    assert has(found, r"net:   .*scale: expected 1.0, found 2.0")


def test_each_topic_of_a_compile(logs: Callable[[str], Callable[[], list[str]]], store: Store) -> None:
    lines = logs("guards,graph_breaks,kernels,fusion,perf_hints,store,compile")

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.layer_norm(x, (8,)).relu() + x.sum(-1, keepdim=True)
        print("a break")
        return torch.linalg.inv(y @ y.T + torch.eye(len(x))).sin()

    precast.compile(function, store=store, name="f", dynamic=False)(torch.randn(4, 8))
    found = lines()
    assert has(found, r"precast.guards: f: \d+ guards \(.*\d tensor")
    assert has(found, r"precast.graph_breaks: .*function: the graph ends at .*test_logs.py:\d+: .*print")
    assert has(found, r"precast.kernels: f:   0 kernel0 over .*; \d.*B; from .*layer_norm")
    assert has(found, r"precast.fusion: f: \d+ kernels became 1") and has(found, r"fused into kernel0: native_layer_norm, sum")
    assert has(found, r"precast.perf_hints: f.*linalg_inv_ex.* through Python")
    assert has(found, r"precast.store: put: f: artifact [0-9a-f]{12}")
    assert has(found, r"precast.compile: f: compiled artifact .*lower .* s, schedule .* s, codegen .* s")
    precast.compile(function, store=store, name="f", dynamic=False)(torch.randn(4, 8))
    warm = lines()
    assert has(warm, r"precast.store: hit: f: artifact [0-9a-f]{12}") and not has(warm, "put:")


def test_debug_shows_every_guard_and_every_loop(logs: Callable[[str], Callable[[], list[str]]], store: Store) -> None:
    lines = logs("guards=debug,kernels=debug")
    precast.compile(lambda x: x.sin() * 2, store=store, name="f")(torch.randn(4))
    found = lines()
    assert has(found, r"precast.guards: f:   x tensor ") and has(found, r"precast.kernels: f: .*sin\(")


def test_hints_on_weights_and_layouts(logs: Callable[[str], Callable[[], list[str]]], store: Store) -> None:
    lines = logs("perf_hints")
    nn = torch.nn
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(32, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU())]
    model = nn.Sequential(*layers).eval()  # so many that channels-last pays, and with it the copy of the input
    precast.compile(model, store=store, name="net")(torch.randn(2, 32, 64, 64))
    found = lines()
    assert has(found, r"computed from weights alone at each call; options=\{'freeze': True\}")
    assert has(found, r"copies 1.0 MB .* into another layout")
    precast.compile(model, store=store, name="net", options={"freeze": True})(torch.randn(2, 32, 64, 64))
    assert not has(lines(), "weights alone")


def test_what_stays_in_this_process(logs: Callable[[str], Callable[[], list[str]]], store: Store) -> None:
    lines = logs("runtime")
    precast.compile(lambda x: x + 1, store=store, name="f", options={"store_results": False})(torch.ones(2))
    assert has(lines(), "precast.runtime: f: kept in this process only: store_results is off")


def test_sizes_that_vary(logs: Callable[[str], Callable[[], list[str]]], store: Store) -> None:
    lines = logs("dynamic")
    compiled = precast.compile(lambda x: x.sin() * 2, store=store, name="f")
    for rows in (3, 4, 5):
        compiled(torch.randn(rows, 2))
    found = lines()
    assert has(found, "precast.dynamic: f: symbolic: nothing") and has(found, "precast.dynamic: f: symbolic: size 0 of x$")
    assert has(found, r"precast.dynamic: f:   where 2 <= x\.size\(0\)$")


def test_a_build_that_fails_shows_where(
    logs: Callable[[str], Callable[[], list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import torch\n\ndef make():\n    return torch.relu, [((torch.ones(2),), {})]\n"
    (tmp_path / "some_program.py").write_text(program)
    (tmp_path / "build.toml").write_text('path = ["."]\n[[program]]\nfactory = "some_program:make"\n')

    def broken(*args: object, **kwargs: object) -> None:
        raise OSError("the disk is on fire")

    monkeypatch.setattr(precast, "precompile", broken)
    lines = logs("driver")
    result = CliRunner().invoke(main, ["build", str(tmp_path / "build.toml"), "--store", str(tmp_path / "store")])
    assert result.exit_code == 1, result.output
    found = lines()
    assert has(found, "precast.driver: make") and has(found, "Traceback") and has(found, "OSError: the disk is on fire")


def test_unknown_topics_and_levels_are_named_and_help_lists_all(logs: Callable[[str], Callable[[], list[str]]]) -> None:
    lines = logs("recompile,nonsense,guards=loud,help")
    found = lines()
    assert has(found, "unknown topic 'recompile'; did you mean 'recompiles'")
    assert has(found, "unknown topic 'nonsense'; topics: guards, ")
    assert has(found, "guards: the level 'loud' is not known")
    for topic in log.TOPICS:
        assert has(found, rf"^  {topic} +\S")


def test_every_topic_has_somebody_who_speaks() -> None:
    """A topic that nothing logs to would be an option that changes nothing."""
    root = Path(__file__).parents[3]
    folders = ("precast", "capture", "lowering", "codegen", "artifact_store", "runtime")
    text = "\n".join(path.read_text("utf-8") for folder in folders for path in (root / folder).rglob("*.py"))
    spoken = set(re.findall(r'(?:logger\("|getLogger\("precast\.)(\w+)"', text))
    assert spoken == set(log.TOPICS)


PROGRAM = """
import sys
import torch
import precast

def step(x, scale):
    y = torch.nn.functional.layer_norm(x, (8,)).relu() * scale + x.sum(-1, keepdim=True)
    print("between")
    return torch.linalg.inv(y @ y.T + torch.eye(len(x))).sin()

compiled = precast.compile(step, store=sys.argv[1], name="f")
with torch.no_grad():
    for rows, scale in ((4, 2.0), (5, 2.0), (5, 3.0)):
        compiled(torch.randn(rows, 8), scale)
"""
LINES = {
    "guards": (r"f: \d+ guards \(.*\d tensor",),
    "recompiles": (
        r"f: none of 1 variants fits this call",
        r"f:   x: expected a tensor float32\[4, 8\].*found a tensor float32\[5, 8\]",
        r"f:   scale: expected 2.0, found 3.0",
    ),
    "graph_breaks": (r"step: the graph ends at .*program.py:8: .*print",),
    "dynamic": (r"f: symbolic: nothing", r"f: symbolic: size 0 of x"),
    "kernels": (r"f:   0 kernel0 over .*; \d.*B; from .*layer_norm",),
    "fusion": (r"f: \d+ kernels became \d", r"fused into kernel\d: "),
    "perf_hints": (r"linalg_inv_ex.* through Python",),
    "store": (r"put: f: artifact [0-9a-f]{12}",),
}
"""What each topic says of the program above."""


def test_topics_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topic gives its lines, and those that were not asked for give none."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PRECAST_LOGS", ",".join((*LINES, "recompile", "store=loud")))
    command = [sys.executable, "-W", "ignore", "program.py", str(tmp_path / "store")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stderr.splitlines()
    for topic in log.TOPICS:
        said = [line for line in lines if re.match(rf"\d\d:\d\d:\d\d precast\.{topic}: ", line)]
        assert bool(said) == (topic in LINES), (topic, said)
        assert all(has(said, pattern) for pattern in LINES.get(topic, ())), (topic, said)
    assert has(lines, "unknown topic 'recompile'; did you mean 'recompiles'") and has(lines, "store: the level 'loud' is not known")
