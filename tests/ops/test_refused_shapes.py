"""Shapes and places that eager refuses but fake tensors let through: nothing is read or written outside a tensor, the error is raised.

Each case is compiled with the sizes as constants and, where eager would take other sizes, as symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import precast
from tests.ops.externs import externs
from tests.ops.runners import program_of

Fn = Callable[[Tensor, Tensor, Tensor], Tensor]
Case = tuple[Fn, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The function, the shapes of x and of the source, and of the (zero) indices."""


def assigned(x: Tensor, s: Tensor, i: Tensor) -> Tensor:
    out = x.clone()
    out[: s.shape[0]] = s
    return out


REFUSED: dict[str, Case] = {
    "embedding/empty": (lambda x, s, i: torch.embedding(x, i), (0, 4), (1,), (3,)),
    "index_select/empty": (lambda x, s, i: x.index_select(0, i), (0, 4), (1,), (3,)),
    "index_select/matrix": (lambda x, s, i: x.index_select(0, i), (5, 4), (1,), (2, 2)),
    "gather/empty": (lambda x, s, i: x.gather(0, i), (0, 4), (1,), (3, 4)),
    "x[i]/empty": (lambda x, s, i: x[i] + 1, (0, 4), (1,), (3,)),
    "scatter/empty": (lambda x, s, i: x.scatter(0, i, s), (0, 4), (3, 4), (3, 4)),
    "scatter_add/empty": (lambda x, s, i: x.scatter_add(0, i, s), (0, 4), (3, 4), (3, 4)),
    "scatter_reduce/empty": (lambda x, s, i: x.scatter_reduce(0, i, s, "amax"), (0, 4), (3, 4), (3, 4)),
    "index_add/short source": (lambda x, s, i: x.index_add(0, i, s), (5, 4), (2, 4), (3,)),
    "index_add/narrow source": (lambda x, s, i: x.index_add(0, i, s), (5, 4), (3, 2), (3,)),
    "index_copy/empty": (lambda x, s, i: x.index_copy(0, i, s), (0, 4), (3, 4), (3,)),
    "index_copy/short source": (lambda x, s, i: x.index_copy(0, i, s), (5, 4), (2, 4), (3,)),
    "index_fill/empty": (lambda x, s, i: x.index_fill(0, i, 1.0), (0, 4), (1,), (3,)),
    "index_put/empty": (lambda x, s, i: x.index_put((i,), s), (0, 4), (3, 4), (3,)),
    "index_put/values": (lambda x, s, i: x.index_put((i,), s), (5, 4), (2, 4), (3,)),
    "index_put/leading ones": (lambda x, s, i: x.index_put((i,), s), (5, 4), (1, 1, 1, 4), (3,)),
    "index_put/mask": (lambda x, s, i: x.index_put((i == 0,), s.sum()), (5, 4), (1,), (3,)),
    "select_scatter/place": (lambda x, s, i: x.select_scatter(s, 0, 9), (5, 4), (4,), (1,)),
    "select_scatter/source": (lambda x, s, i: x.select_scatter(s, 0, 1), (5, 4), (3,), (1,)),
    "slice_scatter/short source": (lambda x, s, i: x.slice_scatter(s, 0, 0, 4), (5, 4), (3, 4), (1,)),
    "slice_scatter/long source": (lambda x, s, i: x.slice_scatter(s, 0, 3), (5, 4), (4, 4), (1,)),
    "slice_scatter/narrow source": (lambda x, s, i: x.slice_scatter(s, 0, 0, 2), (5, 4), (2, 2), (1,)),
    "diagonal_scatter/short source": (lambda x, s, i: x.diagonal_scatter(s), (5, 4), (3,), (1,)),
    "diagonal_scatter/long source": (lambda x, s, i: x.diagonal_scatter(s), (5, 4), (5,), (1,)),
    "as_strided/long": (lambda x, s, i: (x + 1).as_strided((9, 9), (9, 1)), (5, 4), (1,), (1,)),
    "as_strided/offset": (lambda x, s, i: (x + 1).as_strided((2, 2), (2, 1), 19), (5, 4), (1,), (1,)),
    "softmax/dim": (lambda x, s, i: torch.softmax(x, 5), (5, 4), (1,), (1,)),
    "nll_loss/pixels": (lambda x, s, i: F.nll_loss(x, i), (2, 4, 3, 5), (1,), (2, 3, 4)),
    "cross_entropy/pixels": (lambda x, s, i: F.cross_entropy(x, i), (2, 4, 3, 5), (1,), (2, 2, 5)),
}

LOWERED: dict[str, Case] = {
    "index_add": (lambda x, s, i: x.index_add(0, i, s), (5, 4), (3, 4), (3,)),
    "index_copy": (lambda x, s, i: x.index_copy(0, i, s), (5, 4), (1, 4), (1,)),
    "index_put": (lambda x, s, i: x.index_put((i,), s), (5, 4), (1, 4), (1,)),
    "index_put/row": (lambda x, s, i: x.index_put((i,), s), (5, 4), (4,), (3,)),
    "index_put/mask": (lambda x, s, i: x.index_put((i == 0,), s.sum()), (5, 4), (1,), (5,)),
    "select_scatter": (lambda x, s, i: x.select_scatter(s, 0, -1), (5, 4), (4,), (1,)),
    "slice_scatter": (lambda x, s, i: x.slice_scatter(s, 0, 2), (5, 4), (3, 4), (1,)),
    "slice_scatter/assignment": (assigned, (5, 4), (3, 4), (1,)),
    "diagonal_scatter": (lambda x, s, i: x.diagonal_scatter(s), (5, 4), (4,), (1,)),
}


IMAGES = {3: "linear nearest nearest-exact", 4: "bilinear bicubic nearest nearest-exact", 5: "trilinear nearest nearest-exact"}


def resampled(rank: int, mode: str, **options: object) -> Callable[[Tensor], Tensor]:
    """Of images in so many dimensions; `size` is one dimension's, `last` the last one's."""
    if "size" in options:
        options["size"] = (*[options["size"]] * (rank - 3), options.pop("last", options["size"]))
    return lambda x: F.interpolate(x, mode=mode, **options) * 2  # type: ignore[arg-type]


EMPTY: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    **{f"{mode}{rank}/{what}": (resampled(rank, mode, **options), shape[:rank])
       for rank, modes in IMAGES.items() for mode in modes.split() for what, options, shape in (
        ("result", {"size": 0}, (1, 2, 3, 4, 5)), ("columns", {"size": 4, "last": 0}, (1, 2, 3, 4, 5)),
        ("by factor", {"scale_factor": 0.1}, (1, 2, 3, 4, 5)), ("image", {"size": 4}, (1, 2, 0, 4, 5)),
        ("channels", {"size": 4}, (1, 0, 3, 4, 5)))},
    **{f"{mode}/corners": (resampled(rank, mode, size=0, align_corners=True), (1, 2, 3, 4, 5)[:rank])
       for rank, mode in ((3, "linear"), (4, "bilinear"), (4, "bicubic"), (5, "trilinear"))},
    **{f"{mode}/antialias": (resampled(4, mode, size=0, antialias=True), (1, 2, 3, 4)) for mode in ("bilinear", "bicubic")},
    "avg_pool/image": (lambda x: F.avg_pool2d(x, 2), (1, 2, 0, 4)),
    "max_pool/channels": (lambda x: F.max_pool2d(x, 2), (1, 0, 3, 4)),
    "max_pool/window": (lambda x: F.max_pool2d(x, 5), (1, 2, 3, 4)),
    "max_pool/padding": (lambda x: F.max_pool2d(x, 2, padding=2), (1, 2, 3, 4)),
    "adaptive/image": (lambda x: F.adaptive_avg_pool2d(x, 2), (1, 2, 0, 4)),
    "adaptive/size": (lambda x: F.adaptive_max_pool2d(x, -1), (1, 2, 3, 4)),
    "convolution/image": (lambda x: F.conv2d(x, torch.ones(4, 2, 2, 2)), (1, 2, 0, 4)),
    "convolution/window": (lambda x: F.conv2d(x, torch.ones(4, 2, 5, 5)), (1, 2, 3, 4)),
    "unfold/image": (lambda x: F.unfold(x, 2), (1, 2, 0, 4)),
    "unfold/window": (lambda x: F.unfold(x, 5), (1, 2, 3, 4)),
    "unfold/padding": (lambda x: F.unfold(x, 2, padding=-1), (1, 2, 5, 5)),
    "fold/padding": (lambda x: F.fold(x, (3, 3), 2, padding=-1), (1, 8, 1)),
    "pixel_shuffle/0": (lambda x: F.pixel_shuffle(x, 0), (1, 4, 3, 3)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (1, 4, 3, 3)),
    "grid_sample/image": (lambda x: F.grid_sample(x, torch.zeros(1, 4, 4, 2), align_corners=False), (1, 2, 0, 4)),
    "pad/reflected": (lambda x: F.pad(x, (1, 1), mode="reflect"), (1, 2, 0)),
    "cross_entropy/pixels": (lambda x: F.cross_entropy(x, torch.zeros(2, 3, 2, dtype=torch.int64)), (2, 4, 3, 3)),
}  # fmt: skip
"""Sizes that a rule which reads images by other operators would take: each tensor of the result would be there, or be empty."""


def inputs_of(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    _, x, source, found = case
    return torch.randn(x), torch.randn(source), torch.zeros(found, dtype=torch.int64)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str, dynamic: bool) -> None:
    fn, inputs = REFUSED[name][0], inputs_of(REFUSED[name])
    with pytest.raises((IndexError, RuntimeError)):
        fn(*inputs)
    with pytest.raises((IndexError, RuntimeError)) as raised:
        precast.compile(fn, dynamic=dynamic)(*inputs)
    assert "internal" not in str(raised.value)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", EMPTY)
def test_images_that_eager_refuses_are_refused(name: str, dynamic: bool, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STRICT", "0")  # one that cannot be traced runs as written, and raises there
    fn, shape = EMPTY[name]
    with pytest.raises(RuntimeError) as theirs:
        fn(torch.randn(shape))
    with pytest.raises(RuntimeError) as ours:
        precast.compile(fn, store=store, dynamic=dynamic)(torch.randn(shape))
    assert str(theirs.value)[:30] in str(ours.value)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_a_later_image_is_too_small_for_a_factor(mode: str, store: Path) -> None:
    def fn(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=0.25, mode=mode)

    compiled = precast.compile(fn, store=store, dynamic=True)
    for n in (16, 9):
        x = torch.randn(1, 2, n, n + 2)
        torch.testing.assert_close(compiled(x), fn(x))
    for n in (3, 2):
        with pytest.raises(RuntimeError, match="Input and output sizes should be greater than 0"):
            compiled(torch.randn(1, 2, n, n + 2))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", LOWERED)
def test_what_fits_is_still_our_own_code(name: str, symbolic: bool) -> None:
    fn, inputs = LOWERED[name][0], inputs_of(LOWERED[name])
    program = program_of(fn, inputs, schedule=True, symbolic=symbolic)[0]
    assert not [op for op in externs(program) if not op.startswith("precast::")]
    assert torch.equal(precast.compile(fn, dynamic=symbolic, fullgraph=True)(*inputs), fn(*inputs))


def test_no_indices_into_nothing_change_nothing() -> None:
    x, source, found = torch.randn(0, 4), torch.randn(0, 4), torch.zeros(0, dtype=torch.int64)
    for fn in (partial(torch.index_add, dim=0), partial(torch.index_copy, dim=0)):
        out = precast.compile(lambda x, i, s, fn=fn: fn(x, index=i, source=s))(x, found, source)
        assert out.shape == (0, 4)
