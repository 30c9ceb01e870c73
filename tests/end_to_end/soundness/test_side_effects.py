"""What compiled programs leave behind is what eager leaves behind: order, bounds, identity; static, dynamic, in a second process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast import torch_backend
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from precast.runtime.targets.versions import torch_minor
from tests import known_faults
from tests.end_to_end.soundness import object_kind_programs
from tests.end_to_end.soundness.side_effect_programs import CASES, outcome
from tests.end_to_end.soundness.side_effect_worker import differences

WORKER = Path(__file__).with_name("side_effect_worker.py")
COMPILED_AGAIN = {
    # what raises is traced anew by each process
    *("dict_del_missing_raises", "ordered_popitem_of_empty_raises", "ordered_move_missing_raises", "exception_after_effects"),
    *("deque_insert_bounded", "deque_insert_at_the_bound_raises", "deque_popleft_of_empty_raises", "deque_while_iterated_raises"),
    *("set_removed_only", "set_remove_with_other_members_later", "named_tuple_of_lists"),
    # what has no name that another process could find it by is kept in the process
    *("dataclass_of_a_local_scope", "partial_and_method_bound", "globals_of_another_module", "context_variable", "weak_dict"),
    *("dict_keyed_by_tensor_or_module", "slots"),
    # drawn in the middle of a graph: refused, part by part before torch 2.15; a refusal of the whole is told in each process
    "random_state",
}
"""Cases of which a second process compiles something."""
OFTEN = [n for n in CASES if n not in object_kind_programs.CASES][::4]
"""Those that CI runs with symbolic sizes."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


def compiled_once(stores: Path, name: str) -> list[str]:
    """What differs where the case's store is empty; nothing where it was filled before."""
    where = stores / name
    return [] if where.exists() else differences(name, lambda f: precast.compile(f, store=where))


@pytest.mark.parametrize("name", CASES)
def test_as_eager_leaves_it(name: str, stores: Path) -> None:
    assert compiled_once(stores, name) == []


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in OFTEN else [pytest.mark.slow]) for n in CASES])
def test_with_symbolic_sizes_and_numbers(name: str, store: Store) -> None:
    assert differences(name, lambda f: precast.compile(f, store=store, dynamic=True)) == []


def test_served_in_a_second_process(stores: Path) -> None:
    known = str(known_faults.FAULTS.get(torch_minor(), {}))
    names = [name for name in CASES if f"test_as_eager_leaves_it[{name}]" not in known]
    for name in names:
        compiled_once(stores, name)
    environment = {**os.environ, "PRECAST_STRICT": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(WORKER), str(stores), *names], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [report["name"] for report in reports] == names
    assert {report["name"]: report["differs"] for report in reports if report["differs"]} == {}
    again = {report["name"] for report in reports if report["compiled"]}
    assert again - set(object_kind_programs.CASES) <= COMPILED_AGAIN  # of those kinds, answers are what counts


ENDLESS = ("deque_while_iterated_raises",)  # torch's tracer goes on for ever
OF_THE_ISSUE = [
    n
    for n in CASES
    if (n.startswith(("ordered_", "deque_", "dict_")) or "class" in n or "closure" in n)
    and n not in {*ENDLESS, *object_kind_programs.CASES}
]


@pytest.mark.parametrize("name", OF_THE_ISSUE[::3])
def test_through_torchs_door_as_torch_traces_it(name: str, store: Store, fresh_tracer: None) -> None:
    """There the bytecode, and what it leaves behind, is torch's: the backend adds nothing to it and takes nothing from it."""

    def through(backend: Callable[..., Any] | str) -> list[Any]:
        torch._dynamo.reset()
        made = CASES[name]()
        return outcome(made, torch.compile(made.function, backend=backend))

    assert through(lambda graph, inputs: torch_backend.precast(graph, inputs, store=store)) == through("eager")


WHOLE = [
    *("ordered_move_to_end", "ordered_move_and_set", "ordered_popitem_first", "ordered_dict_in_a_module", "dict_reinserted"),
    *("deque_append_bounded", "deque_extendleft_bounded", "deque_insert_bounded", "deque_in_an_attribute", "deque_aliased"),
    *("method_of_an_outer_class", "init_of_an_outer_class", "special_methods_of_a_local_class", "inherited_method_of_a_local_class"),
    *("dict_inside_itself", "two_dicts_in_each_other", "several_containers_in_order", "lru_cached_constants", "own_dict_written"),
]


@pytest.mark.parametrize("name", WHOLE)
def test_replayed_and_not_refused(name: str, store: Store) -> None:
    """These are compiled as one graph."""
    made = CASES[name]()
    compiled = precast.compile(made.function, store=store)
    outcome(made, compiled)
    programs = site_of(compiled).all_programs
    assert programs[0].variants and all(variant.manifest.graphs for variant in programs[0].variants)
    assert not any(frame["code"].get("broken") for v in programs[0].variants for frame in v.manifest.frames)


def _pops(x: torch.Tensor, o: Any) -> torch.Tensor:
    o.__dict__.pop("a", None)
    return x + 1


def _gets(x: torch.Tensor, o: Any) -> torch.Tensor:
    return x + vars(o).get("a", 0)


@pytest.mark.parametrize("program", [_pops, _gets])
@pytest.mark.skipif(torch_minor() < "2.12", reason="torch 2.11 ends the graph there")
def test_that_an_objects_own_dict_lacks_a_name_is_guarded(program: Callable[..., Any], store: Store) -> None:
    """Traced where it lacks the name, called where it has it."""
    compiled, x = precast.compile(program, store=store), torch.ones(2)
    lacking, having, plain = (type("Own", (), {})() for _ in range(3))
    having.__dict__["a"] = plain.__dict__["a"] = 3
    compiled(x, lacking)
    assert torch.equal(compiled(x, having), program(x, plain)) and vars(having) == vars(plain)
