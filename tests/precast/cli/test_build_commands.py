"""build, check and explain on real programs, each command in a process of its own, as a build machine runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import precast
from precast.artifact_store import Store
from precast.cli.main import main
from tests.precast.cli.app import branch, sine

ROOT = str(Path(__file__).parents[3])
FILE = """
store = "store"
[[program]]
factory = "tests.precast.cli.app:net"
arguments = { batch = 4 }
[[program]]
factory = "tests.precast.cli.app:sine"
name = "sine"
"""


def run(folder: Path, *words: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "precast.cli", *words]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": ROOT, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def data(folder: Path, *words: str, code: int = 0) -> Any:
    return json.loads(run(folder, *words, "--json", code=code).stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a build file whose programs are built, and the report."""
    folder = tmp_path_factory.mktemp("build")
    (folder / "b.toml").write_text(FILE)
    return folder, data(folder, "build", "b.toml")


def test_a_store_that_cannot_be_written_ends_the_build_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b.toml").write_text(FILE)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "objects").write_text("in the way")
    monkeypatch.setattr("precast.compiling.driver.compile_variant", lambda *given: pytest.fail("it compiles"))
    for words in ([], ["--json"]):
        result = CliRunner().invoke(main, ["build", str(tmp_path / "b.toml"), *words])
        assert result.exit_code == 1, result.output
        wanted = f"cannot write to the store at {tmp_path / 'store'}: "
        assert wanted in result.output and "choose another folder with --store or PRECAST_STORE" in result.output
        assert result.output.count("signature 1 of") == 1 and "signature 2 of" not in result.output


def test_what_follows_a_graph_break_is_built_for_every_signature(tmp_path: Path) -> None:
    """The entry of the second signature is there already; where it goes on after the break is not, nor after a repair."""
    words = ("build", "tests.precast.cli.app:branching", "--store", "store")
    stored = Store.open(tmp_path / "store")

    def serves() -> list[bool]:
        precast.reset()
        loaded = precast.load(branch, store=stored, require="hit")
        with torch.no_grad():
            return [torch.equal(loaded(x), branch(x)) for x in (torch.ones(4), -torch.ones(4))]

    def statuses() -> list[str]:
        return [item["status"] for item in data(tmp_path, *words)["programs"]]

    assert statuses() == ["compiled", "compiled"]
    assert serves() == [True, True]
    assert statuses() == ["there already", "there already"]
    parts = [key for key in stored.programs() if "." in key]
    assert len(parts) == 2
    shutil.rmtree(tmp_path / "store" / "programs" / parts[0])
    with pytest.raises(precast.GuardMiss, match="follows a graph break"):
        serves()
    checked = data(tmp_path, "check", *words[1:])["programs"]
    assert all("graph break" in item["reason"] for item in checked)
    assert sorted(statuses()) == ["compiled", "there already"]
    assert serves() == [True, True]


def test_a_store_that_is_mounted_noexec_serves_nothing(built: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What doctor says there, check and a miss say too."""
    folder, _ = built
    for module in ("precast.building.build_job", "precast.runtime.programs.explain_miss"):
        monkeypatch.setattr(f"{module}.mounted_noexec", lambda folder: True)
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(main, ["check", "b.toml"])
    assert result.exit_code != 0 and "is mounted noexec" in result.output


def test_build_reports_every_signature(built: tuple[Path, Any]) -> None:
    folder, report = built
    assert report["good"] and report["store"] == str(folder / "store")
    assert [(item["program"], item["signature"], item["status"]) for item in report["programs"]] == [
        ("net", 1, "compiled"),
        ("net", 2, "compiled"),
        ("sine", 1, "compiled"),
    ]
    assert len({item["artifact"] for item in report["programs"]}) == 3


def test_building_again_compiles_nothing(built: tuple[Path, Any]) -> None:
    folder, first = built
    again = data(folder, "build", "b.toml", "--jobs", "2")
    assert [item["status"] for item in again["programs"]] == ["there already"] * 3
    assert [item["artifact"] for item in again["programs"]] == [item["artifact"] for item in first["programs"]]


def test_check_says_yes_without_a_compiler(built: tuple[Path, Any]) -> None:
    done = run(built[0], "check", "b.toml", CXX="no-such-compiler", PATH="/nonexistent")
    assert "3 of 3 signatures hit" in done.stderr
    assert [line.split("\t")[3] for line in done.stdout.splitlines()] == ["hit"] * 3


def test_check_says_no_and_why(built: tuple[Path, Any]) -> None:
    folder, _ = built
    before = sorted((folder / "store" / "programs").rglob("*.msgpack"))
    done = run(folder, "check", "tests.precast.cli.app:net_of_another_kind", "--store", "store", code=1)
    assert "77" in done.stdout and "0 of 1 signature hits" in done.stderr
    assert re.search(r"1 of \d+ guards does not hold|[2-9] of \d+ guards do not hold", done.stdout)
    explained = run(folder, "explain", "tests.precast.cli.app:net_of_another_kind", "--store", "store", code=1)
    assert "miss" in explained.stdout and "77" in explained.stdout
    assert sorted((folder / "store" / "programs").rglob("*.msgpack")) == before


def test_check_with_other_options_gives_one_hint(built: tuple[Path, Any]) -> None:
    (missed,) = data(built[0], "check", "b.toml", "--only", "sine", "--mode", "max-autotune", code=1)["programs"]
    assert "the store holds this code compiled with" in missed["reason"] and "precast build" not in missed["reason"]


def test_settings_are_checked_before_factories_are_called(built: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(built[0])
    Path("raises.toml").write_text('[[program]]\nfactory = "tests.precast.cli.app:raises"\noptions = { freeze = true }')
    for words, message in (
        (("--target", "abacus:9"), "cpu:x86-64,"),
        (("--mode", "max-autotune"), "raises.toml: program 1 (raises): --mode max-autotune and the file's `options` exclude one another"),
    ):
        done = CliRunner().invoke(main, ["check", "raises.toml", *words])
        assert done.exit_code == 2 and message in done.output, done.output
    done = CliRunner().invoke(main, ["check", "tests.precast.cli.app:raises", "--mode", "zippy"])
    assert done.exit_code == 2 and "unknown mode 'zippy'" in done.output


def test_check_of_another_target_says_no(built: tuple[Path, Any]) -> None:
    report = data(built[0], "check", "b.toml", "--only", "sine", "--target", "cpu:x86-64-v2", code=1)
    assert [item["status"] for item in report["programs"]] == ["miss"]


def test_an_artifact_whose_blobs_are_lost_is_no_hit_and_is_built_again(built: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(built[0] / "store", tmp_path / "store")
    for path in (tmp_path / "store" / "objects").glob("*/*"):
        path.unlink()
    words = ("b.toml", "--only", "sine", "--store", str(tmp_path / "store"))
    (missed,) = data(built[0], "check", *words, code=1)["programs"]
    assert missed["status"] == "miss" and "guards hold), and cannot be loaded: blobs of it are missing or damaged" in missed["reason"]
    (again,) = data(built[0], "build", *words)["programs"]
    assert again["status"] == "compiled"
    data(built[0], "check", *words)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["build", "tests.precast.cli.app:raises"],
            1,
            "factory tests.precast.cli.app:raises failed: RuntimeError: the weights file is not there",
        ),
        (["build", "tests.precast.cli.app:returns_three"], 2, "must return (callable, [(args, kwargs), …])"),
        (["build", "none.toml"], 2, "none.toml: cannot be read"),
        (["build", "b.toml", "--only", "zzz"], 2, "no program is called 'zzz'; it has net, sine"),
        (["build", "b.toml", "--mode", "zippy"], 2, "unknown mode 'zippy'"),
        (["build", "b.toml", "--store", "/dev/null"], 1, "a file is in the way"),
        (["build", "tests.precast.cli.app:sine", "--target", "abacus:9"], 2, "unknown target 'abacus:9'"),
    ],
)
def test_what_goes_wrong_is_told(
    built: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(built[0])
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == code, done.output
    assert message in done.output and "Traceback" not in done.output


@torch.no_grad()
def test_with_dynamic_shapes_one_artifact_serves_other_sizes(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(FILE.replace('name = "sine"', 'dynamic_shapes = { x = { 0 = "n" } }'))
    (item,) = data(tmp_path, "build", "b.toml", "--only", "sine")["programs"]
    assert item["status"] == "compiled"
    (function, _), store = sine(), tmp_path / "store"
    for size in (5, 9, 70):
        torch.testing.assert_close(precast.load(function, store=store)(torch.ones(size)), function(torch.ones(size)))


def test_dynamic_shapes_that_do_not_fit_are_told_also_when_all_is_there(built: tuple[Path, Any]) -> None:
    for shapes, words in (('{ y = { 0 = "n" } }', "no argument 'y'"), ('{ x = { 7 = "n" } }', "dimension 7")):
        (built[0] / "shapes.toml").write_text(FILE.replace('name = "sine"', f'name = "sine"\ndynamic_shapes = {shapes}'))
        assert words in run(built[0], "build", "shapes.toml", "--only", "sine", code=2).stderr


def invoke(*words: str, code: int) -> tuple[Any, str]:
    """What a command in this process says as JSON, and beside it."""
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout), result.stderr


def test_a_signature_that_does_not_fit_is_named_and_the_others_are_built(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(
        'store = "s"\n' + "".join(f'[[program]]\nfactory = "tests.precast.cli.app:{name}"\n' for name in ("misfits", "sine"))
    )
    file = str(tmp_path / "b.toml")
    built, _ = invoke("build", file, code=1)
    assert [o["status"] for o in built["programs"]] == ["compiled", "failed", "failed", "failed", "compiled"]
    assert "TypeError" in built["programs"][1]["reason"] and not built["good"]
    checked, _ = invoke("check", file, code=1)
    assert [o["status"] for o in checked["programs"]] == ["hit", "miss", "miss", "miss", "hit"]
    explained, _ = invoke("explain", file, code=1)
    assert "TypeError" in explained[2]["reason"]


@pytest.mark.parametrize("command", ["build", "check"])
@pytest.mark.parametrize("status", [0, "please install something"])
def test_a_factory_that_exits_is_no_success(command: str, status: object, tmp_path: Path) -> None:
    text = f'store = "s"\n[[program]]\nfactory = "tests.precast.cli.app:exits"\narguments = {{ status = {json.dumps(status)} }}\n'
    (tmp_path / "b.toml").write_text(text)
    answer, beside = invoke(command, str(tmp_path / "b.toml"), code=1)
    assert f"factory tests.precast.cli.app:exits failed: SystemExit: {status}" in answer["error"]
    assert str(status) in beside


def test_a_run_that_raises_behind_a_break_is_incomplete(tmp_path: Path) -> None:
    built, _ = invoke("build", "tests.precast.cli.app:breaks_and_raises", "--store", str(tmp_path / "s"), code=1)
    first, second = built["programs"]
    assert first["status"] == "incomplete" and "running it up to its end failed" in first["reason"]
    assert second["status"] in ("compiled", "there already") and not built["good"]


def test_dynamic_shapes_that_are_added_later_are_built(tmp_path: Path) -> None:
    """The artifact of the fixed size serves the signature; it is not what the file asks for."""
    text = 'store = "s"\n[[program]]\nfactory = "tests.precast.cli.app:sine"\n'
    file = tmp_path / "b.toml"
    file.write_text(text)
    fixed, _ = invoke("build", str(file), code=0)
    file.write_text(text + 'dynamic_shapes = { x = { 0 = "rows" } }\n')
    missing, _ = invoke("check", str(file), code=1)
    marked, _ = invoke("build", str(file), code=0)
    (first,), (none,), (second,) = fixed["programs"], missing["programs"], marked["programs"]
    assert second["status"] == "compiled" and second["artifact"] != first["artifact"] and none["status"] == "miss"
    again, _ = invoke("build", str(file), code=0)
    assert again["programs"][0]["status"] == "there already" and invoke("check", str(file), code=0)[0]["good"]
    for wrong in ('{ x = { a = "rows" } }', '{ x = { 0 = { min = "a" } } }', "{ x = { 0 = true } }", '{ x = { 7 = "rows" } }'):
        file.write_text(text + f"dynamic_shapes = {wrong}\n")
        assert "dynamic_shapes of x" in invoke("build", str(file), code=2)[0]["error"]


def test_wrong_usage_is_json_too(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text("nonsense = 1\n")
    assert "nonsense" in invoke("build", str(tmp_path / "b.toml"), code=2)[0]["error"]
    assert "bogus" in invoke("check", "tests.precast.cli.app:sine", "--mode", "bogus", code=2)[0]["error"]


def test_what_failed_in_a_process_of_its_own_is_told(tmp_path: Path) -> None:
    text = 'store = "s"\n' + "".join(f'[[program]]\nfactory = "tests.precast.cli.app:{name}"\n' for name in ("raises", "exits"))
    (tmp_path / "b.toml").write_text(text)
    raised, left = data(tmp_path, "build", "b.toml", "--jobs", "2", code=1)["programs"]
    assert "factory tests.precast.cli.app:raises failed: RuntimeError: the weights file is not there" in raised["reason"]
    assert "SystemExit: 0" in left["reason"]


APP = str(Path(__file__).parent / "app.py")
BROKEN = {"syntax": "x = 1\ndef f(:\n", "inside": "import json\n\ny = 1 / 0\n", "missing": "import json\nimport not_there_at_all\n"}


@pytest.mark.parametrize("command", ["build", "check", "explain", "tune", "profile"])
@pytest.mark.parametrize(
    ("factory", "code", "lines"),
    [
        ("tests.precast.cli.app:raises", 1, [APP, "in raises", 'raise RuntimeError("the weights file is not there")']),
        ("tests.precast.cli.app:raises_in_a_library", 1, ["in raises_in_a_library", "return _weights()", "in _weights", "json/decoder.py"]),
        (
            "tests.precast.cli.app:raises_with_a_cause",
            1,
            ["ValueError: no model", "in raises_with_a_cause", "caused by RuntimeError: the weights"],
        ),
        ("tests.precast.cli.app:exits", 1, ["SystemExit: 0", "raise SystemExit(status)"]),
        ("broken_syntax:f", 1, ["broken_syntax.py", "line 2", "def f(:", "^"]),
        ("broken_inside:f", 1, ["broken_inside.py:3 in <module>", "y = 1 / 0"]),
        ("broken_missing:f", 2, ["No module named 'not_there_at_all'", "broken_missing.py:2 in <module>", "import not_there_at_all"]),
    ],
)
def test_whose_lines_raised_is_told(
    command: str, factory: str, code: int, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in BROKEN.items():
        (tmp_path / f"broken_{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("precast.cli.programs.tune.device_lab", lambda: ("cuda:sm_90", None))
    for words in ([], ["--json"]):
        done = CliRunner().invoke(main, [command, factory, "--store", str(tmp_path / "s"), *words])
        told = json.loads(done.stdout)["error"] if words else done.stderr
        assert done.exit_code == code and all(line in told for line in lines), done.output
        assert (
            "precast/" not in told.replace("tests/precast/", "")
            and "Traceback" not in told
            and "-v or PRECAST_LOGS=driver shows the whole stack" in told
        )


def test_the_whole_stack_where_it_is_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, "check", "tests.precast.cli.app:raises_in_a_library", "--store", str(tmp_path / "s"), "-v", code=1)
    assert "Traceback (most recent call last)" in done.stderr and "build_file.py" in done.stderr and "in raw_decode" in done.stderr
    assert "shows the whole stack" not in done.stderr


def test_a_program_that_raises_is_told_with_its_lines(tmp_path: Path) -> None:
    built, _ = invoke("build", "tests.precast.cli.app:raising", "--store", str(tmp_path / "s"), code=1)
    (outcome,) = built["programs"]
    assert outcome["status"] == "failed" and outcome["reason"].startswith(
        "the program itself raises for this call: ValueError: never trained"
    )
    assert "in forward" in outcome["reason"] and 'raise ValueError("never trained")' in outcome["reason"]


def test_check_answers_for_a_machine_as_its_loader_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine is: a level's machine runs what was built for the levels below it."""
    words = ("tests.precast.cli.app:sine", "--store", str(tmp_path / "s"))
    (built,) = invoke("build", *words, "--target", "cpu:x86-64-v2", code=0)[0]["programs"]
    for here in (True, False):
        if not here:
            monkeypatch.setattr("precast.runtime.targets.ladder.rank", lambda target: None)
        for target, code in (
            ("cpu:x86-64-v4", 0),
            ("cpu:x86-64-v3", 0),
            ("cpu:x86-64-v2", 0),
            ("cpu:x86-64", 1),
            ("cpu:native-0123abcd", 1),
        ):
            (item,) = invoke("check", *words, "--target", target, code=code)[0]["programs"]
            assert item["status"] == ("miss" if code else "hit") and item["artifact"] == (None if code else built["artifact"])
            if code:
                assert f"which a machine for {target} does not run" in item["reason"] and f"--target {target}`" in item["reason"]
            else:
                said = "by what was built for cpu:x86-64-v2, which such a machine runs too; `precast build … --target "
                assert item["reason"].startswith(said) or target == "cpu:x86-64-v2"
    (better,) = invoke("build", *words, "--target", "cpu:x86-64-v3", code=0)[0]["programs"]
    assert better["status"] == "compiled", "a build makes what it is asked for"
    (item,) = invoke("check", *words, "--target", "cpu:x86-64-v4", code=0)[0]["programs"]
    assert item["artifact"] == better["artifact"] and "built for cpu:x86-64-v3" in item["reason"]


def test_the_report_says_how_to_look_at_what_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b.toml").write_text('store = "a store"\n[[program]]\nfactory = "tests.precast.cli.app:sine"\n')
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["build", "b.toml"]).stderr.endswith(": precast ls --store 'a store'\n")
    assert len(CliRunner().invoke(main, ["ls", "--store", "a store"]).stdout.splitlines()) == 1
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "a store"))
    assert CliRunner().invoke(main, ["build", "tests.precast.cli.app:sine"]).stderr.endswith(": precast ls\n")


@pytest.mark.parametrize(("outcome", "status"), [("taken", "taken"), ("hit", "there already")])
def test_what_another_build_makes_meanwhile_is_not_called_compiled(
    outcome: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other build comes in between the look at the store and the compile."""
    real = precast.precompile

    def with_another(model: Any, **given: Any) -> Any:
        made = real(model, **{**given, "store": Store.open(tmp_path / "s")})
        assert made.signatures[0].outcome == "compiled"
        return replace(made, signatures=(replace(made.signatures[0], outcome=outcome),))

    monkeypatch.setattr(precast, "precompile", with_another)
    built, beside = invoke("build", "tests.precast.cli.app:sine", "--store", str(tmp_path / "s"), code=0)
    (item,) = built["programs"]
    assert item["status"] == status and built["good"] and built["counts"][status] == 1 and built["counts"]["compiled"] == 0
    assert ("1 taken from another build" in beside) is (status == "taken") is ("another process was building it" in item["reason"])
