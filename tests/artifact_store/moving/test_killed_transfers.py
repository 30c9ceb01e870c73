"""A push and a pull that are killed at random moments: nothing half is ever visible, and what arrived is not sent again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import click
import pytest
from click.testing import CliRunner

from precast.artifact_store import Store
from precast.artifact_store.moving.place import Place
from precast.artifact_store.moving.places import any_place, remote_place
from precast.cli.main import main
from tests.artifact_store.sample import complete, make
from tests.support.servers import S3_ENVIRONMENT, Server, registry, s3

__all__ = ["registry", "s3"]

COUNT, SIZE, PROGRAMS = 24, 150_000, 4
MOMENTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
"""Seconds after which a transfer is killed, give or take a half: the first never ends in time, however fast the machine."""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose artifacts do not compress, so that a transfer takes a while; some share a blob with one of the same program."""
    root = tmp_path_factory.mktemp("full")
    store = Store.open(root)
    for number in range(COUNT):
        key, blobs = f"model-{number % PROGRAMS}", make(number)[1]
        blobs.add(random.Random(number % (COUNT - PROGRAMS)).randbytes(SIZE))
        store.put(make(number, program_key=key, blobs=blobs.sizes())[0], blobs)
    return root


def killed(words: list[str], seconds: float) -> bool:
    """Whether the command, in a process that this one forks, was killed before it ended."""
    child = os.fork()
    if child == 0:
        _run(words)
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the command failed: {words}"
    return status != 0


def _run(words: list[str]) -> NoReturn:
    """The command, and the end of this process, which is a copy of the test's."""
    status = 70
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        main(words, standalone_mode=False)
        status = 0
    except click.exceptions.Exit as ended:
        status = ended.exit_code
    finally:
        os._exit(status)


def whole(words: list[str]) -> dict[str, int]:
    """The answer of the command, which is let end."""
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == 0, done.output
    answer: dict[str, int] = json.loads(done.stdout)
    return answer


def files(root: Path, part: str) -> dict[str, tuple[int, int]]:
    """Content that lies there whole: path -> inode and size."""
    found = (path for path in root.rglob("*") if path.is_file() and part in str(path) and ".tmp" not in path.name)
    return {str(path): (path.stat().st_ino, path.stat().st_size) for path in found}


def sound(place: Place) -> int:
    """How many artifacts the place shows, each of which can be fetched whole."""
    found = list(place.holdings())
    for holding in found:
        parcel = place.parcel(holding)
        assert parcel is not None
        assert {blob: len(parcel.read(blob)) for blob in parcel.blobs} == dict(holding.blobs)
    return len(found)


def test_a_push_goes_on_where_it_was_killed(full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a writer that is killed while it replaces an index leaves its claim, which others respect for so long (30 s)
    monkeypatch.setattr("precast.artifact_store.remote.endpoints.shared_folder.CLAIM_SECONDS", 1.0)
    folder = tmp_path / "shared"
    folder.mkdir()
    words = ["push", f"shared://{folder}", "--store", str(full), "--jobs", "3"]
    seen, kills = 0, 0
    for moment in MOMENTS:
        kills += killed(words, random.uniform(0.5, 1.5) * moment)
        shown = sound(any_place(f"shared://{folder}", trust="any"))
        assert shown >= seen
        seen = shown
    assert kills, "no push was killed: make the store larger"
    before = files(folder, "objects")
    answer = whole(words)
    after = files(folder, "objects")
    assert {name: after[name] for name in before} == before, "content that was there was written again"
    assert answer["sent"] <= sum(size for _, size in after.values()) - sum(size for _, size in before.values())
    assert sound(any_place(f"shared://{folder}", trust="any")) == COUNT and answer["there_already"] == seen


def test_a_pull_goes_on_where_it_was_killed(full: Path, tmp_path: Path) -> None:
    folder, root = tmp_path / "shared", tmp_path / "store"
    folder.mkdir()
    whole(["push", f"shared://{folder}", "--store", str(full)])
    words = ["pull", f"shared://{folder}", "--trust", "any", "--store", str(root), "--jobs", "3"]
    seen, kills = 0, 0
    for moment in MOMENTS:
        kills += killed(words, random.uniform(0.5, 1.5) * moment)
        store = Store.open(root, readonly=True)
        manifests = list(store.manifests())
        assert all(complete(store, manifest) for manifest in manifests) and len(manifests) >= seen
        seen = len(manifests)
    assert kills, "no pull was killed: make the store larger"
    before = files(root, "objects")
    answer = whole(words)
    after = files(root, "objects")
    assert {name: after[name] for name in before} == before, "content that was there was fetched again"
    new = sum(size for _, size in after.values()) - sum(size for _, size in before.values())
    assert new <= answer["sent"] <= new + 4000 * COUNT, "more came than the blobs that were missing, and manifests"
    assert len(list(Store.open(root).manifests())) == COUNT and answer["there_already"] == seen


def test_a_push_to_an_object_store_goes_on_where_it_was_killed(full: Path, s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    base, _, query = s3.url.partition("?")
    url = f"{base}/killed-{time.time_ns()}?{query}"
    words = ["push", url, "--store", str(full), "--jobs", "3"]
    seen, kills = 0, 0
    for moment in MOMENTS[::2]:
        kills += killed(words, random.uniform(0.5, 1.5) * moment)
        with closing(any_place(url, trust="any")) as place:
            shown = sound(place)
        assert shown >= seen
        seen = shown
    assert kills, "no push was killed: make the store larger"
    before = sizes_at(url)
    answer = whole(words)
    after = sizes_at(url)
    assert before.items() <= after.items() and answer["there_already"] == seen and answer["not_moved"] == []
    assert answer["sent"] <= sum(after.values()) - sum(before.values()), "content that was there was sent again"


def sizes_at(url: str) -> dict[str, int]:
    """Objects of a remote with their bytes."""
    with closing(remote_place(url, trust="any")) as place:
        return {listed.name: listed.size for listed in place.remote.endpoint.names("v1/objects/")}


def test_a_push_to_a_registry_shows_nothing_until_it_is_whole(full: Path, registry: Server) -> None:
    url = f"{registry.url}/killed/models:{time.time_ns()}"
    words = ["push", url, "--store", str(full), "--jobs", "3"]
    kills = 0
    for moment in MOMENTS:
        kills += killed(words, random.uniform(0.5, 1.5) * moment)
        shown = sound(any_place(url, trust="any"))
        assert shown in (0, COUNT), "the tag names a part of a push"
        if shown:
            break  # it was killed after its last request, or ended
    assert kills, "no push was killed: make the store larger"
    before = blobs_of(registry)
    answer = whole(words)
    assert before <= blobs_of(registry) and sound(any_place(url, trust="any")) == COUNT
    new = sum(path.stat().st_size for path in blobs_of(registry) - before)
    assert answer["sent"] <= new, "content that was there was sent again"


def blobs_of(registry: Server) -> set[Path]:
    return set((registry.folder / "docker" / "registry" / "v2" / "blobs").rglob("data"))
