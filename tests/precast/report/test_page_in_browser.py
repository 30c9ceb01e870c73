"""A page in a real browser: what is clicked lights up everywhere, without an error and without a request.

Needs playwright (`pip install playwright`) and a Chromium that it finds on the PATH; skipped where either is absent.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Manifest, Store
from precast.report.page.facts import GraphTimes, Measured, Shown, StepTime, facts
from precast.report.page.render import page as rendered
from tests.precast.report.pages import layers
from tests.support.needs import needs

needs("pygraphviz")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
absent = importlib.util.find_spec("playwright") is None or CHROMIUM is None
pytestmark = [pytest.mark.slow, pytest.mark.skipif(absent, reason="needs playwright and a Chromium")]
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    store = Store.open(folder / "store")
    program, (((x,), _), _) = layers()
    compiled = precast.compile(program, store=store)
    with torch.no_grad():
        compiled(x)
    with torch.enable_grad():
        compiled(x).sum().backward()
    manifests = sorted((m for key in store.programs() for m in store.variants(key)), key=lambda m: len(m.graphs))
    artifacts = [facts(store, Shown(m, "layers", times_of(store, m))) for m in manifests]
    artifacts[0]["evidence"]["choices"] = {"gemm 16x32x32": {"winner": "own", "us": {"mkl": 3.5, "own": 1.25}}, "another": {"tile": [1, 2]}}
    artifacts[0]["graphs"][0]["notes"] = ["not fused: k1 into k2: <why>"]
    path = folder / "page.html"
    path.write_text(rendered(artifacts), encoding="utf-8")
    return path


def times_of(store: Store, manifest: Manifest) -> Measured | None:
    """Of an artifact that infers, as if it had been run."""
    if "backward" in manifest.graphs:
        return None
    steps = facts(store, Shown(manifest, ""))["graphs"][0]["steps"]
    times = GraphTimes(1.0, 1e-6, tuple(StepTime(1e-6 * (n + 1), 5e-7, "memory" if n % 2 else "compute") for n in range(len(steps))))
    return Measured(1e-3, 2e-3, 1e-3, 9e-4, 1e10, 5e10, {"f32": 1e11}, {(manifest.artifact_id, "forward"): times})


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=[(size, scheme) for size in SIZES for scheme in ("light", "dark")], ids=" ".join)
def page(request: pytest.FixtureRequest, browser: Any, file: Path) -> Iterator[Any]:
    """The page as opened; a test fails on any error of its script and any request but the one for the page."""
    size, scheme = request.param
    context = browser.new_context(viewport=SIZES[size], color_scheme=scheme, reduced_motion="reduce")
    opened, wrong = context.new_page(), []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("request", lambda asked: wrong.append(asked.url) if asked.url != file.as_uri() else None)
    opened.goto(file.as_uri())
    yield opened
    assert wrong == []
    text = opened.locator("main").inner_text()
    assert not [odd for odd in ("[object", "undefined", "NaN", "Infinity") if odd in text]
    context.close()


def lit(page: Any, where: str) -> list[str]:
    found: list[str] = page.locator(f"{where} .lit").all_inner_texts()
    return found


def kernel(page: Any) -> Any:
    """A kernel's box in the drawing."""
    return page.locator("#canvas .node.kernel").first


def test_a_box_lights_up_its_lines_and_its_code(page: Any) -> None:
    assert page.locator("#canvas .lit").count() == 0
    kernel(page).click()
    assert page.locator("#canvas .chosen").count() == 1
    assert "self.linear(x)" in "".join(lit(page, "#source"))
    assert "static void kernel" in "".join(lit(page, "#code"))
    assert "Generated loops" in page.locator("#step").inner_text()
    assert page.locator("#memory-chart .slot.lit").count() >= 0 and "while step" in page.locator("#held-title").inner_text()
    assert page.locator("#work-table tr.lit").count() == 1


def test_a_line_lights_up_all_of_its_steps(page: Any) -> None:
    line = page.locator("#source button.line", has_text="self.linear(x)")
    line.click()
    first = page.locator("#step .kind").inner_text()
    assert page.locator("#canvas .lit").count() >= 2, "the product and its epilogue"
    line.click()
    assert page.locator("#step .kind").inner_text() != first, "once more: the next of its steps"


def test_code_lights_up_its_steps_and_lines(page: Any) -> None:
    page.locator("#code .function button", has_text="kernel").first.click()
    assert page.locator("#canvas .lit").count() >= 1 and lit(page, "#source")
    page.locator("#code-tabs button", has_text="Host program").click()
    page.locator("#code button.row", has_text="mm(").last.click()
    assert "Library call" in page.locator("#step").inner_text() and len(lit(page, "#code")) == 1


def test_keys_walk_through_the_steps(page: Any) -> None:
    page.locator("#canvas").focus()
    for key, at in (("ArrowDown", 0), ("ArrowDown", 1), ("ArrowUp", 0), ("End", -1)):
        page.keyboard.press(key)
        count = page.evaluate("JSON.parse(document.getElementById('data').textContent)[0].graphs[0].steps.length")
        assert page.locator("#step .kind").inner_text().startswith(f"Step {at % count} of {count}")
    assert page.evaluate("location.hash").endswith(f"/forward/{count - 1}")
    page.keyboard.press("Escape")
    assert page.locator("#canvas .chosen").count() == 0


def test_an_address_leads_to_a_step(page: Any) -> None:
    page.locator("#artifact").select_option("1")
    kernel(page).click()
    said = page.locator("#step .kind").inner_text()
    page.reload()
    assert page.locator("#step .kind").inner_text() == said and page.locator("#canvas .chosen").count() == 1
    assert page.locator("#artifact").input_value() == "1"


def test_folded_layers_are_turned_through_and_unfolded(page: Any) -> None:
    turned = page.locator("#canvas .frame .turned").first
    assert turned.text_content().startswith("1 of ")
    before = page.locator("#canvas .node").count()
    page.locator("#canvas .frame .turn").nth(1).click()
    assert turned.text_content().startswith("2 of ")
    page.locator("#views button", has_text="All").click()
    assert page.locator("#canvas .node").count() > before


def test_the_other_artifact_and_its_backward_graph(page: Any) -> None:
    page.locator("#artifact").select_option("1")
    page.locator("#roles button", has_text="Backward").click()
    assert "The backward graph" in page.locator("#step").inner_text()
    kernel(page).click()
    assert lit(page, "#source") and "What was kept" not in page.locator("#step").inner_text()
    assert "kept for the backward pass" in page.locator("#made-body").inner_text()


def test_times_are_told_and_a_dot_of_the_roofline_is_a_step(page: Any) -> None:
    assert page.locator("#cards .lead b").inner_text() == "1.00 ms" and "2.00 times as long" in page.locator("#cards .lead").inner_text()
    rows = page.locator("#work-table tbody tr")
    gains = page.locator("#work-table td:last-child").all_inner_texts()
    page.locator("#roof .dot").last.click()
    assert "of the roofline, bound by" in page.locator("#step").inner_text() and page.locator("#roof .dot.lit").count() == 1
    page.locator("#work-table th button", has_text="Step").click()
    assert page.locator("#work-table td:last-child").all_inner_texts() != gains
    assert rows.first.locator("td").first.inner_text().startswith("0")


def test_choices_are_told_with_what_was_measured(page: Any) -> None:
    text = page.locator("#choices-body").inner_text()
    assert text.index("own 1.25 µs") < text.index("mkl 3.5 µs") and "tile" in text and "<why> (k1 into k2)" in text


def test_guards_are_filtered(page: Any) -> None:
    page.locator("#guard-filter").fill("[16, 32]")
    rows = page.locator("#guards-body tbody tr").all_inner_texts()
    assert rows and all("[16, 32]" in row for row in rows)
    page.locator("#guard-filter").fill("nothing has this")
    assert "No guard has this in it" in page.locator("#guards-body").inner_text()


def test_the_switch_turns_light_to_dark_and_back(page: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.locator("#theme").click()
    assert page.evaluate(ground) != before
    page.locator("#theme").click()
    assert page.evaluate(ground) == before


def test_nothing_is_wider_than_the_page_and_text_stands_out(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#broken").count() == 0
    assert page.evaluate(Path(__file__).with_name("contrast.js").read_text("utf-8")) == []
