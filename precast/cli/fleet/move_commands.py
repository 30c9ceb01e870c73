"""`precast push`, `pull` and `sync`: artifacts from one store, remote or registry to another. A killed one is run again and goes on."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from precast.artifact_store import Store
from precast.artifact_store.format.text import many
from precast.cli.fleet.progress import transfer_progress
from precast.cli.fleet.selection_options import (
    choice,
    jobs_option,
    plain_http_option,
    selection_options,
    store_of_build_file,
    trust_option,
)
from precast.cli.output import ANSWER_NO, Output, errors_to_json, finish, json_option, open_store, store_option
from precast.report.units import human_size

if TYPE_CHECKING:
    from precast.artifact_store.moving.place import Holding, Place, RecordName
    from precast.artifact_store.moving.plan import Plan
    from precast.artifact_store.moving.selection import Selection
    from precast.artifact_store.moving.transfer import Report, Trouble

_SHOWN, _NAMED = 20, 4
"""Of many artifacts that were moved so many are shown; of many that were not, for one reason, so many are named."""


@click.command(short_help="Send artifacts to a remote or a registry.")
@click.argument("url", metavar="[URL]", required=False)
@selection_options
@jobs_option
@trust_option
@plain_http_option
@click.option("--fresh", is_flag=True, help="Begin a registry's tag anew, instead of adding to what it names.")
@click.option("--repair", is_flag=True, help="Send again what is there already: URL lost some of it, or damaged it.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@store_option
@json_option
@errors_to_json
def push(
    url: str | None,
    jobs: int,
    trust: str | None,
    plain_http: bool,
    fresh: bool,
    repair: bool,
    dry_run: bool,
    store_path: str | None,
    as_json: bool,
    build_file: str | None,
    **chosen: Any,
) -> None:
    """Send artifacts, and the named records beside them, to URL: s3://, https://, redis://, shared://, oci://registry/name:tag, …

    What is there already is not sent again, also after a push that was killed. What is sent is signed where PRECAST_SIGNING_KEY has a key.
    Without URL the nearest remote is taken that PRECAST_REMOTE or precast.toml names. Exit code 1 where something was not sent, or nothing
    here was chosen.
    """
    from precast.artifact_store.moving.places import configured_remote, local_place, remote_place

    out = Output(as_json)
    store = open_store(store_path or store_of_build_file(build_file), existing=True)
    selection = choice(lambda: store, build_file=build_file, **chosen)
    remote = url or configured_remote(writing=True)
    with closing(remote_place(remote, trust=trust, plain_http=plain_http, fresh=fresh, repair=repair, writing=True)) as there:
        _move(out, "push", local_place(store, signing=True), there, selection, jobs=jobs, dry_run=dry_run)


@click.command(short_help="Fetch artifacts from a remote or a registry.")
@click.argument("url", metavar="[URL]", required=False)
@selection_options
@jobs_option
@trust_option
@plain_http_option
@click.option("--dry-run", is_flag=True, help="Only say what would be fetched.")
@store_option
@json_option
@errors_to_json
def pull(
    url: str | None,
    jobs: int,
    trust: str | None,
    plain_http: bool,
    dry_run: bool,
    store_path: str | None,
    as_json: bool,
    build_file: str | None,
    **chosen: Any,
) -> None:
    """Fetch artifacts, and the named records beside them, from URL into the local store, which from then on serves them without URL.

    What is here already is not fetched again, also after a pull that was killed. Only what the policy accepts comes in (--trust). Exit
    code 1 where something was not fetched, or nothing there was chosen.
    """
    from precast.artifact_store.moving.places import configured_remote, local_place, remote_place

    out = Output(as_json)
    store = open_store(store_path or store_of_build_file(build_file), readonly=dry_run)
    selection = choice(lambda: store, build_file=build_file, **chosen)
    with closing(remote_place(url or configured_remote(writing=False), trust=trust, plain_http=plain_http, guesses=_guesses())) as there:
        _move(out, "pull", there, local_place(store), selection, jobs=jobs, dry_run=dry_run)


@click.command(short_help="Bring one store or remote up to date with another.")
@click.argument("source", metavar="A")
@click.argument("destination", metavar="B")
@selection_options
@jobs_option
@trust_option
@plain_http_option
@click.option("--both-ways", is_flag=True, help="Then bring A up to date with B, too.")
@click.option("--dry-run", is_flag=True, help="Only say what would be moved.")
@json_option
@errors_to_json
def sync(
    source: str,
    destination: str,
    jobs: int,
    trust: str | None,
    plain_http: bool,
    both_ways: bool,
    dry_run: bool,
    as_json: bool,
    build_file: str | None,
    **chosen: Any,
) -> None:
    """Give B what A has and B lacks; A and B are folders of stores, or URLs. Nothing is removed."""
    from precast.artifact_store.moving.places import any_place

    out = Output(as_json)
    selection = choice(partial(_any_store, source, destination), build_file=build_file, **chosen)
    open_ = partial(any_place, trust=trust, plain_http=plain_http)
    with closing(open_(source, writing=both_ways)) as first, closing(open_(destination, writing=True)) as second:
        ways = [(first, second), (second, first)] if both_ways else [(first, second)]
        done = [_moved(out, f"sync to {there.where}", here, there, selection, jobs=jobs, dry_run=dry_run) for here, there in ways]
    out.data({"ways": [answer for answer, _ in done], "dry_run": dry_run})
    finish(0 if all(good for _, good in done) else ANSWER_NO)


def _guesses() -> list[RecordName]:
    """Records that this machine needs to serve without a compiler: they are asked for by name where a remote lists nothing."""
    from precast.artifact_store.moving.place import RecordName
    from precast.runtime.native.build import record_name

    return [RecordName("native", record_name())]


def _any_store(*names: str) -> Store:
    """A local store among two places, for which a build file's programs are made; any does, their keys are the same."""
    from precast.artifact_store.moving.places import is_url

    return open_store(next((name for name in names if not is_url(name)), None))


def _move(out: Output, verb: str, here: Place, there: Place, selection: Selection, *, jobs: int, dry_run: bool) -> None:
    answer, good = _moved(out, verb, here, there, selection, jobs=jobs, dry_run=dry_run)
    out.data(answer)
    if good and not answer["chosen"]:
        left = f"; it has {many(answer['others'], 'other artifact')}" if answer["others"] else ""
        out.note(f"Nothing to {verb}: {here.where} has no artifact that was chosen{left}")
        finish(ANSWER_NO)
    finish(0 if good else ANSWER_NO)


def _moved(
    out: Output, verb: str, here: Place, there: Place, selection: Selection, *, jobs: int, dry_run: bool
) -> tuple[dict[str, Any], bool]:
    """The answer as data, and whether all went well."""
    from precast.artifact_store.moving.plan import plan
    from precast.artifact_store.moving.transfer import Report, transfer

    began = time.perf_counter()
    todo = plan(here, there, selection)
    report = Report()
    if not dry_run:
        with transfer_progress(out, f"{verb} {many(len(todo.wanted), 'artifact')}", todo.size) as told:
            report = transfer(here, there, todo, jobs=jobs, told=told)
    seconds = time.perf_counter() - began
    shown = todo.wanted if dry_run else report.moved
    for holding in shown[:_SHOWN]:
        out.text(f"{holding.artifact_id[:12]}\t{holding.program_name}\t{holding.target}\t{holding.size}")
    if len(shown) > _SHOWN:
        out.note(f"… and {len(shown) - _SHOWN} more")
    for reason, what in _by_reason(report.troubles).items():
        more = f" and {len(what) - _NAMED} more" if len(what) > _NAMED else ""
        out.note(f"Not moved: {', '.join(what[:_NAMED])}{more}: {reason}")
    out.note(_summary(here, there, todo, report, seconds, dry_run))
    return _data(here, there, todo, report, seconds, dry_run), report.good


def _by_reason(troubles: list[Trouble]) -> dict[str, list[str]]:
    """Reason -> what was not moved for it, as people name it."""
    found: dict[str, list[str]] = {}
    for trouble in troubles:
        name = f"{trouble.program} {trouble.what[:12]}" if trouble.program else trouble.what
        found.setdefault(trouble.reason, []).append(name)
    return {reason: sorted(what) for reason, what in found.items()}


def _summary(here: Place, there: Place, todo: Plan, report: Report, seconds: float, dry_run: bool) -> str:
    at_hand = f"; {many(len(todo.there), 'artifact')} there already" if todo.there else ""
    if dry_run:
        what = f"{many(len(todo.wanted), 'artifact')} ({human_size(todo.size)}) and {many(len(todo.records), 'record')}"
        signed = f", and the signatures of {many(len(todo.unsigned), 'artifact')}" if todo.unsigned else ""
        return f"Would move {what}{signed} from {here.where} to {there.where}{at_hand}"
    size = sum(holding.size for holding in report.moved)
    rate = f", {human_size(int(report.sent / seconds))}/s" if report.sent and seconds > 0 else ""
    what = f"{many(len(report.moved), 'artifact')} ({human_size(size)}) and {many(len(report.records), 'record')}"
    signed = f", and the signatures of {many(len(report.signed), 'artifact')}" if report.signed else ""
    spared = f", {human_size(report.spared)} of content was there" if report.spared else ""
    failed = f"; {len(report.troubles)} not moved" if report.troubles else ""
    return (
        f"Moved {what}{signed} from {here.where} to {there.where} in {seconds:.1f} s "
        f"({human_size(report.sent)} sent{rate}{spared}){at_hand}{failed}"
    )


def _data(here: Place, there: Place, todo: Plan, report: Report, seconds: float, dry_run: bool) -> dict[str, Any]:
    return {
        "from": here.where,
        "to": there.where,
        "dry_run": dry_run,
        "chosen": todo.chosen,
        "others": todo.others,
        "there_already": len(todo.there),
        "wanted": [_row(holding) for holding in todo.wanted] if dry_run else [],
        "moved": [_row(holding) for holding in report.moved],
        "signed": [_row(holding) for holding in report.signed],
        "records": ["/".join(name) for name in (todo.records if dry_run else report.records)],
        "not_moved": [asdict(trouble) for trouble in report.troubles],
        "sent": report.sent,
        "spared": report.spared,
        "seconds": round(seconds, 3),
    }


def _row(holding: Holding) -> dict[str, Any]:
    return {
        "id": holding.artifact_id,
        "program": holding.program_name,
        "program_key": holding.program_key,
        "target": holding.target,
        "size": holding.size,
    }
