"""Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) on torch tensors: the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF


def philox(key: Tensor, counter: Tensor) -> Tensor:
    """The first of the four numbers for 64-bit keys and counters (int64, whose bits count); int64 in [0, 2^32), of their common shape."""
    k0, k1 = key & LOW, key >> 32 & LOW
    a, b = counter & LOW, counter >> 32 & LOW
    c = d = torch.zeros_like(a)
    for _ in range(ROUNDS):
        p, q = a * MULTIPLIERS[0], c * MULTIPLIERS[1]  # they wrap, and their bits are those of the unsigned products
        a, b, c, d = (q >> 32 & LOW) ^ b ^ k0, q & LOW, (p >> 32 & LOW) ^ d ^ k1, p & LOW
        k0, k1 = k0 + WEYL[0] & LOW, k1 + WEYL[1] & LOW
    return a
