"""Shuffles of C++ vectors, which transpose squares of them or add them up."""

from __future__ import annotations


def exchange(lanes: int, distance: int) -> tuple[str, str]:
    """Lane numbers, for `__builtin_shufflevector` of x and y, that exchange x's blocks of `distance` lanes with those of y before them."""
    low = ", ".join(str(j if not j & distance else lanes + j - distance) for j in range(lanes))
    high = ", ".join(str(j + distance if not j & distance else lanes + j) for j in range(lanes))
    return low, high


def transposed(lanes: int) -> str:
    """Rows `v0…` of a square of `lanes`, transposed in place by exchanging blocks of growing size."""
    lines = []
    distance = 1
    while distance < lanes:
        low, high = exchange(lanes, distance)
        for i in (i for i in range(lanes) if not i & distance):
            j = i + distance
            lines.append(
                f"{{ const V x = __builtin_shufflevector(v{i}, v{j}, {low}), y = __builtin_shufflevector(v{i}, v{j}, {high}); "
                f"v{i} = x; v{j} = y; }}"
            )
        distance *= 2
    return "\n        ".join(lines)


def totals(lanes: int, count: int) -> str:
    """Leaves in lane i of `v0` the sum of all lanes of `vi`, of `count` vectors: like `transposed`, but each step adds its two results."""
    lines = []
    distance = 1
    while distance < count:
        low, high = exchange(lanes, distance)
        for i in range(0, count, 2 * distance):
            j = i + distance
            lines.append(f"v{i} = __builtin_shufflevector(v{i}, v{j}, {low}) + __builtin_shufflevector(v{i}, v{j}, {high});")
        distance *= 2
    while distance < lanes:
        lines.append(f"v0 += __builtin_shufflevector(v0, v0, {', '.join(str((j + distance) % lanes) for j in range(lanes))});")
        distance *= 2
    return " ".join(lines)
