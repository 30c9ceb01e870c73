"""Running reductions of rows that lie apart: blocks are turned, and a vector holds one column's elements of all rows."""

from __future__ import annotations

from precast.codegen.cpp.body import Level
from precast.codegen.cpp.loops import Loops
from precast.codegen.cpp.planning.scan_loops import TILE
from precast.codegen.cpp.planning.sections import Section
from precast.codegen.cpp.transposes import Tiles
from precast.lowering.ir.nodes import Axis


def turned_section(loops: Loops, section: Section, lane: Axis, parent: Level) -> None:
    """Writes the scans of up to `TILE` rows into `parent`, whose loop has the lanes' bounds."""
    body, (axis,) = loops.body, section.axes
    name, kind = body.variable(axis.symbol), body.index_type
    loops.declare_scans(section, parent, f"{body.variable(lane.symbol)} - {body.variable(lane.symbol)}_0")
    block = Level(frozenset(), parent.indent + 1)
    body.path.append(block)
    loops.lane_bounds(axis, TILE, block)
    tiles = Tiles(body, (axis, lane), section, (TILE, TILE))
    tiles.fill(block)
    start = len(block.lines)
    loops.lane_stores(section, lane, block, (axis, lane))
    block.lines[start:] = tiles.apart(block.lines[start:], block)
    tiles.empty(block)
    body.path.pop()
    parent.add(f"for ({kind} {name}_0 = 0; {name}_0 < {body.extent(axis)}; {name}_0 += {TILE}) {{")
    parent.lines += block.lines
    parent.add("}")


__all__ = ["turned_section"]
