"""Triton source: golden text, determinism, refusals; cubins for machines that are not here."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sympy

from precast.codegen.triton.build.images import PTX, architecture, compile_cubin, compile_images
from precast.codegen.triton.render.heuristics import MOST_TOGETHER, choose
from precast.codegen.triton.render.ops import HELPERS, ROWS, Unsupported, needed_helpers
from precast.codegen.triton.render.render import TritonKernel, render, render_program
from precast.codegen.triton.render.tiling import Part, Tiling
from precast.lowering.analysis.traits import SM_90
from precast.lowering.ir.nodes import Axis, Buffer, Const, Kernel, Load, Reduce, Store, axis_symbol
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from tests.ops.optable import BY_ID
from tests.ops.runners import program_of

HERE = Path(__file__).resolve().parent
GOLDEN = {
    "lerp": "lerp-f32",
    "softmax": "softmax/-1-f32",
    "layernorm_gelu": "chain/residual_layernorm_gelu-bf16",
    "rope": "chain/rope-f32",
    "embedding": "embedding/sum-f32",
    "argmax": "argmax/mid-f32",
    "product": "linear/int8_weights-bf16",
}


def kernels_of(row_id: str, tiling: Tiling | None = None) -> list[TritonKernel]:
    """The launches of a row of the op table."""
    row = BY_ID[row_id]
    program, _ = program_of(row.fn, row.inputs(1), schedule=True, target="cuda:sm_90")
    steps = tuple(replace(step, name=f"kernel{n}") if isinstance(step, Kernel) else step for n, step in enumerate(program.steps))
    return [kernel for group in render_program(replace(program, steps=steps), tiling).values() for kernel in group]


def text_of(row_id: str) -> str:
    return "\n\n".join(f"# grid {k.grid}, {k.tiling}\n{k.source}" for k in kernels_of(row_id))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    """The source of a few kernels, as reviewed. `PRECAST_UPDATE_GOLDEN=1` writes them anew."""
    path = HERE / "golden" / f"{name}.txt"
    text = text_of(GOLDEN[name])
    if os.environ.get("PRECAST_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_source_does_not_depend_on_hashing() -> None:
    """Two processes with other hash seeds give the same text."""
    texts_of_all = f"[text_of(r) for r in {list(GOLDEN.values())!r}]"
    script = f"import json; from tests.codegen.triton.test_render import text_of; print(json.dumps({texts_of_all}))"
    texts = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=HERE.parents[2], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        texts.append(json.loads(done.stdout.splitlines()[-1]))
    assert texts[0] == texts[1]
    assert all("@triton.jit" in text for text in texts[0])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_cubin_is_for_the_asked_architecture(arch: str) -> None:
    for row_id in ("chain/residual_layernorm_gelu-bf16", "embedding/sum-f32"):
        (kernel,) = kernels_of(row_id)
        cubin = compile_cubin(kernel, arch)
        assert architecture(cubin.image) == arch
        assert cubin.metadata["block"] == 32 * kernel.tiling.num_warps
        assert cubin.metadata["entry"] == kernel.entry
        assert kernel.entry.encode() in cubin.image


def test_looped_reduction_compiles() -> None:
    (kernel,) = kernels_of("layer_norm-f32", Tiling(xblock=2, persistent=16, rblock=16, unroll=1))
    assert "for t0_start in range(0, 48, 16):" in kernel.source
    assert architecture(compile_cubin(kernel, "sm_90").image) == "sm_90"


def test_equal_sources_give_equal_bytes() -> None:
    """Also in another process: nothing of the machine, the folder or the clock is in a cubin."""
    (kernel,) = kernels_of("softmax/-1-f32")
    script = (
        "import hashlib; from precast.codegen.triton.build.images import compile_cubin; "
        "from tests.codegen.triton.test_render import kernels_of; "
        "print(hashlib.sha256(compile_cubin(kernels_of('softmax/-1-f32')[0], 'sm_90').image).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=HERE.parents[2], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = compile_cubin(kernel, "sm_90"), compile_cubin(kernel, "sm_90")
    assert first.image == second.image
    assert hashlib.sha256(first.image).hexdigest() == done.stdout.split()[-1]


def test_the_fall_back_is_text_that_old_drivers_read() -> None:
    (kernel,) = kernels_of("embedding/sum-f32")
    (image,) = compile_images([kernel], PTX)
    text = image.image.decode()
    assert ".version 8.0" in text and ".target sm_80\n" in text and text.endswith("\0")
    assert f".entry {kernel.entry}(" in text and "__assertfail" in text
    assert str(HERE.parent) not in text


def test_equal_kernels_are_compiled_once() -> None:
    """Buffers' and kernels' names are not in the source: twelve equal layers have one image."""
    (kernel,) = kernels_of("lerp-f32")
    (other,) = kernels_of("softmax/-1-f32")
    again = replace(kernel, name="kernel7", arguments=tuple(replace(a, buffer=f"{a.buffer}_b") for a in kernel.arguments))
    images = compile_images([kernel, other, again], "sm_80", workers=2)
    assert images[0] is images[2]
    assert [i.entry for i in images] == [kernel.entry, other.entry, kernel.entry]
    assert images[1].image == compile_cubin(other, "sm_80").image


def test_many_small_parts_are_dealt_to_launches_of_bounded_size() -> None:
    """One kernel of two hundred buffers took Triton three seconds while the other threads had nothing to do."""
    axes = tuple(Axis(axis_symbol(f"i{n}"), 64 + 32 * n) for n in range(20))
    stores: list[Store] = []
    buffers: list[Buffer] = []
    for n in range(100):
        axis = axes[n % 20]
        buffers += [Buffer(name, DType.F32, (axis.extent,), (1,)) for name in (f"in{n}", f"out{n}")]
        stores.append(Store(f"out{n}", axis.symbol, Load(f"in{n}", axis.symbol, DType.F32), axes=(axis,)))
    launches = render(Kernel("many", axes, tuple(stores)), buffers)
    assert len(launches) == 4 and all(len(k.arguments) <= MOST_TOGETHER for k in launches)
    assert sorted(a.buffer or "" for k in launches for a in k.arguments) == sorted(b.name for b in buffers)
    assert len({k.name for k in launches}) == len(launches)


def test_sizes_known_at_run_time_have_two_widths() -> None:
    size = sympy.Symbol("s0", integer=True, positive=True)
    axis = Axis(axis_symbol("i0"), size)
    buffers = [Buffer(n, DType.F32, (size,), (1,)) for n in "ab"]
    (kernel,) = render(Kernel("k", (axis,), (Store("b", axis.symbol, Load("a", axis.symbol, DType.F32)),)), buffers)
    assert kernel.reach == size and kernel.wide is not None
    assert [(a.type, a.symbol) for a in (kernel.arguments[-1], kernel.wide.arguments[-1])] == [("i32", size), ("i64", size)]
    assert "int64" not in kernel.source
    for launch in (kernel, kernel.wide):
        assert architecture(compile_cubin(launch, "sm_90").image) == "sm_90"


def test_a_bad_architecture_is_refused() -> None:
    (kernel,) = kernels_of("lerp-f32")
    with pytest.raises(ValueError, match="sm_90"):
        compile_cubin(kernel, "hopper")


def test_every_op_has_a_row() -> None:
    """BITCAST is the renderer's own; everything else of the vocabulary is in the table, and the helpers that rows call exist."""
    assert set(ROWS) == set(Op) - {Op.BITCAST}
    called = {name for row in ROWS.values() for form in (row.real, row.integer, row.boolean) if form for name in needed_helpers(form)}
    assert called <= set(HELPERS)
    assert {"divide", "floordiv_int", "mod_float"} <= called


def test_what_has_no_form_is_refused_with_a_reason() -> None:
    axis = Axis(axis_symbol("i0"), 8)
    buffers = [Buffer("a", DType.I8, (8,), (1,)), Buffer("b", DType.I8, (8,), (1,))]
    load = Load("a", axis.symbol, DType.I8)
    atomic = Kernel("atomic", (axis,), (Store("b", axis.symbol * 0, load, mode="max"),))
    with pytest.raises(Unsupported, match="atomic max on i8"):
        render(atomic, buffers)


def test_index_arithmetic_widens_with_the_buffers() -> None:
    axis = Axis(axis_symbol("i0"), 8)
    store = Store("b", axis.symbol * (1 << 29), Const(1.0, DType.F32))
    (far,) = render(Kernel("far", (axis,), (store,)), [Buffer("b", DType.F32, (8,), (1 << 29,))])
    (near,) = render(Kernel("near", (axis,), (store,)), [Buffer("b", DType.F32, (8,), (1 << 20,))])
    assert "tl.program_id(0).to(tl.int64)" in far.source
    assert "tl.int64" not in near.source


@pytest.mark.parametrize(
    "rows, width, tiling",
    [
        (2048, 768, (1, 4)),
        (512, 4096, (1, 16)),
        (4096, 4096, (1, 8)),
        (100_000, 64, (16, 4)),
        (1, 1 << 20, (1, 16)),
    ],
)
def test_tiling_of_rows(rows: int, width: int, tiling: tuple[int, int]) -> None:
    """Rows a program and warps: few warps for short rows, more where there are few rows to go round."""
    x, r = Axis(axis_symbol("i0"), rows), Axis(axis_symbol("r0"), width)
    total = Reduce(ReduceOp.SUM, Load("a", x.symbol * width + r.symbol, DType.F32), (r,), DType.F32)
    known = {"a": Buffer("a", DType.F32, (rows, width), (width, 1)), "b": Buffer("b", DType.F32, (rows,), (1,))}
    found = choose(Part((x,), (Store("b", x.symbol, total, axes=(x,)),)), known, SM_90)
    assert (found.xblock, found.num_warps) == tiling


@pytest.mark.parametrize("points, tiling", [(1 << 24, (2048, 4)), (100_000, (256, 1)), (5, (8, 1))])
def test_tiling_of_points(points: int, tiling: tuple[int, int]) -> None:
    x = Axis(axis_symbol("i0"), points)
    found = choose(
        Part((x,), (Store("b", x.symbol, Const(1.0, DType.F32), axes=(x,)),)), {"b": Buffer("b", DType.F32, (points,), (1,))}, SM_90
    )
    assert (found.xblock, found.num_warps) == tiling
