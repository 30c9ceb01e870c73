"""Commands over a store of made-up artifacts: output for people, pipes and programs, exit codes, options."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.layout import blob_name, manifest_name
from precast.artifact_store.local import usage
from precast.artifact_store.maintenance.prune import Policy, prune
from precast.artifact_store.tiers.folder import Folder
from precast.cli.main import COMMANDS, main
from precast.cli.output import _tell_missing
from precast.report.units import human_age, human_moment, human_size, parse_duration, parse_size
from tests.artifact_store.sample import fill, make

KEY = "model-0123abcd"


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, f"{words}: {result.output}{result.exception!r}"
    return result


def data(*words: object, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code).stdout)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "s"))
    filled, _ = fill(tmp_path / "s", 2)
    filled.put(*make(2, program_key="other-key", program_name="other", target="cuda:sm_80"))
    return filled


def test_every_command_has_help() -> None:
    for command in COMMANDS:
        assert "Usage:" in run(command, "--help").stdout
    shown = run("--help").stdout
    assert all(command in shown for command in COMMANDS) and "..." not in shown.partition("Commands:")[2]
    commands = [main.get_command(click.Context(main), name) for name in COMMANDS]
    assert all(command is not None and 0 < len(command.short_help or "") < 60 for command in commands)
    for name in ("build", "check", "explain", "tune", "profile"):
        assert "the file's `store`" in " ".join(run(name, "--help").stdout.split())


def test_version() -> None:
    assert run("--version").stdout.strip() == "0.1.0"


@pytest.mark.parametrize(
    "words", [["nonsense"], ["ls", "--nonsense"], ["show"], ["build"], ["prune", "--max-size", "lots"], ["prune", "--older-than", "1x"]]
)
def test_wrong_usage_is_2(words: list[str]) -> None:
    run(*words, code=2)


def test_ls(store: Store) -> None:
    lines = run("ls").stdout.splitlines()
    assert [line.split("\t")[1] for line in lines] == ["model", "model", "other"]  # tab-separated, raw, no heading
    assert all(len(line.split("\t")) == 9 and int(line.split("\t")[4]) > 64 for line in lines)
    human = run("ls", "-H").stdout
    assert "PROGRAM" in human and "just now" in human and "cuda:sm_80" in human
    entries = data("ls")
    assert len(entries) == 3 and entries[0]["versions"]["torch"] == "2.13" and len(entries[0]["id"]) == 64
    assert len(data("ls", "--program", "oth")) == 1
    assert run("ls", "--program", "nothing").stderr == f"No artifacts matching 'nothing' in {store.root}\n"


def test_the_store_option_is_before_the_environment(store: Store, tmp_path: Path) -> None:
    Store.open(tmp_path / "empty").check_writable()
    assert data("ls", "--store", tmp_path / "empty") == []
    shutil.rmtree(tmp_path / "empty")
    assert data("dir", "--store", tmp_path / "empty") == {"store": str(tmp_path / "empty"), "exists": False, "remotes": []}
    assert run("dir").stdout.strip() == str(store.root)


def test_show(store: Store) -> None:
    manifest = store.variants(KEY)[0]
    text = run("show", manifest.artifact_id[:8]).stdout
    for words in (
        manifest.artifact_id,
        "program    model",
        "cpu:x86-64-v3",
        "torch 2.13",
        "4 (",
        "waived     guard on self.counter",
        "mm_0",
        "app.py:12",
    ):
        assert words in text
    guards = run("show", manifest.artifact_id[:8], "--guards").stdout
    assert "self.training\tequals\tFalse" in guards and "app.SCALE\tequals\t1.5" in guards and "code of app:helper" in guards
    source = run("show", manifest.artifact_id, "--source").stdout
    assert "void kernel() {}" in source and "def run(x): ..." in source
    record = data("show", manifest.artifact_id)
    assert record["id"] == manifest.artifact_id and len(record["guards"]) == 4
    assert record["sources"]["forward"]["kernel_source"] == "void kernel() {}"
    assert "self.training equals False" in run("explain", manifest.artifact_id[:8]).stdout


@pytest.mark.parametrize(("identifier", "words"), [("abc", "too short"), ("ffff0000", "no artifact ffff0000"), ("../../x", "no artifact")])
def test_show_of_what_is_not_there(store: Store, identifier: str, words: str) -> None:
    assert words in run("show", identifier, code=1).stderr
    assert words in data("show", identifier, code=1)["error"]


def test_show_of_a_damaged_artifact(store: Store) -> None:
    manifest = store.variants(KEY)[0]
    store.path(blob_name(manifest.graphs["forward"].kernel_source)).unlink()
    assert "MISSING" in run("show", manifest.artifact_id).stdout
    assert "the blob is missing or damaged" in run("show", manifest.artifact_id, "--source").stdout
    store.path(manifest_name(KEY, manifest.artifact_id)).write_bytes(b"")
    assert "precast verify" in run("show", manifest.artifact_id, code=1).stderr


def test_prune(store: Store) -> None:
    assert "no leftovers; without conditions all 3 artifacts stay" in run("prune").stderr
    assert "Nothing to prune: the conditions hold for none of 3" in run("prune", "--older-than", "1d").stderr
    assert re.search(r"Nothing to prune: artifacts take [\d.]+ kB of 100(\.0)? kB$", run("prune", "--max-size", "100k").stderr.strip())
    assert "--keep-last spares them" in run("prune", "--max-size", "1", "--keep-last", 9).stderr
    assert "uses are counted only where" in run("prune", "--unused-for", "1d", "--dry-run").stderr
    assert "Would remove 1 artifact and 0 leftover files" in run("prune", "--target", "cuda:*", "--dry-run").stderr
    assert len(data("ls")) == 3
    report = data("prune", "--target", "cuda:*")
    assert [item["program"] for item in report["removed"]] == ["other"] and report["freed"] > 0 and report["kept"] == 2
    assert len(data("prune", "--keep-last", 1)["removed"]) == 1
    assert data("prune", "--older-than", "1d")["removed"] == []
    assert data("prune", "--unused-for", "1d")["removed"] == []
    assert data("prune", "--max-size", "1M")["removed"] == []
    assert len(data("prune", "--max-size", "0")["removed"]) == 1
    assert run("ls").stdout == ""


def test_a_dry_run_of_prune_counts_the_uses_that_wait(store: Store) -> None:
    used, *rest = sorted(manifest.artifact_id for manifest in store.manifests())
    for manifest in store.manifests():
        os.utime(store.path(manifest_name(manifest.program_key, manifest.artifact_id)), (0, 0))
    usage.note(store.root, used)
    for words in (("--unused-for", "1d"), ("--max-size", "1")):
        told = [item["id"] for item in data("prune", *words, "--dry-run")["removed"]]
        assert (sorted(told) == rest) if words[0] == "--unused-for" else (told[-1] == used)
    assert sorted(item["id"] for item in data("prune", "--unused-for", "1d")["removed"]) == rest


def test_a_full_disk_is_a_problem(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = run("doctor", code=1).output
    assert "cannot be written (No space left on device)" in said and "precast prune" in said
    monkeypatch.setattr(Folder, "check_writable", lambda *_: full(0))
    with pytest.raises(StoreError, match="No space left on device; make room"):
        store.check_writable()


def test_prune_by_the_name_of_a_target(store: Store) -> None:
    assert "there are artifacts for" in run("prune", "--target", "cpu:nonsense").stderr
    store.put(*make(0, program_key="targets", target="cpu:native-0123456789ab"))
    store.put(*make(1, program_key="targets", target="cpu:x86-64-v3"))
    native = [m.artifact_id for m in store.manifests() if m.target.startswith("cpu:native-")]
    assert native
    assert sorted(item["id"] for item in data("prune", "--target", "cpu:native")["removed"]) == sorted(native)


def test_prune_of_stale_versions(store: Store) -> None:
    from precast.artifact_store import Versions
    from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor

    here = Versions(LOWERING_VERSION, torch_minor(), python_minor(), "g++")
    for number, versions in enumerate(
        (
            here,
            Versions("0", here.torch, None, ""),
            Versions(here.lowering, "2.1", None, ""),
            Versions(here.lowering, here.torch, "3.9", ""),
        )
    ):
        store.put(*make(number, program_key="aged", program_name=f"v{number}", versions=versions))
    listed = run("ls", "--program", "aged").stderr
    assert "3 artifacts for other versions than those here" in listed and "1 made for torch 2.1, and " in listed
    told = next(found["detail"] for found in data("doctor") if "other versions" in found["detail"])
    assert "1 made for torch 2.1, and " in told and "1 holds bytecode of Python 3.9" in told
    gone = {item["program"]: item["reason"] for item in data("prune", "--stale-versions")["removed"]}
    assert "other versions" not in run("ls", "--program", "aged").stderr
    assert {"v1", "v2", "v3"} <= gone.keys() and "v0" not in gone
    assert "lowering 0" in gone["v1"] and "torch 2.1" in gone["v2"] and "Python 3.9" in gone["v3"]


def test_verify(store: Store) -> None:
    assert run("verify").stderr.endswith("No problems\n")
    manifest = store.variants(KEY)[0]
    path = store.path(blob_name(manifest.graphs["forward"].library))
    path.chmod(0o600)
    path.write_bytes(b"x")
    assert "does not match its digest" in run("verify", code=1).stdout
    report = data("verify", code=1)
    assert not report["sound"] and {problem["kind"] for problem in report["problems"]} == {"damaged", "incomplete"}
    assert data("verify", "--repair")["sound"]
    assert data("verify")["problems"] == []
    assert len(data("ls")) == 2


def test_repair_says_what_it_set_aside(store: Store) -> None:
    manifest = store.variants(KEY)[0]
    path = store.path(blob_name(manifest.graphs["forward"].library))
    path.chmod(0o600)
    path.write_bytes(b"x")
    store.root.chmod(0o770)
    assert "it cannot be loaded" in run("verify", code=1).stdout
    done = run("verify", "--repair")
    assert sorted(line.rpartition("(")[2] for line in done.stdout.splitlines()) == ["repaired)", "set aside)", "set aside)"]
    assert done.stderr.endswith("1 artifact set aside: build again (`precast build FILE`) before serving\n")


def test_what_a_server_set_aside_is_told_until_it_is_built_again_or_acknowledged(store: Store) -> None:
    manifest = store.variants(KEY)[0]
    path = store.path(manifest_name(KEY, manifest.artifact_id))
    whole = path.read_bytes()
    path.write_bytes(b"bad")
    os.utime(path, (0, 0))
    assert len(Store.open(store.root).variants(KEY)) == 1  # a server: it moves the file away
    for _ in range(2):
        done = run("verify", code=1)
        assert (
            done.stdout.startswith(f"quarantined\tquarantine/programs~{KEY}~{manifest.artifact_id}")
            and "No problems with what is" in done.stderr
        )
        assert (
            "1 file was found damaged" in done.stderr
            and "build again (`precast build FILE`); then `precast verify --repair`" in done.stderr
        )
        report = data("verify", code=1)
        assert report["sound"] and report["problems"] == [] and len(report["quarantined"]) == 1
        assert data("prune")["leftovers"] == []  # it came there just now, however old it was
    path.write_bytes(whole)  # built again
    assert data("verify")["quarantined"] == []
    path.unlink()
    assert "(acknowledged)" in run("verify", "--repair").stdout
    assert data("verify")["quarantined"] == [] and run("verify").stderr.endswith("No problems\n")
    assert data("stats")["quarantined"] == 1


def test_a_wrong_mode_is_mended_by_chmod(store: Store) -> None:
    store.root.chmod(0o775)
    done = run("verify", code=1)
    assert f"chmod 700 {store.root}" in done.stdout and f"`chmod 700 {store.root}` repairs that" in done.stderr


ABSENT = ("ls", "stats", "show abcd1234", "explain abcd1234", "prune", "prune --dry-run", "verify", "verify --repair")


@pytest.mark.parametrize("command", ABSENT)
def test_a_store_that_does_not_exist(tmp_path: Path, command: str) -> None:
    words = (*command.split(), "--store", tmp_path / "typo")
    assert f"there is no store at {tmp_path}/typo" in run(*words, code=1).stderr
    assert f"there is no store at {tmp_path}/typo" in data(*words, code=1)["error"]
    assert not (tmp_path / "typo").exists()


NO_STORE: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty folder": (lambda folder: folder.mkdir(), "is no store: the folder is empty"),
    "a mount point": (lambda folder: (folder / "lost+found").mkdir(parents=True), "it has no file 'format'"),
    "a home": (lambda folder: (folder / "programs" / "mine").mkdir(parents=True), "it has no file 'format'"),
    "a file": (lambda folder: folder.write_text("x"), "a file is in the way"),
}


@pytest.mark.parametrize("kind", NO_STORE)
@pytest.mark.parametrize("by", ["option", "environment"])
def test_what_is_no_store_is_no_success(kind: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nightly check with a mistyped path, or of a disk that is not mounted."""
    make_it, words = NO_STORE[kind]
    make_it(tmp_path / "typo")
    before = sorted(tmp_path.rglob("*"))
    if by == "environment":
        monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "typo"))
    named = ["--store", tmp_path / "typo"] if by == "option" else []
    for command in (*ABSENT, "prune --unused-for 1d"):
        done = run(*command.split(), *named, code=1)
        assert words in done.stderr and not done.stdout
        assert words in data(*command.split(), *named, code=1)["error"]
    assert words in run("doctor", *named, code=1).stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_the_default_store_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was built yet: that is said, and no slip."""
    monkeypatch.delenv("PRECAST_STORE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = tmp_path / "precast" / "store-1"
    for there in (False, True):
        if there:
            root.mkdir(parents=True)
        for command in ("ls", "stats", "prune", "prune --dry-run", "verify"):
            _tell_missing.cache_clear()
            assert f"There is no store yet at {root}: nothing was built" in run(*command.split()).stderr
        assert data("ls") == [] and data("stats")["artifacts"] == 0 and data("verify")["sound"]
        assert "no artifact abcd" in run("show", "abcd", code=1).stderr
    assert "nothing was built yet" in run("doctor").stdout
    (root / "other").write_text("")
    assert "it has no file 'format'" in run("verify", code=1).stderr


def test_a_store_that_lost_its_format_file_is_one(store: Store) -> None:
    (store.root / "format").unlink()
    assert "the format file is missing" in run("verify", code=1).stdout
    (store.root / "CACHEDIR.TAG").unlink()
    assert "the format file is missing (repaired)" not in run("verify", code=1).stdout and len(data("ls")) == 3
    assert data("verify", "--repair")["sound"] and data("verify")["problems"] == []


def test_stats(store: Store) -> None:
    store.used(store.variants(KEY)[0].artifact_id)
    figures = data("stats")
    assert (figures["artifacts"], figures["programs"], figures["hits"], figures["never_used"]) == (3, 2, 1, 2)
    assert figures["by_target"] == {"cpu:x86-64-v3": 2, "cuda:sm_80": 1}
    assert "artifacts\t3" in run("stats").stdout
    assert "just now" in run("stats", "-H").stdout


def test_clean(store: Store, tmp_path: Path) -> None:
    run("clean", code=2)  # nobody to ask
    assert len(data("ls")) == 3
    assert data("clean", "--yes")["freed"] > 0
    assert data("ls") == [] and "Nothing to clean" in run("clean", "--yes", "--store", tmp_path / "none").stderr
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("x")
    assert "is not a precast store" in run("clean", "--yes", "--store", tmp_path / "precious", code=1).stderr
    assert (tmp_path / "precious" / "thesis.tex").exists()


@pytest.mark.parametrize("command", ["ls", "stats", "prune", "verify", "dir"])
def test_a_store_that_cannot_be_used(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("x")
    assert "a file is in the way" in run(command, "--store", tmp_path / "file", code=1).stderr
    assert "a file is in the way" in data(command, "--store", tmp_path / "file", code=1)["error"]


def test_doctor(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = data("doctor")
    assert {"python", "torch", "triton", "compiler", "cpu", "targets", "store"} <= {finding["topic"] for finding in findings}
    assert {finding["state"] for finding in findings} <= {"ok", "warning"}
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert any(f["topic"] == "compiler" and f["state"] == "warning" and "cannot compile" in f["detail"] for f in data("doctor"))
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "text"))
    assert any(f["topic"] == "compiler" and "which is no compiler that says its version" in f["detail"] for f in data("doctor"))
    store.root.chmod(0o777)
    assert "chmod 700" in run("doctor", code=1).stdout
    (tmp_path / "file").write_text("x")
    assert any(f["state"] == "problem" for f in data("doctor", "--store", tmp_path / "file", code=1))


def test_no_colour_in_pipes_nor_with_no_color(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["ls", "-H"], ["doctor"], ["stats", "-H"], ["show", "zzzz"]):
        assert "\x1b[" not in CliRunner().invoke(main, words).output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(main, ["doctor"], color=True).output


@pytest.mark.parametrize("setting", ["NO_COLOR", "TERM"])
def test_no_style_at_all_where_none_is_wanted(store: Store, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    """Bold is one, too: also where FORCE_COLOR would have colours in a pipe."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(main, ["ls", "-H"], color=True).output
    monkeypatch.setenv(setting, "dumb")
    for words in (["ls", "-H"], ["stats", "-H"], ["doctor"], ["show", "zzzz"], ["prune", "--keep-last", "1", "--dry-run", "-H"]):
        assert "\x1b[" not in CliRunner().invoke(main, words, color=True).output


def test_head_does_not_make_a_traceback(store: Store) -> None:
    for number in range(10, 60):
        store.put(*make(number))
    command = f"set -o pipefail; {sys.executable} -m precast.cli show {store.variants(KEY)[0].artifact_id} --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.stdout == "{" and "Traceback" not in done.stderr and done.returncode == 0


def test_who_stops_reading_does_not_make_a_failure(store: Store) -> None:
    """`precast show ID | head -1`, with pipefail: no traceback, and the exit code that the command would have had."""
    for number in range(10, 60):
        store.put(*make(number))
    artifact = store.variants(KEY)[0].artifact_id
    (store.root / "objects" / "zz").mkdir()
    (store.root / "objects" / "zz" / "foreign").write_text("x")
    code = f"""
import sys, subprocess
import os
import rich.console, rich.table  # once, for all the processes below
from precast.cli import main as cli
from precast.cli.health import doctor
from precast.cli.programs import build_commands, demo_and_bench, options, tune
from precast.cli.store import show, store_commands
from precast.artifact_store.maintenance import index, prune, stats, verify
for words, wanted in (
    (["show", {artifact!r}, "--json"], 0), (["show", {artifact!r}], 0), (["show", {artifact!r}, "--source"], 0), (["ls"], 0),
    (["ls", "-H"], 0), (["stats", "--json"], 0), (["verify"], 1), (["--help"], 0), (["prune", "--dry-run"], 0),
    (["show", "ffffffff", "--json"], 1), (["ls", "--json", "--bogus"], 2),
):
    for closed in (1, 2):
        reading, writing = os.pipe()
        os.close(reading)
        said = os.memfd_create("said")
        child = os.fork()
        if not child:
            os.dup2(said, 3 - closed)
            os.dup2(writing, closed)
            sys.argv = ["precast", *words]
            cli.run()
        os.close(writing)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        text = os.pread(said, 1 << 20, 0)
        assert status == wanted and b"Traceback" not in text and b"Exception ignored" not in text, (words, closed, status, text)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_and_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "s"))
    for count in (1, 2):
        store, _ = fill(tmp_path / "s", count, program_key=f"p{count}")
    old = [store.root / "objects" / f".tmp-{number}" for number in range(3)]
    said = []
    for number, path in enumerate(old[:2], 1):
        path.write_text("x")
        os.utime(path, (0, 0))
        done = run("verify", code=1)
        said += [done.stderr, run("prune", "--dry-run").stderr, run("prune", "--target", "*", "--keep-last", 1, "--dry-run").stderr]
        assert f"{number} problem{'s' * (number > 1)};" in done.stderr
    said += [run("prune", "--max-size", 1, "--keep-last", 1).stderr, run("ls").stderr, run("prune", "--older-than", "1d").stderr]
    for one in re.finditer(r"\b1 (\w+)", " ".join(said)):
        assert not one[1].endswith("s"), one[0]
    for many in re.finditer(r"\b(?:0|[2-9]|\d\d+) (artifact|leftover file|problem|manifest|blob)\b(?!s)", " ".join(said)):
        pytest.fail(many[0])


def test_leftovers_that_are_too_young_are_named_with_their_time(store: Store) -> None:
    """`prune` right after a kill: a writer may still be at work."""
    young = [store.root / "objects" / ".tmp-77-a", store.root / "programs" / KEY / ".tmp-77-b", store.root / "leases" / ("ab" * 32)]
    for path in young:
        path.write_text("half")
    done = run("prune")
    due = human_moment(max(path.stat().st_mtime for path in young) + 3600)
    assert "no leftovers that may go yet" in done.stderr and f"after {due}" in done.stderr
    assert "3 leftover files younger than 60 minutes were left, such as objects/.tmp-77-a: a writer may be at work" in done.stderr
    report = data("prune", "--dry-run")
    assert report["leftovers"] == [] and len(report["younger_leftovers"]) == 3 and all(path.exists() for path in young)
    os.utime(young[0], (0, 0))
    done = run("prune")
    assert "Removed 0 artifacts and 1 leftover file" in done.stderr and "2 leftover files younger" in done.stderr
    for path in young[1:]:
        path.unlink()
    assert "no leftovers;" in run("prune").stderr


def test_artifacts_from_the_future(store: Store) -> None:
    """Made where the clock was ahead: they are never old, which is told; a repair dates them."""
    ahead = [store.path(manifest_name(KEY, manifest.artifact_id)) for manifest in store.variants(KEY)]
    run("ls")  # into the index
    for path in ahead:
        os.utime(path, (time.time() + 400 * 86400,) * 2)
    os.utime(ahead[1], (time.time() + 600,) * 2)  # as clocks differ
    for words in (["--older-than", "1d"], ["--unused-for", "1d"], ["--keep-last", "9"], []):
        said = run("prune", *words).stderr
        assert "1 artifact is dated up to 400.0 days ahead of this machine's clock, and cannot count as old: set the clock right" in said
    assert data("prune")["dated_ahead"] == 1
    assert "in 400 d" in run("ls", "-H").stdout
    done = run("verify", code=1)
    assert (
        done.stdout.startswith("clock\tprograms/") and "dated 400.0 days ahead" in done.stdout and "no artifact is damaged" in done.stderr
    )
    assert "(dated now)" in run("verify", "--repair").stdout and data("verify")["problems"] == []
    assert "ahead" not in run("prune").stderr and "in 400 d" not in run("ls", "-H").stdout
    now = time.time() + 5 * 86400
    gone = prune(Store.open(store.root), Policy(unused_for=86400.0), now=now).removed
    assert len(gone) == 3, "also in the index"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1048576", 1048576), ("500M", 500_000_000), ("1.5 GB", 1_500_000_000), ("2GiB", 2 * 2**30), ("3ki", 3072), ("7b", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("90 s", 90), ("2m", 120), ("12h", 43200), ("30d", 2592000), ("2w", 1209600), ("1y", 31536000)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "5 parsecs", "1e9", "i"])
def test_what_is_neither(text: str) -> None:
    for parse in (parse_size, parse_duration):
        with pytest.raises(ValueError, match="write for instance"):
            parse(text)


def test_an_age_without_a_unit_removes_nothing(store: Store) -> None:
    """Who writes 30 means days: as seconds it would take all that is older than half a minute."""
    for option in ("--older-than", "--unused-for"):
        assert "'30' has no unit; write for instance 30d" in run("prune", option, "30", code=2).stderr
    assert len(data("ls")) == 3


@pytest.mark.parametrize("words", [["ls"], ["clean", "--yes"], ["prune"], ["build", "a.b:c"], ["demo"]])
def test_an_empty_store_option_is_not_the_default_store(store: Store, words: list[str]) -> None:
    assert "name a folder, or leave the option away" in run(*words, "--store", "", code=2).stderr
    assert len(data("ls")) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("where", "code", "said"), [("/dev/full", 1, "error: the output cannot be written"), ("&-", 0, "")])
def test_an_output_that_takes_nothing(store: Store, where: str, code: int, said: str) -> None:
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m precast.cli ls >{where}"], capture_output=True, text=True, check=False)
    assert done.returncode == code and done.stderr.startswith(said) and "Traceback" not in done.stderr, done.stderr


def test_prune_of_what_cannot_be_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("precast.artifact_store.tiers.folder.Folder.remove", refuse)
    assert re.search(r"error: cannot remove programs/\S+ from .*: Permission denied; check", run("prune", "--target", "*", code=1).stderr)


def test_for_people() -> None:
    assert [human_size(size) for size in (0, 999, 1000, 1_234_567, 5 * 10**12)] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 TB"]
    now = time.time()
    assert [human_age(now - age, now) for age in (3, 120, 7300, 3 * 86400)] == ["just now", "2 min ago", "2 h ago", "3 d ago"]
    assert [human_age(now + age, now) for age in (3, 120, 7300, 3 * 86400)] == ["just now", "in 2 min", "in 2 h", "in 3 d"]
    assert human_age(None) == "never"
