"""torch's element types and the loop IR's."""

from __future__ import annotations

import torch

from precast.lowering.ir.scalars import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
    DType.C64: torch.complex64,
    DType.C128: torch.complex128,
}
TORCH_NAMES = {ours: str(theirs).removeprefix("torch.") for ours, theirs in TORCH_DTYPES.items()}
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_OURS = {**{theirs: ours for ours, theirs in TORCH_DTYPES.items()}, **dict.fromkeys(FLOAT8, DType.FLOAT8)}


def dtype_of(dtype: torch.dtype) -> DType:
    """`DType.OTHER` for a type that only extern calls understand."""
    return _OURS.get(dtype, DType.OTHER)


__all__ = ["TORCH_DTYPES", "TORCH_NAMES", "dtype_of"]
