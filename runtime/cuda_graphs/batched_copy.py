"""Batched copies on a GPU: one launch of a kernel that reads a table of (to, from, bytes) from its own parameters."""

from __future__ import annotations

import ctypes

from precast.runtime.common.log import logger
from precast.runtime.native.cuda_driver import driver_library

PTX = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry precast_copy(.param .align 8 .b8 table[768])
{
    .reg .pred %p<6>;
    .reg .b32 %r<12>;
    .reg .b64 %d<24>;
    .reg .b16 %h<2>;
    mov.u32 %r1, %ctaid.y;
    mul.wide.u32 %d1, %r1, 24;
    mov.b64 %d2, table;
    add.s64 %d3, %d2, %d1;
    ld.param.u64 %d4, [%d3];
    ld.param.u64 %d5, [%d3+8];
    ld.param.u64 %d6, [%d3+16];
    cvta.to.global.u64 %d4, %d4;
    cvta.to.global.u64 %d5, %d5;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, %nctaid.x;
    mul.lo.s32 %r6, %r2, %r3;
    add.s32 %r6, %r6, %r4;
    cvt.u64.u32 %d7, %r6;
    mul.lo.s32 %r7, %r5, %r3;
    cvt.u64.u32 %d8, %r7;
    or.b64 %d9, %d4, %d5;
    and.b64 %d9, %d9, 15;
    setp.ne.s64 %p1, %d9, 0;
    mov.u64 %d10, 0;
    @%p1 bra BYTES;
    shl.b64 %d11, %d7, 4;
    shl.b64 %d12, %d8, 4;
    and.b64 %d10, %d6, -16;
WIDE:
    setp.ge.u64 %p2, %d11, %d10;
    @%p2 bra BYTES;
    add.s64 %d13, %d5, %d11;
    add.s64 %d14, %d4, %d11;
    ld.global.v2.u64 {%d15, %d16}, [%d13];
    st.global.v2.u64 [%d14], {%d15, %d16};
    add.s64 %d11, %d11, %d12;
    bra WIDE;
BYTES:
    add.s64 %d17, %d10, %d7;
NARROW:
    setp.ge.u64 %p3, %d17, %d6;
    @%p3 bra DONE;
    add.s64 %d18, %d5, %d17;
    add.s64 %d19, %d4, %d17;
    ld.global.u8 %h1, [%d18];
    st.global.u8 [%d19], %h1;
    add.s64 %d17, %d17, %d8;
    bra NARROW;
DONE:
    ret;
}
"""
"""Block (x, y) copies a part of row y: 16 bytes a thread and step where both ends allow it, then what is left byte by byte.

The table has room for 32 rows (runtime/native/src/cuda_replay_order.c). PTX 8.0 for sm_80: every driver and GPU that precast supports
takes it.
"""


def copy_kernel() -> int:
    """The kernel's CUfunction in the current context; 0, with a logged reason, where the driver does not take it."""
    driver = driver_library()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    if driver is None:
        return 0
    failed = driver.cuModuleLoadData(ctypes.byref(module), PTX.encode()) or driver.cuModuleGetFunction(
        ctypes.byref(function), module, b"precast_copy"
    )
    if failed:
        logger("cudagraphs").info("inputs are copied one by one: the driver's error %d for the kernel that copies several", failed)
    return 0 if failed else function.value or 0
