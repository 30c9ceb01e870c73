"""What ls, stats, prune, rm, pin, unpin and pins do with `--remote URL`: a remote tier is looked after instead of the local store."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

import click

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.format.text import many
from precast.artifact_store.maintenance import remote_list, remote_sweep
from precast.artifact_store.maintenance.garbage import GRACE
from precast.artifact_store.maintenance.index import Entry
from precast.artifact_store.maintenance.pins import Pin
from precast.artifact_store.maintenance.policy import Policy, matches
from precast.artifact_store.maintenance.remote_sweep import Swept
from precast.artifact_store.remote import program_index
from precast.artifact_store.remote.attach import open_tier
from precast.artifact_store.remote.endpoint import EndpointError
from precast.artifact_store.remote.remote import Remote
from precast.artifact_store.remote.settings import from_url
from precast.artifact_store.tiers.owner import user_name
from precast.cli.output import Failure, Output
from precast.cli.store.pin_lists import choose_pins, said, tell_pins, tell_unpinned
from precast.cli.store.show import SHORTEST_PREFIX
from precast.report.units import human_age, human_moment, human_size


@contextlib.contextmanager
def tier(url: str) -> Iterator[Remote]:
    """The remote of a URL; what it refuses or does not answer is a failure of the command."""
    try:
        remote = open_tier(from_url(url, "--remote"))
    except StoreError as error:
        raise click.BadParameter(str(error).removeprefix("--remote: "), param_hint="--remote") from error
    try:
        yield remote
    except (EndpointError, StoreError) as error:
        said = str(error)
        raise Failure(said if remote.place in said else f"{remote.place}: {said}") from error
    finally:
        remote.endpoint.close()


def ls(out: Output, url: str, program: str | None) -> None:
    """As `precast ls`; sizes are those on the remote."""
    with tier(url) as remote:
        there = remote_list.named(remote)
        entries = remote_list.entries(there, remote_list.uses(remote))
    if program:
        entries = [entry for entry in entries if matches(entry, program)]
    entries.sort(key=lambda entry: (entry.program_name, entry.program_key, entry.artifact_id))
    out.data([_as_data(entry) for entry in entries])
    raw = [(e.artifact_id, e.program_name, e.program_key, e.target, e.size, e.hits, int(e.last_use), int(e.created)) for e in entries]
    readable = [
        (
            e.artifact_id[:12],
            e.program_name,
            e.target,
            human_size(e.size),
            str(e.hits),
            human_age(e.last_use if e.hits else None),
            human_age(e.created),
        )
        for e in entries
    ]
    if entries:
        out.table(("ID", "PROGRAM", "TARGET", "SIZE", "HITS", "LAST USE", "PUBLISHED"), raw, readable)
    else:
        out.note(f"No artifacts{f' matching {program!r}' if program else ''} in {remote.place}")
    _tell_unread(out, there.unread)


def stats(out: Output, url: str) -> None:
    """As `precast stats`."""
    with tier(url) as remote:
        figures = remote_list.stats(remote)
    out.data({**vars(figures), "remote": remote.place})
    raw = [(name, "" if value is None else value) for name, value in vars(figures).items() if name not in ("by_target", "unread")]
    raw += [(f"artifacts for {target}", count) for target, count in figures.by_target.items()]
    readable = [(name.replace("_", " "), _readable(name, value)) for name, value in raw]
    out.table(("FIGURE", remote.place), raw, readable)
    if figures.missing:
        what = many(figures.missing, "object that an index names is", "objects that an index names are")
        out.note(f"{what} not there: what needs them misses")
    if figures.unnamed:
        what = f"{many(figures.unnamed, 'object')} ({human_size(figures.unnamed_size)})"
        out.note(f"{what} that nothing names: `precast prune --remote` removes them")
    _tell_unread(out, figures.unread)


def _readable(name: str, value: object) -> str:
    if name in ("oldest", "newest", "last_use"):
        return human_age(float(str(value)) if value != "" else None)
    return human_size(int(str(value))) if name in ("size", "saved", "objects_size", "unnamed_size") else str(value)


def prune(out: Output, url: str, policy: Policy, dry_run: bool, grace: float) -> None:
    """As `precast prune`."""
    with tier(url) as remote:
        done = remote_sweep.prune(remote, policy, dry_run=dry_run, grace=grace)
    if policy.by_use and not done.used:
        out.note("No machine told what it used: artifacts count as last used when they were published")
    _tell(out, done, remote.place, grace)


def rm(out: Output, url: str, artifacts: Sequence[str], dry_run: bool) -> None:
    """As `precast rm`."""
    with tier(url) as remote:
        there = remote_list.named(remote).artifacts
        ids = {_one_of(there, artifact, remote.place) for artifact in artifacts}
        done = remote_sweep.take_out(remote, ids, dry_run=dry_run)
    _tell(out, done, remote.place, GRACE)


def pin(out: Output, url: str, artifacts: Sequence[str], programs: Sequence[str], note: str) -> None:
    """As `precast pin`."""
    with tier(url) as remote:
        there = remote_list.named(remote)
        by, now = user_name(os.geteuid()), time.time()
        made = [Pin(_one_of(there.artifacts, artifact, remote.place), "", note, by, now) for artifact in artifacts]
        for program in programs:
            keys = [key for key, index in there.indexes.items() if program in (key, index.program_name)]
            if len(keys) != 1:
                has = f"{many(len(keys), 'program')} of that name: give a key" if keys else "no program of that key or name"
                raise Failure(f"{remote.place} has {has} ({program!r})")
            made.append(Pin("", keys[0], note, by, now))
        for one in made:
            remote_list.pin(remote, one)
    out.data([vars(one) for one in made])
    for one in made:
        out.note(f"Pinned {said(one)} on {remote.place}")


def unpin(out: Output, url: str, artifacts: Sequence[str], programs: Sequence[str]) -> None:
    """As `precast unpin`."""
    with tier(url) as remote:
        gone, unknown = choose_pins(remote_list.pins(remote), tuple(artifacts), tuple(programs))
        remote_list.unpin(remote, gone)
    tell_unpinned(out, gone, unknown)


def list_pins(out: Output, url: str) -> None:
    """As `precast pins`."""
    with tier(url) as remote:
        tell_pins(out, remote_list.pins(remote), remote.place)


def _one_of(there: Sequence[tuple[str, program_index.Entry]], prefix: str, place: str) -> str:
    """The one artifact's id that begins so; Failure when there is none, or more than one."""
    if len(prefix) < SHORTEST_PREFIX:
        raise Failure(f"{prefix!r} is too short: give at least {SHORTEST_PREFIX} characters of the id")
    found = {entry.artifact_id for _, entry in there if entry.artifact_id.startswith(prefix.lower())}
    if not found:
        raise Failure(f"no artifact {prefix} in {place}; `precast ls --remote` shows what is there")
    if len(found) > 1:
        raise Failure(f"{prefix} is the beginning of {len(found)} artifacts in {place}; give more characters")
    return found.pop()


def _tell(out: Output, done: Swept, place: str, grace: float) -> None:
    removed = [removal.entry for removal in done.removed]
    reasons = [{"id": r.entry.artifact_id, "program": r.entry.program_name, "reason": r.reason} for r in done.removed]
    out.data({**vars(done), "removed": reasons, "remote": place})
    raw = [(r.entry.artifact_id, r.entry.program_name, r.entry.size, r.reason) for r in done.removed]
    readable = [(r.entry.artifact_id[:12], r.entry.program_name, human_size(r.entry.size), r.reason) for r in done.removed]
    if raw:
        out.table(("ID", "PROGRAM", "SIZE", "WHY"), raw, readable)
    head, keeping = ("Would take", "would keep") if done.dry_run else ("Took", "kept")
    pinned = f", of which {done.pinned} {'is' if done.pinned == 1 else 'are'} pinned" if done.pinned else ""
    went = f"{many(done.objects, 'object')} {'would go' if done.dry_run else 'went'} ({human_size(done.freed)})"
    out.note(f"{head} {many(len(removed), 'artifact')} out of {place}; {went}; {keeping} {many(done.kept, 'artifact')}{pinned}")
    if done.waiting:
        size = f"{many(done.waiting, 'object')} ({human_size(done.waiting_size)})"
        why = "so that readers and writers at work are not disturbed"
        out.note(f"{size} that nothing names stay for {grace / 60:.0f} minutes, {why}: a prune after {human_moment(done.due)} removes them")
    if done.lost:
        what = many(len(done.lost), "artifact was", "artifacts were")
        out.note(f"{what} published while objects went that it names; it is taken out, and published again by whoever compiles it next")
    _tell_unread(out, done.unread)


def _tell_unread(out: Output, unread: dict[str, str]) -> None:
    if unread:
        name, reason = next(iter(unread.items()))
        what = f"{many(len(unread), 'index object or record', 'index objects or records')} cannot be read, such as {name} ({reason})"
        out.note(f"{what}: no object counts as unneeded until that is put right")


def _as_data(entry: Entry) -> dict[str, object]:
    fields = {name: value for name, value in vars(entry).items() if name not in ("artifact_id", "counted", "guards", "manifest_size")}
    return {"id": entry.artifact_id, **fields, "versions": vars(entry.versions), "size": entry.size}
