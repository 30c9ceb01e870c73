"""torch's names and numbers of the dtypes that buffers have."""

from __future__ import annotations

from precast.lowering.ir.nodes import Buffer
from precast.lowering.ir.scalars import NAMED, DType
from precast.lowering.ir.torch_dtypes import TORCH_NAMES

DTYPE_CODES: dict[DType, int] = {
    DType.U8: 0, DType.I8: 1, DType.I16: 2, DType.I32: 3, DType.I64: 4, DType.F16: 5, DType.F32: 6, DType.F64: 7,
    DType.C64: 9, DType.C128: 10, DType.BOOL: 11, DType.BF16: 15,
}  # fmt: skip
"""c10::ScalarType, whose numbers are part of torch's serialisation format."""

OTHER_CODES = {
    "complex32": 8,
    "float8_e5m2": 23,
    "float8_e4m3fn": 24,
    "float8_e5m2fnuz": 25,
    "float8_e4m3fnuz": 26,
    "uint16": 27,
    "uint32": 28,
    "uint64": 29,
}


def torch_name(buffer: Buffer) -> str:
    """torch's name of a buffer's dtype."""
    return buffer.torch_dtype.removeprefix("torch.") if buffer.dtype in NAMED else TORCH_NAMES[buffer.dtype]


def dtype_code(buffer: Buffer) -> int:
    """c10::ScalarType number of a buffer's dtype."""
    if buffer.dtype not in NAMED:
        return DTYPE_CODES[buffer.dtype]
    name = buffer.torch_dtype.removeprefix("torch.")
    if name not in OTHER_CODES:
        raise TypeError(f"buffer {buffer.name} has dtype {name!r}, which no host program can allocate")
    return OTHER_CODES[name]
