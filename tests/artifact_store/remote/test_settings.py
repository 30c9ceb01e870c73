"""Which remotes a store has: URLs, files, the environment, and what is said of slips."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast.artifact_store import Store, StoreError
from precast.artifact_store.remote import settings
from precast.artifact_store.remote.settings import BUDGET, Setting, chosen, from_url


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.ENVIRONMENT, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


URLS = {
    "s3://bucket/p": Setting("s3://bucket/p", "rw", "signed", BUDGET, "here"),
    "s3://bucket/p?mode=ro&trust=any&budget=500ms": Setting("s3://bucket/p", "ro", "any", 0.5, "here"),
    "s3://b?endpoint=http://127.0.0.1:9000&mode=ro&allow_http=1": Setting(
        "s3://b?endpoint=http%3A%2F%2F127.0.0.1%3A9000&allow_http=1", "ro", "signed", BUDGET, "here"
    ),
    "shared:///mnt/x?trust=by:ci,release&budget=0": Setting("shared:///mnt/x", "rw", "by:ci,release", 0.0, "here"),
    "/mnt/a%20b?budget=1m": Setting("shared:///mnt/a%2520b", "rw", "signed", 60.0, "here"),
    "https://user:secret@cache.example.com/x?budget=2": Setting("https://user:secret@cache.example.com/x", "rw", "signed", 2.0, "here"),
}


@pytest.mark.parametrize("url", URLS)
def test_urls(url: str) -> None:
    assert from_url(url, "here") == URLS[url]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "named by its URL"),
        ("s3://b?mode=readonly", "mode='readonly': use ro"),
        ("s3://b?trust=all", "`any`, `signed`, `by:"),
        ("s3://b?budget=soon", "budget='soon'"),
        ("s3://b?budget=-1s", "budget='-1s'"),
        ("s3://b?budget=100000s", "between 0 and 600"),
        (" s3://b", "spaces"),
        ("s3://b\n", "spaces"),
        ("s3://b?&&=", "no URL"),
    ],
)
def test_slips_name_the_place(url: str, said: str) -> None:
    with pytest.raises(StoreError) as caught:
        from_url(url, "PRECAST_REMOTE")
    assert said in str(caught.value) and str(caught.value).startswith("PRECAST_REMOTE: ")


def test_no_secret_is_shown() -> None:
    with pytest.raises(StoreError) as caught:
        chosen(["https://user:secret@h/x", "https://user:secret@h/x"])
    assert "is named twice" in str(caught.value) and "secret" not in str(caught.value)


def test_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen() == ()
    (tmp_path / "work" / "precast.toml").write_text('remotes = ["s3://file"]')
    assert [item.url for item in chosen()] == ["s3://file"]
    monkeypatch.setenv(settings.ENVIRONMENT, "s3://one  redis://two?mode=ro")
    assert [(item.url, item.mode) for item in chosen()] == [("s3://one", "rw"), ("redis://two", "ro")]
    assert [item.url for item in chosen(["s3://flag"])] == ["s3://flag"]
    monkeypatch.setenv(settings.ENVIRONMENT, "")
    assert chosen() == ()  # set to nothing: none, whatever a file says
    assert chosen([]) == ()


TABLE = 'remotes = [{url = "s3://b", mode = "ro", trust = "by:ci", budget = 1.5}, "/mnt/x"]\n'


@pytest.mark.parametrize(("name", "text"), [("precast.toml", TABLE), ("pyproject.toml", f'[project]\nname = "x"\n[tool.precast]\n{TABLE}')])
def test_files_are_found_upward(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_text(text)
    first, second = chosen()
    assert (first.url, first.mode, first.trust, first.budget) == ("s3://b", "ro", "by:ci", 1.5)
    assert second.url == "shared:///mnt/x"
    assert str(tmp_path / name) in first.where and "remotes[0]" in first.where


def test_the_search_ends_at_a_repository_and_at_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "precast.toml").write_text('remotes = ["s3://b"]')
    assert chosen()
    (tmp_path / "work" / ".git").mkdir()
    assert chosen() == ()
    (tmp_path / "work" / ".git").rmdir()
    monkeypatch.setenv("HOME", str(tmp_path / "work"))
    assert chosen() == ()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("precast.toml", "remotes = 7", "remotes is a list"),
        ("precast.toml", "remotes = [7]", "named by its URL"),
        ("precast.toml", "remotes = [{url = 's3://b', mod = 'ro'}]", "'mod' is unknown"),
        ("precast.toml", "remotes = [{url = 's3://b', budget = true}]", "budget=True"),
        ("precast.toml", "remotes = [{url = 's3://b', trust = 1}]", "trust=1"),
        ("precast.toml", "remotes = [", "is no TOML"),
        ("precast.toml", "remotes = " + "[" * 5000, "is no TOML"),
        ("pyproject.toml", "tool = 1\n# remotes", "expected a table"),
        ("pyproject.toml", "[tool]\nprecast = 1  # remotes", "expected a table"),
    ],
)
def test_slips_in_files(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "work" / name).write_text(text)
    with pytest.raises(StoreError) as caught:
        chosen()
    assert said in str(caught.value) and str(tmp_path / "work" / name) in str(caught.value)


def test_a_store_goes_on_without_remotes_where_a_setting_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(settings.ENVIRONMENT, "foo://bar")
    store = Store.open(tmp_path / "store")
    assert store.remotes is None and store.remotes is None
    (record,) = caplog.records
    assert record.message.startswith("PRECAST_REMOTE: foo://bar: there are no remotes of the kind foo://")
    assert record.message.endswith("; going on without remotes")
