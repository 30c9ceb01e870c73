"""The table of predicates is complete: each has a row, and each row's engines say the same of examples for which it holds and fails."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

import pytest
import torch

from precast.artifact_store import Predicate, Store
from precast.artifact_store.format.manifest import guard_rows
from precast.artifact_store.format.packed_guards import pack_guards, unpack_guards
from precast.runtime.guards import rule as guard_rule
from precast.runtime.guards import rule as table_protocols
from precast.runtime.guards.evaluate import evaluate, failure
from precast.runtime.guards.predicates import FAMILIES, KEEP_MEMORY_SAFE, ORDER, RELATIONS, RULES, VALUE_RULES
from precast.runtime.guards.rule import Places, RelationRule
from precast.runtime.guards.table import arguments, attribute_lookup, heap_reads, plan, recorder
from precast.runtime.guards.text import guard_columns
from precast.runtime.paths.paths import resolve
from tests.runtime.guards.guard_examples import EXAMPLES, JUDGES, Example, recorded


@pytest.fixture(autouse=True)
def _one_kind_of_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors on the CPU pass for tensors on a GPU of compute capability 9.0; torch's state is put back."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0) if device.type == "cpu" else (7, 5))
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)


def test_every_predicate_has_one_row_and_an_example() -> None:
    assert set(RULES) == set(Predicate) == {example.guard.predicate for example in EXAMPLES.values()}
    assert sum(len(family.RULES) for family in FAMILIES) == len(RULES)
    assert set(VALUE_RULES) | set(RELATIONS) == set(RULES) and not set(VALUE_RULES) & set(RELATIONS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_engine_says_the_same(native_store: Store, name: str) -> None:
    """The guard alone: what another guard reads of the same object does not help."""
    example = EXAMPLES[name]
    values = example.values()
    guards = [*example.beside, example.guard]
    checks = [judge([example.guard]) for judge in JUDGES.values()]
    table = recorded(guards, values)
    assert bool(table.sizes()["python"]) is not example.native
    assert table.check(tuple(values.values())) and all(check(values) for check in checks)
    example.spoiled(values)
    assert not any(failure(guard, values, {}) for guard in example.beside)
    assert [check(values) for check in checks] == [False] * len(JUDGES) and not table.check(tuple(values.values()))


def _verdicts(example: Example, values: dict[str, object]) -> tuple[bool, bool]:
    """What the row says with words and without."""
    guard, rule = example.guard, RULES[example.guard.predicate]
    if isinstance(rule, RelationRule):
        places = Places(values, {})
        with_words = rule.evaluate(guard.path, guard.constant, places)[0]
        return with_words, with_words if rule.quick is None else rule.quick(guard.path, guard.constant, places)
    value = resolve(guard.path, values, {})
    with_words = rule.evaluate(value, guard.constant)[0]
    return with_words, with_words if rule.quick is None else rule.quick(value, guard.constant)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_row_says_the_same_with_words_and_without(name: str) -> None:
    example = EXAMPLES[name]
    values = example.values()
    assert _verdicts(example, values) == (True, True)
    example.spoiled(values)
    assert _verdicts(example, values) == (False, False)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_failure_is_a_sentence(name: str) -> None:
    example = EXAMPLES[name]
    values = example.values()
    assert failure(example.guard, values, {}) == ""
    example.spoiled(values)
    verdict = evaluate(example.guard, values, {})
    assert verdict.expected.strip() and verdict.found.strip() and verdict.expected != verdict.found
    assert failure(example.guard, values, {}).endswith(f"expected {verdict.expected}, found {verdict.found}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_listing_shows_what_a_guard_wants(name: str) -> None:
    guard = EXAMPLES[name].guard
    path, predicate, value = guard_columns(guard.path, guard.predicate, guard.constant)
    assert path and predicate == guard.predicate.value and bool(value) is (guard.constant is not None)


def test_what_stays_checked_under_every_setting() -> None:
    """Generated code reads and writes by the sizes of its inputs."""
    assert KEEP_MEMORY_SAFE == {Predicate.TENSOR, Predicate.SHAPE}


def test_torchs_state_is_compared_first_and_classes_last() -> None:
    ordered = sorted(ORDER, key=lambda predicate: ORDER[predicate])
    assert ordered[0] is Predicate.GLOBAL_STATE and ordered[-1] is Predicate.CLASSES


def test_every_constant_is_stored() -> None:
    rows = guard_rows(example.guard for example in EXAMPLES.values())
    assert list(unpack_guards(pack_guards(rows))) == list(rows)


def test_rows_know_of_native_tables_the_interfaces_alone() -> None:
    """The recorder reads the rows; a row that imported it, under TYPE_CHECKING or not, would close a circle."""
    room = {module.__name__ for module in (arguments, attribute_lookup, recorder, plan, heap_reads)}
    for module in (guard_rule, table_protocols, *FAMILIES):
        imports = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)]
        assert not room & {name for node in imports for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))}
