"""Windows onto one storage: what is said to be apart shares no element, and what programs do is recognised."""

from __future__ import annotations

import random

import torch

from precast.capture.graph.window_overlap import apart, same_window, strided_storage


def elements(tensor: torch.Tensor) -> set[int]:
    return set(
        torch.arange(tensor.untyped_storage().nbytes() // 4)
        .as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        .flatten()
        .tolist()
    )


def test_rows_columns_and_pieces() -> None:
    x = torch.zeros(4, 6)
    assert apart(x[0], x[1]) and apart(x[:, :3], x[:, 3:]) and apart(x[::2], x[1::2]) and apart(x[:, ::2], x[:, 1::2])
    assert not apart(x[:, :4], x[:, 3:]) and not apart(x, x.view(-1)) and not apart(x[1:], x[:-1])
    assert same_window(x.view(-1), x.reshape(24)) and not same_window(x, x.view(-1)) and not same_window(x[0], x[1])
    assert strided_storage(x[1:]) == strided_storage(x) != strided_storage(x.clone()) and strided_storage(3) is None


def test_apart_is_never_said_of_what_overlaps() -> None:
    dice, told = random.Random(0), 0
    base = torch.zeros(120)
    for _ in range(3000):
        pair = []
        for _ in range(2):
            size = [dice.randrange(4) if dice.random() < 0.1 else dice.randrange(1, 5) for _ in range(dice.randrange(1, 4))]
            stride = [dice.choice((0, 1, 2, 3, 4, 6, 12)) for _ in size]
            pair.append(base.as_strided(size, stride, dice.randrange(20)))
        a, b = pair
        if apart(a, b):
            told += 1
            assert not elements(a) & elements(b), (a.shape, a.stride(), a.storage_offset(), b.shape, b.stride(), b.storage_offset())
    assert told > 300
