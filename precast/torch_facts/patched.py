"""The rows of the tables of patches, and the functions of torch that they patch: whether their source is the one that was recorded."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import textwrap
import types
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import torch

from precast.capture import patch_rows
from precast.capture.common.patching import Patch, named
from precast.runtime.common.supported_torch import minor_of, written_for
from precast.torch_facts.fact import OK, Answer, Fact, answer_of

RECORD = "recorded_sources.json"
"""Name of a patched function -> torch -> digest of its source."""
TABLES = (*patch_rows.DYNAMO, *patch_rows.ATEN, *patch_rows.ELSEWHERE)


def facts() -> Iterator[Fact]:
    """One for each row that this torch needs: its names are there. Then, deeper, that each row can be applied, and the sources."""
    rows = [(table, row) for table in TABLES for row in table.rows if row.is_needed]
    for table, row in rows:
        name, stops = patch_rows.fact_name(row, table).removeprefix("patch "), row.without == "wrong"
        needed_for = row.why.rstrip(".") + ", without it" if "would" in row.why else row.why.rstrip(".")
        instead = patch_rows.INSTEAD[row.without]
        names = tuple(name for name in row.names if "*" not in name)
        yield Fact("patches", name, needed_for, instead, functools.partial(_there, row), stops, names=names)
        if table.given is not None:
            check = functools.partial(_applies, row, table)
            yield Fact("patches on trial", name, needed_for, instead, check, stops, deep=True, names=names)
    known = recorded()
    for name in dict.fromkeys(name for _, row in rows for name in row.names):
        if source_digest(name):
            check = functools.partial(_same_source, name, known.get(name, {}))
            told = "none is needed: read the change, and whether what takes the function's place still does what it says"
            yield Fact("sources of what is patched", name.replace(":", "."), "patches", told, check, deep=True)


def _there(row: Patch[Any]) -> Answer:
    return answer_of([f"there is no {name.replace(':', '.')}" for name in patch_rows.missing(row)])


def _applies(row: Patch[Any], table: patch_rows.Table) -> Answer:
    return answer_of(patch_rows.problems_of(row, table))


def _same_source(name: str, known: Mapping[str, str]) -> Answer:
    torchs = minor_of(torch.__version__)
    beside = torchs if torchs in known else max(known, key=_number, default=None)
    if beside is None:
        return Answer("differs", "its source was never recorded") if written_for(torch.__version__) else OK
    if known[beside] == source_digest(name):
        return OK
    return Answer("differs", f"its source is not that of torch {beside}")


def _number(minor: str) -> tuple[int, ...]:
    return tuple(map(int, minor.split(".")))


def recorded() -> dict[str, dict[str, str]]:
    """What `python -m precast.torch_facts.record` has written with each torch."""
    text = resources.files("precast.torch_facts").joinpath(RECORD).read_text("utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found


def source_digest(name: str) -> str:
    """Of a function's source, without its indentation; empty for what is no function, or has none."""
    if "*" in name or name.startswith("triton"):
        return ""
    try:
        found: Any = named(name)
    except (AttributeError, ImportError):
        return ""
    function = inspect.unwrap(getattr(found, "fget", None) or getattr(found, "__func__", found))
    if not isinstance(function, types.FunctionType):
        return ""
    try:
        return hashlib.sha256(textwrap.dedent(inspect.getsource(function)).encode()).hexdigest()[:12]
    except OSError:
        return ""


def patched_names() -> list[str]:
    """What the rows for the torch at hand patch, without patterns."""
    return sorted({name for table in TABLES for row in table.rows if row.is_needed for name in row.names if "*" not in name})


__all__ = ["RECORD", "facts", "patched_names", "recorded", "source_digest"]
