"""The scalars of the loop IR: element types, and the closed vocabularies of its operations and reductions."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """Element types, with the width in bytes. Complex values exist in buffers only: they pass through extern calls."""

    F64 = "f64"
    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"
    C64 = "c64"
    C128 = "c128"
    FLOAT8 = "float8"  # one of torch's floats of eight bits: kernels read its bytes (U8), extern calls write them
    OTHER = "other"  # a type that only extern calls understand (uint16, quantised …)

    @property
    def itemsize(self) -> int:
        return {
            "f64": 8,
            "f32": 4,
            "bf16": 2,
            "f16": 2,
            "i64": 8,
            "i32": 4,
            "i16": 2,
            "i8": 1,
            "u8": 1,
            "bool": 1,
            "c64": 8,
            "c128": 16,
        }.get(self.value, 1)

    @property
    def is_float(self) -> bool:
        return self in (DType.F64, DType.F32, DType.BF16, DType.F16)

    @property
    def is_int(self) -> bool:
        return self in (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)

    @property
    def compute(self) -> DType:
        """The type that arithmetic on this storage type runs in."""
        return DType.F32 if self in (DType.BF16, DType.F16) else DType.U8 if self is DType.FLOAT8 else self


NAMED = (DType.FLOAT8, DType.OTHER)
"""Types of which torch has several: a buffer has the name of its own."""
HALVES = (DType.BF16, DType.F16)
HELD_BY_HALVES = (DType.I8, DType.U8, DType.BOOL)
"""The types of which every value is one of both half types."""


class Op(Enum):
    """The closed vocabulary of `Alu`; how many operands each takes says `arity`."""

    # unary
    NEG = "neg"
    ABS = "abs"
    EXP = "exp"
    EXP2 = "exp2"
    EXPM1 = "expm1"
    LOG = "log"
    LOG2 = "log2"
    LOG10 = "log10"
    LOG1P = "log1p"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    SINH = "sinh"
    COSH = "cosh"
    TANH = "tanh"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    ERF = "erf"
    ERFC = "erfc"
    LGAMMA = "lgamma"
    J0 = "j0"  # Bessel functions
    J1 = "j1"
    Y0 = "y0"
    Y1 = "y1"
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    ROUND = "round"  # half to even
    NOT = "not"  # logical on BOOL, bitwise on integers
    ISNAN = "isnan"
    ISINF = "isinf"
    SIGNBIT = "signbit"
    BITCAST = "bitcast"
    # binary
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    FLOORDIV = "floordiv"
    TRUNCDIV = "truncdiv"
    MOD = "mod"  # sign of the divisor (torch.remainder)
    REM = "rem"  # sign of the dividend (torch.fmod)
    POW = "pow"
    MIN = "min"
    MAX = "max"
    ATAN2 = "atan2"
    HYPOT = "hypot"
    COPYSIGN = "copysign"
    NEXTAFTER = "nextafter"
    GCD = "gcd"  # of integers, never negative unless it wraps
    PHILOX = "philox"  # of a key and a counter (I64): the first of the four numbers of Philox 4x32-10, in [0, 2^32)
    LT = "lt"
    LE = "le"
    EQ = "eq"
    NE = "ne"
    AND = "and"  # logical on BOOL, bitwise on integers
    OR = "or"
    XOR = "xor"
    SHL = "shl"
    SHR = "shr"
    # ternary
    WHERE = "where"
    FMA = "fma"


UNARY = frozenset(op for op in Op if list(Op).index(op) <= list(Op).index(Op.BITCAST))
TERNARY = frozenset({Op.WHERE, Op.FMA})
COMPARISONS = frozenset({Op.LT, Op.LE, Op.EQ, Op.NE, Op.ISNAN, Op.ISINF, Op.SIGNBIT})
TRANSCENDENTAL = frozenset(
    op
    for op in UNARY
    if op
    not in (Op.NEG, Op.ABS, Op.SQRT, Op.RSQRT, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.NOT, Op.ISNAN, Op.ISINF, Op.SIGNBIT, Op.BITCAST)
) | {Op.POW, Op.ATAN2, Op.HYPOT}


def arity(op: Op) -> int:
    """How many operands `op` takes: one to three."""
    return 1 if op in UNARY else 3 if op in TERNARY else 2


class ReduceOp(Enum):
    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    ANY = "any"
    ALL = "all"
    ARGMIN = "argmin"  # lowest index among equals; NaN wins, the first one
    ARGMAX = "argmax"
    LOGSUMEXP = "logsumexp"  # log of the sum of exponentials, by the largest term so far; of scans on GPUs only
