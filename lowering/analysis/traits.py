"""What is taken for granted of a GPU's architecture: how much it does at once, and from which sizes on which way pays.

A threshold is a measurement on one chip. Those of sm_90 (H100 and H200, 132 multiprocessors) were found with this project's benchmarks
(docs/benchmarks-gpu.md, docs/tuning.md). No other architecture was measured: `ASSUMED` says what that means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Traits:
    """Sizes are in elements where no unit is told."""

    processors: int = 132
    """Multiprocessors to be kept busy: tilings are chosen so that there are about as many programs. The H100's and H200's number."""
    blocks_in_flight: int = 96 << 10
    """Bytes that the blocks of a product in flight may take without a measurement: the smallest architectures have 99 KiB a block."""
    tuned_in_flight: int = 160 << 10
    """The same for candidates that a tuner tries; an H100 has 227 KiB a block."""

    # reductions that are cut in two (split_reductions.py)
    memory_rate: int = 4 << 20
    """Bytes that memory hands out in a microsecond: 4.0 to 4.2 TB/s on an H200."""
    bytes_in_flight: int = 4 << 20
    """Bytes that have to be asked for at once for that: some 30 KiB for each multiprocessor."""
    step_points: int = 4096
    row_points: int = 32768
    """Points of a row that a program asks for at once, and up to how many it asks for all (`codegen/triton/render/heuristics.py`)."""
    cache: int = 40 << 20
    """Bytes of rows that are still in the L2 cache when they are read again, of its 50 MB."""
    second_launch: float = 3.0
    """Microseconds that one more kernel costs."""
    cut_gain: float = 1.15
    """How much faster the two kernels are to be than the one."""
    cut_programs: int = 4
    """How many programs there are to be for each multiprocessor after cutting. On an H200 2 to 8 were equal for sums and pairs of rows."""
    cut_chunk: int = 2048
    """Points of a chunk at least."""
    line: int = 128
    """Bytes of neighbouring columns that a program reads together: sums of columns ran at the memory's rate from there on."""
    sector: int = 32
    """Bytes that memory hands out at once: rows that lie side by side are read together. The same on every architecture since Pascal."""
    library_scan: int = 8192
    """Elements from which the scan of a single row is the library's. In a kernel of ours a row is one block's work, from its first element
    to its last; the library's sums and products over one row (CUB's) run on all multiprocessors, for one more launch. Of two rows and
    more, and of running extremes, the library makes a block's work, too: those stay ours."""

    # scatters that hit few places often (spread_updates.py)
    spread_updates: int = 1 << 21
    """Updates from which copies of their target are worth two more launches: on an H200, 2^20 over 2^13 addresses took 5.5 us without and
    6.1 with copies, 2^23 25 and 17."""
    spread_addresses: int = 1 << 18
    """Addresses over which atomic updates wait for one another no more."""
    vector_updates: bool = True
    """Whether there are atomic updates of several floats at once, as from Hopper on; without them a thread takes one element, so that those
    of a warp lie side by side. On an H200, rows of 128 floats to 64 places: 201 us, without vectors 242 (16 elements a thread: 735)."""
    spread_copies: int = 64
    spread_least: int = 4
    """Copies at most, and at least: with two there is next to nothing to gain."""

    # kernels that run early, or together (prologue_kernels_first.py, batch_kernels.py)
    small_points: int = 1 << 22
    """Points of a kernel up to which its launch counts; the result of a larger one is better made when it is needed."""
    large_bytes: int = 64 << 10
    """Bytes of a result from which it matters when it is made."""
    first_bytes: int = 2 << 20
    """What large results that are made at the beginning may take."""
    group_bytes: int = 32 << 20
    """What those of each later group may take."""
    batch_points: int = 1 << 22
    """Points of a kernel up to which it shares a launch: larger ones fill the device by themselves, and their results are still in its
    cache when the next step reads them."""
    batch_bytes: int = 64 << 20
    """What a batch may write before it is needed."""

    # products that are kernels of ours (gemv_as_reduction.py, weight_only_quant_matmul.py, matmul_template_fusion.py,
    # skinny_matmul_rule.py)
    vector_depth: int = 256
    """Elements of a matrix's row from which reading them is what a product with a vector costs."""
    narrow_rows: int = 128
    """Rows up to which a product reads narrow weights (int8) itself. On an H200: 2.6 to 3.9 times as fast as a cast and cuBLAS with 16
    rows, 1.3 times with 128."""
    decoded_rows: int = 16
    decoded_columns: int = 2048
    """Rows up to which, and columns from which it is worth decoding floats of eight bits in a product, which takes more work: on an H200
    weights of 4096 x 4096 took 16 us with 16 rows and 29 with 32, a cast and cuBLAS 24; of 1024 columns and 8192 rows 30 and 19."""
    narrow_many_rows: int = 64
    narrow_many_columns: int = 2048
    """With more rows than the first, a product of fewer columns than the second is the library's: there are too few blocks to go round."""
    narrow_columns: int = 16
    narrow_depth: int = 256
    """Columns and depth from which narrow weights are worth it."""
    fused_columns: int = 512
    """Columns of a product up to which its rows are computed as they are read: once for each block of columns."""
    own_rows: int = 1024
    own_columns: int = 64
    own_depth: int = 64
    """Sizes from which a product may go into the kernel that reads it, if that is predicted to be faster by the rates below. They were
    fitted to 100 products on an H200 with something behind and in front (docs/tuning.md): about 13 % off in the mean."""
    own_start: float = 2.3e-6
    own_bytes: float = 6.8e12
    own_operations: float = 6.2e14
    own_operations_of_several: float = 5.2e14
    own_arithmetic: float = 1.7e13
    own_scattered: float = 1.7e11
    """Of a kernel with a product inside: seconds to start; bytes a second, much of which a cache has; operations a second of whole blocks,
    with one sum and with several; simple operations a second around the sums; and loads a second, in front of the sums, that are
    no neighbours in memory along either axis of their side, so that none of them is on its way while the one before is multiplied."""
    library_start: float = 1.5e-6
    library_bytes: float = 3.9e12
    library_operations: float = 1.27e15
    """Of a library's product, and of a kernel without one beside it: seconds to start each, bytes and operations a second. A library
    reads and computes at once, so that its operations are counted as if they were faster than any."""

    # products with columns that are no multiple of a vector (pad_matmul_rows.py)
    odd_rows: int = 128
    odd_work: int = 1 << 28
    """Rows, and multiplications in all, from which the slow product costs more than a second call."""


SM_90 = Traits()
"""Hopper: measured."""
ASSUMED = replace(SM_90)
"""Every other architecture: Hopper's figures, none of them measured there. An A100 (sm_80) has 108 multiprocessors and 163 KiB of shared
memory a block, so `processors` is too high there by a fifth; GPUs with 99 KiB (sm_86, sm_89, sm_120) fit `blocks_in_flight`, but not
`tuned_in_flight`: a tuner drops candidates that do not launch."""
BEFORE_HOPPER = replace(ASSUMED, vector_updates=False)
ARCHITECTURES = {"sm_90": SM_90, **dict.fromkeys(("sm_80", "sm_86", "sm_87", "sm_89", "ptx_80"), BEFORE_HOPPER)}


def traits_of(target: str) -> Traits:
    """The traits of a target ("cuda:sm_90")."""
    return ARCHITECTURES.get(target.partition(":")[2], ASSUMED)
