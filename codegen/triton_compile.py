"""Compiles rendered kernels for GPUs that this machine need not have.

`triton.compile` takes the target as data and carries its own assembler, so a cubin for any architecture comes out of a machine without
a device. Triton is imported here and nowhere else; its cache is pointed at a folder that goes away: the result depends on the source alone.
"""

from __future__ import annotations

import linecache
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from precast.codegen.triton_render import TritonKernel

PTX_VERSION = 80
"""What drivers from 12.0 on can read; Triton's own assembler would stamp a newer one."""


@dataclass(frozen=True)
class Cubin:
    """One compiled kernel with what a launch has to know.

    A launch of `block` threads passes each of `arguments` in its natural C type, then two hidden pointers (`global_scratch`,
    `profile_scratch`), null where their sizes are 0. More than 48 KiB of `shared` memory needs the function's attribute set first.
    """

    name: str
    arch: str
    image: bytes
    metadata: dict[str, Any] = field(compare=False)


def compile_cubin(kernel: TritonKernel, arch: str) -> Cubin:
    """`arch` is "sm_80", "sm_90", "sm_100" …; another form raises `ValueError`, a source that Triton refuses Triton's own error."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    capability = _capability(arch)
    signature = {a.name: a.type for a in kernel.arguments}
    attributes = {(n,): [["tt.divisibility", 16]] for n, a in enumerate(kernel.arguments) if a.aligned}
    options = {
        "num_warps": kernel.tiling.num_warps,
        "num_stages": kernel.tiling.num_stages,
        "enable_fp_fusion": False,  # the IR does not contract
        "ptx_version": PTX_VERSION if capability < 100 else None,
    }
    with _clean_settings():
        function = load(kernel)
        source = ASTSource(function, signature=signature, attrs=attributes)
        given = {key: value for key, value in options.items() if value is not None}
        run: Callable[..., Any] = triton.compile
        compiled = run(source, target=GPUTarget("cuda", capability, 32), options=given)
    image = compiled.asm["cubin"]
    assert isinstance(image, bytes)
    return Cubin(kernel.name, arch, image, _metadata(compiled.metadata, kernel))


def load(kernel: TritonKernel) -> Any:
    """The jit function that the kernel's source defines. There is no file: `linecache` holds the text for Triton, which reads it back."""
    file = f"<precast {kernel.name}>"
    namespace: dict[str, Any] = {"__name__": f"precast_{kernel.name}"}
    linecache.cache[file] = (len(kernel.source), None, kernel.source.splitlines(keepends=True), file)
    exec(compile(kernel.source, file, "exec"), namespace)
    return namespace[kernel.name]


def architecture(image: bytes) -> str:
    """The architecture that a cubin's ELF header names: "sm_90"."""
    if image[:4] != b"\x7fELF":
        raise ValueError("not an ELF image")
    (flags,) = struct.unpack_from("<I", image, 48)
    # CUDA 13's ELF version keeps the number in bits 8 and up, older ones in the low byte.
    number = flags >> 8 & 0xFF if image[7] == 0x41 else flags & 0xFF
    return f"sm_{number}"


def _capability(arch: str) -> int:
    digits = arch.removeprefix("sm_")
    if not arch.startswith("sm_") or not digits.isdecimal():
        raise ValueError(f"architecture {arch!r}: expected sm_80, sm_90, …")
    return int(digits)


def _metadata(metadata: Any, kernel: TritonKernel) -> dict[str, Any]:
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
    found["grid"] = str(kernel.grid)
    found["arguments"] = [[a.name, a.kind, a.type, a.buffer, a.aligned] for a in kernel.arguments]
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
