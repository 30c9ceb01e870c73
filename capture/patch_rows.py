"""Whether the rows of the tables of patches fit the torch at hand: what they patch is there, and what takes its place takes its arguments.

Asked once in a process, before the first capture. With a torch that nobody has tested, and by `precast doctor --probe`, each row is also
applied on trial, so that what it looks up in torch is looked up.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from precast.capture.aten import patches as aten
from precast.capture.common.patching import Patch, Without, leave_out, named, watching
from precast.capture.dynamo import patches as dynamo
from precast.capture.dynamo.dynamic_shapes import Dynamic
from precast.capture.dynamo.trace_record import TraceRecord
from precast.runtime.common.supported_torch import why_unknown
from precast.runtime.common.torch_support import Difference, FactFails, differs

INSTEAD: dict[Without, str] = {
    "wrong": "nothing is compiled, calls run eagerly",
    "refused": "it is not patched, and what the tracer then refuses runs eagerly",
    "slower": "it is not patched, and a capture takes longer",
    "words": "it is not patched, and torch says other things meanwhile",
}
"""What is done where a row does not fit, by what comes of a capture without it."""


@dataclass(frozen=True)
class Table:
    """`name`: as facts name its rows. `given`: makes what a row on trial is given; None: its rows change more than this thread sees."""

    name: str
    rows: Sequence[Patch[Any]]
    given: Callable[[], Any] | None


def _tracing() -> dynamo.Tracing:
    return dynamo.Tracing({}, TraceRecord(), Dynamic(), lambda source: False, lambda name, tx: None)


def _graph() -> torch.fx.GraphModule:
    return torch.fx.GraphModule({}, torch.fx.Graph())


DYNAMO = (Table("dynamo", dynamo.PATCHES, _tracing), Table("capture", dynamo.AROUND, lambda: None))
ATEN = (Table("aten", aten.PATCHES, _graph),)
ELSEWHERE = (Table("no GPU", aten.ABSENT_DEVICE, None), Table("copies", aten.COPIES, None))
"""For targets that are not here: their rows are applied when such a target is asked for."""


def require(tables: Iterable[Table]) -> None:
    """Before a capture. With a torch that precast was tested with, names are looked up and nothing is tried: that takes a millisecond.

    Leaves out the rows that do not fit and that a capture can do without, with a warning for each. Raises FactFails, which names all
    others that do not fit.
    """
    unknown, wrong = bool(why_unknown(torch.__version__)), []
    for table in tables:
        for row in table.rows:
            if row.is_needed and (problems := problems_of(row, table, unknown)):
                if row.without == "wrong":
                    wrong.append(f"{fact_name(row, table)} ({'; '.join(problems)})")
                else:
                    leave_out(row)
                    differs(Difference(fact_name(row, table), "; ".join(problems), INSTEAD[row.without]))
    if wrong:
        raise FactFails(
            f"torch {torch.__version__} differs from what precast relies on, so that nothing can be compiled: {', '.join(wrong)}"
        )


def fact_name(row: Patch[Any], table: Table) -> str:
    """The row as a fact: "patch dynamo: torch._dynamo.utils.run_node and 4 more"."""
    first, *rest = (name.replace(":", ".") for name in row.names)
    return f"patch {table.name}: {first}" + (f" and {len(rest)} more" if rest else "")


def problems_of(row: Patch[Any], table: Table, trial: bool = True) -> list[str]:
    """Why a row does not fit the torch at hand; empty where it does. `trial`: it is applied, too."""
    found = [f"there is no {name.replace(':', '.')}" for name in missing(row)]
    return found or (list(_on_trial(row, table)) if trial else [])


def missing(row: Patch[Any]) -> list[str]:
    """Names of a row that this torch lacks. Of what objects hold, the methods that set it tell. Patterns, and names of Triton, are out."""
    return [name for name in row.names if "*" not in name and not name.startswith("triton") and not _is_there(name)]


def _is_there(name: str) -> bool:
    owner, separator, attribute = name.rpartition("." if "." in name.partition(":")[2] else ":")
    try:
        found: Any = named(owner) if separator == "." else __import__(owner, fromlist=["_"])
    except (AttributeError, ImportError):
        return False
    if hasattr(found, attribute) or attribute in getattr(found, "__dict__", {}):
        return True
    written = (f for base in getattr(found, "__mro__", ()) for f in vars(base).values() if isinstance(f, types.FunctionType))
    return any(attribute in f.__code__.co_names and _sets(f.__code__, attribute) for f in written)


def _sets(code: types.CodeType, attribute: str) -> bool:
    return any(one.opname == "STORE_ATTR" and one.argval == attribute for one in dis.get_instructions(code))


def _on_trial(row: Patch[Any], table: Table) -> Iterator[str]:
    if table.given is None:
        return
    seen: list[tuple[str, Any, Any, bool]] = []

    def note(owner: Any, name: str, before: Any, value: Any) -> None:
        seen.append((f"{_named(owner)}.{name}", before, value, isinstance(owner, type)))

    try:
        with watching(note), row.apply(table.given()):
            pass
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the first capture would end with
        yield f"it cannot be applied: {type(error).__name__}: {error}"
        return
    for name, before, value, in_class in seen:
        if problem := unlike(before, value, in_class):
            yield f"{name} {problem}"


def _named(owner: Any) -> str:
    return f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else str(owner.__name__)


def unlike(torchs: Any, ours: Any, in_class: bool = False) -> str:
    """Why `ours` cannot be called in every way in which `torchs`, whose place it takes, can be; empty where it can, or where nobody knows.
    `in_class`: they are attributes of a class, whose functions are given the object first.
    """
    theirs, mine = _parameters(torchs, in_class), _parameters(ours, in_class)
    if theirs is None or mine is None:
        return ""
    kinds = {p.kind for p in mine.values()}
    any_place, any_name = inspect.Parameter.VAR_POSITIONAL in kinds, inspect.Parameter.VAR_KEYWORD in kinds
    places = [p for p in theirs.values() if p.kind in _PLACES]
    taken = [p for p in mine.values() if p.kind in _PLACES]
    if not any_place and len(places) > len(taken) and not (any_name and _by_name(places[len(taken) :])):
        return f"takes {len(places)} arguments, and what takes its place {len(taken)}"
    needed = [p.name for p in taken[len(places) :] if p.default is p.empty]
    if needed and not any(p.kind is p.VAR_POSITIONAL for p in theirs.values()):
        return f"takes no {needed[0]!r}, which what takes its place needs"
    named_only = [p.name for p in theirs.values() if p.kind is p.KEYWORD_ONLY]
    if not any_name and (unknown := [name for name in named_only if name not in mine]):
        return f"takes {unknown[0]!r}, and what takes its place does not"
    return ""


_PLACES = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _by_name(parameters: Sequence[inspect.Parameter]) -> bool:
    """Whether all of them may be left out: then they are given by name, if at all."""
    return all(p.default is not p.empty for p in parameters)


def _parameters(value: Any, in_class: bool) -> dict[str, inspect.Parameter] | None:
    """What callers give; None for what is no function."""
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if not isinstance(function, types.FunctionType):
        return None
    found = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    bound = in_class and not isinstance(value, staticmethod)
    if bound and found and found[0].kind in _PLACES:
        del found[0]
    return {parameter.name: parameter for parameter in found}


__all__ = ["ATEN", "DYNAMO", "ELSEWHERE", "INSTEAD", "Table", "fact_name", "missing", "problems_of", "require", "unlike"]
