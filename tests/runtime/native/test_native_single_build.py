"""Of the processes of a machine that lack the native runtime one builds it."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import child

BUILDERS = """
import os, sys, time
from precast.artifact_store import Store
from precast.runtime.native import build, loader

def slow_build():
    with open("builds", "a") as log:
        log.write("built\\n")
    time.sleep(0.5)
    return b"what cannot be loaded will do"

build.build = slow_build
children = []
for _ in range(4):
    children.append(os.fork())
    if children[-1] == 0:
        loader.ensure(Store.open("store", remote=[]))
        os._exit(0 if "cannot be used" in loader._state.failed else 1)  # it was found, and was tried
print(max(os.waitpid(child, 0)[1] for child in children))
"""


def test_one_process_builds_it_and_the_others_wait(tmp_path: Path) -> None:
    assert child(tmp_path, BUILDERS).strip() == "0"
    assert (tmp_path / "builds").read_text() == "built\n"
