"""Compiles rendered kernels for GPUs that this machine need not have.

`triton.compile` takes the target as data and carries its own assembler, so a cubin for any architecture comes out of a machine without
a device. Triton is imported here, in `worker.py` and `worker_pool.py` alone; its cache is pointed at a folder that goes away: the
result depends on the source alone.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from precast.codegen.triton.build import worker_pool
from precast.codegen.triton.build.schedule_compiles import shared
from precast.codegen.triton.build.worker import PTX, clean_settings, function_of, image_of, target
from precast.codegen.triton.render.render import TritonKernel

__all__ = ["PTX", "Cubin", "architecture", "candidate_images", "compile_cubin", "compile_images", "image_numbers", "load", "warm_up"]

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


def compile_images(kernels: Sequence[TritonKernel], arch: str, workers: int = 1, pool: worker_pool.Pool | None = None) -> list[Cubin]:
    """The image of each kernel, in order; kernels of equal source, argument types and launch share one object.

    `arch` is "sm_80", "sm_90", "sm_100" … or "ptx_80"; another form raises `ValueError`. `workers` threads compile: Triton's passes and
    its assembler, four fifths of the time, run without the interpreter's lock. Some of them have a process do it: one of `pool`, or of
    those that `worker_pool` has begun. Raises Triton's own error for a source that it refuses.
    """
    return _images(kernels, arch, workers, pool, _compile)


def candidate_images(kernels: Sequence[TritonKernel], arch: str, workers: int = 1) -> list[Cubin | Exception]:
    """As `compile_images`, for kernels that may fail to compile: such a kernel has Triton's or its assembler's error in place of an
    image.
    """

    def compile_or_tell(kernel: TritonKernel, arch: str) -> Cubin | Exception:
        try:
            return _compile(kernel, arch)
        except Exception as error:  # noqa: BLE001 - the caller gets it; assemblers fail in ways of their own
            return error

    return _images(kernels, arch, workers, None, compile_or_tell)


Made = TypeVar("Made")


def _images(
    kernels: Sequence[TritonKernel],
    arch: str,
    workers: int,
    pool: worker_pool.Pool | None,
    here: Callable[[TritonKernel, str], Made],
) -> list[Cubin | Made]:
    target(arch)
    warm_up().join()  # every thread of the pool would do it
    distinct = {_identity(kernel): kernel for kernel in kernels}
    with _LOCK, worker_pool.taken(len(distinct)) if pool is None else nullcontext(pool.alive()) as processes, _folder() as folder:

        def there(kernel: TritonKernel, process: worker_pool.Worker) -> Cubin | Made | None:
            found = process.image({**_task(kernel, arch), "entry": kernel.entry, "source": kernel.source, "folder": folder})
            return None if found is None else Cubin(kernel.entry, arch, *found)

        def by_thread(kernel: TritonKernel) -> Cubin | Made:
            return here(kernel, arch)

        images = shared(list(distinct.values()), by_thread, there, workers, processes)
    compiled = dict(zip(distinct, images, strict=True))
    return [compiled[_identity(kernel)] for kernel in kernels]


@contextmanager
def _folder() -> Iterator[str]:
    """A temporary folder for compilations inside the context, set as Triton's cache."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, clean_settings(folder):
        yield folder


@cache
def warm_up() -> threading.Thread:
    """Starts a thread that does what the first compilation of a process needs: Triton hashes all of its own files, for half a second, for
    the keys of its cache. Once per process; raises ImportError where there is no Triton.
    """
    import triton.runtime.cache  # before the thread, which imports nothing: a fork in its midst leaves no module half imported

    def read() -> None:
        with suppress(Exception):  # the compilation itself will say it
            triton.runtime.cache.triton_key()

    thread = threading.Thread(target=read, name="precast-triton-key", daemon=True)
    thread.start()
    return thread


def _renew() -> None:
    """Renews the locks in a forked child: a thread of the parent may have held them, and it does not exist in the child."""
    global _LOCK, _PARSING
    _LOCK, _PARSING = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def image_numbers(kernels: Sequence[TritonKernel]) -> list[int]:
    """The number of each kernel's image, from 0 in the order of first use; kernels that share an image have one number."""
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
    return Cubin(kernel.entry, arch, *image_of(load(kernel), _task(kernel, arch), _source_class()))


def _task(kernel: TritonKernel, arch: str) -> dict[str, Any]:
    """The parameters of `image_of` for a kernel, without its source."""
    return {
        "arguments": [(a.name, a.type, a.aligned) for a in kernel.arguments],
        "num_warps": kernel.tiling.num_warps,
        "num_stages": kernel.tiling.num_stages,
        "checks": kernel.checks,
        "arch": arch,
    }


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
    """The jit function that the kernel's source defines."""
    return function_of(kernel.entry, kernel.source)


def architecture(image: bytes) -> str:
    """The architecture that a cubin's ELF header names: "sm_90"."""
    if image[:4] != b"\x7fELF":
        raise ValueError("not an ELF image")
    (flags,) = struct.unpack_from("<I", image, 48)
    # CUDA 13's ELF version keeps the number in bits 8 and up, older ones in the low byte.
    number = flags >> 8 & 0xFF if image[7] == 0x41 else flags & 0xFF
    return f"sm_{number}"
