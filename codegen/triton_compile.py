"""Compiles rendered kernels for GPUs that this machine need not have.

`triton.compile` takes the target as data and carries its own assembler, so a cubin for any architecture comes out of a machine without
a device. Triton is imported here and nowhere else; its cache is pointed at a folder that goes away: the result depends on the source alone.
"""

from __future__ import annotations

import linecache
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from precast.codegen.triton_render import TritonKernel

PTX_VERSION = 80
"""What drivers from 12.0 on can read; Triton's own assembler would stamp a newer one."""

PTX = "ptx_80"
"""The fall-back architecture: PTX text for sm_80, which the driver of any later device compiles when it loads it."""

_LOCK = threading.Lock()
_PARSING = threading.Lock()


@dataclass(frozen=True)
class Cubin:
    """One compiled kernel with what a launch has to know. `image` is an ELF file, or zero-terminated PTX text for "ptx_80".

    A launch of `block` threads passes the kernel's arguments in their natural C types, then two hidden pointers (`global_scratch`,
    `profile_scratch`), null where their sizes are 0. More than 48 KiB of `shared` memory needs the function's attribute set first.
    """

    entry: str
    arch: str
    image: bytes
    metadata: dict[str, Any] = field(compare=False)


def compile_images(kernels: Sequence[TritonKernel], arch: str, workers: int = 1) -> list[Cubin]:
    """The image of each kernel, in order; kernels of equal source, argument types and launch share one object.

    `arch` is "sm_80", "sm_90", "sm_100" … or "ptx_80"; another form raises `ValueError`. `workers` threads compile: Triton's passes and
    its assembler, four fifths of the time, run without the interpreter's lock. Raises Triton's own error for a source that it refuses.
    """
    _target(arch)
    warm_up().join()  # every thread of the pool would do it
    distinct = {_identity(kernel): kernel for kernel in kernels}
    with _LOCK, _clean_settings(), ThreadPoolExecutor(max(1, min(workers, len(distinct)))) as pool:
        compiled = dict(zip(distinct, pool.map(lambda kernel: _compile(kernel, arch), distinct.values()), strict=True))
    return [compiled[_identity(kernel)] for kernel in kernels]


@cache
def warm_up() -> threading.Thread:
    """Begins what the first compilation of a process needs and what can be done beside Python code: Triton reads all of itself, half a
    second's hashing, for the keys of its cache. Once for the process; raises ImportError where there is no Triton.
    """
    import triton.runtime.cache  # before the thread, which imports nothing: a fork in its midst leaves no module half imported

    def read() -> None:
        with suppress(Exception):  # the compilation itself will say it
            triton.runtime.cache.triton_key()

    thread = threading.Thread(target=read, name="precast-triton-key", daemon=True)
    thread.start()
    return thread


def _renew() -> None:
    """A forked child finds the locks open: a thread of the parent may have held them, and it does not exist in the child."""
    global _LOCK, _PARSING
    _LOCK, _PARSING = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def image_numbers(kernels: Sequence[TritonKernel]) -> list[int]:
    """The number of each kernel's image, from 0 in the order of their first use: what `compile_images` gives one object has one number."""
    numbers: dict[tuple[object, ...], int] = {}
    return [numbers.setdefault(_identity(kernel), len(numbers)) for kernel in kernels]


def compile_cubin(kernel: TritonKernel, arch: str) -> Cubin:
    """`compile_images` for one kernel."""
    return compile_images([kernel], arch)[0]


def _identity(kernel: TritonKernel) -> tuple[object, ...]:
    return kernel.source, tuple((a.type, a.aligned) for a in kernel.arguments), kernel.tiling.num_warps, kernel.tiling.num_stages


def _compile(kernel: TritonKernel, arch: str) -> Cubin:
    try:
        return _compiled(kernel, arch)
    except Exception as error:
        error.add_note(f"while kernel {kernel.entry} was compiled for {arch}")
        raise


def _compiled(kernel: TritonKernel, arch: str) -> Cubin:
    import triton
    from triton.backends.compiler import GPUTarget

    capability, form = _target(arch)
    signature = {a.name: a.type for a in kernel.arguments}
    attributes = {(n,): [["tt.divisibility", 16]] for n, a in enumerate(kernel.arguments) if a.aligned}
    options: dict[str, object] = {
        "num_warps": kernel.tiling.num_warps,
        "num_stages": kernel.tiling.num_stages,
        "enable_fp_fusion": False,  # the IR does not contract
    }
    if capability < 100:
        options["ptx_version"] = PTX_VERSION
    if kernel.checks:  # assertions; without checks of integer overflow, which may be meant
        options |= {"debug": True, "sanitize_overflow": False}
    source = _source_class()(load(kernel), signature=signature, attrs=attributes)
    run: Callable[..., Any] = triton.compile
    compiled = run(source, target=GPUTarget("cuda", capability, 32), options=options)
    image = compiled.asm[form]
    data = image if isinstance(image, bytes) else image.encode() + b"\0"
    return Cubin(kernel.entry, arch, data, _metadata(compiled.metadata))


@cache
def _source_class() -> Any:
    """`ASTSource`, one at a time where Python's parser is used: its state is shared by threads in Python 3.11."""
    from triton.compiler import ASTSource

    class Source(ASTSource):
        def hash(self) -> Any:
            with _PARSING:
                return super().hash()  # type: ignore[no-untyped-call]

        def make_ir(self, *args: Any, **kwargs: Any) -> Any:
            with _PARSING:
                return super().make_ir(*args, **kwargs)

    return Source


def load(kernel: TritonKernel) -> Any:
    """The jit function that the kernel's source defines. There is no file: `linecache` holds the text for Triton, which reads it back."""
    file = f"<precast {kernel.entry}>"
    namespace: dict[str, Any] = {"__name__": f"precast_{kernel.entry}"}
    linecache.cache[file] = (len(kernel.source), None, kernel.source.splitlines(keepends=True), file)
    exec(compile(kernel.source, file, "exec"), namespace)
    return namespace[kernel.entry]


def architecture(image: bytes) -> str:
    """The architecture that a cubin's ELF header names: "sm_90"."""
    if image[:4] != b"\x7fELF":
        raise ValueError("not an ELF image")
    (flags,) = struct.unpack_from("<I", image, 48)
    # CUDA 13's ELF version keeps the number in bits 8 and up, older ones in the low byte.
    number = flags >> 8 & 0xFF if image[7] == 0x41 else flags & 0xFF
    return f"sm_{number}"


def _target(arch: str) -> tuple[int, str]:
    """The capability to compile for and which of Triton's results is wanted."""
    if arch == PTX:
        return 80, "ptx"
    digits = arch.removeprefix("sm_")
    if not arch.startswith("sm_") or not digits.isdecimal():
        raise ValueError(f"architecture {arch!r}: expected sm_80, sm_90, … or {PTX}")
    return int(digits), "cubin"


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


@contextmanager
def _clean_settings() -> Iterator[None]:
    """Triton's settings for one compilation: a throw-away cache, no line tables (they name files and double the size), no interpreter."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope(), knobs.compilation.scope(), knobs.runtime.scope():
        knobs.cache.dir = folder
        knobs.compilation.disable_line_info = True
        knobs.runtime.interpret = False
        yield
