"""A copy of the checkout that imports its own sources, whatever is installed: what a mutant is put into.

An editable install maps `precast` to the checkout. The copy comes first on PYTHONPATH, and its `sitecustomize` takes the editable finder
away in every process that tests start.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

from tests.mutation.table import ROOT, Mutant, mutated

SOURCES = ("precast", "capture", "lowering", "codegen", "artifact_store", "runtime", "tests", "examples", "benchmarks", "docs")
EDITABLE = "__editable___precast"
SITE = f"""import sys

def drop_editable():
    sys.meta_path[:] = [f for f in sys.meta_path if not (getattr(f, "__module__", None) or "").startswith({EDITABLE!r})]

drop_editable()
"""
ENTRY_POINTS = "[torch_dynamo_backends]\nprecast = precast.torch_backend:precast\n"
METADATA = "Metadata-Version: 2.1\nName: precast\nVersion: {version}\n"


class Tree:
    """One copy, in which one mutant at a time stands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changed: tuple[Path, str, os.stat_result] | None = None
        ignore = shutil.ignore_patterns("*.egg-info", ".hypothesis", ".pytest_cache")
        for name in SOURCES:
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy2(path, folder / path.name)
        (folder / "sitecustomize.py").write_text(SITE)
        self._describe()

    def _describe(self) -> None:
        """pytest's settings without those of plugins that may be absent, and what an installed package says of itself."""
        with (ROOT / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file)
        options = project["tool"]["pytest"]["ini_options"]
        markers = "".join(f"\n    {marker}" for marker in options["markers"])
        added = " ".join(options["addopts"])
        (self.folder / "pytest.ini").write_text(f"[pytest]\npythonpath = .\naddopts = {added}\nxfail_strict = true\nmarkers ={markers}\n")
        info = self.folder / f"precast-{project['project']['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(METADATA.format(version=project["project"]["version"]))
        (info / "entry_points.txt").write_text(ENTRY_POINTS)

    def put(self, mutant: Mutant) -> None:
        """Makes the edit. Its time of change differs from every other, so that no compiled copy of the old source is taken for it."""
        path = self.folder / mutant.file
        text, before = path.read_text(), path.stat()
        path.write_text(mutated(mutant, text))
        os.utime(path, (before.st_atime + 100_000, before.st_mtime + 100_000))
        self.changed = (path, text, before)

    def restore(self) -> None:
        """Takes the edit back."""
        if self.changed is not None:
            path, text, before = self.changed
            path.write_text(text)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            self.changed = None
