"""Compiles one kernel's source to its image. Run as a script, it is a worker process that does this repeatedly.

`worker_pool.py` starts the process, which imports this file only and not its package: Triton without torch is imported in a third of a
second. So nothing of precast may be imported here. Messages are msgpack behind four bytes of length: a kernel in, an answer out.
"""

from __future__ import annotations

import linecache
import os
import select
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

PTX_VERSION = 80
"""The version of PTX that drivers from CUDA 12.0 on can read; Triton's assembler would write a newer one."""

VECTORS_VERSION = 81
"""The first version with atomic updates of two or four floats at once, which Hopper has: they take 0.3 to 0.5 of the time. A driver does
not see it, for it gets a cubin."""

PTX = "ptx_80"
"""The fall-back architecture: PTX text for sm_80, which the driver of any later device compiles when it loads it."""

LENGTH = struct.Struct(">I")
IDLE_SECONDS = 120.0
"""Seconds without a message after which the worker ends by itself; normally its parent ends it sooner."""


def image_of(function: Any, task: Mapping[str, Any], source_class: Callable[..., Any]) -> tuple[bytes, dict[str, Any]]:
    """The image and the metadata of a kernel. `task`: `entry`, `arguments` as (name, type, aligned), `num_warps`, `num_stages`, `checks`
    and `arch`. The settings of `clean_settings` are the caller's.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    capability, form = target(task["arch"])
    signature = {name: kind for name, kind, _ in task["arguments"]}
    attributes = {(n,): [["tt.divisibility", 16]] for n, (_, _, aligned) in enumerate(task["arguments"]) if aligned}
    options: dict[str, object] = {
        "num_warps": task["num_warps"],
        "num_stages": task["num_stages"],
        "enable_fp_fusion": False,  # the IR does not contract
    }
    if capability < 100:
        options["ptx_version"] = VECTORS_VERSION if capability >= 90 else PTX_VERSION
    if task["checks"]:  # assertions; without checks of integer overflow, which may be meant
        options |= {"debug": True, "sanitize_overflow": False}
    run: Callable[..., Any] = triton.compile
    compiled = run(source_class(function, signature=signature, attrs=attributes), target=GPUTarget("cuda", capability, 32), options=options)
    image = compiled.asm[form]
    return image if isinstance(image, bytes) else image.encode() + b"\0", _metadata(compiled.metadata)


def function_of(entry: str, source: str) -> Any:
    """The jit function that the source defines. There is no file: `linecache` holds the text for Triton, which reads it back."""
    file = f"<precast {entry}>"
    namespace: dict[str, Any] = {"__name__": f"precast_{entry}"}
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), namespace)
    return namespace[entry]


def target(arch: str) -> tuple[int, str]:
    """The capability to compile for and which of Triton's results is wanted. ValueError for a name of another form."""
    if arch == PTX:
        return 80, "ptx"
    digits = arch.removeprefix("sm_")
    if not arch.startswith("sm_") or not digits.isdecimal():
        raise ValueError(f"architecture {arch!r}: expected sm_80, sm_90, … or {PTX}")
    return int(digits), "cubin"


@contextmanager
def clean_settings(folder: str) -> Iterator[None]:
    """Triton's settings for compilations: a cache in `folder`, no line tables (they name files and double the size), no interpreter."""
    from triton import knobs

    with knobs.cache.scope(), knobs.compilation.scope(), knobs.runtime.scope():
        knobs.cache.dir = folder
        knobs.compilation.disable_line_info = True
        knobs.runtime.interpret = False
        yield


def identity() -> list[Any]:
    """The versions of Python and Triton in this process."""
    import triton

    return [sys.version, triton.__version__, os.path.realpath(str(triton.__file__))]


def _metadata(metadata: Any) -> dict[str, Any]:
    wanted = (
        "shared",
        "num_warps",
        "num_ctas",
        "global_scratch_size",
        "global_scratch_align",
        "profile_scratch_size",
        "profile_scratch_align",
    )
    found = {key: getattr(metadata, key) for key in wanted}
    found["launch_pdl"] = bool(metadata.launch_pdl)
    found["launch_cooperative_grid"] = bool(metadata.launch_cooperative_grid)
    found["entry"] = metadata.name
    found["block"] = 32 * metadata.num_warps
    return found


def _serve() -> None:
    """Answers messages until the parent is gone. Triton's output is discarded, and its tools do not inherit the pipes."""
    import msgpack

    source, sink = os.dup(0), os.dup(1)  # which programs that are started here do not inherit
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    messages: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(source, messages), daemon=True).start()
    _make_ready()
    _say(sink, msgpack.packb(identity()))
    while True:
        _say(sink, msgpack.packb(_answer(msgpack.unpackb(messages.get()))))


def _answer(task: Mapping[str, Any]) -> dict[str, Any]:
    try:
        image, metadata = _compiled(task)
    except Exception as error:  # noqa: BLE001 - it is raised again in the process that asks
        return {"error": f"{type(error).__name__}: {error}"}
    return {"image": image, "metadata": metadata}


def _make_ready() -> None:
    """Does ahead what the first kernel would wait for. Triton's cache key, for which it hashes its own files for half a second, is replaced
    by a constant: the cache is temporary.
    """
    import triton.compiler.code_generator
    import triton.runtime.cache

    triton.runtime.cache.triton_key = lambda: "any"  # type: ignore[assignment]


def _compiled(task: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    from triton.compiler import ASTSource

    tempfile.tempdir = task["folder"]  # the parent removes it, however this process ends
    with clean_settings(task["folder"]):
        return image_of(function_of(task["entry"], task["source"]), task, ASTSource)


def _listen(source: int, messages: SimpleQueue[bytes]) -> None:
    """Reads in a thread, so that the process ends with its parent in the midst of a compilation as well."""
    try:
        while True:
            if not select.select([source], [], [], IDLE_SECONDS)[0]:
                break
            (length,) = LENGTH.unpack(_read(source, LENGTH.size))
            messages.put(_read(source, length))
    finally:
        os._exit(0)


def _read(source: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = os.read(source, length - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def _say(sink: int, data: bytes) -> None:
    rest = memoryview(LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(sink, rest) :]


if __name__ == "__main__":
    try:
        _serve()
    finally:
        os._exit(1)
