"""`precast uses`: what other machines used, brought in from files and remotes; and what this one used, told to a remote."""

from __future__ import annotations

import os
from pathlib import Path

import click

from precast.artifact_store.format.text import many
from precast.artifact_store.local import machine_uses, usage
from precast.artifact_store.local.machine_uses import Uses
from precast.artifact_store.tiers.disk_errors import cure
from precast.cli.output import Failure, Output, errors_to_json, human_option, json_option, open_store, store_option
from precast.report.units import human_age


@click.command(short_help="What other machines used: list, bring in, tell a remote.")
@click.option(
    "--import", "sources", multiple=True, metavar="FILE|FOLDER|URL", help="Bring in what machines noted in files, or told a remote."
)
@click.option(
    "--push", "remote", metavar="URL", help="Tell a remote what this store, and this machine's file in PRECAST_USES_DIR, counted."
)
@click.option("--machine", metavar="NAME", help="With --push: the name that the remote knows this machine by (default: the host's).")
@store_option
@human_option
@json_option
@errors_to_json
def uses(sources: tuple[str, ...], remote: str | None, machine: str | None, store_path: str | None, human: bool, as_json: bool) -> None:
    """List which machines told what they used, so that `prune` by use spares it.

    Servers that cannot write the store that they read note uses in a file `<host>.uses` of the folder in PRECAST_USES_DIR. Files and what
    remotes were told may be brought in as often as one likes: what is brought in twice counts once.
    """
    out = Output(as_json, human)
    if remote is not None:
        _push(out, remote, machine or usage.machine_name(), store_path)
        return
    store = open_store(store_path, readonly=not sources, existing=True)
    news: dict[str, bool] = {}
    for source in sources:
        for name, counts in _told(source).items():
            try:
                news[name] = machine_uses.keep(store.root, name, counts)
            except OSError as error:
                raise Failure(
                    f"what {name} used cannot be kept in {store.root}: {error.strerror or error}; {cure(error, store.root)}"
                ) from error
            except ValueError as error:
                raise Failure(f"{source}: {error}") from error
    kept = machine_uses.kept(store.root)
    rows = [(name, len(counts), sum(one.hits for one in counts.values()), _last(counts)) for name, counts in kept.items()]
    out.data(
        [{"machine": name, "artifacts": count, "hits": hits, "last_use": last, "news": news.get(name)} for name, count, hits, last in rows]
    )
    if rows:
        raw = [(name, count, hits, int(last)) for name, count, hits, last in rows]
        out.table(("MACHINE", "ARTIFACTS", "HITS", "LAST USE"), raw, [(n, str(c), str(h), human_age(last)) for n, c, h, last in rows])
    else:
        out.note(f"No machine told {store.root} what it used: `precast uses --import` brings in files of PRECAST_USES_DIR, or a remote's")
    if sources:
        fresh = sum(news.values())
        out.note(f"Read what {many(len(news), 'machine')} used; {'nothing of it was' if not fresh else f'that of {fresh} was'} new")


def _last(counts: dict[str, Uses]) -> float:
    return max((one.last for one in counts.values()), default=0.0)


def _told(source: str) -> dict[str, dict[str, Uses]]:
    """Totals by machine, of a file, of the files in a folder, or of a remote."""
    if "://" in source:
        from precast.artifact_store.remote import usage_report
        from precast.cli.store.remote_keeping import tier

        with tier(source) as remote:
            return usage_report.read_all(remote.endpoint)
    path = Path(source)
    files = sorted(path.glob(f"*{usage.SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise Failure(f"{path}: no files *{usage.SUFFIX} in it, as machines write them into the folder of {usage.ELSEWHERE}")
    return {_machine(file): _of_file(file) for file in files}


def _machine(file: Path) -> str:
    name = file.name.removesuffix(usage.SUFFIX)
    if not machine_uses.is_machine(name):
        raise Failure(f"{file}: is named after no machine: <host>{usage.SUFFIX}")
    return name


def _of_file(file: Path) -> dict[str, Uses]:
    try:
        noted = usage.lines(file.read_bytes())
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror or error}") from error
    if not noted:
        raise Failure(f"{file}: no uses in it, each of which is a line of an artifact's id and a time")
    return machine_uses.from_lines(noted)


def _push(out: Output, url: str, machine: str, store_path: str | None) -> None:
    from precast.artifact_store.maintenance.index import open_index
    from precast.artifact_store.remote import usage_report
    from precast.cli.store.remote_keeping import tier

    if not machine_uses.is_machine(machine):
        raise click.BadParameter(f"{machine!r}: use up to 128 letters, digits, '_', '.', '+', '-'", param_hint="--machine")
    store = open_store(store_path, existing=True)
    with open_index(store) as index:
        totals = index.counted_here(store)
    noted = Path(os.environ.get(usage.ELSEWHERE, "")) / f"{usage.machine_name()}{usage.SUFFIX}"
    if os.environ.get(usage.ELSEWHERE) and noted.exists():
        totals = machine_uses.added(totals, _of_file(noted))
    with tier(url) as remote:
        if totals:
            usage_report.tell(remote.endpoint, machine, totals)
        place = remote.place
    out.data({"machine": machine, "artifacts": len(totals), "hits": sum(one.hits for one in totals.values()), "remote": place})
    told = f"Told {place} that {machine} used {many(len(totals), 'artifact')}"
    out.note(told if totals else f"Nothing to tell {place}: no use was counted in {store.root}")
