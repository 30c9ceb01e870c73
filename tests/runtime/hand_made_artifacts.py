"""Small artifacts made by hand: a shared object that speaks the ABI, a frame record, guards. No tracer, no lowering, no codegen."""

from __future__ import annotations

import functools
import marshal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from precast.artifact_store import BlobSet, GraphRecord, Guard, Manifest, Versions
from precast.artifact_store.format.records import FrameRecord, GraphInput, GraphOutput
from precast.artifact_store.trust.trusted import Trusted, made_here
from precast.runtime.common.errors import InProcess
from precast.runtime.programs.program import Program
from precast.runtime.settings.options import key_options
from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor

SOURCE = r"""
#include <stdint.h>
#include <stdio.h>
extern "C" {
extern const char* const precast_symbols[] = {"aoti_torch_get_data_ptr", "aoti_torch_get_numel", "aoti_torch_empty_strided",
    "aoti_torch_get_sizes", "aoti_torch_get_strides", "aoti_torch_get_dim", %(extra)s 0};
extern const int64_t precast_abi = %(abi)d;
typedef int32_t (*get_ptr)(void*, void**);
typedef int32_t (*get_i64)(void*, int64_t*);
typedef int32_t (*get_i64s)(void*, int64_t**);
typedef int32_t (*empty)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**);
int precast_run(void* const* t, void* const* in, void** out, void* state, char* error, int64_t capacity) {
    %(body)s
    float *x, *w, *y; int64_t n, wn, dim, *sizes, *strides;
    ((get_ptr)t[0])(in[0], (void**)&x); ((get_ptr)t[0])(in[1], (void**)&w);
    ((get_i64)t[1])(in[0], &n); ((get_i64)t[1])(in[1], &wn);
    ((get_i64s)t[3])(in[0], &sizes); ((get_i64s)t[4])(in[0], &strides); ((get_i64)t[5])(in[0], &dim);
    if (wn != n && wn != 1) { snprintf(error, capacity, "I: index 7 is out of range"); return 1; }
    if (!%(lent)d || !out[0]) ((empty)t[2])(dim, sizes, strides, 6, 0, 0, &out[0]);
    ((get_ptr)t[0])(out[0], (void**)&y);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * (state ? *(float*)state : w[wn == 1 ? 0 : i]) + %(add)s;
    return 0;
}
%(more)s
}
"""

FROZEN = r"""
#include <stdlib.h>
extern int64_t prepared_count = 0, released_count = 0;
int precast_prepare(void* const* t, void* const* in, void** state, char* error, int64_t capacity) {
    float* w; ((get_ptr)t[0])(in[1], (void**)&w);
    float* copy = (float*)malloc(sizeof(float)); *copy = *w; *state = copy; prepared_count++; return 0;
}
void precast_release(void* const* t, void* state) { free(state); released_count++; }
"""
"""A prepared copy of the weight, as packing makes one."""


@functools.cache
def library(add: float = 0.0, abi: int = 1, extra: str = "", body: str = "", more: str = "", lent: bool = False) -> bytes:
    """A shared object computing `x * w + add` (float32; w of the same numel, or one element). `lent`: into memory that it is given."""
    more += "extern const int32_t precast_lent[] = {0, -1};" if lent else ""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "a.cpp"), Path(folder, "a.so")
        source.write_text(SOURCE % {"add": f"{add}f", "abi": abi, "extra": extra, "body": body, "more": more, "lent": lent})
        subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-w", "-o", str(out), str(source)], check=True)
        return out.read_bytes()


def trusted_library(path: Path, data: bytes) -> Trusted[Path]:
    """A shared object that the test has made, in a file."""
    path.write_bytes(data)
    return made_here(path)


def frame_code(function: FunctionType, call: str) -> FrameRecord:
    """The record of a frame with the parameters of `function` that returns the expression `call`; `graph` there is the graph callable."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    namespace: dict[str, Any] = {}
    exec(f"def {function.__name__}({', '.join(names)}):\n    return {call.replace('graph', '__precast_graph')}\n", namespace)
    body = namespace[function.__name__].__code__
    return FrameRecord(python_minor(), marshal.dumps(body), (), (("__precast_graph", ("graph",)),))


def manifest_for(
    program: Program,
    guards: Sequence[Guard],
    inputs: Sequence[GraphInput],
    call: str,
    so: bytes,
    outputs: Sequence[GraphOutput] = (GraphOutput("raw", 0),),
    torch_version: str = "",
    target: str = "",
) -> tuple[Manifest, BlobSet]:
    blobs = BlobSet()
    record = frame_code(program.function, call)
    graph = GraphRecord({"library": blobs.add(so)}, {"outputs": [{"kind": "tensor"}]})
    frame = {
        "name": program.name,
        "code": record.to_data(),
        "inputs": [item.to_data() for item in inputs],
        "outputs": [item.to_data() for item in outputs],
    }
    manifest = Manifest.make(
        program_key=program.key,
        program_name=program.name,
        target=target or program.target,
        versions=Versions(LOWERING_VERSION, torch_version or torch_minor(), python_minor(), "g++"),
        options=key_options(program.options),
        guards=guards,
        frames=[frame],
        graphs={"forward": graph},
        blobs=blobs.sizes(),
    )
    return manifest, blobs


def in_process(manifest: Manifest, blobs: BlobSet) -> InProcess:
    return InProcess(manifest, blobs, "a stand-in")


class Counting:
    """A compile callable that counts as torch's CompileCounter does, and otherwise does what `inner` does."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner
        self.frame_count = 0

    def __call__(self, compiled: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.frame_count += 1
        return self.inner(compiled, args, kwargs)
