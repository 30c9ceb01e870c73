"""Commands over the store as a whole: ls, prune, verify, dir, clean."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from precast.artifact_store import Store
from precast.artifact_store.format.text import human_days, many
from precast.artifact_store.maintenance.unreadable import unreadable
from precast.artifact_store.place import default_root
from precast.artifact_store.tiers.owner import owner
from precast.cli.output import (
    ANSWER_NO,
    Output,
    errors_to_json,
    finish,
    human_option,
    json_option,
    named,
    open_store,
    remote_option,
    store_option,
)
from precast.cli.store.stale import about_stale, why_stale
from precast.report.units import human_age, human_moment, human_size, parse_duration, parse_size
from precast.target_registry import find_family

if TYPE_CHECKING:
    from precast.artifact_store.maintenance.index import Entry
    from precast.artifact_store.maintenance.prune import Policy, Pruned
    from precast.artifact_store.maintenance.verify import Verified


def _parsed(parse: Callable[[str], Any], _: click.Context, __: click.Parameter, value: str | None) -> Any:
    try:
        return None if value is None else parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


in_remote_option = click.option("--remote", "remote", callback=named, metavar="URL", help="A remote tier instead of the local store.")
_size = partial(_parsed, parse_size)
duration_of = partial(_parsed, parse_duration)
"""The callback of an option that takes a duration."""


@click.command(short_help="List the artifacts.")
@click.option("--program", "program", metavar="TEXT", help="Only programs whose key or name contains this.")
@click.option("--images", "with_images", is_flag=True, help="List the kernel images of artifacts for GPUs instead.")
@in_remote_option
@store_option
@human_option
@json_option
@errors_to_json
def ls(program: str | None, with_images: bool, remote: str | None, store_path: str | None, human: bool, as_json: bool) -> None:
    """List the artifacts: id, program, target, size, graphs (those of training have a backward graph), guards, hits, last use, made."""
    from precast.artifact_store.maintenance.index import open_index
    from precast.artifact_store.maintenance.policy import matches

    out = Output(as_json, human)
    if remote is not None:
        from precast.cli.store import remote_keeping

        if with_images:
            raise click.UsageError("--images looks into blobs, which are on this machine only where the artifacts were fetched")
        remote_keeping.ls(out, remote, program)
        return
    store = for_index(store_path)
    with open_index(store) as index:
        entries = index.entries(store)
    unknown = bool(index.problem)
    if program:
        entries = [entry for entry in entries if matches(entry, program)]
    entries.sort(key=lambda entry: (entry.program_name, entry.program_key, entry.artifact_id))
    if with_images:
        _list_images(out, store, entries)
        return
    if as_json:
        out.data([{**_as_data(entry, unknown), "signed_by": _signed_by(store, entry)} for entry in entries])
    trains = any("backward" in entry.graphs for entry in entries)
    raw = [
        (e.artifact_id, e.program_name, e.program_key, e.target, e.size, e.guards, *_uses(e, unknown), int(e.created))
        for e in entries
        if not out.human
    ]
    readable = [
        (
            e.artifact_id[:12],
            e.program_name,
            e.target,
            human_size(e.size),
            *([" ".join(e.graphs) or "none"] if trains else []),
            str(e.guards),
            "?" if unknown else str(e.hits),
            "?" if unknown else human_age(e.last_use if e.hits else None),
            human_age(e.created),
        )
        for e in entries
        if out.human
    ]
    if entries:
        graphs = ("GRAPHS",) if trains else ()
        out.table(("ID", "PROGRAM", "TARGET", "SIZE", *graphs, "GUARDS", "HITS", "LAST USE", "MADE"), raw, readable)
    else:
        out.note(f"No artifacts{f' matching {program!r}' if program else ''} in {store.root}")
    tell_unknown(out, index.problem)
    tell_unreadable(out, store)
    if stale := about_stale(entry.versions for entry in entries):
        out.note(f"{stale} (--json has the versions of each)")


def _uses(entry: Entry, unknown: bool) -> tuple[object, object]:
    """How often and when last, for a pipe: empty where that is not known."""
    return ("", "") if unknown else (entry.hits, int(entry.last_use))


def tell_unknown(out: Output, why: str) -> None:
    """Say why it is not known which artifacts were used, where it is not."""
    if why:
        out.note(f"Which artifacts were used is not known: {why}")


def tell_unreadable(out: Output, store: Store) -> None:
    """Say that some of the store cannot be read, where that is so."""
    if hidden := unreadable(store):
        name, reason = next(iter(hidden.items()))
        count = many(len(hidden), "file or folder", "files or folders")
        out.note(f"{count} cannot be read, such as {store.path(name)} ({reason}): `precast doctor` says more")


def _list_images(out: Output, store: Store, entries: list[Entry]) -> None:
    from precast.report.kernel_images import of_artifact

    found = [
        (entry.artifact_id, image)
        for entry in entries
        if _has_images(entry.target) and (manifest := store.get(entry.artifact_id, entry.program_key)) is not None
        for image in of_artifact(store, manifest)
    ]
    out.data([{"artifact": artifact, **asdict(image)} for artifact, image in found])
    raw = [(artifact, i.role, i.kind, i.entry, i.size, i.registers or "", i.shared or 0) for artifact, i in found]
    readable = [
        (artifact[:12], i.kind, i.entry, human_size(i.size), str(i.registers or "-"), human_size(i.shared or 0)) for artifact, i in found
    ]
    if found:
        out.table(("ARTIFACT", "IMAGE", "KERNEL", "SIZE", "REGISTERS", "SHARED"), raw if not out.human else [], readable)
    else:
        out.note(f"No kernel images in {store.root}")


def _has_images(target: str) -> bool:
    family = find_family(target)
    return family is not None and family.images


@click.command(short_help="Remove artifacts that meet conditions, and leftovers.")
@click.option("--program", callback=named, metavar="TEXT", help="Artifacts of programs whose key or name contains this.")
@click.option("--max-size", callback=_size, metavar="SIZE", help="Then evict least recently used ones until the store fits: 500M, 2GiB.")
@click.option("--older-than", callback=duration_of, metavar="AGE", help="Artifacts made longer ago: 30d, 12h.")
@click.option("--unused-for", callback=duration_of, metavar="AGE", help="Artifacts not used for so long.")
@click.option("--target", metavar="PATTERN", help="Artifacts for this target; * matches anything: 'cuda:*'.")
@click.option("--stale-versions", is_flag=True, help="Artifacts that the precast, torch and Python installed here cannot use any more.")
@click.option(
    "--keep-last", type=click.IntRange(min=1), metavar="N", help="Spare each program's N most recently used; alone: remove all others."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@in_remote_option
@click.option(
    "--grace", callback=duration_of, metavar="AGE", help="With --remote: how long what nothing names stays for others at work: 1h."
)
@store_option
@human_option
@json_option
@errors_to_json
def prune(
    program: str | None,
    max_size: int | None,
    older_than: float | None,
    unused_for: float | None,
    target: str | None,
    stale_versions: bool,
    keep_last: int | None,
    dry_run: bool,
    remote: str | None,
    grace: float | None,
    store_path: str | None,
    human: bool,
    as_json: bool,
) -> None:
    """Remove artifacts. One goes when every condition given holds for it; without conditions only leftovers go.

    What is pinned (`precast pins`) stays. Leftovers are blobs that no artifact needs, files of killed writers, and what was quarantined
    more than 30 days ago.
    """
    from precast.artifact_store.maintenance import prune as pruning

    out = Output(as_json, human)
    stale = why_stale if stale_versions else None
    policy = pruning.Policy(max_size, older_than, unused_for, _any_machine(target), stale, keep_last, program)
    if remote is not None:
        from precast.artifact_store.maintenance.garbage import GRACE
        from precast.cli.store import remote_keeping

        remote_keeping.prune(out, remote, policy, dry_run, GRACE if grace is None else grace)
        return
    if grace is not None:
        raise click.UsageError("--grace is for remotes (--remote URL)")
    # uses that wait to be counted count for both
    store = for_index(store_path) if dry_run else open_store(store_path, readonly=False, existing=True)
    done = pruning.prune(store, policy, dry_run=dry_run)
    tell_removed(out, store, done)
    if not done.removed and not done.leftovers:
        out.note(_nothing_to_prune(policy, done))
    _tell_what_is_left(out, store, policy, done)
    tell_unreadable(out, store)


def tell_removed(out: Output, store: Store, done: Pruned) -> None:
    """What went, or would go: data and a table, and their sum where there is any."""
    out.data(
        {
            "dry_run": done.dry_run,
            "removed": [{"id": r.entry.artifact_id, "program": r.entry.program_name, "reason": r.reason} for r in done.removed],
            "leftovers": [{"file": name, "reason": reason} for name, reason in done.leftovers],
            "freed": done.freed,
            "kept": done.kept,
            "pinned": done.pinned,
            "younger_leftovers": [{"file": f.path.relative_to(store.root).as_posix(), "due": f.due} for f in done.young],
            "dated_ahead": len(done.ahead),
        }
    )
    raw = [(r.entry.artifact_id, r.entry.program_name, r.entry.size, r.reason) for r in done.removed]
    readable = [(r.entry.artifact_id[:12], r.entry.program_name, human_size(r.entry.size), r.reason) for r in done.removed]
    if raw:
        out.table(("ID", "PROGRAM", "SIZE", "WHY"), raw, readable)
    what = f"{many(len(done.removed), 'artifact')} and {many(len(done.leftovers), 'leftover file')} ({human_size(done.freed)})"
    if done.removed or done.leftovers:
        head, keeping = ("Would remove", "would keep") if done.dry_run else ("Removed", "kept")
        pinned = f", of which {done.pinned} {'is' if done.pinned == 1 else 'are'} pinned" if done.pinned else ""
        out.note(f"{head} {what}; {keeping} {many(done.kept, 'artifact')}{pinned}")


def _tell_what_is_left(out: Output, store: Store, policy: Policy, done: Pruned) -> None:
    """What stays although it may seem that it should go, and why."""
    if done.young:
        from precast.artifact_store.maintenance.garbage import GRACE

        when = human_moment(max(file.due for file in done.young))
        name = done.young[0].path.relative_to(store.root)
        were = "was" if len(done.young) == 1 else "were"
        files = f"{many(len(done.young), 'leftover file')} younger than {GRACE / 60:.0f} minutes"
        out.note(f"{files} {were} left, such as {name}: a writer may be at work. `precast prune` removes them after {when}")
    if done.ahead:
        dated = f"{many(len(done.ahead), 'artifact is', 'artifacts are')} dated up to {human_days(max(done.ahead))} ahead"
        out.note(
            f"{dated} of this machine's clock, and cannot count as old: set the clock right, or `precast verify --repair` dates them now"
        )
    if policy.unused_for is None:
        return
    if done.began > time.time() - policy.unused_for:
        began = human_moment(done.began)
        out.note(f"Uses before {began} are not all known (the index was begun anew, or was full): none counts as unused for longer")
    elif not done.used and done.kept + len(done.removed):
        out.note("No use of any artifact was ever counted here: uses are counted only where the serving processes can write the store")


def _any_machine(target: str | None) -> str | None:
    """`cpu:native` by the name that people use means that of any machine: artifacts have the machine's digest in it."""
    return "cpu:native-*" if target == "cpu:native" else target


def _nothing_to_prune(policy: Policy, done: Pruned) -> str:
    """Why nothing goes, by what was asked for."""
    if policy.max_size is not None:
        spared = f"; {_what_spares(policy, done)} them" if done.size_before > policy.max_size else ""
        return f"Nothing to prune: artifacts take {human_size(done.size_before)} of {human_size(policy.max_size)}{spared}"
    if policy.selects or policy.keep_last is not None:
        if done.pinned:
            return f"Nothing to prune: the conditions hold for none of {many(done.kept, 'artifact')} that may go ({done.pinned} pinned)"
        targets = f"; there are artifacts for {', '.join(done.targets)}" if policy.target is not None and done.targets else ""
        return f"Nothing to prune: the conditions hold for none of {many(done.kept, 'artifact')}{targets}"
    leftovers = "no leftovers that may go yet" if done.young else "no leftovers"
    if not done.kept:
        return f"Nothing to prune: {leftovers}, and no artifacts"
    stay = "the one artifact stays" if done.kept == 1 else f"all {done.kept} artifacts stay"
    return f"Nothing to prune: {leftovers}; without conditions {stay}"


def _what_spares(policy: Policy, done: Pruned) -> str:
    what = [*(["--keep-last"] if policy.keep_last is not None else []), *(["pins"] if done.pinned else [])]
    return f"{' and '.join(what)} {'spare' if what[-1] == 'pins' or len(what) > 1 else 'spares'}" if what else "writers at work spare"


@click.command(short_help="Read and check all that is stored; repair.")
@click.option("--repair", is_flag=True, help="Set bad entries aside in quarantine/, remove leftovers, rebuild the index.")
@store_option
@json_option
@errors_to_json
def verify(repair: bool, store_path: str | None, as_json: bool) -> None:
    """Read every manifest and blob and check it. Exit code 1 when something is wrong and was not repaired."""
    from precast.artifact_store.maintenance.verify import verify as check_store

    out = Output(as_json)
    store = open_store(store_path, readonly=not repair, existing=True)
    report = check_store(store, repair=repair, jobs=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    shown = {
        **vars(report),
        "problems": [vars(problem) for problem in report.problems],
        "quarantined": [vars(problem) for problem in report.quarantined],
    }
    out.data({**shown, "sound": report.sound, "set_aside": report.set_aside, "store": str(store.root)})
    for problem in (*report.problems, *report.quarantined):
        out.text(f"{problem.kind}\t{problem.name}\t{problem.detail}{f' ({problem.repair})' if problem.repaired else ''}")
    newer = f", {report.newer} by a newer precast left alone" if report.newer else ""
    checked = f"{many(report.manifests, 'manifest')} and {many(report.blobs, 'blob')} ({human_size(report.bytes)})"
    out.note(f"Checked {checked}{newer}")
    out.note(_verdict(report, store, repair))
    if lost := report.quarantined:
        acknowledge = "" if repair else "; then `precast verify --repair` acknowledges it, and `precast prune` removes it after 30 days"
        count = many(len(lost), "file was found damaged and", "files were found damaged and")
        out.note(f"{count} set aside while the store was in use: build again (`precast build FILE`){acknowledge}")
    if report.set_aside:
        out.note(f"{many(report.set_aside, 'artifact')} set aside: build again (`precast build FILE`) before serving")
    finish(0 if report.good else ANSWER_NO)


def _verdict(report: Verified, store: Store, repair: bool) -> str:
    """What is wrong with the store's content in one line, and what repairs it."""
    if not report.problems:
        return "No problems" if not report.quarantined else "No problems with what is left in it"
    count, kinds = many(len(report.problems), "problem"), {problem.kind for problem in report.problems}
    if report.sound:
        return f"{count}, all dealt with"
    if repair:
        return f"{count}, not all of which could be dealt with: {report.obstacle or 'each line above says why'}"
    if kinds == {"permissions"}:
        return f"{count}; `chmod 700 {store.root}` repairs that"
    if kinds <= {"unsigned", "keyring"}:
        return (
            f"{count} with signatures, and no damage: `precast sign` signs what is not served for want of one, `precast trust` trusts a key"
        )
    if kinds <= {"permissions", "unreadable"}:
        return f"{count}: make all of {store.root} readable for this user, and writable for no other"
    if kinds <= {"index", "leftover", "clock"}:
        return f"{count}; `precast verify --repair` deals with that, and no artifact is damaged"
    return f"{count}; `precast verify --repair` sets aside what is damaged"


@click.command("dir", short_help="Print where the store is, and which remotes are behind it.")
@store_option
@remote_option
@json_option
@errors_to_json
def dir_(store_path: str | None, as_json: bool) -> None:
    """Print where the store is; and which remotes are behind it, nearest first, with their settings and what says so."""
    from precast.artifact_store.remote.attach import describe
    from precast.artifact_store.remote.settings import chosen

    out = Output(as_json)
    root = open_store(store_path).root
    remotes = [describe(setting) for setting in chosen()]
    out.data({"store": str(root), "exists": root.exists(), "remotes": remotes})
    out.text(str(root))
    for remote in remotes:
        out.text("\t".join(str(remote[name]) for name in ("url", "mode", "trust", "budget", "where")))


@click.command(short_help="Remove everything in the store.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
@errors_to_json
def clean(yes: bool, store_path: str | None, as_json: bool) -> None:
    """Remove everything in the store: artifacts, blobs, measured choices, pins, index, quarantine."""
    from precast.artifact_store.maintenance import clean as cleaning
    from precast.artifact_store.maintenance.pins import pinned

    out = Output(as_json)
    root = default_root(store_path)
    if not cleaning.is_store(root):
        out.data({"store": str(root), "freed": 0})
        out.note(f"Nothing to clean: {root} is empty or does not exist")
        return
    size = cleaning.size_on_disk(root)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"this removes everything in {root}; add --yes")
        count = len(pinned(open_store(store_path)).names)
        held = f", {many(count, 'pin')} and what they hold among it" if count else ""
        click.confirm(f"Remove everything in {root} ({human_size(size)}{held})?", abort=True, err=True)
    cleaning.clean(root)
    out.data({"store": str(root), "freed": size})
    out.note(f"Removed everything in {root} ({human_size(size)})")


def _as_data(entry: Entry, unknown: bool) -> dict[str, Any]:
    fields = {name: value for name, value in vars(entry).items() if name not in ("artifact_id", "counted")}
    uses = {"hits": None, "last_use": None} if unknown else {}
    return {"id": entry.artifact_id, **fields, **uses, "versions": vars(entry.versions), "size": entry.size}


def _signed_by(store: Store, entry: Entry) -> list[dict[str, str]]:
    from precast.report.signers import signers_data

    if not store.has_signatures(entry.program_key, entry.artifact_id):
        return []  # without reading its manifest
    manifest = store.get(entry.artifact_id, entry.program_key)
    return [] if manifest is None else signers_data(store, manifest)


def for_index(path: str | None) -> Store:
    """A store to read with its index: opened for writing where its files may be written, so that use counts are folded in.

    By the store's own user: whoever else looks leaves it as it is.
    """
    store = open_store(path, existing=True)
    mine = owner(store.root) in (None, os.geteuid())
    return open_store(path, readonly=not (mine and os.access(store.root, os.W_OK)))
