"""ls, stats, prune, rm, pin, unpin and pins with --remote, over a folder that machines share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from precast.artifact_store.remote import layout
from precast.artifact_store.remote.attach import open_tier
from precast.artifact_store.remote.endpoint import Endpoint, Unsupported
from precast.artifact_store.remote.settings import from_url
from precast.cli.main import main
from precast.cli.store import remote_keeping
from tests.artifact_store.sample import make

KEY = "model-0123abcd"


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def data(*words: object) -> Any:
    return json.loads(run(*words, "--json").stdout)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A remote with three artifacts of two programs."""
    (tmp_path / "shared").mkdir()
    url = f"shared://{tmp_path / 'shared'}?trust=any"
    remote = open_tier(from_url(url, "here"))
    for number, changes in ((1, {}), (2, {"target": "cuda:sm_80"}), (3, {"program_key": "other", "program_name": "another"})):
        manifest, blobs = make(number, **changes)
        remote.publish(manifest, blobs.__getitem__)
    remote.endpoint.close()
    return url


def test_everything_that_is_asked_of_a_local_store_is_answered_of_a_remote(url: str, tmp_path: Path) -> None:
    listed = data("ls", "--remote", url)
    assert [(row["program_name"], row["target"]) for row in listed] == [
        ("another", "cpu:x86-64-v3"),
        ("model", listed[1]["target"]),
        ("model", listed[2]["target"]),
    ]
    assert len(data("ls", "--remote", url, "--program", "mod")) == 2
    assert "PUBLISHED" in run("ls", "-H", "--remote", url).stdout
    figures = data("stats", "--remote", url)
    assert (figures["artifacts"], figures["programs"], figures["objects"], figures["unnamed"]) == (3, 2, 8, 0)
    assert "unnamed size" in run("stats", "-H", "--remote", url).stdout
    run("pin", "--remote", url, "--program", "another", "--note", "release 42")
    run("pin", "--remote", url, listed[1]["id"][:8])
    assert [(row["program_key"], row["note"]) for row in data("pins", "--remote", url) if row["program_key"]] == [("other", "release 42")]
    assert "is pinned on" in run("rm", "--remote", url, listed[1]["id"][:8], code=1).stderr
    said = run("prune", "--remote", url, "--target", "*").stderr
    assert "Took 1 artifact out of" in said and "of which 2 are pinned" in said and "stay for 60 minutes" in said
    assert "2 objects" in run("stats", "--remote", url).stderr
    assert "2 objects went" in run("prune", "--remote", url, "--grace", "0s").stderr
    assert "is not pinned" in run("unpin", "--remote", url, listed[1]["id"][:8], "abcd", code=1).stderr
    assert "1 artifact " in run("rm", "--remote", url, listed[1]["id"], "--dry-run").stderr and len(data("ls", "--remote", url)) == 2
    run("rm", "--remote", url, listed[1]["id"])
    assert [row["program_name"] for row in data("ls", "--remote", url)] == ["another"]
    assert "No machine told what it used" in run("prune", "--remote", url, "--unused-for", "1d").stderr


def test_slips(url: str, tmp_path: Path) -> None:
    first = data("ls", "--remote", url)[0]["id"]
    for words, said in (
        (("rm", "--remote", url, "0000"), "no artifact 0000 in"),
        (("rm", "--remote", url, "ab"), "too short"),
        (("pin", "--remote", url, "--program", "none"), "no program of that key or name"),
        (("rm", "--remote", f"{url}&mode=ro", first), "used read-only here"),
    ):
        assert said in run(*words, code=1).stderr
    for words in (
        ("ls", "--remote", "nonsense://x"),
        ("ls", "--remote", ""),
        ("ls", "--remote", url, "--images"),
        ("prune", "--grace", "1h"),
        ("stats", "--remote", url, "--by", "cause"),
    ):
        run(*words, code=2)


def test_a_remote_that_lists_nothing_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def __init__(self, endpoint: Endpoint) -> None:
            self._endpoint = endpoint

        def __getattr__(self, name: str) -> Any:
            return getattr(self._endpoint, name)

        def names(self, prefix: str) -> Any:
            raise Unsupported("lists nothing")

    def opened(setting: Any) -> Any:
        remote = open_tier(setting)
        object.__setattr__(remote, "endpoint", Silent(remote.endpoint))
        return remote

    monkeypatch.setattr(remote_keeping, "open_tier", opened)
    for words in (("ls",), ("stats",), ("prune",), ("pins",), ("rm", "abcdef")):
        assert "can be neither shown nor pruned from here" in run(*words, "--remote", url, code=1).stderr


def test_what_cannot_be_read_is_named(url: str, tmp_path: Path) -> None:
    place = next(path for path in (tmp_path / "shared").rglob("*") if path.is_file() and path.name == KEY)
    place.chmod(0o600)
    place.write_bytes(b"garbage")
    for command in ("ls", "stats", "prune"):
        assert f"such as {layout.program_name(KEY)}" in run(command, "--remote", url).stderr
