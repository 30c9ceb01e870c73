"""Build files: what is right comes through, what is wrong is told by place (a table)."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast.building.build_file import BuildFileError, load, parse, read

GOOD = """
store = "kept"
targets = ["cpu:x86-64-v3"]
path = [".", "lib"]
[[program]]
factory = "app:net"
arguments = { batch = 4 }
name = "encoder"
mode = "max-autotune"
[[program]]
factory = "app:sine"
options = { freeze = true }
targets = ["cpu:native", "cpu:x86-64-v4"]
"""


def test_a_good_file(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(GOOD)
    plan = read(str(tmp_path / "b.toml"))
    assert plan.store == str(tmp_path / "kept")
    assert plan.path == (str(tmp_path), str(tmp_path / "lib"))
    first, second = plan.programs
    assert (first.name, first.label, first.mode, first.arguments) == ("encoder", "encoder", "max-autotune", {"batch": 4})
    assert first.targets == ("cpu:x86-64-v3",) and second.targets == ("cpu:native", "cpu:x86-64-v4")
    assert (second.name, second.label, second.options) == ("sine", None, {"freeze": True})


def test_an_import_path_is_a_build_of_one() -> None:
    (only,) = read("pkg.mod:factory").programs
    assert (only.factory, only.name, only.label, only.targets) == ("pkg.mod:factory", "factory", None, ("cpu:native",))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "b.toml: needs at least one [[program]] table"),
        ({"program": {"factory": "a:b"}}, "needs at least one [[program]] table"),
        ({"programs": []}, "unknown key 'programs'; did you mean 'program'?"),
        ({"program": [{}]}, 'program 1: needs factory = "pkg.mod:function"'),
        ({"program": [{"factory": "nocolon"}]}, 'program 1: needs factory = "pkg.mod:function"'),
        ({"program": [{"factory": "a:b", "taget": ["x"]}]}, "program 1: unknown key 'taget'; did you mean 'targets'?"),
        ({"program": [{"factory": "a:b"}, {"factory": "c:d", "zzz": 1}]}, "program 2: unknown key 'zzz'; known: arguments, dynamic"),
        ({"program": [{"factory": "a:b", "targets": "cpu:native"}]}, "program 1: targets must be a list of texts, not str 'cpu:native'"),
        ({"program": [{"factory": "a:b", "options": ["freeze"]}]}, "program 1: `arguments` and `options` are tables"),
        ({"program": [{"factory": "a:b", "mode": 3}]}, "program 1: mode must be a text, not int 3"),
        ({"program": [{"factory": "a:b", "mode": "default", "options": {}}]}, "program 1: `mode` and `options` exclude one another"),
        ({"program": [{"factory": "a:b"}, {"factory": "c:b"}]}, "two programs are called 'b'"),
        ({"program": [{"factory": "a:b"}], "store": ["x"]}, "store must be a text"),
        ({"program": [{"factory": "a:b"}], "store": ""}, "store is empty; give it a value, or leave it out"),
    ],
)
def test_a_wrong_file(content: dict[str, object], words: str) -> None:
    with pytest.raises(BuildFileError) as caught:
        parse(content, "b.toml", Path("/somewhere"))
    assert words in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BuildFileError, match="cannot be read"):
        read(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(BuildFileError, match=r"not valid TOML: [^;]*$"):
        read(str(tmp_path / "bad.toml"))
    (tmp_path / "app.py").write_text("import torch")
    with pytest.raises(BuildFileError, match="not valid TOML: .*; give a TOML file or pkg.mod:factory"):
        read(str(tmp_path / "app.py"))


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("no_such_module_at_all:x", "cannot import no_such_module_at_all"),
        ("tests.precast.cli.app:nett", "has no function 'nett'; did you mean 'net'?"),
        ("tests.precast.cli.app:returns_three", "must return (callable, [(args, kwargs), …]), and returned int 3"),
        ("tests.precast.cli.app:compiled", "returned a compiled program; return the callable, and give"),
        (
            "tests.precast.cli.app:helper",
            "app:helper(x: 'torch.Tensor') -> 'torch.Tensor': missing a required argument: 'x'; its",
        ),
        ("tests.precast.cli.app:no_signatures", "returned no signatures"),
        ("tests.precast.cli.app:not_a_signature", "signature 1 of factory tests.precast.cli.app:not_a_signature is not (args, kwargs)"),
    ],
)
def test_a_wrong_factory(factory: str, words: str) -> None:
    with pytest.raises(BuildFileError) as caught:
        load(read(factory).programs[0])
    assert words in str(caught.value)


def test_the_file_in_the_documentation_is_right() -> None:
    import tomllib

    text = (Path(__file__).parents[3] / "docs" / "build-file.md").read_text("utf-8")
    block = text.split("```toml\n")[1].split("```")[0]
    (program,) = parse(tomllib.loads(block), "docs", Path("/x")).programs
    assert (program.factory, program.arguments, program.label) == ("service.models:encoder", {"batch": 8}, "encoder")


def test_dynamic_shapes_are_a_table(tmp_path: Path) -> None:
    content = {"program": [{"factory": "a:b", "dynamic_shapes": {"x": {"0": "rows"}}}]}
    assert parse(content, "f.toml", tmp_path).programs[0].dynamic_shapes == {"x": {"0": "rows"}}
    with pytest.raises(BuildFileError, match="`dynamic_shapes` is a table"):
        parse({"program": [{"factory": "a:b", "dynamic_shapes": "x"}]}, "f.toml", tmp_path)
