"""The words stay true: every page is in the table of contents, every link leads somewhere, and every file that a page names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "tests" / "mutation" / "README.md", *DOCS]
FOLDERS = "precast|capture|lowering|codegen|artifact_store|runtime|tests|benchmarks|examples|docs"
PATH = re.compile(rf"(?<![\w/.:-])(?:{FOLDERS})/[\w./*-]*(?:\.(?:py|c|h|cpp|md|toml|txt)\b|/(?=`))")
BARE = re.compile(r"`([a-z_]\w*\.(?:py|c|h))(?:::\w+|\s[^`]*)?`")
USERS = {"main.py", "models.py", "readme.py", "server.py"}  # files of a reader's own, in examples
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)")


def named(page: Path) -> str:
    """What a failure calls a page."""
    return str(page.relative_to(ROOT))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that a page's headings have where Markdown is shown: lower case, words joined by hyphens, punctuation left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@cache
def files() -> frozenset[str]:
    """The names, without their folders, of all source files of the repository."""
    folders = [ROOT / folder for folder in FOLDERS.split("|")]
    return frozenset(path.name for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".c", ".h"))


def test_every_page_is_in_the_table_of_contents_with_a_sentence() -> None:
    lines = (ROOT / "docs" / "README.md").read_text("utf-8").splitlines()
    rows = [re.fullmatch(r"\* \[([\w-]+\.md)\]\(\1\): \S.*\.", line) for line in lines if line.startswith("* ")]
    assert all(rows), "a row is `* [page.md](page.md): a sentence.`"
    listed = [row[1] for row in rows if row]
    assert sorted(listed) == [page.name for page in DOCS if page.name != "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    for link in LINK.findall(page.read_text("utf-8")):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no such file"
        assert not anchor or anchor in anchors(target), f"{link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    missing = [path for path in PATH.findall(text) if not (any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists())]
    assert missing == []
    assert [name for name in BARE.findall(text) if name not in files() | USERS] == []


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 160


def test_the_glossary_has_ten_words_with_a_file_each() -> None:
    rows = re.findall(r"^\| \*\*(\w+)\*\* \| (.+) \| `([^`]+)` \|$", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.M)
    words = ["program", "entry", "frame", "guard", "variant", "binding", "artifact", "manifest", "graph", "executable"]
    assert [word for word, _, _ in rows] == words
    assert [file for _, _, file in rows if not (ROOT / file).is_file()] == []


def test_every_room_is_on_the_architecture_page() -> None:
    """A room is a sub-package; its row has the sentence of its `__init__`."""
    rooms = {}
    for folder in ("precast", "capture", "lowering", "codegen", "artifact_store", "runtime"):
        for init in (ROOT / folder).rglob("*/__init__.py"):
            if init.parent.is_symlink():
                continue
            rooms[str(init.parent.relative_to(ROOT))] = (ast.get_docstring(ast.parse(init.read_text("utf-8"))) or "").partition("\n")[0]
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert dict(re.findall(r"^\| `([a-z_/]+)` \| (.+) \|$", text, re.M)) == rooms
