"""Commands about bundles: export and import."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import click

from precast.artifact_store import Manifest, Store
from precast.artifact_store.format.text import many
from precast.cli.fleet.trust_commands import key_option, signing_key
from precast.cli.output import ANSWER_NO, Failure, Output, errors_to_json, finish, json_option, open_store, store_option
from precast.report.units import human_size


@click.command("export", short_help="Write artifacts into one file.")
@click.argument("file", metavar="FILE")
@click.option("--program", "programs", multiple=True, metavar="TEXT", help="Only programs whose key or name contains this. Repeatable.")
@click.option("--target", metavar="PATTERN", help="Only artifacts for this target; * matches anything: 'cpu:x86-64-*'.")
@key_option
@store_option
@json_option
@errors_to_json
def export_(file: str, programs: tuple[str, ...], target: str | None, key_file: str | None, store_path: str | None, as_json: bool) -> None:
    """Write artifacts, their signatures and the records that go with them into one relocatable file: the same bytes for the same content.

    Signed with --key or PRECAST_SIGNING_KEY, where there is one. Without --program and --target everything is written; with them, of the
    records only the native runtime, which every server needs.
    """
    from precast.artifact_store.bundle.transfer import export

    out = Output(as_json)
    store = open_store(store_path, existing=True)
    key = signing_key(key_file)
    chosen = [one for one in store.manifests() if _wanted(one, programs, target)]
    if not chosen:
        raise Failure(f"no artifact in {store.root} is for that: nothing was written; `precast ls` shows what is there")
    whole = not programs and target is None
    records = [(kind, name) for kind, name in store.records() if whole or kind == "native"]
    done = export(store, Path(file).expanduser().absolute(), chosen, records, key)
    out.data({**vars(done), "file": file, "store": str(store.root)})
    counts = f"{many(done.artifacts, 'artifact')}, {many(done.records, 'record')} and {many(done.blobs, 'blob')}"
    out.note(f"Wrote {counts} ({human_size(done.content)}) to {file} ({human_size(done.size)})")
    if done.unsigned:
        out.note(
            f"{many(done.unsigned, 'artifact is', 'artifacts are')} not signed, and `precast import` refuses that unless told --trust any"
        )


def _wanted(manifest: Manifest, programs: tuple[str, ...], target: str | None) -> bool:
    of_program = not programs or any(text in manifest.program_key or text in manifest.program_name for text in programs)
    return of_program and (target is None or fnmatchcase(manifest.target, "cpu:native-*" if target == "cpu:native" else target))


@click.command("import", short_help="Take artifacts from such a file into the store.")
@click.argument("file", metavar="FILE")
@click.option(
    "--trust", "policy", default="signed", show_default=True, metavar="POLICY", help="Whose signatures it needs: any, signed, by:KEY."
)
@store_option
@json_option
@errors_to_json
def import_(file: str, policy: str, store_path: str | None, as_json: bool) -> None:
    """Take everything that is in a bundle into the store, or nothing: where its checksum or one signature does not hold, exit code 1."""
    from precast.artifact_store.bundle.transfer import take_in
    from precast.artifact_store.format.errors import StoreError
    from precast.artifact_store.trust.judge import judge_for

    out = Output(as_json)
    try:
        judge = judge_for(policy, "--trust")
    except StoreError as error:
        raise click.UsageError(str(error)) from error
    store = open_store(store_path, readonly=False)
    done = take_in(store, Path(file).expanduser(), judge)
    out.data({**vars(done), "file": file, "store": str(store.root), "trust": policy})
    if done.refused:
        for why, names in _by_reason(done.refused).items():
            out.note(f"{', '.join(names[:4])}{'…' if len(names) > 4 else ''}: {why}")
        out.note(f"Nothing was taken in: {many(len(done.refused), 'entry', 'entries')} of {file} may not come in under --trust {policy}")
        finish(ANSWER_NO)
    known = f", {done.there} there already" if done.there else ""
    kept = f", {done.kept} kept as they were built here" if done.kept else ""
    out.note(f"Took in {many(done.artifacts, 'artifact')} and {many(done.records, 'record')} ({human_size(done.content)}){known}{kept}")
    _tell_untrusted(out, store)


def _by_reason(refused: dict[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, why in refused.items():
        reasons.setdefault(why, []).append(name)
    return reasons


def _tell_untrusted(out: Output, store: Store) -> None:
    """What was taken in by a laxer policy than the store's own is there, and not served."""
    if store.judge is not None and (refused := sum(not store.serves(one) for one in store.manifests())):
        out.note(f"{many(refused, 'artifact')} in {store.root} cannot be served under its own policy (PRECAST_TRUST_POLICY)")
