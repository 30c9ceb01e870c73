"""Random Python programs: eager against precast, static and dynamic, then from the store in a fresh process without the tracer.

PRECAST_RANDOM_PROGRAMS says how many are drawn. What is compared: results, exceptions, globals, mutated arguments, what was printed; of
programs that record gradients also those, and buffers.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import precast
from precast.artifact_store import Store
from tests.fuzz.judge import OPTIONS, compare
from tests.fuzz.recorded import RecordedWriter
from tests.fuzz.writer import SIGNATURE, Writer

WORKER = Path(__file__).parent / "worker.py"
COUNT = int(os.environ.get("PRECAST_RANDOM_PROGRAMS", "6"))
drawn = st.lists(st.integers(0, 1 << 16), min_size=6, max_size=80)
relaxed = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


def choices(seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(1 << 20) for _ in range(200)]


CELLS = choices(29)
"""A break in a loop of a function with cells of its own: the frame's last argument was lost once."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def check(source: str, folder: Path, dynamic: bool | None, seed: int, recorded: bool = False) -> None:
    name = f"random_program_{hashlib.sha256(repr((source, dynamic, seed)).encode()).hexdigest()[:12]}"
    store = Store.open(folder / "store")
    found, _ = compare(source, name, folder, lambda f: precast.compile(f, store=store, dynamic=dynamic, options=OPTIONS), seed, recorded)
    assert not found, f"{found}\n{source[source.index('def program') :]}"
    (folder / f"{name}.json").write_text(json.dumps({"source": source, "seed": seed, "dynamic": dynamic, "recorded": recorded}))


@settings(max_examples=COUNT, **relaxed)
@given(drawn, st.integers(0, 1 << 16))
@example(CELLS, 29)
def test_as_it_comes(folder: Path, numbers: list[int], seed: int) -> None:
    check(Writer(numbers).write(), folder, None, seed)


@settings(max_examples=max(COUNT // 2, 1), **relaxed)
@given(drawn, st.integers(0, 1 << 16))
def test_dynamic(folder: Path, numbers: list[int], seed: int) -> None:
    check(Writer(numbers).write(), folder, True, seed)


@settings(max_examples=max(COUNT // 3, 1), **relaxed)
@given(drawn, st.sampled_from([None, True]), st.integers(0, 1 << 16))
def test_with_gradients(folder: Path, numbers: list[int], dynamic: bool | None, seed: int) -> None:
    check(RecordedWriter(numbers).write(), folder, dynamic, seed, recorded=True)


@pytest.mark.parametrize("seed", range(1, 5))
def test_long_programs(seed: int, folder: Path) -> None:
    check(Writer(choices(seed)).write(), folder, None, seed)


def test_from_the_store_without_the_tracer(folder: Path) -> None:
    """Every program that the tests above left stored. Runs after them."""
    done = subprocess.run([sys.executable, str(WORKER), str(folder)], capture_output=True, text=True, timeout=500, check=False)
    stored = list(folder.glob("*.json"))
    assert stored, "this test looks at what those above leave: select some of them, too"
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and len(reports) == len(stored), done.stderr[-3000:]
    bad = [report for report in reports if report["difference"] or report["attempts"]]
    assert not bad, bad[:3]


def test_programs_with_equal_code_in_several_modules(tmp_path: Path) -> None:
    """Every module here holds the same helpers; `"%d" % n` and `f"{n}"` with another n are compiled, and stored, for that n."""
    body = "    a = make_adder(n * 0.5)(x)\n    BOX.note = 'n%d' % n + f'{n}'\n    return a + y, BOX.note\n"
    source = Writer([]).write().partition("def program")[0] + f"{SIGNATURE}\n{body}"
    for seed, text in enumerate((source, source, source.replace("a + y", "a * y"))):
        check(text, tmp_path, None, seed)
    test_from_the_store_without_the_tracer(tmp_path)
