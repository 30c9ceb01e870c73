"""Digests of what precast makes of the corpus. `python -m tests.replay.digest` records them beside this file, for this torch and Python;
with `--print` they go to standard output.

Compilers are not run (a program with graph breaks apart): what they would be given is digested, and an empty shared object stands for what
they would make. So a digest says nothing of g++, Triton or the processor, and the whole corpus takes seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import precast
from precast.artifact_store import Manifest, Store
from precast.codegen.common import toolchain
from precast.codegen.cpu import compile as cpu_pipeline
from precast.codegen.cuda import pipeline
from precast.codegen.triton.build.images import Cubin
from precast.codegen.triton.render.render import TritonKernel
from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor
from tests.replay.programs import ROWS, Row

RECORD = Path(__file__).parent / f"torch{torch_minor()}-python{python_minor()}.json"
METADATA = {
    "num_ctas": 1,
    "launch_cooperative_grid": False,
    "profile_scratch_size": 0,
    "block": 128,
    "shared": 0,
    "global_scratch_size": 0,
    "num_warps": 4,
}
Digests = dict[str, dict[str, str]]
"""Part of the artifact (`guards`, `code`, …) by row, target and number of the artifact -> digest."""


def digest(row: Row) -> Digests:
    """What every artifact of the row consists of: "target #number" -> part -> digest."""
    torch.manual_seed(0)
    program, calls = row.make()
    found: Digests = {}
    for target in row.targets:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad(), _compilers(row.runs) as units:
            options = {k: v for k, v in row.options.items() if k != "dynamic"}
            compiled = precast.compile(
                program, dynamic=row.options.get("dynamic"), options=options, store=folder, name=f"replay.{row.name}"
            )
            report = precast.precompile(compiled, calls, targets=[target])
            assert report.ok, f"{row.name} for {target}: {report}"
            store = Store.open(folder)
            manifests = sorted(store.manifests(), key=_order)
            assert manifests, f"{row.name} for {target}: nothing was stored"
            found |= {f"{target} #{n}": _parts(m, store) for n, m in enumerate(manifests, 1)}
            if not row.runs:
                found[f"{target} units"] = {"units": _sha(sorted(units))}
    return found


def _order(manifest: Manifest) -> str:
    """The artifact id depends on the compiler's version; what it is made from does not."""
    return json.dumps([manifest.program_name, manifest.guard_hash, sorted(manifest.digests.items())])


def _parts(manifest: Manifest, store: Store) -> dict[str, str]:
    frames = [{**frame, "code": dict(frame["code"])} for frame in manifest.frames]
    sources = {
        f"{graph} {role}": store.blob(blob)
        for graph, record in manifest.graphs.items()
        for role, blob in record.blobs.items()
        if role.rpartition(".")[2] in ("kernel_source", "host_source", "schedule")
    }
    assert None not in sources.values(), "a blob of the artifact is missing"
    return {
        "program key": manifest.program_key,
        "options": _sha(dict(manifest.options)),
        "guards": manifest.guard_hash,
        "inlined code": _sha(dict(manifest.digests)),
        "frames": _sha(frames),
        **{role: hashlib.sha256(source or b"").hexdigest() for role, source in sorted(sources.items())},
    }


def _sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    return list(value) if isinstance(value, (tuple, set, frozenset)) else dict(value)


@contextlib.contextmanager
def _compilers(run: bool) -> Iterator[list[str]]:
    """What the compilers are given, in a list; where they are not to `run`, an empty shared object stands for their answer."""
    units: list[str] = []
    if run:
        yield units
        return
    empty = _empty()

    def compile_shared(source: str, target: str, sanitize: str = "") -> bytes:
        units.append(source)
        return empty

    @contextlib.contextmanager
    def compiling(source: str, target: str) -> Iterator[Any]:
        units.append(source)
        yield lambda rest: empty

    def compile_images(kernels: Sequence[TritonKernel], arch: str, *_: Any) -> list[Cubin]:
        units.extend(kernel.source for kernel in kernels)
        return [Cubin(kernel.name, arch, kernel.source.encode(), {**METADATA, "entry": kernel.name}) for kernel in kernels]

    with (
        mock.patch.object(cpu_pipeline, "compile_shared", compile_shared),
        mock.patch.object(pipeline, "compiling", compiling),
        mock.patch.object(pipeline, "compile_images", compile_images),
    ):
        yield units


_EMPTY: list[bytes] = []


def _empty() -> bytes:
    if not _EMPTY:
        _EMPTY.append(toolchain.compile_shared("", "cpu:x86-64-v3"))
    return _EMPTY[0]


def record() -> dict[str, Any]:
    """The digests of all rows, with the lowering version that they belong to."""
    return {"lowering": LOWERING_VERSION, "rows": {row.name: digest(row) for row in ROWS}}


def main() -> None:
    text = json.dumps(record(), indent=1, sort_keys=True) + "\n"
    if "--print" in sys.argv:
        sys.stdout.write(text)
        return
    RECORD.write_text(text)
    print(RECORD, file=sys.stderr)


if __name__ == "__main__":
    main()
