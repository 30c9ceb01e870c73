"""`loss` and `optimizer` in a build file: a whole step is built, proved by check, and taken by a process that may compile nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import precast
from precast.building.build_file import BuildFileError, load, parse
from precast.cli.main import main
from tests.precast.cli.app import net_in_training

TABLE: dict[str, Any] = {"factory": "tests.precast.cli.app:net_in_training", "name": "net", "train": True}
FILE = """
store = "store"
[[program]]
factory = "tests.precast.cli.app:net_in_training"
options = { dynamic = "yes" }
train = true
loss = "tests.precast.cli.app:mean_loss"
optimizer = "tests.precast.cli.app:momentum"
"""


def outcomes(*words: str, code: int = 0) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == code, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["programs"]
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("step")
    (folder / "step.toml").write_text(FILE)
    assert {item["status"] for item in outcomes("check", str(folder / "step.toml"), code=1)} == {"miss"}
    made = outcomes("build", str(folder / "step.toml"), "--jobs", "1")
    names = ["net_in_training"] * 2 + ["net_in_training.loss"] + ["net_in_training.optimizer"] * 2
    assert [item["program"] for item in made] == names  # momentum: the first step makes the buffer, and is an update of its own
    assert [item["status"] for item in made] == ["compiled", "there already", "compiled", "compiled", "compiled"], made
    return folder


def test_check_proves_all_of_it(built: Path) -> None:
    found = outcomes("check", str(built / "step.toml"))
    assert {item["status"] for item in found} == {"hit"} and len({item["artifact"] for item in found}) == 4
    assert {item["status"] for item in outcomes("build", str(built / "step.toml"), "--jobs", "1")} == {"there already"}
    missed = outcomes("check", str(built / "step.toml"), "--target", "cuda:sm_90", "--only", "net_in_training.optimizer", code=1)
    assert "nothing is stored of torch.optim:sgd" in missed[0]["reason"]


def test_a_step_compiles_nothing(built: Path) -> None:
    """Model, loss and optimiser of a training process, of other sizes than the optimiser that was built."""
    model, [((x,), _), *_] = net_in_training()
    criterion, wanted = torch.nn.functional.mse_loss, torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    given: dict[str, Any] = {"store": built / "store", "options": {"dynamic": "yes"}}
    called, loss = (precast.load(f, require="hit", **given) for f in (model, criterion))
    optimizer.step = precast.compile(optimizer.step, **given)  # type: ignore[method-assign]
    before = [p.detach().clone() for p in model.parameters()]
    with torch.enable_grad(), precast.set_stance("fail_on_recompile"):
        for _ in range(3):
            loss(called(x), wanted).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"optimizer": "a:b", "train": False}, "`optimizer` is of a program that trains: add train = true"),
        ({"loss": "a"}, "names a factory, not 'a'"),
        ({"optimiser": "a:b"}, "did you mean 'optimizer'"),
    ],
)
def test_what_is_wrong_in_a_file(more: dict[str, Any], said: str) -> None:
    with pytest.raises(BuildFileError, match=said):
        parse({"program": [{**TABLE, **more}]}, "b.toml", Path())


def test_a_factory_that_makes_no_optimiser() -> None:
    *_, spec = parse({"program": [{**TABLE, "optimizer": "tests.precast.cli.app:net_in_training"}]}, "b.toml", Path()).programs
    with pytest.raises(BuildFileError, match="net.optimizer.* must return an optimiser, and returned"):
        load(spec)


def test_an_optimiser_whose_steps_are_not_compiled(tmp_path: Path) -> None:
    (tmp_path / "step.toml").write_text(FILE.replace("app:momentum", "app:no_rule"))
    for command, status in (("build", "failed"), ("check", "miss")):
        (item,) = outcomes(command, str(tmp_path / "step.toml"), "--only", "net_in_training.optimizer", code=1)
        assert (item["status"], item["reason"]) == (status, "a step of LBFGS runs eagerly: it has no rule, or a step of its own")
