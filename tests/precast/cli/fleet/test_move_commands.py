"""`precast push`, `pull`, `sync` and `diff`: what they say, their exit codes, and a build file as the choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from precast.artifact_store import Store
from precast.cli.fleet.progress import line
from precast.cli.main import main
from tests.artifact_store.sample import fill, make, snapshot
from tests.artifact_store.trust.known_keys import known_key
from tests.support.needs import needs

needs("zstandard")


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def answer(*words: object) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code in (0, 1), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def shared(tmp_path: Path) -> str:
    (tmp_path / "shared").mkdir()
    return f"shared://{tmp_path}/shared"


def test_there_and_back(shared: str, tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "a", 3)
    would = answer("push", shared, "--store", store.root, "--dry-run")
    assert would["dry_run"] and [row["id"] for row in would["wanted"]] == sorted(ids) and would["moved"] == []
    assert not any((tmp_path / "shared").rglob("*.msgpack")) and answer("push", shared, "--store", store.root, "--dry-run") == {
        **would,
        "seconds": pytest.approx(would["seconds"], abs=60),
    }
    done = run("push", shared, "--store", store.root)
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 3
    assert f"Moved 3 artifacts ({sum(map(int, (row.split()[-1] for row in done.stdout.splitlines()))) / 1000:.1f} kB)" in done.stderr
    again = run("push", shared, "--store", store.root)
    assert again.exit_code == 0 and again.stdout == "" and "3 artifacts there already" in again.stderr
    refused = run("pull", shared, "--store", tmp_path / "b")
    assert refused.exit_code == 1 and refused.stdout == ""
    assert refused.stderr.count("it is not signed") == 1 and "model " in refused.stderr and "3 not moved" in refused.stderr
    came = answer("pull", shared, "--store", tmp_path / "b", "--trust", "any")
    assert [row["id"] for row in came["moved"]] == sorted(ids) and came["sent"] > 0 and came["not_moved"] == []
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_nothing_that_was_chosen_is_a_no(shared: str, tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "a", 3)
    for words in (("--program", "decoder"), ("--target", "cuda:*"), ("--older-than", "1d")):
        done = run("push", shared, "--store", store.root, *words)
        assert done.exit_code == 1 and "has no artifact that was chosen; it has 3 other artifacts" in done.stderr
    done = run("pull", shared, "--store", tmp_path / "b")
    assert done.exit_code == 1 and "Nothing to pull" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("push", "nothing"), 1, "is no URL"),
        (("push", "ftp://x/y"), 1, "ftp://"),
        (("push",), 1, "name a URL, or a remote that may be written"),
        (("pull",), 1, "name a URL"),
        (("push", "oci://ghcr.io/Models"), 1, "lower-case"),
        (("push", "oci://ghcr.io/models@sha256:" + "ab" * 32), 1, "push to a tag"),
        (("push", "s3://bucket/x", "--trust", "some"), 1, "is none of"),
        (("push", "shared:///nowhere/at/all"), 1, "mounted"),
        (("push", "s3://b", "--jobs", "0"), 2, "--jobs"),
        (("push", "s3://b", "--older-than", "30"), 2, "has no unit"),
        (("push", "s3://b", "--build", "missing.toml"), 2, "cannot be read"),
        (("sync", "/nowhere/a", "/nowhere/b"), 1, "there is no store at /nowhere/a"),
        (("diff", "/nowhere/a", "/nowhere/b"), 1, "there is no store at /nowhere/a"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(words: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: Any) -> None:
    store, _ = fill(tmp_path / "a", 1)
    monkeypatch.setenv("PRECAST_STORE", str(store.root))
    monkeypatch.delenv("PRECAST_REMOTE", raising=False)
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code == code and said in done.stderr and done.stdout == ""


def test_without_a_url_the_nearest_remote_is_taken(shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "a", 1)
    monkeypatch.setenv("PRECAST_REMOTE", f"{shared}?mode=ro {shared}-2?trust=any")
    (tmp_path / "shared-2").mkdir()
    pushed = answer("push", "--store", tmp_path / "a")
    assert pushed["to"].endswith("shared-2") and len(pushed["moved"]) == 1
    assert answer("pull", "--store", tmp_path / "b")["from"].endswith("shared")
    monkeypatch.setenv("PRECAST_REMOTE", f"{shared}-2?trust=any")
    assert len(answer("pull", "--store", tmp_path / "b")["moved"]) == 1


def test_a_push_signs_with_the_key_of_the_environment(shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precast.artifact_store.trust.keys import to_pem

    store, ids = fill(tmp_path / "a", 2)
    key = known_key("ci")
    monkeypatch.setenv("PRECAST_SIGNING_KEY", to_pem(key).decode())
    monkeypatch.setenv("PRECAST_TRUST", str(tmp_path / "keyring"))
    assert len(answer("push", shared, "--store", store.root)["moved"]) == 2
    monkeypatch.delenv("PRECAST_SIGNING_KEY")
    unknown = run("pull", shared, "--store", tmp_path / "b")
    assert unknown.exit_code == 1 and f"signed by key {key.public.id}, which is unknown here" in unknown.stderr
    (tmp_path / "keyring").write_text(f"{key.public.line()}\n")
    assert len(answer("pull", shared, "--store", tmp_path / "b")["moved"]) == 2
    other = Store.open(tmp_path / "b")
    assert all([one.key for one in other.signatures(m)] == [key.public.id] for m in other.manifests()) and len(ids) == 2


def test_sync_gives_what_is_lacking_one_way_or_both(tmp_path: Path) -> None:
    one, two = Store.open(tmp_path / "a"), Store.open(tmp_path / "b")
    for number in (1, 2):
        one.put(*make(number))
    for number in (2, 3):
        two.put(*make(number))
    assert [len(way["moved"]) for way in answer("sync", one.root, two.root)["ways"]] == [1]
    assert len(list(one.manifests())) == 2 and len(list(two.manifests())) == 3
    assert [len(way["moved"]) for way in answer("sync", one.root, two.root, "--both-ways")["ways"]] == [0, 1]
    assert len(list(one.manifests())) == 3
    fresh = run("sync", one.root, tmp_path / "c")
    assert fresh.exit_code == 0 and "Moved 3 artifacts" in fresh.stderr
    assert run("diff", one.root, tmp_path / "c").exit_code == 0


def test_diff_of_two_stores_in_words(tmp_path: Path, shared: str) -> None:
    one, two = Store.open(tmp_path / "a"), Store.open(tmp_path / "b")
    a = one.put(*make(1, program_key="encoder-1", program_name="encoder"))
    b = two.put(*make(2, program_key="decoder-1", program_name="decoder", target="cuda:sm_90"))
    for store, seconds in ((one, 1), (two, 2)):
        store.put(*make(3, evidence={"seconds": seconds}))
        store.put(*make(4))
    one.put_record("tuning", "cpu", {"choices": {}})
    done = run("diff", one.root, two.root)
    assert done.exit_code == 1
    assert [line.split("\t")[:2] for line in done.stdout.splitlines()] == [[">", "decoder"], ["<", "encoder"], ["~", "model"]]
    assert "1 artifact only in" in done.stderr and "the same code and other notes" in done.stderr and "1 artifact is equal" in done.stderr
    people = run("diff", one.root, two.root, "-H").stdout
    assert f"encoder (encoder-1)\n  only in {one.root}: 1 artifact" in people and f"{a[:12]} for cpu:x86-64-v3" in people
    assert f"{b[:12]} for cuda:sm_90" in people and f"named records only in {one.root}: tuning/cpu" in people
    found = answer("diff", one.root, two.root)
    assert [row["id"] for row in found["only_first"]] == [a] and [row["id"] for row in found["only_second"]] == [b]
    assert [row["code"] for row in found["changed"]] == [False] and not found["same"]
    assert run("push", shared, "--store", one.root).exit_code == 0
    assert run("diff", one.root, shared).exit_code == 0 and run("diff", two.root, shared).exit_code == 1
    assert run("diff", one.root, two.root, "--program", "model").exit_code == 0


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, 100, 1.0, "push 2 artifacts: 0 B of 100 B (0 %), 0 B/s"),
        (25_000_000, 100_000_000, 5.0, "push 2 artifacts: 25.0 MB of 100.0 MB (25 %), 5.0 MB/s, 15 s left"),
        (0, 0, 0.0, "push 2 artifacts: 0 B of 0 B (100 %), 0 B/s"),
    ],
)
def test_progress_in_a_log(done: int, total: int, seconds: float, text: str) -> None:
    assert line("push 2 artifacts", done, total, seconds) == text


BUILD = """
store = "built"
[[program]]
factory = "tests.precast.cli.app:sine"
[[program]]
factory = "tests.precast.cli.app:branching"
"""


def test_a_build_file_chooses_its_programs_and_what_follows_their_graph_breaks(
    shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, part = tmp_path / "all.toml", tmp_path / "part.toml"
    whole.write_text(BUILD)
    head, _, branching = BUILD.split("[[program]]")
    part.write_text(f"{head}[[program]]{branching}")
    assert run("build", whole, "--jobs", "1").exit_code == 0
    built = Store.open(tmp_path / "built")
    keys = {manifest.program_key for manifest in built.manifests()}
    assert len(keys) == 4, "sine, branch, and the two ways on after branch's graph break"
    pushed = answer("push", shared, "--build", part)
    assert {row["program_key"].partition("-")[0] for row in pushed["moved"]} == {"branch"} and pushed["others"] == 1
    fetched = answer("pull", shared, "--build", part, "--store", tmp_path / "c", "--trust", "any")
    assert len(fetched["moved"]) == len(pushed["moved"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert run("check", part, "--store", tmp_path / "c").exit_code == 0
    assert run("check", whole, "--store", tmp_path / "c").exit_code == 1
