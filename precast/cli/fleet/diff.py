"""`precast diff A B`: how two stores differ (folders or URLs), program by program."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from precast.artifact_store.format.text import many
from precast.cli.fleet.selection_options import choice, plain_http_option, selection_options, trust_option
from precast.cli.output import ANSWER_NO, Output, errors_to_json, finish, human_option, json_option, open_store, store_option
from precast.report.units import human_size

if TYPE_CHECKING:
    from precast.artifact_store.moving.place import Holding
    from precast.artifact_store.moving.plan import Change, Difference


@click.command(short_help="Say how two stores, artifacts or programs differ.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@selection_options
@trust_option
@plain_http_option
@store_option
@human_option
@json_option
@errors_to_json
def diff(
    first: str,
    second: str,
    trust: str | None,
    plain_http: bool,
    store_path: str | None,
    human: bool,
    as_json: bool,
    build_file: str | None,
    **chosen: Any,
) -> None:
    """Say how two stores differ; A and B are folders of stores, or URLs. Exit code 1 where one serves what the other does not.

    An artifact that both have may differ in what it notes about its build alone; that is shown, and counts as equal.

    With two ids of artifacts, or two program keys, of the store (--store): how these differ, in words, and what to do about the misses that
    follow.
    """
    out = Output(as_json, human)
    if not is_place(first) and not is_place(second):
        from precast.cli.fleet.diff_artifacts import diff_artifacts

        diff_artifacts(out, first, second, store_path)
        return
    _diff_places(out, first, second, trust, plain_http, build_file, chosen)


def is_place(text: str) -> bool:
    """Whether a text names a store, and no artifact or program."""
    return "/" in text or text.startswith((".", "~")) or os.path.isdir(text)


def _diff_places(
    out: Output, first: str, second: str, trust: str | None, plain_http: bool, build_file: str | None, chosen: dict[str, Any]
) -> None:
    from precast.artifact_store.moving.places import any_place
    from precast.artifact_store.moving.plan import difference

    selection = choice(lambda: open_store(None), build_file=build_file, **chosen)
    open_ = partial(any_place, trust=trust, plain_http=plain_http)
    with closing(open_(first)) as here, closing(open_(second)) as there:
        found = difference(here, there, selection)
        names = here.where, there.where
    out.data(_data(found, names))
    if out.human:
        for line in sentences(found, names):
            out.text(line)
    else:
        for sign, holding in _rows(found):
            out.text("\t".join((sign, holding.program_name, holding.program_key, holding.target, holding.artifact_id, str(holding.size))))
    code = sum(change.code for change in found.changed)
    noted = len(found.changed) - code
    differ = [
        f"{many(len(found.here), 'artifact')} only in {names[0]}" if found.here else "",
        f"{many(len(found.there), 'artifact')} only in {names[1]}" if found.there else "",
        f"{many(code, 'artifact')} with different code" if code else "",
        f"{many(noted, 'artifact')} with the same code and other notes on the build" if noted else "",
    ]
    out.note("; ".join([*filter(None, differ), f"{many(found.equal, 'artifact is', 'artifacts are')} equal"]))
    finish(0 if found.none else ANSWER_NO)


def _rows(found: Difference) -> list[tuple[str, Holding]]:
    """`<` only in A, `>` only in B, `!` in both with different code, `~` in both with other notes on the build."""
    rows = [("<", holding) for holding in found.here] + [(">", holding) for holding in found.there]
    rows += [("!" if change.code else "~", change.here) for change in found.changed]
    return sorted(rows, key=lambda row: (row[1].program_name, row[1].name, row[0]))


def sentences(found: Difference, names: tuple[str, str]) -> list[str]:
    """The difference in words, program by program."""
    programs: dict[tuple[str, str], list[str]] = {}
    for where, holdings in zip(names, (found.here, found.there), strict=True):
        by_key: dict[tuple[str, str], list[Holding]] = {}
        for holding in holdings:
            by_key.setdefault((holding.program_name, holding.program_key), []).append(holding)
        for program, those in by_key.items():
            programs.setdefault(program, []).append(f"only in {where}: {_artifacts(those)}")
    for change in found.changed:
        programs.setdefault((change.here.program_name, change.here.program_key), []).append(_changed(change))
    lines = []
    for (name, key), said in sorted(programs.items()):
        lines += [f"{name} ({key})", *(f"  {line}" for line in said)]
    for where, records in zip(names, (found.records_here, found.records_there), strict=True):
        if records:
            lines.append(f"named records only in {where}: {', '.join('/'.join(record) for record in records)}")
    return lines


def _artifacts(holdings: list[Holding]) -> str:
    shown = ", ".join(f"{holding.artifact_id[:12]} for {holding.target}" for holding in holdings[:4])
    more = f" and {len(holdings) - 4} more" if len(holdings) > 4 else ""
    return f"{many(len(holdings), 'artifact')}, {human_size(sum(holding.size for holding in holdings))} ({shown}{more})"


def _changed(change: Change) -> str:
    head = f"{change.here.artifact_id[:12]} for {change.here.target} is in both"
    if not change.code:
        return f"{head}, with the same code and other notes on the build (how long it took, which libraries were measured)"
    one, two = set(change.here.blobs), set(change.there.blobs)
    return f"{head}, with different code: {len(one & two)} blobs are equal, {len(one - two)} are here alone, {len(two - one)} there alone"


def _data(found: Difference, names: tuple[str, str]) -> dict[str, Any]:
    return {
        "first": names[0],
        "second": names[1],
        "same": found.none,
        "equal": found.equal,
        "only_first": [_row(holding) for holding in found.here],
        "only_second": [_row(holding) for holding in found.there],
        "changed": [{**_row(change.here), "code": change.code} for change in found.changed],
        "records_only_first": ["/".join(record) for record in found.records_here],
        "records_only_second": ["/".join(record) for record in found.records_there],
    }


def _row(holding: Holding) -> dict[str, Any]:
    return {
        **{name: value for name, value in asdict(holding).items() if name in ("program_key", "program_name", "target", "size", "made")},
        "id": holding.artifact_id,
    }
