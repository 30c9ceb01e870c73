"""The fused graph of a scheduled program as an SVG that a person can read: one box a kernel or call, one tab a buffer that it writes."""

from __future__ import annotations

import textwrap
from collections.abc import Collection
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

import sympy

from precast.lowering.analysis.dependencies import nbytes_hint
from precast.lowering.analysis.effects import reads, writes
from precast.lowering.ir.nodes import (
    Attention,
    Buffer,
    Conv,
    Extern,
    Gemm,
    Kernel,
    Load,
    Program,
    Reduce,
    Scan,
    Size,
    Step,
    walk,
)
from precast.lowering.ir.text import step_text
from precast.report.graph_layout import Box, Drawing, Edge, layout, row_heights
from precast.report.units import human_size

LINE, PAD, TAB, LETTER, TITLE = 15.0, 9.0, 20.0, 6.65, 7.4
"""Pixels: line height, padding, height of a tab, width of a letter of the text and of a title."""
COLOURS = {
    "kernel": ("#e8f0fe", "#3367d6", "generated loops"),
    "library": ("#fff3e0", "#e07b00", "library call"),
    "extern": ("#fde8e8", "#c62828", "other operator"),
    "input": ("#e7f6ea", "#2e7d32", "input"),
    "output": ("#eceff1", "#546e7a", "output"),
}
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass
class Node:
    """One box: `tabs` are the buffers that it writes, with what stands on each."""

    name: str
    kind: str
    title: str
    lines: list[str]
    tooltip: str = ""
    tabs: dict[str, str] = field(default_factory=dict)

    @property
    def tab_widths(self) -> dict[str, float]:
        return {name: len(text) * LETTER + 2 * PAD for name, text in self.tabs.items()}

    @property
    def width(self) -> float:
        text = max([len(self.title) * TITLE, *(len(line) * LETTER for line in self.lines)]) + 2 * PAD
        return max(text, sum(self.tab_widths.values()) + 6.0 * (len(self.tabs) + 1))

    @property
    def body(self) -> float:
        """Height without the tabs."""
        return LINE * (1 + len(self.lines)) + 1.2 * PAD

    @property
    def height(self) -> float:
        return self.body + (TAB if self.tabs else 0.0)

    def port(self, buffer: str) -> float:
        """Where the middle of a tab is, from the box's centre."""
        widths = self.tab_widths
        x = -(sum(widths.values()) + 6.0 * (len(widths) - 1)) / 2
        for name, width in widths.items():
            if name == buffer:
                return x + width / 2
            x += width + 6.0
        return 0.0


def diagram(program: Program, weights: Collection[str] = ()) -> str:
    """The SVG text. `weights`: names of input buffers that are shown inside the boxes that read them, and not as boxes of their own."""
    nodes, edges = _graph(program, frozenset(weights) | set(program.persistent) | {c.buffer for c in program.constants})
    boxes = [Box(n.name, n.width, n.height) for n in nodes.values()]
    drawing = layout(boxes, edges)
    _order_tabs(nodes, drawing)
    return _svg(program, nodes, drawing)


def _order_tabs(nodes: dict[str, Node], drawing: Drawing) -> None:
    """Tabs from left to right as their lines leave."""
    for node in nodes.values():
        ends: dict[str, list[float]] = {}
        for route in drawing.routes:
            if route.edge.source == node.name:
                ends.setdefault(route.edge.key, []).append(drawing.boxes[(*route.waypoints, route.edge.target)[0]].x)
        centre = drawing.boxes[node.name].x
        order = sorted(node.tabs, key=lambda buffer: sum(ends.get(buffer, [centre])) / len(ends.get(buffer, [centre])))
        node.tabs = {buffer: node.tabs[buffer] for buffer in order}


def _graph(program: Program, inside: frozenset[str]) -> tuple[dict[str, Node], list[Edge]]:
    """Boxes in order of execution, and who reads what from whom."""
    buffers = {b.name: b for b in program.buffers}
    nodes: dict[str, Node] = {}
    writer: dict[str, str] = {}
    wanted: list[tuple[str, str, str]] = []
    for number, item in enumerate(program.inputs):
        if isinstance(item, str) and item not in inside:
            nodes[f"input {number}"] = Node(f"input {number}", "input", f"input {number}", [], tabs={item: _tab(buffers[item])})
            writer[item] = f"input {number}"
    for number, step in enumerate(program.steps):
        node = _step(f"step {number}", step, buffers, inside)
        nodes[node.name] = node
        wanted += [(writer[b], node.name, b) for b in dict.fromkeys(reads(step)) if b in writer]
        for name in dict.fromkeys(writes(step)):
            node.tabs[name] = _tab(buffers[name])
            if name in writer and (writer[name], node.name, name) not in wanted:
                wanted.append((writer[name], node.name, name))
            writer[name] = node.name
    for number, output in enumerate(program.outputs):
        if output.view is not None and output.view.buffer in writer:
            whole = _sizes(output.view.size) == _sizes(buffers[output.view.buffer].size)
            lines = [] if whole else [f"{output.view.buffer} seen as {_sizes(output.view.size)}"]
            nodes[f"output {number}"] = Node(f"output {number}", "output", f"output {number}", lines)
            wanted.append((writer[output.view.buffer], f"output {number}", output.view.buffer))
    read = {(source, buffer) for source, _, buffer in wanted}
    for node in nodes.values():
        if node.kind == "input":
            node.tabs = {b: text for b, text in node.tabs.items() if (node.name, b) in read} or node.tabs
    return nodes, [Edge(source, target, buffer, nodes[source].port(buffer)) for source, target, buffer in wanted]


def _step(name: str, step: Step, buffers: dict[str, Buffer], inside: frozenset[str]) -> Node:
    kind, title, lines = _describe(step, buffers)
    touched = [b for b in dict.fromkeys(reads(step)) if b in inside]
    for buffer in touched[:4]:
        lines.append(f"weight {_tab(buffers[buffer])}")
    if len(touched) > 4:
        lines.append(f"and {len(touched) - 4} more weights, {_bytes(touched[4:], buffers)}")
    origins = ", ".join(step.origins)
    lines += [f"from {line}" for line in textwrap.wrap(origins, 46, max_lines=2, placeholder=" …")[:1]]
    lines += [f"     {line}" for line in textwrap.wrap(origins, 46, max_lines=2, placeholder=" …")[1:]]
    lines.append(f"reads {_bytes(dict.fromkeys(reads(step)), buffers)}, writes {_bytes(dict.fromkeys(writes(step)), buffers)}")
    return Node(name, kind, title, lines, tooltip=step_text(step))


def _describe(step: Step, buffers: dict[str, Buffer]) -> tuple[str, str, list[str]]:
    """Colour, title and first lines."""
    match step:
        case Kernel(axes=axes):
            loops = " x ".join(str(a.extent) for a in axes) or "one point"
            values = list(walk(*(s.value for s in step.stores)))
            reductions = [f"{v.op.value} over {_product(v)}" for v in values if isinstance(v, Reduce)]
            scans = [f"running {v.op.value}" for v in values if isinstance(v, Scan)]
            folded = textwrap.wrap(", ".join(dict.fromkeys(reductions + scans)), 46, max_lines=2, placeholder=" …")
            moved = all(isinstance(store.value, Load) for store in step.stores)
            return "kernel", step.name, [f"loops {loops}{', a copy' if moved else ''}", *folded]
        case Gemm(a=a, b=b):
            return "library", "matrix product", [f"{_sizes(a.size)} @ {_sizes(b.size)}{_epilogue(step)}"]
        case Conv(x=x, weight=weight):
            window = "x".join(str(n) for n in weight.size[2:])
            moves = "" if set(step.stride) == {1} else f" / {'x'.join(map(str, step.stride))}"
            groups = "" if step.groups == 1 else f", {step.groups} groups"
            turned = "transposed " if step.transposed else ""
            return "library", f"{turned}convolution", [f"{_sizes(x.size)} by {window}{moves}{groups}{_epilogue(step)}"]
        case Attention(q=q, k=k):
            causal = ", causal" if step.causal else ""
            mask = ", masked" if step.mask is not None else ""
            return "library", "attention", [f"q {_sizes(q.size)}, k {_sizes(k.size)}{causal}{mask}"]
        case Extern(op=op):
            return "extern", op, []


def _product(reduction: Reduce) -> str:
    return " x ".join(str(a.extent) for a in reduction.axes)


def _epilogue(step: Gemm | Conv) -> str:
    parts = [*(["bias"] if step.bias is not None else []), *(["residual"] if step.residual is not None else [])]
    text = "".join(f" + {part}" for part in parts)
    return text + (f", {step.activation}" if step.activation != "none" else "")


def _sizes(sizes: tuple[Size, ...]) -> str:
    return "x".join(str(s) for s in sizes) or "scalar"


def _tab(buffer: Buffer) -> str:
    return f"{buffer.name} {buffer.dtype.value}[{','.join(str(s) for s in buffer.size)}] {_bytes([buffer.name], {buffer.name: buffer})}"


def _bytes(names: Collection[str], buffers: dict[str, Buffer]) -> str:
    """How much memory the buffers take; `about` where sizes are symbols."""
    about = any(isinstance(n, sympy.Expr) and not n.is_number for name in names for n in buffers[name].size)
    return ("about " if about else "") + human_size(sum(int(nbytes_hint(buffers[name])) for name in names))


# --- drawing ---------------------------------------------------------------------------------------------------------------------------

MARGIN, HEAD = 24.0, 74.0


def _svg(program: Program, nodes: dict[str, Node], drawing: Drawing) -> str:
    head = _head(program, nodes)
    width = max(drawing.width + 2 * MARGIN, max(len(line) for line in head) * TITLE + 2 * MARGIN, 620.0)
    height = drawing.height + HEAD + 2 * MARGIN
    left = (width - drawing.width) / 2
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<style>text{{font:11px {FONT};fill:#202124}} .t{{font-weight:bold;font-size:12px}} .e{{fill:none;stroke:#78909c}}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    out += [f'<text class="t" x="{MARGIN:.0f}" y="{MARGIN + 4 + 17 * i:.0f}">{escape(line)}</text>' for i, line in enumerate(head)]
    x = MARGIN
    for fill, line, label in COLOURS.values():
        out.append(f'<rect x="{x:.0f}" y="{HEAD - 14:.0f}" width="14" height="12" rx="3" fill="{fill}" stroke="{line}"/>')
        out.append(f'<text x="{x + 20:.0f}" y="{HEAD - 4:.0f}">{label}</text>')
        x += 20 + len(label) * LETTER + 24
    out.append(f'<g transform="translate({left:.1f},{HEAD + MARGIN:.1f})">')
    out += _lines(drawing, nodes)
    for node in nodes.values():
        out += _box(node, drawing.boxes[node.name])
    return "\n".join([*out, "</g>", "</svg>"]) + "\n"


def _head(program: Program, nodes: dict[str, Node]) -> list[str]:
    buffers = {b.name: b for b in program.buffers}
    count = {kind: sum(node.kind == kind for node in nodes.values()) for kind in COLOURS}
    moved = sum(nbytes_hint(buffers[b]) for step in program.steps for b in {*reads(step), *writes(step)})
    workspace = program.workspace_bytes
    room = human_size(int(workspace)) if isinstance(workspace, int | sympy.Integer) else f"{workspace} B"
    kernels = f"{count['kernel']} kernels, {count['library']} library calls, {count['extern']} other operators"
    return [program.name, f"{kernels}; {human_size(int(moved))} read and written a call; workspace {room}"]


def _lines(drawing: Drawing, nodes: dict[str, Node]) -> list[str]:
    """Curves between rows; through a row, and past its taller boxes, a line runs straight down."""
    heights = row_heights(drawing)
    entries = _entries(drawing, nodes)
    drawn: dict[str, None] = {}
    for route in drawing.routes:
        edge = route.edge
        source, target = drawing.boxes[edge.source], drawing.boxes[edge.target]
        x, y = source.x + nodes[edge.source].port(edge.key), source.y + source.height
        drawn[_down(x, y, source.y + heights[source.row])] = None
        y = source.y + heights[source.row]
        for name in route.waypoints:
            waypoint = drawing.boxes[name]
            bottom = waypoint.y + heights[waypoint.row]
            drawn[_curve(x, y, waypoint.x, waypoint.y)] = None
            drawn[_down(waypoint.x, waypoint.y, bottom)] = None
            x, y = waypoint.x, bottom
        end = target.x + entries[edge]
        arrow = f"M{end - 4:.1f} {target.y - 7:.1f}L{end:.1f} {target.y:.1f}L{end + 4:.1f} {target.y - 7:.1f}z"
        drawn[_curve(x, y, end, target.y)] = None
        drawn[f'<path d="{arrow}" fill="#78909c"/>'] = None
    return list(drawn)


def _entries(drawing: Drawing, nodes: dict[str, Node]) -> dict[Edge, float]:
    """Where each line enters its box, from the box's centre: side by side in the order in which they come."""
    coming: dict[str, list[tuple[float, Edge]]] = {}
    for route in drawing.routes:
        edge = route.edge
        if route.waypoints:
            x = drawing.boxes[route.waypoints[-1]].x
        else:
            x = drawing.boxes[edge.source].x + nodes[edge.source].port(edge.key)
        coming.setdefault(edge.target, []).append((x, edge))
    places = {}
    for target, found in coming.items():
        for i, (_, edge) in enumerate(sorted(found, key=lambda pair: pair[0])):
            places[edge] = nodes[target].width * 0.7 * ((i + 0.5) / len(found) - 0.5)
    return places


def _down(x: float, top: float, bottom: float) -> str:
    return f'<path class="e" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    middle = (y1 - y0) / 2
    return f'<path class="e" d="M{x0:.1f} {y0:.1f}C{x0:.1f} {y0 + middle:.1f} {x1:.1f} {y1 - middle:.1f} {x1:.1f} {y1:.1f}"/>'


def _box(node: Node, box: Box) -> list[str]:
    fill, line, _ = COLOURS[node.kind]
    x, y = box.x - node.width / 2, box.y
    out = ["<g>", f"<title>{escape(node.tooltip or node.title)}</title>"]
    for name, width in node.tab_widths.items():
        middle = box.x + node.port(name)
        out.append(
            f'<rect x="{middle - width / 2:.1f}" y="{y + node.body - 6:.1f}" width="{width:.1f}" height="{TAB + 6:.1f}" rx="5" '
            f'fill="#ffffff" stroke="{line}"/>'
        )
        out.append(f'<text x="{middle:.1f}" y="{y + node.body + 14:.1f}" text-anchor="middle">{escape(node.tabs[name])}</text>')
    out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{node.width:.1f}" height="{node.body:.1f}" rx="6" fill="{fill}" stroke="{line}"/>')
    out.append(f'<text class="t" x="{x + PAD:.1f}" y="{y + PAD + 8:.1f}">{escape(node.title)}</text>')
    for i, text in enumerate(node.lines):
        out.append(f'<text xml:space="preserve" x="{x + PAD:.1f}" y="{y + PAD + 8 + LINE * (i + 1):.1f}">{escape(text)}</text>')
    return [*out, "</g>"]


__all__ = ["diagram"]
