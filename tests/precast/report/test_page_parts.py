"""The parts of a page one by one: folding, memory, layout, code, schedules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import precast
from precast.artifact_store.store import Store
from precast.codegen.cpu.depthwise import Form, depthwise_source, function_of
from precast.codegen.cpu.panel_gemm import panel_source
from precast.lowering.costs.records import STEPS, StepRecord, from_json
from precast.report.page.code_parts import functions_called, functions_of, host_lines
from precast.report.page.folding import Repeat, repeats
from precast.report.page.graphs import edges_of, folded, plain_name, representatives, title
from precast.report.page.layout import HEIGHT, MOST_READERS, WIDTH, Drawing, drawn
from precast.report.page.memory import over_time
from precast.report.page.program_lines import files_of
from precast.report.page.schedule_parts import parsed, shape_of
from tests.precast.report.pages import code_of
from tests.support.needs import needs

needs("pygraphviz")


def step(name: str, read: str, written: str, size: int = 100, **more: Any) -> StepRecord:
    """A kernel that reads and writes buffers of `size` bytes; "b1@0" lies at offset 0 of the workspace."""
    places = {part.split("@")[0]: (int(part.split("@")[1]), size) for part in written.split() if "@" in part}
    facts = {"kind": "kernel", "how": name, "operations": 1, "arithmetic": "f32", "places": places, **more}
    return StepRecord(name=name, read=dict.fromkeys(read.split(), size), written={p.split("@")[0]: size for p in written.split()}, **facts)


@pytest.mark.parametrize(
    ("forms", "found"),
    [
        ("", []),
        ("abc", []),
        ("aa", []),
        ("aaa", [Repeat(0, 1, 3)]),
        ("xababy", [Repeat(1, 2, 2)]),
        ("xabcabcabcabcy", [Repeat(1, 3, 4)]),
        ("abababxcdecde", [Repeat(0, 2, 3), Repeat(7, 3, 2)]),
        ("aabaab", [Repeat(0, 3, 2)]),
    ],
)
def test_repeats(forms: str, found: list[Repeat]) -> None:
    assert repeats(forms) == found


def test_steps_of_all_layers_have_one_that_stands_for_them() -> None:
    assert representatives(8, [Repeat(1, 2, 3)]) == [0, 1, 2, 1, 2, 1, 2, 7]


def test_memory_counts_a_place_once_and_results_to_the_end() -> None:
    steps = [
        step("k0", "in0", "b0@0"),
        step("k1", "b0", "b1@0"),  # writes over what it reads
        step("k2", "b1", "out"),
        step("k3", "b1 in1", "b3 in1"),  # what a library returns, and an input that is written to
        step("k4", "b3 out", "b4@100"),
    ]
    memory = over_time(steps, {"in0", "in1"}, {"out"})
    assert memory.placed == (100, 100, 100, 100, 100)
    assert memory.apart == (0, 0, 0, 100, 100)
    assert memory.results == (0, 0, 100, 100, 100)
    assert memory.peak == 3
    assert {held.name: (held.first, held.last) for held in memory.buffers} == {
        "b0": (0, 1),
        "b1": (1, 3),
        "out": (2, 4),
        "b3": (3, 4),
        "b4": (4, 4),
    }


def test_no_memory_of_no_steps() -> None:
    assert over_time((), (), ()).peak == 0


def boxes_apart(drawing: Drawing) -> bool:
    places = list(drawing.boxes.values())
    return all(abs(a[0] - b[0]) >= WIDTH or abs(a[1] - b[1]) >= HEIGHT for n, a in enumerate(places) for b in places[:n])


def test_boxes_stand_apart_and_arrows_point_down() -> None:
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)]
    drawing = drawn(range(5), edges)
    assert boxes_apart(drawing) and {arrow[:2] for arrow in drawing.arrows} == set(edges)
    assert all(drawing.boxes[a][1] < drawing.boxes[b][1] and path.startswith("M") for a, b, path in drawing.arrows)
    assert all(0 <= x <= drawing.width and 0 <= y <= drawing.height for x, y in drawing.boxes.values())


def test_arrows_of_a_step_that_very_many_read_have_no_path() -> None:
    readers = range(1, MOST_READERS + 2)
    drawing = drawn([0, *readers], [(0, reader) for reader in readers])
    assert sorted(drawing.arrows) == [(0, reader, "") for reader in readers] and boxes_apart(drawing)


def test_a_folded_layer_has_a_frame_around_its_steps() -> None:
    steps = [step(f"k{n}", f"b{n - 1}", f"b{n}") for n in range(8)]
    layer = Repeat(1, 2, 3)
    drawing = folded(steps, edges_of(steps), [layer])
    assert sorted(drawing.boxes) == [0, 1, 2, 7]
    assert {arrow[:2] for arrow in drawing.arrows} == {(0, 1), (1, 2), (2, 7)}, "what a layer hands to the next is the frame's to say"
    x, y, width, height = drawing.frames[0]
    inside = [number for number, (bx, by) in drawing.boxes.items() if x < bx < x + width and y < by < y + height]
    assert inside == [1, 2]


@pytest.mark.parametrize(
    ("origin", "name"), [("native_layer_norm_12", "layer_norm"), ("add", "add"), ("_softmax_1", "softmax"), ("_", "_")]
)
def test_names_without_numbers(origin: str, name: str) -> None:
    assert plain_name(origin) == name


def test_titles_say_what_a_step_computes_last() -> None:
    assert title(step("k", "", "", origins=("addmm", "view_1", "gelu_3"))) == "gelu + addmm"
    assert title(step("k", "", "", origins=("a", "b", "c", "d"))) == "d + c + b + …"
    assert title(step("gemm", "", "", kind="library", how="onednn")) == "matrix product"
    assert title(step("aten::sort", "", "", kind="operator")) == "sort"
    assert title(step("kernel3", "", "")) == "kernel3"


TRITON = """# k0: grid (1,), 128 threads; first with a = in0
@triton.jit
def k0(a, n: tl.constexpr):
    x = tl.load(a + 1.5)  # it's <here>


# k1: grid (2,), 64 threads; first with a = b0
@triton.jit
def k1(a):
    pass
"""


def test_functions_of_both_languages() -> None:
    first, second = functions_of(TRITON)
    assert (first.name, second.name) == ("k0", "k1")
    assert code_of(vars(first)).startswith("# k0: grid") and code_of(vars(first)).endswith("# it's <here>")
    assert dict(zip(first.tokens[::2], first.tokens[1::2], strict=True))["# it's <here>"] == "c"
    parts = functions_of(
        "struct A {};\n// add\nstatic void k0(float* p) {\n  p[0] = 1;\n}\n#pragma x\nstatic int attention_0(int a) {\n}\n"
    )
    assert [part.name for part in parts] == ["", "k0", "attention_0"]
    head = "static void __attribute__((noinline)) dots3(const float* a) {\n}\nstatic const float x[2] = {f(1)};\n"
    assert [part.name for part in functions_of(head)] == ["dots3"]
    assert code_of(vars(parts[1])).startswith("// add\nstatic void k0") and functions_of("") == []


def test_steps_find_their_functions() -> None:
    functions = functions_of(
        "static void k0() {\n}\nstatic void product() {\n}\nstatic void attention_0() {\n}\nstatic void attention_1() {\n}\n"
    )
    attention = {"kind": "library", "how": "generated"}
    steps = [
        step("k5", "", "b", how="k0"),
        step("attention", "a b", "c", 8, **attention),
        step("attention", "a b", "d", 16, **attention),
        step("attention", "a b", "e", 8, **attention),
        step("gemm", "a", "f", kind="library", how="aten"),
        step("two", "a", "f", how="k0, k9"),
        step("gemm", "a", "f", kind="library", how="own"),
    ]
    assert functions_called(steps, functions) == [[0], [2], [3], [2], [], [0], [1]]


def test_products_over_panels_and_depthwise_convolutions_find_their_functions() -> None:
    """Which are templates, and of convolutions there is one for each window."""
    windows = [Form((3, 3, 1, 1, 1, 1)), Form((5, 5, 2, 2, 1, 1))]
    functions = functions_of("static void k0() {\n}\n" + panel_source(8) + depthwise_source(8, windows))
    steps = [
        step("gemm", "a", "b", kind="library", how="panel"),
        *(step("conv", "b", "c", kind="library", how="depthwise", function=function_of(window)) for window in reversed(windows)),
        step("k0", "c", "d"),
    ]
    found = [[functions[place].name for place in places] for places in functions_called(steps, functions)]
    assert found == [["panel_product"], ["conv_5_5_2_2_1_1_0_0_0"], ["conv_3_3_1_1_1_1_0_0_0"], ["k0"]]


def test_steps_of_a_program_know_the_functions_of_their_convolutions(store: Store) -> None:
    with torch.no_grad():
        model = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, padding=1, groups=16), torch.nn.Conv2d(16, 16, 5, padding=2, groups=16))
        image = torch.randn(1, 16, 12, 12).to(memory_format=torch.channels_last)
        precast.compile(model.eval().to(memory_format=torch.channels_last), store=store)(image)
    ((manifest,),) = [store.variants(key) for key in store.programs()]
    data = store.blob(manifest.graphs["forward"].blobs[STEPS])
    assert data is not None
    steps = [s for s in from_json(data) if s.how == "depthwise"]
    assert [s.function[: len("conv_3_3")] for s in steps] == ["conv_3_3", "conv_5_5"]


def test_lines_of_the_host_program_know_their_steps() -> None:
    steps = [step("k0", "in0", "b0"), step("k1", "b0", "b1"), step("k0", "b1", "b2")]
    source = "def f(in0):\n    workspace = empty(8)\n    k0(b0, in0)\n    b1 = mm(b0[2])\n    del b0\n    k0(b2, b1)\n    return b2\n"
    assert [number for _, number in host_lines(source, steps)] == [None, None, 0, 1, None, 2, None]


SCHEDULE = """program f(in0, s0)
  in0: f32[s0, 4] stride [4, 1] input
  b0: f32[8, 4] stride [4, 1] @ 0+128
  b1: f32[8] stride [1]
  w: f32[4] persistent
  workspace 128 bytes
steps:
  b0 = gemm(in0[8x4 by 4,1], in0[8x4 by 4,1], bias=in0[4 by 1])
  kernel kernel0[i0<8]
    v0 = b0[4*i0]
    b1[i0] = (v0 + 1.0:f32)
  b2, b3 = aten::sort(b1[8 by 1])
return b1[8 by 1], in0+3[2x2 by 2,1], s0, b3[8 by 1]
note: not fused: k0 into k1: why
"""


def test_a_schedule_is_read() -> None:
    steps = [step("gemm", "in0", "b0_bare"), step("kernel0", "b0_bare", "b1"), step("sort", "b1", "b2 b3")]
    found = parsed(SCHEDULE, steps)
    assert found.inputs == {"in0", "w"} and found.results == {"b1", "in0", "b3"} and found.notes == ("not fused: k0 into k1: why",)
    assert (shape_of("b0_bare", found), shape_of("in0", found), shape_of("b9", found)) == ("f32[8, 4]", "f32[s0, 4]", "")
    assert [number for _, number in found.lines] == [0, 1, 1, 1, 2]
    assert parsed("", ()).lines == ()


def test_lines_of_files_that_changed_or_are_gone_stand_alone() -> None:
    here = "tests/precast/report/test_page_parts.py"
    sources = [
        f"{here}:1 in f: another line than it is",
        "gone/away.py:7 in <lambda>: lambda x: x + 1",
        f"{here}:3 in f: from __future__ import annotations",
        "odd",
    ]
    files = {file.name: [(row.number, row.text, row.source) for row in file.rows] for file in files_of(sources)}
    assert files["gone/away.py"] == [(7, "lambda x: x + 1", 1)] and files["odd"] == [(0, "", 3)]
    rows = {number: source for number, _, source in files[here]}
    assert rows[1] == 0 and rows[3] == 2 and set(rows) <= {1, 2, 3, 4, 5}


def test_places_of_a_real_program_are_in_its_workspace(tmp_path: Any) -> None:
    import precast
    from precast.artifact_store import Store
    from precast.lowering.costs.records import STEPS, from_json, to_json

    store = Store.open(tmp_path / "store")
    compiled = precast.compile(lambda x, y: (x @ y).softmax(-1) @ y, store=store)
    compiled(torch.randn(16, 16), torch.randn(16, 16))
    (manifest,) = (m for key in store.programs() for m in store.variants(key))
    graph = manifest.graphs["forward"]
    data = store.blob(graph.blobs[STEPS])
    assert data is not None
    records = from_json(data)
    assert to_json(records) == data and any(record.places for record in records)
    assert all(
        0 <= offset and offset + size <= graph.io["workspace_bytes"] and size >= record.written[name]  # type: ignore[operator]
        for record in records
        for name, (offset, size) in record.places.items()
    )
