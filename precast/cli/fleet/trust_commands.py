"""Commands about keys and signatures: keygen, sign, trust."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from pathlib import Path

import click

from precast.artifact_store import Manifest, RecordError, Store
from precast.artifact_store.format.text import many
from precast.artifact_store.trust import keyring as rings
from precast.artifact_store.trust import keys
from precast.artifact_store.trust.keyring import Keyring
from precast.artifact_store.trust.keys import KeyProblem, PrivateKey, PublicKey
from precast.cli.output import Failure, Output, errors_to_json, human_option, json_option, open_store, store_option
from precast.cli.store.show import find


def default_key() -> Path:
    """Where `keygen` puts a private key, and `sign` looks for one, when nobody says otherwise."""
    from platformdirs import user_config_path

    return user_config_path("precast", appauthor=False) / "signing-key.pem"


def key_option(command: click.decorators.FC) -> click.decorators.FC:
    """`--key FILE` of a command that signs."""
    return click.option("--key", "key_file", metavar="FILE", help="The private key (default: PRECAST_SIGNING_KEY).")(command)


def signing_key(key_file: str | None) -> PrivateKey | None:
    """The key that a command signs with: the file that was named, else that of PRECAST_SIGNING_KEY; None for neither. Raises KeyProblem."""
    if key_file:
        return keys.read_private(Path(key_file).expanduser(), os.environ.get(keys.PASSPHRASE, ""))
    return keys.signer_from_environment()


@click.command(short_help="Make a key to sign artifacts with.")
@click.option("-o", "output", metavar="FILE", help="The private key's file (default: signing-key.pem in the configuration folder).")
@click.option("--name", metavar="NAME", help="What the key is called (default: this user's name).")
@json_option
@errors_to_json
def keygen(output: str | None, name: str | None, as_json: bool) -> None:
    """Make a key: the private half in FILE (mode 0600, with the passphrase in PRECAST_SIGNING_PASSPHRASE where that is set), the public
    half in FILE.pub and on stdout: one line, for `precast trust add` on the machines that load what it signs.
    """
    out = Output(as_json)
    path = Path(output).expanduser() if output else default_key()
    key = keys.generate(name or _user())
    keys.write_private(key, path, os.environ.get(keys.PASSPHRASE, ""))
    try:
        path.with_name(f"{path.name}.pub").write_text(f"{key.public.line()}\n")
    except OSError as error:
        raise Failure(f"{path}.pub: cannot be written ({error.strerror})") from error
    out.data({"key": key.public.id, "name": key.public.name, "public": key.public.line(), "file": str(path)})
    out.text(key.public.line())
    protected = (
        f"with the passphrase of {keys.PASSPHRASE}" if os.environ.get(keys.PASSPHRASE) else f"without a passphrase ({keys.PASSPHRASE})"
    )
    out.note(f"The private key is in {path}, {protected}: keep it secret. {keys.ENVIRONMENT}={path} signs what is built")
    out.note("Machines that load what it signs need the line above: `precast trust add`")


def _user() -> str:
    try:
        return keys.check_name(getpass.getuser())
    except (KeyProblem, OSError, KeyError):
        return "key"


@click.command(short_help="Sign artifacts in the store.")
@click.argument("artifacts", metavar="[ID]…", nargs=-1)
@click.option("--program", metavar="TEXT", help="All artifacts of programs whose key or name contains this.")
@click.option("--all", "everything", is_flag=True, help="All artifacts, and all records (native runtime, images, measured choices).")
@key_option
@store_option
@json_option
@errors_to_json
def sign(
    artifacts: tuple[str, ...], program: str | None, everything: bool, key_file: str | None, store_path: str | None, as_json: bool
) -> None:
    """Sign artifacts that are in the store: each is checked whole first, and the signature is put beside its manifest.

    What `precast build` makes while PRECAST_SIGNING_KEY is set is signed already.
    """
    if not artifacts and not program and not everything:
        raise click.UsageError("name artifacts by their ids, or give --program TEXT or --all")
    out = Output(as_json)
    store = open_store(store_path, readonly=False, existing=True)
    key = signing_key(key_file) or keys.read_private(default_key(), os.environ.get(keys.PASSPHRASE, ""))
    chosen = [find(store, artifact) for artifact in artifacts]
    chosen += [one for one in store.manifests() if everything or (program and _of(one, program))]
    chosen = list({one.artifact_id: one for one in chosen}.values())
    signed, already = [], 0
    for manifest in chosen:
        _check_whole(store, manifest)
        if any(one.key == key.public.id for one in store.signatures(manifest)):
            already += 1
        store.sign(manifest, key)
        signed.append(manifest)
    records = store.records() if everything else []
    for kind, name in records:
        store.sign_record(kind, name, key)
    shown = [{"id": one.artifact_id, "program": one.program_name} for one in signed]
    out.data(
        {"key": key.public.id, "name": key.public.name, "signed": shown, "already": already, "records": [list(one) for one in records]}
    )
    for manifest in signed:
        out.text(f"{manifest.artifact_id}\t{manifest.program_name}\t{key.public.name}")
    if not signed:
        raise Failure(f"no artifact{f' matching {program!r}' if program else ''} in {store.root}: nothing was signed")
    more = f" and {many(len(records), 'record')}" if records else ""
    out.note(f"Signed {many(len(signed), 'artifact')}{more} as {key.public.name} ({key.public.id}); {already} were signed by it before")


def _of(manifest: Manifest, program: str) -> bool:
    return program in manifest.program_key or program in manifest.program_name


def _check_whole(store: Store, manifest: Manifest) -> None:
    """Nobody vouches for what is damaged. Raises Failure."""
    try:
        manifest.check()
    except RecordError as error:
        raise Failure(f"artifact {manifest.artifact_id[:12]} is not signed: {error}; `precast verify --repair` sets it aside") from error
    if not store.complete(manifest):
        raise Failure(f"artifact {manifest.artifact_id[:12]} is not signed: a blob is missing or damaged; `precast verify` says which")


@click.command(short_help="Whose signatures are trusted: add, ls, rm.")
@click.argument("action", type=click.Choice(["add", "ls", "rm"]))
@click.argument("what", nargs=-1, metavar="[KEY]…")
@click.option("--name", metavar="NAME", help="What the key, or the reason of a revocation, is called here.")
@click.option("--again", is_flag=True, help="Trust a key although it was revoked.")
@human_option
@json_option
@errors_to_json
def trust(action: str, what: tuple[str, ...], name: str | None, again: bool, human: bool, as_json: bool) -> None:
    """The keyring of this user (PRECAST_TRUST names another file).

    \b
    precast trust add KEYFILE.pub | 'precast-ed25519 … NAME'   trust what this key signs
    precast trust ls                                            keys and revocations, of this user and of the system
    precast trust rm NAME | ID | SHA-256                        revoke a key by name or id, or an artifact by its whole id or checksum
    """
    out, path = Output(as_json, human), rings.user_file()
    if action == "ls":
        if what:
            raise click.UsageError("`trust ls` takes no key")
        _list(out, path)
    elif not what:
        raise click.UsageError(f"`trust {action}` needs a key")
    elif action == "add":
        _add(out, path, [_named(key, name) for key in _public(what)], again)
    else:
        _revoke(out, path, what, name)


def _public(what: tuple[str, ...]) -> Iterator[PublicKey]:
    """Keys as lines, quoted or not, and as files of lines. Raises KeyProblem."""
    if what[0] == keys.ALGORITHM:
        yield keys.parse_public(" ".join(what))
        return
    for item in what:
        if item.startswith(f"{keys.ALGORITHM} "):
            yield keys.parse_public(item)
            continue
        try:
            with open(Path(item).expanduser(), "rb") as file:
                lines = file.read(keys.LARGEST_FILE).decode("utf-8", "replace").strip().split("\n")
        except OSError as error:
            raise KeyProblem(f"{item}: cannot be read ({error.strerror}); give a public key's file or line") from error
        yield from (keys.parse_public(line, item) for line in lines)


def _named(key: PublicKey, name: str | None) -> PublicKey:
    return PublicKey(key.raw, keys.check_name(name)) if name else key


def _add(out: Output, path: Path, added: list[PublicKey], again: bool) -> None:
    def edit(ring: Keyring) -> Keyring:
        for key in added:
            ring = rings.add(ring, key, again=again)
        return ring

    rings.change(path, edit)
    out.data({"keyring": str(path), "added": [{"key": key.id, "name": key.name} for key in added]})
    for key in added:
        out.text(f"{key.id}\t{key.name}")
    what = "What this key signs" if len(added) == 1 else f"What these {len(added)} keys sign"
    out.note(f"{what} is trusted now, by {path}")


def _revoke(out: Output, path: Path, what: tuple[str, ...], name: str | None) -> None:
    system = rings.read(rings.system_file())

    def edit(ring: Keyring) -> Keyring:
        for item in what:
            digest = len(item) == 64
            ring = rings.revoke_artifact(ring, item.lower(), name or "unnamed") if digest else rings.revoke_key(ring, item, system)
        return ring

    before = rings.read(path)
    after = rings.change(path, edit)
    gone = {**_new(after.revoked_keys, before.revoked_keys), **_new(after.revoked_artifacts, before.revoked_artifacts)}
    out.data({"keyring": str(path), "revoked": [{"id": id_, "name": called} for id_, called in gone.items()]})
    for id_, called in gone.items():
        out.text(f"{id_}\t{called}")
    out.note("Revoked. Tiers whose policy asks for signatures refuse it from now on, in running processes as well")
    out.note("A local store without such a policy still serves what is in it: `precast verify` names it, `--repair` sets it aside")


def _new(after: dict[str, str], before: dict[str, str]) -> dict[str, str]:
    return {id_: name for id_, name in after.items() if id_ not in before}


def _list(out: Output, path: Path) -> None:
    rows: list[tuple[str, str, str, str]] = []
    system_path = rings.system_file()
    for place in (path, system_path):
        ring = rings.read(place)
        rows += [("trusted", key.id, key.name, str(place)) for key in ring.keys.values()]
        rows += [("revoked", id_, name, str(place)) for id_, name in ring.revoked_keys.items()]
        rows += [("revoked artifact", id_, name, str(place)) for id_, name in ring.revoked_artifacts.items()]
    out.data({"keyring": str(path), "entries": [dict(zip(("state", "id", "name", "file"), row, strict=True)) for row in rows]})
    if rows:
        out.table(("STATE", "ID", "NAME", "IN"), rows, rows)
    else:
        out.note(f"No key is trusted here: neither {path} nor {system_path} has one; `precast trust add KEYFILE`")


__all__ = ["default_key", "key_option", "keygen", "sign", "signing_key", "trust"]
