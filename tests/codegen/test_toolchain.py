"""The toolchain and what it makes: the same bytes each time, packed instructions in the loops, clear errors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from precast.codegen import compile_program
from precast.codegen.common import toolchain
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.codegen.cpp.kernel import render_kernel
from precast.lowering.ir.nodes import Axis, Buffer, Const, Gemm, Kernel, Program, Reduce, Store, Value
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.passes.fusion.library_loops import activate
from tests.codegen.cpp.test_loops import softmax_value, variance_norm
from tests.codegen.host.test_host_program import attention_case
from tests.codegen.loader import Loaded
from tests.codegen.programs import F32, alu, at, axis, buffer, load, map_kernel, program, view
from tests.support.processes import child

GOLDEN = Path(__file__).parent / "golden"


def two(rows: int = 64, columns: int = 512) -> tuple[Axis, Axis]:
    return axis("i", rows), axis("j", columns)


def kernels() -> dict[str, tuple[list[Buffer], list[Buffer], Kernel]]:
    """Named kernels whose source and instructions are looked at."""
    i, j = two()
    x, y, o = buffer("x", (64, 512)), buffer("y", (64, 512)), buffer("o", (64, 512))
    half, half_out, mask = buffer("h", (64, 512), DType.BF16), buffer("ho", (64, 512), DType.BF16), buffer("m", (64, 512), DType.BOOL)
    flat = axis("e", 100_000)
    big, big_out = buffer("b", (100_000,)), buffer("bo", (100_000,))
    column, row = buffer("c", (512,)), buffer("r", ())
    turned = buffer("t", (512, 64))
    select = alu(Op.WHERE, load(mask, (i, j)), load(x, (i, j)), Const(0.0, F32))
    total: Value = Reduce(ReduceOp.SUM, load(big, (flat,)), (flat,), F32)
    return {
        "gelu": ([big], [big_out], map_kernel("gelu", big_out, (flat,), activate("gelu", (), load(big, (flat,))))),
        "gelu_tanh": ([big], [big_out], map_kernel("gelu_tanh", big_out, (flat,), activate("gelu_tanh", (), load(big, (flat,))))),
        "softmax": ([x], [o], map_kernel("softmax", o, (i, j), softmax_value(x, [i, j], 1))),
        "layer_norm": ([x], [o], map_kernel("layer_norm", o, (i, j), variance_norm(x, [i, j], (1,)))),
        "column_sum": ([x], [column], map_kernel("column_sum", column, (j,), Reduce(ReduceOp.SUM, load(x, (i, j)), (i,), F32))),
        "full_sum": ([big], [row], Kernel("full_sum", (), (Store("r", at(row, ()), total),))),
        "argmax": (
            [x],
            [buffer("a", (64,), DType.I64)],
            map_kernel("argmax", buffer("a", (64,), DType.I64), (i,), Reduce(ReduceOp.ARGMAX, load(x, (i, j)), (j,), DType.I64)),
        ),
        "half": ([half], [half_out], map_kernel("half", half_out, (i, j), alu(Op.MUL, load(half, (i, j)), Const(3.0, F32)))),
        "select": ([x, mask], [o], map_kernel("select", o, (i, j), select)),
        "add": ([x, y], [o], map_kernel("add", o, (i, j), alu(Op.ADD, load(x, (i, j)), load(y, (i, j))))),
        "transpose": ([x], [turned], map_kernel("transpose", turned, (j, i), load(x, (i, j)))),
    }


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "column_sum", "full_sum", "argmax", "transpose", "gelu"])
def test_golden_source(name: str, request: pytest.FixtureRequest) -> None:
    """The generated loops, as text. `PRECAST_UPDATE_GOLDEN=1` rewrites the files; read the difference before you commit it."""
    inputs, outputs, kernel = kernels()[name]
    text = render_kernel(kernel, {b.name: b for b in (*inputs, *outputs)}).source
    path = GOLDEN / f"{name}.cpp"
    if os.environ.get("PRECAST_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


PACKED = {
    "gelu": r"vfmadd|vmulps", "gelu_tanh": r"vfmadd|vmulps", "softmax": r"vfmadd|vmulps", "layer_norm": r"vmulps",
    "column_sum": r"vaddps", "full_sum": r"vaddpd",
    "argmax": r"vpmins|vpblend|vpminsd", "half": r"vpmovzxwd|vpmovdw|vpackusdw",
    "select": r"vandps|vblend|vmovups.*\{%k", "add": r"vaddps",
}  # fmt: skip


def disassemble(library: bytes, folder: Path) -> str:
    path = folder / "graph.so"
    path.write_bytes(library)
    return subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
@pytest.mark.parametrize("target, register", [("cpu:x86-64-v3", "ymm"), ("cpu:x86-64-v4", "zmm")])
def test_loops_are_vectorised(target: str, register: str, tmp_path: Path) -> None:
    missing = []
    for name, (inputs, outputs, kernel) in kernels().items():
        if name not in PACKED:
            continue
        text = disassemble(compile_program(program(inputs, outputs, [kernel]), target, CodegenOptions(measure=False)).library, tmp_path)
        packed = [line for line in text.splitlines() if f"%{register}" in line]
        if not packed or not re.search(PACKED[name], text):
            missing.append(name)
    assert not missing


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
def test_attention_uses_fused_multiply_add(tmp_path: Path) -> None:
    buffers, _, step, out, _ = attention_case(1, 2, 2, 64, 64, 64, False, "", F32, False)
    for target, register in (("cpu:x86-64-v3", "ymm"), ("cpu:x86-64-v4", "zmm")):
        text = disassemble(compile_program(program(buffers, [out], [step]), target, CodegenOptions(measure=False)).library, tmp_path)
        assert len([line for line in text.splitlines() if "vfmadd" in line and register in line]) >= 12


def everything() -> Program:
    """One program with a kernel, a product and an attention call."""
    buffers, _, step, out, _ = attention_case(1, 2, 2, 64, 64, 64, False, "", F32, False)
    step, out = replace(step, out="attended"), replace(out, name="attended")
    inputs, outputs, kernel = kernels()["softmax"]
    a, b, c = buffer("a0", (64, 128)), buffer("b0", (128, 32)), buffer("c0", (64, 32))
    return program([*buffers, *inputs, a, b], [out, *outputs, c], [step, kernel, Gemm(view(a), view(b), None, "c0")])


ALLOWED = {"libgomp.so.1", "libm.so.6", "libmvec.so.1", "libc.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
"""What a machine that runs torch has."""


def test_a_library_needs_only_what_every_machine_has(tmp_path: Path) -> None:
    path = tmp_path / "graph.so"
    path.write_bytes(compile_program(everything(), "cpu:x86-64-v3", CodegenOptions(measure=False)).library)
    shown = subprocess.run(["readelf", "-dW", str(path)], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"})
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", shown.stdout))
    assert "libgomp.so.1" in needed and needed <= ALLOWED
    assert not re.search(r"\((RPATH|RUNPATH)\)", shown.stdout), "libraries of the machine that builds would be looked for"


ONE_OPENMP = """
import re, sys, torch, precast
def openmp():
    return {line.split()[-1] for line in open("/proc/self/maps") if re.search(r"lib(gomp|iomp|omp)[^/]*[.]so", line)}
before = openmp()
def f(x):
    return torch.nn.functional.gelu(x).sum(1)
x = torch.randn(512, 4096)
with torch.no_grad():
    torch.testing.assert_close(precast.compile(f, store=sys.argv[1])(x), f(x), rtol=1e-4, atol=1e-3)
after = openmp()
assert after == before, (before, after)
(path,) = after
assert "/torch" in path, path
print("one")
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_one_openmp_runtime_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "one_openmp.py").write_text(ONE_OPENMP)
    assert child(tmp_path, "import one_openmp", str(tmp_path / "store")).strip() == "one"


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:native"])
def test_every_target_compiles(target: str) -> None:
    compiled = compile_program(everything(), target, CodegenOptions(measure=False))
    level = toolchain.native_level()
    assert compiled.evidence["target_level"] == (level if target == "cpu:native" else target.removeprefix("cpu:"))
    if target.removeprefix("cpu:") <= level or target == "cpu:native":
        q, k, v = (torch.randn(1, 2, 64, 64) for _ in range(3))
        x, a, b = torch.randn(64, 512), torch.randn(64, 128), torch.randn(128, 32)
        got = Loaded(compiled.library, 3)(q, k, v, x, a, b)
        torch.testing.assert_close(got[0], torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got[1], x.softmax(1), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(got[2], a @ b, rtol=1e-4, atol=1e-4)


def test_same_program_same_bytes(tmp_path: Path) -> None:
    """Within a process, across processes, hash seeds and working folders."""
    first = compile_program(everything(), "cpu:x86-64-v3", CodegenOptions(measure=False)).library
    assert first == compile_program(everything(), "cpu:x86-64-v3", CodegenOptions(measure=False)).library
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "import hashlib\nfrom tests.codegen.test_toolchain import everything\nfrom precast.codegen import compile_program\n"
        "from precast.codegen.common.options import CodegenOptions\n"
        "print(hashlib.sha256(compile_program(everything(), 'cpu:x86-64-v3', CodegenOptions(measure=False)).library).hexdigest())\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    import hashlib

    assert done.stdout.strip() == hashlib.sha256(first).hexdigest()


def test_library_needs_nothing_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "graph.so"
    path.write_bytes(compile_program(everything(), "cpu:x86-64-v3", CodegenOptions(measure=False)).library)
    text = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", text)
    assert needed and not [n for n in needed if "torch" in n or "c10" in n]


def test_no_flush_of_denormals() -> None:
    i = axis("i", 40)
    x, o = buffer("x", (40,)), buffer("o", (40,))
    compiled = compile_program(program([x], [o], [map_kernel("k", o, (i,), alu(Op.MUL, load(x, (i,)), Const(1.0, F32)))]), "cpu:native")
    data = torch.full((40,), 1e-40)
    assert torch.equal(Loaded(compiled.library)(data)[0], data)
    assert (data * 1.0)[0] != 0


def test_missing_compiler_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.find_compiler.cache_clear()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    with pytest.raises(toolchain.CompilerMissing, match="no g\\+\\+, clang\\+\\+ or c\\+\\+ is on the PATH"):
        toolchain.find_compiler()
    toolchain.find_compiler.cache_clear()


def test_wrong_source_and_wrong_target_say_so() -> None:
    with pytest.raises(toolchain.CompileFailed, match="refused generated code"):
        toolchain.compile_shared("int f( {", "cpu:x86-64-v3")
    with pytest.raises(ValueError, match="unknown CPU target 'cpu:z80'"):
        toolchain.compile_shared("", "cpu:z80")


def test_evidence_holds_the_measured_choice() -> None:
    a, b, c = buffer("a", (64, 256)), buffer("b", (256, 96)), buffer("c", (64, 96))
    p = program([a, b], [c], [Gemm(view(a), view(b), None, "c")])
    first = compile_program(p, "cpu:native")
    ((key, record),) = first.evidence["choices"].items()
    assert "64x256x96" in key and record["winner"] in record["us"] and len(record["us"]) >= 2
    loser = next(n for n in record["us"] if n != record["winner"])
    again = compile_program(p, "cpu:native", context=CompileContext(tuning={key: {**record, "winner": loser}}))
    assert again.evidence["choices"][key]["winner"] == loser
    assert again.library != first.library


def test_the_compiler_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "own-c++"
    own.symlink_to(toolchain.find_compiler().path)
    toolchain.find_compiler.cache_clear()
    monkeypatch.setenv("CXX", str(own))
    assert toolchain.find_compiler().path == str(own)
    toolchain.find_compiler.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(toolchain.CompilerMissing, match="CXX is 'no-such-compiler', which is no program on the PATH"):
        toolchain.find_compiler()
    toolchain.find_compiler.cache_clear()


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1", "#!/bin/sh\nexit 0", "no program"])
def test_a_program_that_is_no_compiler(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(text)
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    toolchain.find_compiler.cache_clear()
    with pytest.raises(toolchain.CompilerMissing, match="other', which is no compiler that says its version. Install g"):
        toolchain.find_compiler()
    toolchain.find_compiler.cache_clear()


@pytest.mark.parametrize("level", toolchain.TARGETS)
def test_every_target_that_a_machine_may_have_compiles(level: str) -> None:
    """The baseline too: `precast doctor` lists it."""
    source = 'extern "C" void f(float* x, long n) { for (long i = 0; i < n; ++i) x[i] = x[i] * 2 + 1; }'
    assert toolchain.compile_shared(source, f"cpu:{level}").startswith(b"\x7fELF")
