"""An artifact says nothing of the folder that it was built from, and tracebacks name the files of the machine that runs it."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import child

PROGRAM = """
    import torch

    def fails(x):
        if x.shape[0] == 5:
            raise ValueError("five")
        return x

    def f(x):
        y = x.sin() * 2
        print("between")
        z = (y * 3).cos()
        fails(z.tolist())
        return z.exp()
"""
RUN = """
    import sys, traceback, types
    import torch, precast, program
    compiled = precast.compile(program.f, store=sys.argv[1])
    try:
        compiled(torch.ones(5))
    except AttributeError:
        traceback.print_exc(file=sys.stdout)
"""


def test_the_folder_of_the_source_is_not_stored(tmp_path: Path) -> None:
    store = tmp_path / "store"
    said = []
    for name in ("built-here", "run-there"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "program.py").write_text("\n".join(line[4:] for line in PROGRAM.splitlines()))
        said.append(child(folder, RUN, str(store)))
        names = {str(p.relative_to(store)) for kind in ("objects", "programs") for p in (store / kind).rglob("*") if p.is_file()}
        if name == "built-here":
            stored = names
    assert stored and names == stored, "the other checkout takes what this one built"
    assert not [p for p in store.rglob("*") if p.is_file() and b"built-here" in p.read_bytes()]
    assert "run-there/program.py" in said[1] and "built-here" not in said[1]
