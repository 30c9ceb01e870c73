"""Commands that say what stays: rm, pin, unpin, pins."""

from __future__ import annotations

import click

from precast.artifact_store.format.text import many
from precast.artifact_store.maintenance.pins import pin as put_pin
from precast.artifact_store.maintenance.pins import pins
from precast.artifact_store.maintenance.pins import unpin as take_pin
from precast.artifact_store.maintenance.scan import Seen, manifest_files
from precast.artifact_store.store import Store
from precast.cli.output import Failure, Output, errors_to_json, human_option, json_option, open_store, store_option
from precast.cli.store.pin_lists import choose_pins, said, tell_pins, tell_unpinned
from precast.cli.store.show import SHORTEST_PREFIX

_remote = click.option("--remote", "remote", metavar="URL", help="In a remote tier instead of the local store.")


@click.command(short_help="Remove single artifacts by their ids.")
@click.argument("artifacts", metavar="ID...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@_remote
@store_option
@human_option
@json_option
@errors_to_json
def rm(artifacts: tuple[str, ...], dry_run: bool, remote: str | None, store_path: str | None, human: bool, as_json: bool) -> None:
    """Remove artifacts by their ids, which may be shortened to their first characters, and the blobs that only they need.

    What is pinned is refused, and so is a beginning that several ids share: then nothing is removed.
    """
    out = Output(as_json, human)
    if remote is not None:
        from precast.cli.store import remote_keeping

        remote_keeping.rm(out, remote, artifacts, dry_run)
        return
    from precast.artifact_store.maintenance.prune import take_out
    from precast.cli.store.store_commands import tell_removed

    store = open_store(store_path, readonly=dry_run, existing=True)
    there = manifest_files(store)
    chosen = {one_of(there, artifact, str(store.root)).artifact_id for artifact in artifacts}
    tell_removed(out, store, take_out(store, chosen, dry_run=dry_run))


@click.command(short_help="Keep an artifact, or a program, from every pruning.")
@click.argument("artifacts", metavar="[ID]...", nargs=-1)
@click.option("--program", "programs", multiple=True, metavar="KEY", help="Every artifact of this program, also those still to come.")
@click.option("--note", default="", metavar="TEXT", help="Why, for whoever reads `precast pins`.")
@_remote
@store_option
@json_option
@errors_to_json
def pin(
    artifacts: tuple[str, ...], programs: tuple[str, ...], note: str, remote: str | None, store_path: str | None, as_json: bool
) -> None:
    """Pin artifacts, by ids that may be shortened, or programs, by key or name. No `prune`, `rm` or automatic limit takes them."""
    out = Output(as_json)
    if not artifacts and not programs:
        raise click.UsageError("name an artifact's ID, or --program KEY")
    if remote is not None:
        from precast.cli.store import remote_keeping

        remote_keeping.pin(out, remote, artifacts, programs, note)
        return
    store = open_store(store_path, readonly=False, existing=True)
    made = [put_pin(store, artifact_id, program_key, note) for artifact_id, program_key in _meant(store, artifacts, programs)]
    out.data([vars(one) for one in made])
    for one in made:
        out.note(f"Pinned {said(one)}")


@click.command(short_help="Let a pinned artifact, or program, go.")
@click.argument("artifacts", metavar="[ID]...", nargs=-1)
@click.option("--program", "programs", multiple=True, metavar="KEY", help="The pin of this program.")
@_remote
@store_option
@json_option
@errors_to_json
def unpin(artifacts: tuple[str, ...], programs: tuple[str, ...], remote: str | None, store_path: str | None, as_json: bool) -> None:
    """Take pins away; nothing is removed yet. Exit code 1 where one of them was not pinned."""
    out = Output(as_json)
    if not artifacts and not programs:
        raise click.UsageError("name an artifact's ID, or --program KEY")
    if remote is not None:
        from precast.cli.store import remote_keeping

        remote_keeping.unpin(out, remote, artifacts, programs)
        return
    store = open_store(store_path, readonly=False, existing=True)
    gone, unknown = choose_pins(pins(store), artifacts, programs)
    for one in gone:
        take_pin(store, one)
    tell_unpinned(out, gone, unknown)


@click.command("pins", short_help="List what is pinned.")
@_remote
@store_option
@human_option
@json_option
@errors_to_json
def list_pins(remote: str | None, store_path: str | None, human: bool, as_json: bool) -> None:
    """List the pins: what each holds, who pinned it, when, and why."""
    out = Output(as_json, human)
    if remote is not None:
        from precast.cli.store import remote_keeping

        remote_keeping.list_pins(out, remote)
        return
    store = open_store(store_path, existing=True)
    tell_pins(out, pins(store), str(store.root))


def one_of(there: list[Seen], prefix: str, place: str) -> Seen:
    """The one artifact whose id starts with `prefix`; Failure when there is none, or more than one."""
    prefix = prefix.lower()
    if len(prefix) < SHORTEST_PREFIX:
        raise Failure(f"{prefix!r} is too short: give at least {SHORTEST_PREFIX} characters of the id (`precast ls` shows them)")
    found = [seen for seen in there if seen.artifact_id.startswith(prefix)]
    if not found:
        raise Failure(f"no artifact {prefix} in {place}; `precast ls` shows what is there")
    if len({seen.artifact_id for seen in found}) > 1:
        matching = ", ".join(seen.artifact_id[:16] for seen in found[:5])
        raise Failure(f"{prefix} is the beginning of {len(found)} artifacts ({matching}…); give more characters")
    return found[0]


def _meant(store: Store, artifacts: tuple[str, ...], programs: tuple[str, ...]) -> list[tuple[str, str]]:
    """Artifact ids and program keys; all of them, or a Failure before anything is pinned."""
    there = manifest_files(store)
    ids = [(one_of(there, artifact, str(store.root)).artifact_id, "") for artifact in artifacts]
    keys = {seen.program_key for seen in there}
    return ids + [("", _key(store, program, keys)) for program in programs]


def _key(store: Store, program: str, keys: set[str]) -> str:
    """The key that is meant by a key or a program's whole name."""
    if program in keys:
        return program
    from precast.artifact_store.maintenance.index import open_index

    with open_index(store) as index:
        named = sorted({entry.program_key for entry in index.entries(store) if entry.program_name == program})
    if not named:
        raise Failure(
            f"no program has the key or the name {program!r} in {store.root}; `precast ls` shows the names, and into a pipe the keys"
        )
    if len(named) > 1:
        raise Failure(f"{program} is the name of {many(len(named), 'program')} ({', '.join(named[:5])}); give a key")
    return named[0]
