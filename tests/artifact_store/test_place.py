"""Which folder a text names, and what is refused as a slip, with the right form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import precast
from precast.artifact_store import Store, StoreError
from precast.artifact_store.place import default_root, folder_of, what_is_at
from precast.building.build_file import BuildFileError, parse
from precast.cli.main import main
from tests.artifact_store.sample import fill

TAKEN = {
    "/srv/store": "/srv/store",
    "/srv//store/": "/srv/store",
    "store": "<here>/store",
    "./a/../store": "<here>/store",
    "a b": "<here>/a b",
    "a:b": "<here>/a:b",
    "100%41": "<here>/100%41",
    "a$b": "<here>/a$b",
    "/srv/store /": "/srv/store ",
    "~/store": "<home>/store",
    "./~/store": "<here>/~/store",
    "file:///srv/store": "/srv/store",
    "file:/srv/store": "/srv/store",
    "FILE:///srv/store/": "/srv/store",
    "file://localhost/srv/store": "/srv/store",
    "file:///srv/a%20b%2541": "/srv/a b%41",
    "file:///srv/%E6%97%A5": "/srv/日",
    "file:///srv/~": "/srv/~",
}
REFUSED = {
    "file://srv/store": "'srv' would be the name of a host: an absolute path follows three slashes: file:///srv/store",
    "file://server.example/srv": "three slashes: file:///server.example/srv",
    "file://srv": "file:///srv",
    "file://./store": "three slashes: file://<here>/store",
    "file://~/store": "three slashes: file://<home>/store",
    "file:store": "it names no folder by its absolute path",
    "file:": "it names no folder",
    "file://": "it names no folder",
    "file:///": "it names no folder",
    "file:///a?b": "write %3F",
    "file:///a#b": "write %3F and %23",
    "file:///a%zz": "write %25",
    "file:///100%": "write %25",
    "file:///a%00b": "null character",
    "s3://bucket/store": "s3:// is not supported: name a folder or a file:// URL",
    "S3://bucket/store": "is not supported",
    "gs://bucket": "gs:// is not supported",
    "https://host/store": "https:// is not supported",
    "http:/host": "http:// is not supported",
    "C:\\store": "a path of Windows",
    "c:/store": "a path of Windows",
    "\\\\server\\share": "a path of Windows",
    "/srv/store ": "write '/srv/store'",
    " /srv/store": "write '/srv/store'",
    "/srv/store\r": "write '/srv/store'",
    "/srv/store\n": "write '/srv/store'",
    "$HOME/store": "the variable $HOME was not replaced",
    "/srv/${USER}/store": "the variable ${USER} was not replaced",
    "~nobody-of-that-name/store": "there is no user 'nobody-of-that-name' here; a folder of that name is ./~nobody-of-that-name",
    "": "an empty name",
    "  ": "nothing but spaces",
    "\t\n": "nothing but spaces",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def _with(here: Path, text: str) -> str:
    return text.replace("<here>", str(here)).replace("<home>", str(here / "home"))


@pytest.mark.parametrize("text", TAKEN)
def test_a_text_names_a_folder(text: str, here: Path) -> None:
    folder = _with(here, TAKEN[text])
    assert str(folder_of(text)) == str(default_root(text)) == folder
    relative = not text.lower().startswith(("/", "~", "file:"))
    assert str(folder_of(text, "/base")) == (folder.replace(str(here), "/base") if relative else folder)
    parsed = parse({"store": text, "program": [{"factory": "a:b"}]}, "b.toml", here)
    assert parsed.store == folder


@pytest.mark.parametrize("text", REFUSED)
def test_a_slip_is_refused_everywhere(text: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = _with(here, REFUSED[text])
    for read in (folder_of, default_root):
        with pytest.raises(StoreError) as refused:
            read(text)
        assert words in str(refused.value)
    assert words in Store.open(text).problem and Store.open(text).readonly
    with pytest.raises(BuildFileError) as wrong:
        parse({"store": text, "program": [{"factory": "a:b"}]}, "b.toml", here)
    assert words in str(wrong.value) or text == ""
    if text:
        assert words in CliRunner().invoke(main, ["ls", "--store", text]).stderr
        monkeypatch.setenv("PRECAST_STORE", text)
        done = CliRunner().invoke(main, ["dir"])
        assert done.exit_code == 1 and words in done.stderr and "PRECAST_STORE: " in done.stderr
    assert os.listdir(here) == []


def test_path_objects_are_taken_as_they_are(here: Path) -> None:
    for name in ("a ", "$HOME", "~x", "C:\\s"):
        store, _ = fill(Path(name))  # type: ignore[arg-type]
        assert store.root == here / name and what_is_at(here / name) == "store"


def test_a_wrong_setting_does_not_break_a_call(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STORE", "file://srv/store")
    for store in (None, "s3://bucket", "$STORE/x", Path("a\0b")):
        loaded = precast.load(torch.sin, store=store, require="any")
        with torch.no_grad(), pytest.warns(UserWarning, match="no stored artifact"):
            assert torch.equal(loaded(torch.ones(2)), torch.ones(2).sin())
        precast.reset()
