"""The host program: library calls against eager on random data, externs, freezing, errors, reentrancy."""

from __future__ import annotations

import threading

import pytest
import torch

from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.lowering.ir.nodes import Attention, Buffer, Const, Conv, Extern, Gemm, Kernel, Load, Slot, Store, View
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ir.torch_dtypes import TORCH_DTYPES
from tests.codegen.loader import Loaded
from tests.codegen.programs import F32, alu, at, axis, buffer, build, contiguous, load, map_kernel, program, view

ACTIVATIONS = {
    "none": lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "silu": torch.nn.functional.silu, "hardswish": torch.nn.functional.hardswish,
    "hardtanh": lambda x: torch.clamp(x, -0.5, 0.7), "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 0.2),
}  # fmt: skip
ARGUMENTS = {"hardtanh": (-0.5, 0.7), "leaky_relu": (0.2,)}


def gemm_cases() -> list[tuple[Gemm, list[Buffer], Buffer, object]]:
    """Every activation and residual order, with weights in both layouts, at a library's size and at a loop's."""
    cases: list[tuple[Gemm, list[Buffer], Buffer, object]] = []
    for number, (kind, function) in enumerate(ACTIVATIONS.items()):
        for order in (None, "before", "after"):
            m, k, n = [(33, 40, 50), (1, 70, 30), (3, 4, 5)][(number + len(cases)) % 3]
            transposed = len(cases) % 2 == 0
            tag = str(len(cases))
            a, bias, residual, out = (
                buffer("a" + tag, (m, k)),
                buffer("c" + tag, (n,)),
                buffer("r" + tag, (m, n)),
                buffer("o" + tag, (m, n)),
            )
            b = buffer("b" + tag, (n, k) if transposed else (k, n))
            weight = View(b.name, (k, n), (1, k) if transposed else (n, 1))
            step = Gemm(
                view(a),
                weight,
                view(bias),
                out.name,
                kind,
                ARGUMENTS.get(kind, ()),
                view(residual) if order else None,
                "after" if order == "after" else "before",
            )

            def want(
                a_: torch.Tensor, b_: torch.Tensor, c_: torch.Tensor, r_: torch.Tensor, f=function, t=transposed, o=order
            ) -> torch.Tensor:  # type: ignore[no-untyped-def]
                x = a_.double() @ (b_.t() if t else b_).double() + c_.double()
                x = x + r_.double() if o == "before" else x
                return f(x) + r_.double() if o == "after" else f(x)

            cases.append((step, [a, b, bias, residual], out, want))
    return cases


@pytest.mark.parametrize("freeze", [False, True])
def test_gemm_with_every_epilogue(freeze: bool) -> None:
    cases = gemm_cases()
    inputs = [b for _, ins, _, _ in cases for b in ins]
    outputs = [out for _, _, out, _ in cases]
    compiled = compile_program(
        program(inputs, outputs, [s for s, _, _, _ in cases]), "cpu:native", CodegenOptions(measure=False, freeze=freeze)
    )
    data = [torch.randn(b.size) for b in inputs]
    results = Loaded(compiled.library, len(outputs))(*data)
    for number, (step, _, _, want) in enumerate(cases):
        expected = want(*data[4 * number : 4 * number + 4]).float()  # type: ignore[operator]
        torch.testing.assert_close(
            results[number], expected, rtol=1e-4, atol=1e-4, msg=lambda m, s=step: f"{s.activation} {s.residual_order}: {m}"
        )


def test_gemm_of_other_types_batches_and_strides() -> None:
    steps, inputs, outputs, want, data = [], [], [], [], []
    for number, (batch, m, k, n, dtype) in enumerate(
        [
            (0, 30, 40, 50, DType.F64),
            (0, 64, 128, 64, DType.BF16),
            (4, 20, 40, 30, F32),
            (3, 2, 3, 4, F32),
            (0, 9, 11, 300, DType.I64),
            (2, 16, 90, 33, DType.BF16),
            (0, 0, 4, 5, F32),
            (0, 4, 0, 5, F32),
        ]
    ):
        lead = (batch,) if batch else ()
        a, b, out = (buffer(f"{c}{number}", (*lead, *s), dtype) for c, s in (("a", (m, k)), ("b", (k, n)), ("o", (m, n))))
        x, y = (
            (torch.randn(*lead, *s) if dtype.is_float else torch.randint(-5, 5, (*lead, *s))).to(TORCH_DTYPES[dtype])
            for s in ((m, k), (k, n))
        )
        steps.append(Gemm(view(a), view(b), None, out.name))
        inputs += [a, b]
        outputs.append(out)
        data += [x, y]
        want.append((x.double() @ y.double()).to(TORCH_DTYPES[dtype]))
    for got, expected in zip(build(inputs, outputs, steps)(*data), want, strict=True):
        torch.testing.assert_close(
            got, expected, rtol=1e-2 if got.dtype is torch.bfloat16 else 1e-4, atol=1e-2 if got.dtype is torch.bfloat16 else 1e-4
        )


@pytest.mark.parametrize("freeze", [False, True])
def test_convolutions(freeze: bool) -> None:
    cases = []
    for number, (x, w, stride, padding, groups, transposed, kind, residual, last) in enumerate(
        [
            ((2, 8, 15, 17), (16, 8, 3, 3), 1, 1, 1, False, "relu", False, False),
            ((2, 8, 15, 17), (16, 8, 3, 3), 2, 1, 1, False, "none", False, True),
            ((1, 8, 14, 14), (16, 8, 1, 1), 1, 0, 1, False, "relu", True, True),
            ((2, 8, 9, 9), (8, 1, 3, 3), 1, 1, 8, False, "hardswish", False, False),
            ((2, 8, 9, 9), (8, 4, 3, 3), 2, 1, 1, True, "relu", True, False),
            ((2, 6, 50), (4, 6, 5), 2, 2, 1, False, "gelu", True, False),
            ((1, 3, 6, 7, 8), (4, 3, 3, 3, 3), 1, 1, 1, False, "none", False, False),
        ]
    ):
        n = len(w) - 2
        torch_x, torch_w, bias = torch.randn(x), torch.randn(w) * 0.2, torch.randn(w[1] * groups if transposed else w[0])
        if last:
            torch_x = torch_x.to(memory_format=torch.channels_last)
        op = getattr(torch.nn.functional, f"conv_transpose{n}d" if transposed else f"conv{n}d")
        want = op(torch_x.double(), torch_w.double(), bias.double(), stride=stride, padding=padding, groups=groups)
        out = buffer(
            f"o{number}", want.shape, F32, torch.empty(want.shape).to(memory_format=torch.channels_last).stride() if last else None
        )
        r = torch.empty_strided(out.size, out.stride).copy_(torch.randn(want.shape))
        if residual:
            want = want + r
        want = ACTIVATIONS[kind](want).float()
        bx, bw, bb = buffer(f"x{number}", x, F32, torch_x.stride()), buffer(f"w{number}", w), buffer(f"b{number}", bias.shape)
        br = buffer(f"r{number}", want.shape, F32, out.stride)
        step = Conv(
            view(bx),
            view(bw),
            view(bb),
            out.name,
            (stride,) * n,
            (padding,) * n,
            (1,) * n,
            transposed,
            (0,) * n,
            groups,
            kind,
            (),
            view(br) if residual else None,
        )
        cases.append((step, [bx, bw, bb, br], [torch_x, torch_w, bias, r], out, want))
    inputs = [b for c in cases for b in c[1]]
    compiled = compile_program(
        program(inputs, [c[3] for c in cases], [c[0] for c in cases]), "cpu:native", CodegenOptions(measure=False, freeze=freeze)
    )
    results = Loaded(compiled.library, len(cases))(*[t for c in cases for t in c[2]])
    for got, case in zip(results, cases, strict=True):
        torch.testing.assert_close(got, case[4], rtol=1e-4, atol=1e-4)
        assert got.stride() == tuple(case[3].stride)


def test_pointwise_convolution_as_a_product() -> None:
    """The measured alternative for 1x1 convolutions gives the same result, shape and strides."""
    x, w, bias = torch.randn(2, 32, 7, 7).to(memory_format=torch.channels_last), torch.randn(48, 32, 1, 1), torch.randn(48)
    for kind, residual in (("relu", False), ("none", True)):
        out = buffer("o", (2, 48, 7, 7), F32, torch.empty(2, 48, 7, 7).to(memory_format=torch.channels_last).stride())
        bx, bw, bb, br = (
            buffer("x", x.shape, F32, x.stride()),
            buffer("w", w.shape),
            buffer("b", (48,)),
            buffer("r", out.size, F32, out.stride),
        )
        step = Conv(view(bx), view(bw), view(bb), "o", (1, 1), (0, 0), (1, 1), False, (0, 0), 1, kind, (), view(br) if residual else None)
        p = program([bx, bw, bb, br], [out], [step])
        first = compile_program(p, "cpu:native").evidence["choices"]
        asked = {key: {**record, "winner": "onednn"} for key, record in first.items()}
        asked |= compile_program(p, "cpu:native", context=CompileContext(tuning=asked)).evidence["choices"]  # asked if panels do not win
        assert {"onednn", "linear"} <= {way for record in asked.values() for way in record["us"]}
        r = torch.randn(out.size).to(memory_format=torch.channels_last)
        want = ACTIVATIONS[kind](torch.nn.functional.conv2d(x, w, bias) + (r if residual else 0))
        for winner in {way for record in asked.values() for way in record["us"]}:
            tuning = {key: {**record, "winner": winner if winner in record["us"] else "onednn"} for key, record in asked.items()}
            known = CompileContext(tuning=tuning)
            (got,) = Loaded(compile_program(p, "cpu:native", context=known).library)(x, w, bias, r)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            assert got.stride() == tuple(out.stride)


def test_contiguous_pointwise_convolution_as_torch_runs_it() -> None:
    """The measured alternative for 1x1 convolutions over contiguous images gives the same result, shape and strides."""
    x, w, bias = torch.randn(2, 32, 7, 7), torch.randn(48, 32, 1, 1), torch.randn(48)
    bx, bw, bb, out = buffer("x", x.shape), buffer("w", w.shape), buffer("b", (48,)), buffer("o", (2, 48, 7, 7))
    step = Conv(view(bx), view(bw), view(bb), "o", (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    p = program([bx, bw, bb], [out], [step])
    ((key, record),) = compile_program(p, "cpu:native").evidence["choices"].items()
    assert set(record["us"]) == {"onednn", "aten"}
    for winner in ("onednn", "aten"):
        compiled = compile_program(p, "cpu:native", context=CompileContext(tuning={key: {**record, "winner": winner}}))
        (got,) = Loaded(compiled.library)(x, w, bias)
        torch.testing.assert_close(got, torch.nn.functional.conv2d(x, w, bias), rtol=1e-4, atol=1e-4)
        assert got.stride() == tuple(out.stride)


def attention_case(
    b: int, h: int, hk: int, s: int, t: int, d: int, causal: bool, masked: str, dtype: DType, packed: bool
) -> tuple[list[Buffer], list[torch.Tensor], Attention, Buffer, torch.Tensor]:
    real = TORCH_DTYPES[dtype]
    if packed:
        rows = torch.randn(b, s, 3 * h * d).to(real)
        whole = Buffer("x", dtype, (b, s, 3 * h * d), contiguous((b, s, 3 * h * d)))
        views = [View("x", (b, h, s, d), (s * 3 * h * d, d, 3 * h * d, 1), i * h * d) for i in range(3)]
        q, k, v = (p.view(b, s, h, d).transpose(1, 2) for p in rows.split(h * d, -1))
        buffers, data = [whole], [rows]
    else:
        q, k, v = torch.randn(b, h, s, d).to(real), torch.randn(b, hk, t, d).to(real), torch.randn(b, hk, t, d).to(real)
        buffers, data = [buffer(n, x.shape, dtype) for n, x in zip("qkv", (q, k, v), strict=True)], [q, k, v]
        views = [view(x) for x in buffers]
    mask = None
    if masked:
        mask = torch.randn(b, 1, s, t).to(real) if masked == "full" else torch.zeros(1, 1, 1, t).to(real)
        mask[..., -3:] = float("-inf")
        if masked == "full" and s > 2:
            mask[:, :, 2] = float("-inf")
        buffers.append(buffer("m", mask.shape, dtype))
        data.append(mask)
    out = Buffer("o", dtype, (b, h, s, d), (s * h * d, d, h * d, 1))
    scale = 0.3
    step = Attention(
        views[0],
        views[1],
        views[2],
        None if mask is None else View("m", (b, 1, s, t), (s * t, s * t, t, 1) if masked == "full" else (0, 0, 0, 1)),
        "o",
        causal,
        scale,
    )
    double = [x.double() for x in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(
        *double, attn_mask=None if mask is None else mask.double(), is_causal=causal, scale=scale, enable_gqa=h != hk
    )
    return buffers, data, step, out, want.nan_to_num(0.0)


@pytest.mark.parametrize(
    "case",
    [
        (2, 3, 3, 40, 40, 64, False, "", F32, True), (1, 2, 2, 130, 130, 32, True, "", F32, True),
        (2, 4, 2, 17, 17, 16, False, "", F32, False),
        (2, 2, 2, 33, 70, 64, False, "full", F32, False), (1, 2, 2, 5, 600, 128, False, "row", F32, False),
        (1, 2, 2, 1, 77, 40, False, "", F32, False),
        (2, 2, 2, 50, 50, 64, True, "", DType.BF16, True), (1, 2, 2, 20, 20, 80, False, "full", DType.F64, False),
        (1, 3, 1, 300, 300, 24, True, "", F32, False),
        (1, 1, 1, 7, 1100, 8, False, "", F32, False), (1, 1, 1, 1, 1, 3, False, "", F32, False),
    ],
)  # fmt: skip
def test_attention(case: tuple[object, ...]) -> None:
    buffers, data, step, out, want = attention_case(*case)  # type: ignore[arg-type]
    (got,) = build(buffers, [out], [step])(*data)
    tolerance = 2e-2 if got.dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
    assert got.stride() == tuple(out.stride)


def extern(op: str, *args: object, outs: tuple[str, ...], **kwargs: object) -> Extern:
    return Extern(op, args, tuple(kwargs.items()), outs)


def test_externs_through_dispatcher_and_python() -> None:
    x, s, i, c, r, z = (
        buffer("x", (6, 9)),
        buffer("s", (6, 9)),
        buffer("i", (6, 9), DType.I64),
        buffer("c", (12, 9)),
        buffer("r", (6, 9)),
        buffer("z", (6, 9), DType.F64),
    )
    steps = [
        extern("aten::sort.stable", view(x), outs=("s", "i"), stable=True, dim=-1, descending=True),
        extern("aten::cat", (view(x), view(s)), 0, outs=("c",)),
        extern("aten::renorm", view(x), 2.0, 0, 1.5, outs=("r",)),  # Scalars: through Python
        extern("aten::_to_copy", view(x), outs=("z",), dtype=("dtype", "float64")),
    ]
    data = torch.randn(6, 9)
    compiled = compile_program(program([x], [s, i, c, r, z], steps), "cpu:native", CodegenOptions(measure=False))
    run = Loaded(compiled.library, 5)
    assert [e["op"] for e in run.externs] == ["aten::renorm"]
    got = run(data)
    ordered = torch.sort(data, stable=True, dim=-1, descending=True)
    for a, b in zip(
        got, [ordered[0], ordered[1], torch.cat([data, ordered[0]]), torch.renorm(data, 2.0, 0, 1.5), data.double()], strict=True
    ):
        torch.testing.assert_close(a, b)


def test_extern_errors_name_the_step() -> None:
    x, y, o = buffer("x", (6, 9)), buffer("y", (5, 9)), buffer("o", (5, 6))
    with pytest.raises(RuntimeError, match="maxnorm"):
        build([x], [buffer("r", (6, 9))], [extern("aten::renorm", view(x), 2.0, 0, -1.0, outs=("r",))])(torch.randn(6, 9))
    with pytest.raises(RuntimeError, match="step 0: aten::_cdist_forward"):
        build([x, y], [o], [extern("aten::_cdist_forward", view(x), View("y", (5, 8), (9, 1)), 2.0, None, outs=("o",))])(
            torch.randn(6, 9), torch.randn(5, 9)
        )


def test_library_results_of_other_strides_are_copied() -> None:
    """A result whose memory order is not the planned one (here: transposed plan) is brought into it."""
    x, o, p = buffer("x", (6, 9)), Buffer("o", F32, (6, 9), (1, 6)), buffer("p", (6, 9))
    i, j = axis("i", 6), axis("j", 9)
    steps = [extern("aten::relu", view(x), outs=("o",)), map_kernel("k", p, (i, j), alu(Op.ADD, load(o, (i, j)), Const(1.0, F32)))]
    data = torch.randn(6, 9)
    a, b = build([x], [o, p], steps)(data)
    torch.testing.assert_close(a, data.relu())
    torch.testing.assert_close(b, data.relu() + 1)
    assert a.stride() == (1, 6)


def test_freeze_prepares_once_and_from_the_bound_weights() -> None:
    """Persistent buffers hold what prepare steps computed; the run does not read the original again."""
    n = 64
    x, w, o, double = buffer("x", (n,)), buffer("w", (n,)), buffer("o", (n,)), buffer("d", (n,))
    i = axis("i", n)
    prepare = (map_kernel("twice", double, (i,), alu(Op.MUL, load(w, (i,)), Const(2.0, F32))),)
    run = map_kernel("add", o, (i,), alu(Op.ADD, load(x, (i,)), load(double, (i,))))
    p = program([x, w], [o], [run], temps=[double], prepare=prepare, persistent=("d",))
    loaded = Loaded(compile_program(p, "cpu:native", CodegenOptions(measure=False, freeze=True)).library)
    a, b = torch.randn(n), torch.randn(n)
    torch.testing.assert_close(loaded(a, b)[0], a + 2 * b)
    torch.testing.assert_close(loaded(a, b * 5)[0], a + 2 * b)
    loaded.forget()
    torch.testing.assert_close(loaded(a, b * 5)[0], a + 10 * b)


def test_prepare_steps_and_the_run_read_one_literal() -> None:
    from precast.lowering.ir.nodes import Constant

    n = 8
    x, w, c, double, o = (buffer(name, (n,)) for name in "xwcdo")
    i = axis("i", n)
    literal = torch.randn(n)
    prepare = (map_kernel("scale", double, (i,), alu(Op.MUL, load(w, (i,)), load(c, (i,)))),)
    run = map_kernel("add", o, (i,), alu(Op.ADD, load(x, (i,)), alu(Op.MUL, load(double, (i,)), load(c, (i,)))))
    constants = (Constant("c", literal.numpy().tobytes()),)
    p = program([x, w], [o], [run], temps=[c, double], prepare=prepare, persistent=("d",), constants=constants)
    a, b = torch.randn(n), torch.randn(n)
    (got,) = Loaded(compile_program(p, "cpu:native", CodegenOptions(measure=False, freeze=True)).library)(a, b)
    torch.testing.assert_close(got, a + b * literal * literal)


def test_workspace_is_reentrant() -> None:
    """Threads that run the same library at once do not see one another's temporaries."""
    n = 50_000
    x, t, o = buffer("x", (n,)), buffer("t", (n,)), buffer("o", (n,))
    i = axis("i", n)
    steps = [map_kernel("a", t, (i,), alu(Op.EXP, load(x, (i,)))), map_kernel("b", o, (i,), alu(Op.LOG, load(t, (i,))))]
    run = build([x], [o], steps, temps=[t], workspace=(Slot("t", 0, 4 * n),), workspace_bytes=4 * n)
    failures: list[str] = []

    def work(seed: int) -> None:
        data = torch.rand(n, generator=torch.Generator().manual_seed(seed))
        for _ in range(30):
            (got,) = run(data)
            if not torch.allclose(got, data, atol=1e-5):
                failures.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(s,)) for s in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_outputs_that_are_views_or_inputs() -> None:
    from precast.lowering.ir.nodes import Output

    x, o = buffer("x", (4, 6)), buffer("o", (4, 6))
    i, j = axis("i", 4), axis("j", 6)
    p = program([x], [o], [Kernel("k", (i, j), (Store("o", at(o, (i, j)), alu(Op.NEG, load(x, (i, j)))),))])
    from dataclasses import replace

    p = replace(
        p, outputs=(Output(view(o)), Output(View("o", (6, 3), (1, 6), 6)), Output(View("x", (3,), (2,), 7)), Output(None), Output(None, 17))
    )
    loaded = Loaded(compile_program(p, "cpu:native", CodegenOptions(measure=False)).library, 3)
    data = torch.randn(4, 6)
    a, b, c = loaded(data, extra=2)
    torch.testing.assert_close(a, -data)
    torch.testing.assert_close(b, (-data).t()[:, 1:])
    assert b.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()
    torch.testing.assert_close(c, data.flatten()[7:13:2])
    assert c.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()


def test_constants_lie_in_the_library() -> None:
    from precast.lowering.ir.nodes import Constant

    c, o = buffer("c", (3,), DType.I64), buffer("o", (3,), DType.I64)
    i = axis("i", 3)
    values = torch.tensor([5, -7, 2**40])
    p = program(
        [], [o], [map_kernel("k", o, (i,), Load("c", i.symbol, DType.I64))], temps=[c], constants=(Constant("c", values.numpy().tobytes()),)
    )
    (got,) = Loaded(compile_program(p, "cpu:native").library)()
    assert torch.equal(got, values)


def test_nothing_leaks() -> None:
    """Outputs, temporaries, extern arguments and packed weights are given back."""
    x, w, s, o = buffer("x", (300, 400)), buffer("w", (400, 500)), buffer("s", (300, 400)), buffer("o", (300, 500))
    steps = [extern("aten::renorm", view(x), 2.0, 0, 1.5, outs=("s",)), Gemm(view(s), view(w), None, "o", "relu")]
    compiled = compile_program(program([x, w], [o], steps, temps=[s]), "cpu:native", CodegenOptions(measure=False, freeze=True))
    run = Loaded(compiled.library)
    a, b = torch.randn(300, 400), torch.randn(400, 500)
    result = run(a, b)[0]
    assert (a._use_count(), b._use_count(), result._use_count()) == (1, 1, 1)
    assert all(torch._C._storage_Use_Count(t.untyped_storage()._cdata) == 2 for t in (a, b, result))
    run.forget()
    before = resident_pages()
    for _ in range(60):
        run(a, b)
        run.forget()
    assert resident_pages() - before < 60 * 500 * 400 * 4 // 4096 // 4


def resident_pages() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
