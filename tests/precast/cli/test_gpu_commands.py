"""Commands about GPUs on a machine that has none: builds for several architectures, checks for such machines, what images hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from precast.artifact_store import Store
from precast.cli.health.doctor_gpu import findings
from precast.cli.main import main
from precast.runtime.targets import nvidia_devices
from tests.support.needs import needs

FILE = """
store = "store"
targets = ["cuda:sm_80", "cuda:sm_90", "cuda:sm_100", "cuda:ptx_80"]
[[program]]
factory = "tests.precast.cli.app:net"
"""


def data(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Any]]:
    """A build file, its store, and the report of building it."""
    needs("triton")
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "b.toml").write_text(FILE)
    yield str(folder / "b.toml"), str(folder / "store"), data("build", str(folder / "b.toml"))


def test_every_target_gets_its_artifacts(store: tuple[str, str, Any]) -> None:
    file, _, report = store
    assert [(item["target"], item["signature"], item["status"]) for item in report["programs"]] == [
        (target, number, "compiled") for target in ("cuda:sm_80", "cuda:sm_90", "cuda:sm_100", "cuda:ptx_80") for number in (1, 2)
    ]
    assert len({item["artifact"] for item in report["programs"]}) == 8
    assert {item["status"] for item in data("build", file)["programs"]} == {"there already"}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("cuda:sm_90", ""),
        ("cuda:sm_80", ""),
        ("cuda:sm_100", ""),
        ("cuda:sm_86", "by its fall-back for cuda:sm_80"),
        ("cuda:sm_120", "by its fall-back for cuda:ptx_80"),
    ],
)
def test_check_for_machines_that_are_not_here(store: tuple[str, str, Any], target: str, reason: str) -> None:
    report = data("check", store[0], "--target", target)
    assert [(item["status"], item["reason"]) for item in report["programs"]] == [("hit", reason)] * 2


def test_check_says_why_this_machine_would_miss(store: tuple[str, str, Any]) -> None:
    (item, _) = data("check", store[0], "--target", "cpu:native", code=1)["programs"]
    assert item["status"] == "miss" and "nothing is stored for cpu:native" in item["reason"]


def test_images_are_listed(store: tuple[str, str, Any]) -> None:
    images = data("ls", "--images", "--store", store[1])
    kinds = {image["kind"] for image in images}
    assert kinds == {"sm_80", "sm_90", "sm_100", "ptx 8.0 for sm_80"}
    for image in images:
        assert image["size"] > 500 and image["shared"] == 0 and image["entry"]
        assert (image["registers"] is None) is image["kind"].startswith("ptx")
        assert image["registers"] is None or 4 <= image["registers"] <= 255
    shown = data("show", images[0]["artifact"], "--store", store[1])
    assert shown["images"]["forward"][0] == {key: value for key, value in images[0].items() if key != "artifact"}
    text = CliRunner().invoke(main, ["show", images[0]["artifact"], "--store", store[1]]).output
    assert images[0]["entry"] in text


def machine(driver: tuple[int, int], *kinds: tuple[int, int]) -> nvidia_devices.Machine:
    return nvidia_devices.Machine(
        nvidia_devices.Driver("580.1", driver), tuple(nvidia_devices.Device(f"GPU{i}", f"GPU-{i}", k) for i, k in enumerate(kinds))
    )


@pytest.mark.parametrize(
    ("found", "seen", "good", "text"),
    [
        (nvidia_devices.Machine(None, ()), (), [True], "no NVIDIA driver"),
        (machine((13, 0), (9, 0)), ((9, 0),), [True, True], "takes cuda:sm_90, else cuda:ptx_80"),
        (machine((11, 8), (8, 9)), ((8, 9),), [False, True], "too old for cuda:ptx_80, which needs 12.0"),
        (machine((13, 0), (7, 5)), (), [True, False, False], "8.0 or newer"),
        (machine((13, 0), (9, 0), (8, 0)), ((9, 0), (8, 0)), [True, True, True, True], "several kinds"),
        (machine((13, 0), (9, 0)), (), [True, True, False], "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_doctor_on_gpus(monkeypatch: pytest.MonkeyPatch, found: nvidia_devices.Machine, seen: Any, good: list[bool], text: str) -> None:
    monkeypatch.setattr(nvidia_devices, "machine", lambda: found)
    monkeypatch.setattr(nvidia_devices, "capabilities", lambda: seen)
    lines = list(findings())
    assert [line[0] for line in lines] == good and text in "\n".join(line[1] for line in lines)


def test_doctor_has_a_line_on_gpus(tmp_path: Path) -> None:
    Store.open(tmp_path / "store").check_writable()
    assert any(line["topic"] == "gpu" for line in data("doctor", "--store", str(tmp_path / "store")))
