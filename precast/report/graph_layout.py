"""Layered drawing of a directed acyclic graph: boxes in rows, edges from each row down, few crossings, long edges as straight as can be.

Sugiyama's scheme: rows by longest path, a waypoint in each row that an edge passes, order in a row by the mean place of the neighbours,
then coordinates that keep the order and pull neighbours together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ROW_GAP = 46.0
COLUMN_GAP = 22.0
WAYPOINT_WIDTH = 10.0
SWEEPS = 16


@dataclass
class Box:
    """What is placed: `width` and `height` in pixels come in; `x` (centre), `y` (top) and `row` go out. A waypoint has no height."""

    name: str
    width: float
    height: float
    row: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def is_waypoint(self) -> bool:
        return self.height == 0


@dataclass(frozen=True)
class Edge:
    """From port `port` of `source` (an offset from the box's centre, in pixels) to `target`. `key` groups edges that share a line."""

    source: str
    target: str
    key: str
    port: float = 0.0


@dataclass(frozen=True)
class Route:
    """An edge as drawn: the names of the waypoints that it passes, in order."""

    edge: Edge
    waypoints: tuple[str, ...]


@dataclass
class Drawing:
    """`boxes` include waypoints. `width` and `height` of the whole; everything lies in [0, width] x [0, height]."""

    boxes: dict[str, Box]
    routes: list[Route]
    width: float = 0.0
    height: float = 0.0
    rows: list[list[Box]] = field(default_factory=list)


def layout(boxes: Sequence[Box], edges: Sequence[Edge]) -> Drawing:
    """Place `boxes`, given in an order in which sources come before targets."""
    drawing = Drawing({box.name: box for box in boxes}, [])
    _rows(drawing.boxes, edges)
    _waypoints(drawing, edges)
    count = 1 + max((box.row for box in drawing.boxes.values()), default=0)
    drawing.rows = [[] for _ in range(count)]
    for box in drawing.boxes.values():
        drawing.rows[box.row].append(box)
    above, below = _neighbours(drawing)
    _order(drawing.rows, above, below)
    _columns(drawing.rows, above, below)
    _finish(drawing)
    return drawing


def _rows(boxes: Mapping[str, Box], edges: Sequence[Edge]) -> None:
    """Longest path from the top; what reads no other box sinks to just above its first reader."""
    into: dict[str, list[str]] = {}
    out: dict[str, list[str]] = {}
    for edge in edges:
        into.setdefault(edge.target, []).append(edge.source)
        out.setdefault(edge.source, []).append(edge.target)
    for box in boxes.values():
        box.row = max((boxes[s].row + 1 for s in into.get(box.name, ())), default=0)
    for box in boxes.values():
        if box.name not in into and box.name in out:
            box.row = max(0, min(boxes[t].row for t in out[box.name]) - 1)


def _waypoints(drawing: Drawing, edges: Sequence[Edge]) -> None:
    """One waypoint per row and line: edges of one buffer to several readers share them."""
    boxes = drawing.boxes
    for edge in edges:
        names = []
        for row in range(boxes[edge.source].row + 1, boxes[edge.target].row):
            name = f"{edge.source}|{edge.key}|{row}"
            boxes.setdefault(name, Box(name, WAYPOINT_WIDTH, 0.0, row=row))
            names.append(name)
        drawing.routes.append(Route(edge, tuple(names)))


Links = dict[str, dict[str, tuple[float, float]]]
"""Box -> neighbour in the next row -> (where the line meets the neighbour relative to its centre, minus the same here; weight)."""


def _neighbours(drawing: Drawing) -> tuple[Links, Links]:
    above: Links = {name: {} for name in drawing.boxes}
    below: Links = {name: {} for name in drawing.boxes}
    for route in drawing.routes:
        path = [route.edge.source, *route.waypoints, route.edge.target]
        for i, (upper, lower) in enumerate(zip(path, path[1:], strict=False)):
            shift = route.edge.port if i == 0 else 0.0
            weight = 1.0 + 3.0 * drawing.boxes[upper].is_waypoint + 3.0 * drawing.boxes[lower].is_waypoint
            below[upper][lower] = (-shift, weight)
            above[lower][upper] = (shift, weight)
    return above, below


def _order(rows: list[list[Box]], above: Links, below: Links) -> None:
    """Order within rows by the neighbours' mean place, swept down and up; the best order met is kept."""
    place = {box.name: i / max(1, len(row)) for row in rows for i, box in enumerate(row)}
    best = [list(row) for row in rows]
    fewest = _crossings(rows, below)
    for sweep in range(SWEEPS):
        links, order = (above, range(len(rows))) if sweep % 2 == 0 else (below, range(len(rows) - 1, -1, -1))
        for number in order:
            row = rows[number]
            wanted = {b.name: _mean([place[n] for n in links[b.name]], place[b.name]) for b in row}
            row.sort(key=lambda box: wanted[box.name])
            for i, box in enumerate(row):
                place[box.name] = (i + 0.5) / len(row)
        crossings = _crossings(rows, below)
        if crossings < fewest:
            fewest, best = crossings, [list(row) for row in rows]
    for row, kept in zip(rows, best, strict=True):
        row[:] = kept


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _crossings(rows: list[list[Box]], below: Links) -> int:
    total = 0
    for upper, lower in zip(rows, rows[1:], strict=False):
        place = {box.name: i for i, box in enumerate(lower)}
        ends = [place[target] for box in upper for target in sorted(below[box.name], key=lambda t: place[t])]
        total += sum(1 for i, a in enumerate(ends) for b in ends[i + 1 :] if a > b)
    return total


def _columns(rows: list[list[Box]], above: Links, below: Links) -> None:
    """Centres: each row takes the nearest places to what its neighbours want that keep order and distance."""
    for row in rows:
        x = 0.0
        for box in row:
            box.x, x = x + box.width / 2, x + box.width + COLUMN_GAP
    where = {box.name: box for row in rows for box in row}
    for sweep in range(SWEEPS):
        both = sweep >= SWEEPS - 4
        order = rows if sweep % 2 == 0 else rows[::-1]
        for row in order:
            wanted, weights = [], []
            for box in row:
                links = [above, below] if both else [above if sweep % 2 == 0 else below]
                pulls = [(where[n].x + shift, weight) for side in links for n, (shift, weight) in side[box.name].items()]
                total = sum(weight for _, weight in pulls)
                wanted.append(sum(x * weight for x, weight in pulls) / total if pulls else box.x)
                weights.append(total or 0.1)
            _place(row, wanted, weights)


def _place(row: list[Box], wanted: Sequence[float], weights: Sequence[float]) -> None:
    """Weighted least squares under order and distance: pool neighbours that want to overlap (pool adjacent violators)."""
    offsets = [0.0]
    for left, right in zip(row, row[1:], strict=False):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + COLUMN_GAP)
    blocks: list[list[float]] = []  # [sum of weight * place, sum of weight, members]
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        blocks.append([weight * (want - offset), weight, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    i = 0
    for total, weight, members in blocks:
        for _ in range(int(members)):
            row[i].x = total / weight + offsets[i]
            i += 1


def _finish(drawing: Drawing) -> None:
    """Rows below each other, everything moved to positive coordinates."""
    left = min((box.x - box.width / 2 for box in drawing.boxes.values()), default=0.0)
    y = 0.0
    for row in drawing.rows:
        height = max(box.height for box in row)
        for box in row:
            box.x -= left
            box.y = y
            if box.is_waypoint:
                box.height = 0.0
        y += height + ROW_GAP
    drawing.height = max(0.0, y - ROW_GAP)
    drawing.width = max((box.x + box.width / 2 for box in drawing.boxes.values()), default=0.0)


def row_heights(drawing: Drawing) -> list[float]:
    """Height of each row: lines run straight down through it."""
    return [max(box.height for box in row) for row in drawing.rows]


__all__ = ["Box", "Drawing", "Edge", "Route", "layout", "row_heights"]
