"""The program of the recorded artifacts among the fixtures. `python -m tests.store.real` adds one, made by the versions of now and here.

They stay for ever: today's code reads every one of them, and runs those of its own versions. Add one when a format changes. The guards of
recorded artifacts name this module, so it does not move.
"""

from __future__ import annotations

from pathlib import Path

import torch

FIXTURES = Path(__file__).parents[1] / "artifact_store" / "fixtures" / "real"


def program(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Pointwise, and a reduction."""
    return torch.softmax(torch.nn.functional.gelu(shifted(x) * scale), -1)


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x - 0.5


def call() -> tuple[torch.Tensor]:
    """The arguments that every fixture was compiled for."""
    return (torch.linspace(-3, 3, 40).reshape(4, 10),)


def main() -> None:
    import tempfile

    import precast
    from precast.artifact_store import Manifest
    from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor
    from tests.store import real  # not `__main__`: the program's name is part of its key

    place = FIXTURES / f"lowering{LOWERING_VERSION}-torch{torch_minor()}-python{python_minor()}"
    for function in (real.program, real.shifted):  # bytecode names its file, and this folder is nobody's business
        function.__code__ = function.__code__.replace(co_filename="tests/store/real.py")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        report = precast.precompile(real.program, [(real.call(), {})], targets=["cpu:x86-64-v2"], store=folder)
        assert report.ok, report
        made = next((Path(folder) / "programs").rglob("*.msgpack"))
        blobs = Manifest.from_bytes(made.read_bytes()).blobs  # the native runtime, which the store holds too, stays out
        files = ["CACHEDIR.TAG", "format", made.relative_to(folder), *(f"objects/{blob[:2]}/{blob}" for blob in blobs)]
        for name in files:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes((Path(folder) / name).read_bytes())
    print(place)


if __name__ == "__main__":
    main()
