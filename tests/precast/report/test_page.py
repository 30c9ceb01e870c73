"""`precast report`: everything that the store has of an artifact is on its page, linked, and nothing else is asked for or run."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import precast
from precast.artifact_store import Manifest, Predicate, Store
from precast.cli.main import main
from precast.lowering.costs.records import STEPS, StepRecord, from_json
from precast.report.page.facts import Shown, facts
from precast.report.page.guard_words import WORDS
from precast.report.page.render import embedded, page
from precast.runtime.guards.text import guard_columns
from tests.artifact_store.sample import fill
from tests.precast.report.pages import artifacts_of, code_of, layers, parsed, squeezed
from tests.support.needs import needs

needs("pygraphviz")
FACTORY = "tests.precast.report.pages:layers"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Layers' artifacts: one that infers, and one that trains."""
    store = Store.open(tmp_path_factory.mktemp("report") / "store")
    program, (((x,), _), _) = layers()
    compiled = precast.compile(program, store=store)
    with torch.no_grad():
        compiled(x)
    with torch.enable_grad():
        compiled(x).sum().backward()
    return store


def manifest_of(store: Store, trains: bool) -> Manifest:
    return next(m for key in store.programs() for m in store.variants(key) if ("backward" in m.graphs) == trains)


def html(store: Store, trains: bool = False) -> str:
    return page([facts(store, Shown(manifest_of(store, trains), "layers"))])


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["report", *words])


@pytest.mark.parametrize("trains", [False, True])
def test_every_step_guard_line_and_function_is_on_the_page(trains: bool, store: Store) -> None:
    manifest = manifest_of(store, trains)
    (artifact,) = artifacts_of(html(store, trains))
    assert [graph["role"] for graph in artifact["graphs"]] == (["forward", "backward"] if trains else ["forward"])
    for graph in artifact["graphs"]:
        blobs = {role: store.blob(digest) or b"" for role, digest in manifest.graphs[graph["role"]].blobs.items()}
        steps = from_json(blobs[STEPS])
        assert [(step["name"], step["how"], step["bytes"]) for step in graph["steps"]] == [(s.name, s.how, s.bytes) for s in steps]
        lines = {graph["sources"][place] for step in graph["steps"] for place in step["sources"]}
        assert lines == {line for step in steps for line in step.sources} and lines
        written = [line for function in graph["functions"] for line in squeezed(code_of(function))]
        assert written == squeezed(blobs["kernel_source"].decode())
        assert [line for line, _ in graph["host"]] == blobs["host_source"].decode().splitlines()
    guards = {(kind["predicate"], *row) for kind in artifact["guards"] for row in map(tuple, kind["rows"])}
    words = {(str(g), path, value) for path, g, value in (guard_columns(*row) for row in manifest.guard_rows) if g != Predicate.TENSOR}
    assert words == {guard for guard in guards if guard[0] != "tensor"}
    assert ("tensor", "x", "float32[16, 32] stride (32, 1) on cpu") in guards, "tensors as a miss tells them"
    assert sum(len(kind["rows"]) for kind in artifact["guards"]) == len(manifest.guard_rows)
    assert set(artifact["digests"]) == set(manifest.digests) and artifact["versions"]["torch"] == manifest.versions.torch
    assert bool(artifact["kept"]) == trains


@pytest.mark.parametrize("trains", [False, True])
def test_steps_lines_and_code_lead_to_one_another(trains: bool, store: Store) -> None:
    (artifact,) = artifacts_of(html(store, trains))
    for graph in artifact["graphs"]:
        steps = range(len(graph["steps"]))
        assert {step for _, step in graph["host"]} >= set(steps), "each step has its line of the host program"
        assert {step for _, step in graph["loops"]} - {None} <= set(steps)
        rows = [row for file in graph["files"] for row in file["rows"]]
        assert sorted(row[2] for row in rows if row[2] is not None) == list(range(len(graph["sources"])))
        for step in graph["steps"]:
            assert step["sources"]
            names = [graph["functions"][place]["name"] for place in step["functions"]]
            assert names == ([step["how"]] if step["kind"] == "kernel" else [])


def test_the_users_file_is_shown_around_its_lines(store: Store) -> None:
    (artifact,) = artifacts_of(html(store))
    (file,) = artifact["graphs"][0]["files"]
    assert file["name"].endswith("tests/precast/report/pages.py")
    texts = {row[1].strip(): row[2] for row in file["rows"]}
    assert texts["def forward(self, x: torch.Tensor) -> torch.Tensor:"] is None
    assert texts["return x + self.norm(y)"] is not None


def test_layers_of_one_form_are_folded(store: Store) -> None:
    (artifact,) = artifacts_of(html(store))
    (graph,) = artifact["graphs"]
    (layer,) = graph["layers"]
    assert layer["count"] in (2, 3) and layer["period"] * layer["count"] >= len(graph["steps"]) // 2
    assert len(graph["full"]["boxes"]) == len(graph["steps"])
    assert len(graph["folded"]["boxes"]) == len(graph["steps"]) - layer["period"] * (layer["count"] - 1)


def test_temporaries_fit_into_the_planned_workspace(store: Store) -> None:
    for trains in (False, True):
        for graph in artifacts_of(html(store, trains))[0]["graphs"]:
            memory = graph["memory"]
            assert len(memory["placed"]) == len(graph["steps"]) and max(memory["placed"]) <= memory["workspace"]
            assert any(result for *_, result, _ in memory["buffers"])


@pytest.mark.parametrize("trains", [False, True])
def test_the_page_asks_nobody_for_anything(trains: bool, store: Store) -> None:
    text = html(store, trains)
    found = parsed(text)
    for tag, attributes in found.elements:
        assert "src" not in attributes and tag not in ("iframe", "object", "embed", "base", "form", "img")
        assert all(re.match(r"#|data:,", value or "") for name, value in attributes.items() if name in ("href", "action", "data"))
    assert "://" not in text.replace(embedded(artifacts_of(text)), ""), "no address, but what a program's own lines have"
    assert "url(" not in text.replace("url(#tip)", "") and "@import" not in text


def test_a_browser_may_run_this_script_and_no_other(store: Store) -> None:
    text = html(store)
    found = parsed(text)
    policy = next(a["content"] or "" for tag, a in found.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style is not None
    for part in (found.scripts[1], style[1]):
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in policy
    assert not [name for _, attributes in found.elements for name in attributes if name == "style" or name.startswith("on")]


def test_what_a_program_says_is_never_markup(store: Store) -> None:
    text = html(store)
    found = parsed(text)
    assert [tag for tag, _ in found.elements].count("script") == 2 and "broken" not in {a.get("id") for _, a in found.elements}
    rows = [row[1] for file in artifacts_of(text)[0]["graphs"][0]["files"] for row in file["rows"]]
    assert any('</script><b id="broken">&lt; "quoted"' in row for row in rows), "it is there, as text"
    manifest = manifest_of(store, False)
    odd = Shown(manifest, '<img src=x onerror="x()">')
    assert "<img" not in page([facts(store, odd), facts(store, odd)])
    assert embedded("</script>&\u2028") == '"\\u003c/script\\u003e\\u0026\\u2028"' and json.loads(embedded("</script>&")) == "</script>&"


def test_every_predicate_has_its_words() -> None:
    assert set(WORDS) == set(Predicate)


def test_an_artifact_without_records_has_a_page(tmp_path: Path) -> None:
    store, (name,) = fill(tmp_path / "store")
    result = run(name[:12], "-o", str(tmp_path / "page.html"), "--store", str(store.root))
    assert result.exit_code == 0, result.output
    (artifact,) = artifacts_of((tmp_path / "page.html").read_text("utf-8"))
    assert artifact["graphs"][0]["steps"] == [] and artifact["evidence"]["choices"] == {"mm_0": "onednn"}
    assert artifact["waived"] == ["guard on self.counter"]


def test_a_page_of_a_file_has_times(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    words = (FACTORY, "-o", str(target), "--store", str(tmp_path / "store"))
    missing = run(*words, "--no-run")
    assert missing.exit_code == 1 and "`precast build` makes it" in missing.stderr and not target.exists()
    done = run(*words, "--signature", "1", "--calls", "3", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    (artifact,) = artifacts_of(target.read_text("utf-8"))
    assert said == {"page": str(target), "bytes": target.stat().st_size, "artifacts": [artifact["id"]]}
    assert artifact["label"] == "layers, signature 1" and artifact["measured"]["call"] > 0 and artifact["measured"]["eager"] > 0
    assert all(step["seconds"] > 0 and step["bound"] in ("memory", "compute") for step in artifact["graphs"][0]["steps"])
    again = run(artifact["id"][:10], "-o", str(target), "--store", str(tmp_path / "store"))
    assert again.exit_code == 0 and again.stdout.startswith(f"{target}: 1 artifact, ")
    (untimed,) = artifacts_of(target.read_text("utf-8"))
    assert untimed["measured"] is None and "seconds" not in untimed["graphs"][0]["steps"][0]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("abcd1234",), 2, "Missing option '-o'"),
        (("abcd1234", "-o", ""), 2, "is empty"),
        (("abcd1234", "-o", "page.html", "--only", "x"), 2, "an ID is one artifact"),
        (("abcd1234", "-o", "page.html"), 1, "no artifact abcd1234"),
        (("nothing.toml", "-o", "page.html"), 2, "cannot be read"),
        ((FACTORY, "-o", "page.html", "--signature", "9", "--no-run"), 2, "signature 9"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRECAST_STORE", str(store.root))
    result = run(*words)
    assert result.exit_code == code and said in result.stderr, result.output


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, store: Store) -> None:
    result = run(manifest_of(store, False).artifact_id, "-o", str(tmp_path / "no" / "page.html"), "--store", str(store.root))
    assert result.exit_code == 1 and "cannot be written: No such file or directory" in result.stderr


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "pygraphviz" else find(name, *more))
    result = run("abcd1234", "-o", str(tmp_path / "page.html"))
    assert result.exit_code == 1 and "pip install 'precast[report]'" in result.stderr


def test_a_large_graph_has_a_page_of_a_few_megabytes(tmp_path: Path) -> None:
    """Eight hundred kernels, each with code of its own."""
    body = "".join(f"    const float v{n} = p1[x0] * {n}.0f;\n" for n in range(40))
    code = "".join(f"static void kernel{n}(float* p0, const float* p1) {{\n{body}}}\n" for n in range(800))

    def step(number: int) -> StepRecord:
        before = {"read": {f"b{number - 1}": 4096, **({f"b{number - 40}": 4096} if number > 40 and number % 7 == 0 else {})}}
        facts: dict[str, Any] = {"written": {f"b{number}": 4096}, "operations": 1024, "arithmetic": "f32", **before}
        names = tuple(f"add_{number}_{k}" for k in range(8))
        return StepRecord(kind="kernel", name=f"kernel{number}", how=f"kernel{number}", origins=names, sources=("a.py:1 in f: x",), **facts)

    from precast.artifact_store import BlobSet, GraphRecord
    from precast.lowering.costs.records import to_json
    from tests.artifact_store.sample import make

    blobs = BlobSet()
    roles = {
        "library": blobs.add(b"library"),
        "kernel_source": blobs.add(code),
        "host_source": blobs.add("".join(f"kernel{n}(b{n})\n" for n in range(800))),
        STEPS: blobs.add(to_json([step(n) for n in range(800)])),
    }
    graph = GraphRecord(roles, {"inputs": [], "outputs": [], "workspace_bytes": 8192})
    manifest, _ = make(graphs={"forward": graph}, blobs=blobs.sizes())
    store = Store.open(tmp_path / "store")
    store.put(manifest, blobs)
    text = page([facts(store, Shown(manifest, "large"))])
    assert len(text) < 6_000_000
    assert len(artifacts_of(text)[0]["graphs"][0]["full"]["boxes"]) == 800
