"""Places for the boxes and arrows of a graph, by Graphviz (https://graphviz.org), which the wheels of pygraphviz carry."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from precast.report.page.folding import Repeat

WIDTH, HEIGHT = 188, 46
"""Of a box, in points, which are the page's pixels."""
MOST_READERS = 8
"""Arrows of a step with more readers would hide all others: they have no path, and the page draws them when they are asked for."""
_LIMIT = 400
"""Boxes from which Graphviz may stop looking for something better early."""
MISSING = "a report lays its graph out with pygraphviz, which is not installed: pip install 'precast[report]'"


class LayoutMissing(RuntimeError):
    """The layout library is not installed; the text says how to get it."""


@dataclass(frozen=True)
class Drawing:
    """`boxes`: middle of each step's box. `arrows`: from step, to step, and the SVG path between them, empty
    for those of a step with more than MOST_READERS. `frames`: x, y, width and height
    of the frame around the layer that stands for a repeat, by the repeat's position.
    """

    width: float
    height: float
    boxes: dict[int, tuple[float, float]]
    arrows: tuple[tuple[int, int, str], ...]
    frames: dict[int, tuple[float, float, float, float]]


def check_installed() -> None:
    """Raises LayoutMissing."""
    if importlib.util.find_spec("pygraphviz") is None:
        raise LayoutMissing(MISSING)


def drawn(steps: Iterable[int], edges: Iterable[tuple[int, int]], layers: Sequence[Repeat] = ()) -> Drawing:
    """From the first step at the top down to the last. `layers`: repeats whose first layer gets a frame. Raises LayoutMissing."""
    check_installed()
    import pygraphviz

    graph = pygraphviz.AGraph(directed=True, strict=True)
    graph.graph_attr.update(rankdir="TB", nodesep="0.2", ranksep="0.42", splines="spline", label="", compound="true")
    graph.node_attr.update(shape="box", fixedsize="true", width=str(WIDTH / 72), height=str(HEIGHT / 72), label="")
    names = list(steps)
    if len(names) > _LIMIT:
        graph.graph_attr.update(nslimit="1", mclimit="0.3", splines="polyline")
    for number in names:
        graph.add_node(str(number))
    pairs = list(edges)
    readers = Counter(source for source, _ in pairs)
    for source, target in pairs:
        if readers[source] <= MOST_READERS:
            graph.add_edge(str(source), str(target))
    for place, layer in enumerate(layers):
        members = [str(number) for number in range(layer.first, layer.first + layer.period)]
        graph.add_subgraph(members, name=f"cluster_{place}", margin="22")
    graph.layout(prog="dot")
    return _read(graph, names, [pair for pair in pairs if readers[pair[0]] > MOST_READERS], len(layers))


def _read(graph: Any, names: Sequence[int], hidden: Sequence[tuple[int, int]], layers: int) -> Drawing:
    """What Graphviz wrote into the graph's attributes; its y axis points up."""
    left, bottom, right, top = _numbers(graph.graph_attr["bb"])

    def place(x: float, y: float) -> tuple[float, float]:
        return round(x - left, 1), round(top - y, 1)

    boxes = {number: place(*_numbers(graph.get_node(str(number)).attr["pos"])) for number in names}
    arrows: list[tuple[int, int, str]] = []
    for edge in graph.edges():
        end, *points = _points(edge.attr["pos"])
        path = [place(*point) for point in points]
        curve = " ".join(f"{x:g} {y:g}" for x, y in path[1:])
        tip = "L{:g} {:g}".format(*place(*end)) if end else ""
        arrows.append((int(edge[0]), int(edge[1]), f"M{path[0][0]:g} {path[0][1]:g}C{curve}{tip}"))
    frames = {}
    for number in range(layers):
        x0, y0, x1, y1 = _numbers(graph.get_subgraph(f"cluster_{number}").graph_attr["bb"])
        frames[number] = (*place(x0, y1), round(x1 - x0, 1), round(y1 - y0, 1))
    arrows += [(source, target, "") for source, target in hidden]
    return Drawing(round(right - left, 1), round(top - bottom, 1), boxes, tuple(arrows), frames)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _points(text: str) -> list[tuple[float, ...]]:
    """The arrow's tip (empty where there is none), then the points of its curve."""
    parts = text.split()
    tip = _numbers(parts[0][2:]) if parts[0].startswith("e,") else ()
    return [tip, *(_numbers(part) for part in parts if part[1] != "," or part[0] not in "es")]


__all__ = ["HEIGHT", "WIDTH", "Drawing", "LayoutMissing", "check_installed", "drawn"]
