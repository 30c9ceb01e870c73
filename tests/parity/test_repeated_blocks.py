"""Limits, isolation and regional compilation, against torch.compile: the same number of compiles; one artifact for equal blocks."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from tests.runtime.hand_made_artifacts import Counting
from tests.support.processes import cold_then_warm

pytestmark = pytest.mark.usefixtures("fresh_tracer")


def body(x: torch.Tensor) -> torch.Tensor:
    return x.cos() * 2


def three_callers(compiled: list[Any], sizes: int) -> None:
    """Each of three compiled forms of `body` is called with `sizes` sizes that no other one was called with."""
    for i, f in enumerate(compiled):
        for size in range(2 + i * sizes, 2 + (i + 1) * sizes):
            x = torch.randn(size)
            torch.testing.assert_close(f(x), body(x))


SETTINGS: dict[str, dict[str, Any]] = {
    "together": {},
    "isolated": {"isolate_recompiles": True},
    "a limit of its own": {"isolate_recompiles": True, "recompile_limit": 2},
    "a limit": {"recompile_limit": 3},
}


PARAMETERS = inspect.signature(torch.compile).parameters
COMPARABLE = [name for name, settings in SETTINGS.items() if settings.keys() <= PARAMETERS.keys()]
"""torch.compile has these arguments since 2.13."""


@pytest.mark.parametrize("name", COMPARABLE)
def test_recompile_limits_of_several_calls_of_compile(name: str, store: Store, counter: Counting) -> None:
    settings = {"dynamic": False, **SETTINGS[name]}
    theirs = CompileCounter()
    three_callers([torch.compile(body, backend=theirs, **settings) for _ in range(3)], 4)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="precast: .* reached recompile_limit")
        three_callers([precast.compile(body, store=store, **settings) for _ in range(3)], 4)
    assert counter.frame_count == theirs.frame_count


def test_accumulated_limit_is_over_all_of_them(store: Store, counter: Counting) -> None:
    options = {"accumulated_recompile_limit": 5}
    compiled = [precast.compile(body, store=store, dynamic=False, isolate_recompiles=True, options=options) for _ in range(3)]
    with pytest.warns(UserWarning, match=r"reached accumulated_recompile_limit \(5\); the guard that kept failing: x: expected"):
        three_callers(compiled, 4)
    assert counter.frame_count == 5


def test_the_limit_with_fullgraph_raises_and_reset_begins_anew(store: Store, counter: Counting) -> None:
    f = precast.compile(body, store=store, dynamic=False, fullgraph=True, recompile_limit=2)
    g = torch.compile(body, backend="eager", dynamic=False, fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=2):
        for size in (2, 3):
            f(torch.randn(size)), g(torch.randn(size))
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            g(torch.randn(4))
    with pytest.raises(precast.PrecastError, match=r"reached recompile_limit \(2\)"):
        f(torch.randn(4))
    precast.reset()
    f(torch.randn(4))
    assert counter.frame_count == 3


def test_isolated_calls_find_what_others_stored(store: Store, counter: Counting) -> None:
    precast.compile(body, store=store)(torch.randn(4))
    precast.compile(body, store=store, isolate_recompiles=True)(torch.randn(4))
    assert counter.frame_count == 1
    served = precast.load(body, store=store)
    served(torch.randn(4))


class Block(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.first = torch.nn.Linear(width, 16)
        self.second = torch.nn.Linear(16, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.nn.functional.gelu(self.first(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(4, 8)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.head = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("blocks", [None, "Block", Block, [Block], ("Block",)], ids=str)
def test_one_artifact_for_equal_blocks(blocks: Any, store: Store, counter: Counting) -> None:
    model, x = Model().eval(), torch.randn(3, 4)
    expected = model(x)
    theirs = CompileCounter()
    for block in model.blocks:
        block.compile(backend=theirs)
    model(x)
    for block in model.blocks:
        block._compiled_call_impl = None
    names = precast.compile_repeated_blocks(model, blocks, store=store, fullgraph=True)
    assert names == tuple(f"blocks.{i}" for i in range(6))
    for _ in range(4):
        torch.testing.assert_close(model(x), expected)
    assert counter.frame_count == theirs.frame_count == 1
    programs = {site_of(block).programs[0].key for block in model.blocks}
    assert len(programs) == 1 and len(store.variants(programs.pop())) == 1
    with torch.no_grad():
        model.blocks[3].second.weight.mul_(2)
        model.blocks[5] = Block()
        again = model(x)
    precast.set_stance("force_eager")
    try:
        torch.testing.assert_close(again, model(x))
    finally:
        precast.set_stance("default")


def test_which_block_is_the_most_repeated(store: Store) -> None:
    nested = torch.nn.Sequential(torch.nn.Sequential(Block(), Block()), torch.nn.Sequential(Block(), Block()))
    assert precast.compile_repeated_blocks(nested, store=store) == ("0", "1")
    with_names = Model(2)
    with_names._repeated_blocks = ["LayerNorm"]
    assert precast.compile_repeated_blocks(with_names, store=store) == ("blocks.0.norm", "blocks.1.norm")
    bert = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)
    assert precast.compile_repeated_blocks(bert, store=store) == ("layers.0", "layers.1", "layers.2")


def test_no_blocks_is_an_error_that_says_what_there_is(store: Store) -> None:
    with pytest.raises(
        precast.OptionError, match="Model contains no Blok; it contains Block, GELU|Model contains no Blok; it contains Block"
    ):
        precast.compile_repeated_blocks(Model(), "Blok", store=store)
    with pytest.raises(precast.OptionError, match="name their classes"):
        precast.compile_repeated_blocks(torch.nn.Linear(2, 2), store=store)
    with pytest.raises(precast.OptionError, match="takes an nn.Module"):
        precast.compile_repeated_blocks(body, store=store)  # type: ignore[arg-type]


WARM = """
import sys, torch, precast
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return x + torch.relu(self.linear(x))
model = torch.nn.Sequential(*[Block() for _ in range(5)])
x = torch.randn(2, 4)
with torch.no_grad():
    wanted = model(x)
    precast.compile_repeated_blocks(model, store=sys.argv[1])
    for _ in range(3):
        torch.testing.assert_close(model(x), wanted)
print("warm" if "torch._dynamo" not in sys.modules else "cold")
"""


def test_warm_without_the_tracer(tmp_path: Path) -> None:
    assert cold_then_warm(tmp_path, "regional", WARM) == [["cold"], ["warm"]]
    assert len(list((tmp_path / "store").rglob("programs/*/*.msgpack"))) == 1
