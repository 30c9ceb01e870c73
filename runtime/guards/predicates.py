"""The table of guard predicates: one row for each, by which every engine that checks guards knows it.

A new predicate is a member of `Predicate` (`artifact_store/format/guards.py`), a row in one of the families that are put together here, and
values that hold and that fail in `tests/runtime/guards/guard_examples.py`; its constant may be plain data of any form, but lists of paths
are stored compactly only where `artifact_store/format/packed_guards.py` knows them. `rule.py` describes the fields of a row.

The engines, in the order in which a program meets them:

* **Guard by guard, with words** (`evaluate.py`, field `evaluate`): while a call is captured, to see that all guards hold for it, and
  when a call is missed, to say why.
* **Interpreted** (`interpreted.py`, field `quick`): the first `INTERPRETED_CALLS` checks of a variant in a process. Generating a function
  takes longer than these checks do, and a server's first answer waits for it.
* **Generated Python** (`compiled.py`, field `emit`): all later checks where there is no native runtime, and where the native table has
  no hit; and at each call those guards that a native table cannot say.
* **Native table** (`recorder.py` and its neighbours, `runtime/native/src/guard_table_check.c`; fields `record`, `record_tensor`,
`covered`): recorded
  when a variant is hit for the second time, and from then on the first check of each call. It compares memory with what the guards read
  when they last held, and never evaluates a predicate again.

`differentiating.py` gives the interpreted and the generated engine fewer guards, where a stance asks for that; `keeps_memory_safe` guards
are always among them.
"""

from __future__ import annotations

from precast.artifact_store.format.guards import Predicate
from precast.runtime.guards import (
    aliasing_predicates,
    class_predicates,
    container_predicates,
    relation_predicates,
    tensor_predicates,
    value_predicates,
)
from precast.runtime.guards.rule import RelationRule, Rule, ValueRule

FAMILIES = (value_predicates, tensor_predicates, container_predicates, class_predicates, aliasing_predicates, relation_predicates)
RULES: dict[Predicate, Rule] = {predicate: rule for family in FAMILIES for predicate, rule in family.RULES.items()}
VALUE_RULES = {predicate: rule for predicate, rule in RULES.items() if isinstance(rule, ValueRule)}
RELATIONS = {predicate: rule for predicate, rule in RULES.items() if isinstance(rule, RelationRule)}
"""These are evaluated after the objects that their paths lead to have been reached."""
OF_CLASS = frozenset(predicate for predicate, rule in VALUE_RULES.items() if rule.of_class)
KEEP_MEMORY_SAFE = frozenset(predicate for predicate, rule in RULES.items() if rule.keeps_memory_safe)
ORDER = {predicate: rule.order for predicate, rule in RULES.items()}

__all__ = ["FAMILIES", "KEEP_MEMORY_SAFE", "OF_CLASS", "ORDER", "RELATIONS", "RULES", "VALUE_RULES"]
