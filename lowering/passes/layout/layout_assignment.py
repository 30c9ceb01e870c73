"""Which convolutions of a CPU program are channels-last, by the bytes that changes of layout move.

A convolution over contiguous images makes the library change their layout: its operands into one of its own, its result back. Channels-last
images pass through as they are, but what comes from outside (or goes there) contiguous then has to be copied by a kernel of ours. So the
convolutions that hang together through temporaries are weighed as one group: what the library would move for each of them, against
what copies at the group's edges move. A group that does not gain stays contiguous, and a note of the program says why.

An image of few channels is read in any layout, by code of our own.

Measured: our copies, which mostly go to strides of whole images, take about `COPY` times as long for a byte as the library's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod

import sympy

from precast.lowering.analysis.dependencies import nbytes_hint
from precast.lowering.analysis.depthwise import has_few_channels
from precast.lowering.analysis.effects import reads, writes
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Conv, Kernel, Program, Step, View
from precast.lowering.ir.sizes import hint
from precast.lowering.passes.layout.channels_last import (
    Layout,
    accesses,
    dimensions,
    extents_in,
    in_memory_order,
    into_layout,
    is_image,
    last_strides,
)

COPY = 1.5
"""Cost of a byte that a kernel of ours moves from one layout to another, of a byte that the library moves: 1."""
FEW_CHANNELS = 4
"""Channels up to which the library reads contiguous images as they are."""


Place = tuple[object, ...]
"""What tells views of the same memory from others."""


@dataclass
class Group:
    """Steps that hang together through temporaries that can be channels-last: `convs` by the names of their results; the bytes that the
    library would move to and from its own layout, and those of images that one of the layouts suits and the other does not.
    """

    temporaries: set[str] = field(default_factory=set)
    convs: set[str] = field(default_factory=set)
    library: int = 0
    planes: dict[Place, int] = field(default_factory=dict)
    pixels: dict[Place, int] = field(default_factory=dict)

    def absorb(self, other: Group) -> None:
        self.temporaries |= other.temporaries
        self.convs |= other.convs
        self.library += other.library
        self.planes |= other.planes
        self.pixels |= other.pixels

    @property
    def cost(self) -> float:
        """What channels-last moves at the edges."""
        return COPY * sum(self.planes.values())

    @property
    def gain(self) -> float:
        """What contiguous images move."""
        return self.library + COPY * sum(self.pixels.values())

    @property
    def pays(self) -> bool:
        """Whether channels-last moves less."""
        return self.cost < self.gain

    def why_not(self) -> str:
        """The reason of a group that stays contiguous."""
        return (
            f"not channels-last: {', '.join(sorted(self.convs))}: to copy {', '.join(sorted({str(p[0]) for p in self.planes}))} into that "
            f"layout or out of it would cost as much as moving {self.cost / 1e6:.1f} MB; contiguous, the rest is {self.gain / 1e6:.1f} MB"
        )


def channels_last_where_it_pays(program: Program) -> Program:
    """The program with channels-last temporaries around the two-dimensional convolutions that gain by it."""
    if not any(is_image(s) for s in program.steps):
        return program
    groups = _groups(Layout(program, is_image))
    chosen = {name for g in groups if g.pays for name in g.convs}
    steps = tuple(_contiguous(s) if isinstance(s, Conv) and is_image(s) and s.out not in chosen else s for s in program.steps)
    program = replace(program, steps=steps, notes=(*program.notes, *(g.why_not() for g in groups if not g.pays)))
    if not chosen:
        return program
    temporaries = {name for g in groups if g.pays for name in g.temporaries}
    program, results = _with_copies(program, chosen, temporaries)
    return Layout(program, lambda s: isinstance(s, Conv) and is_image(s) and s.out in results).run()


def _groups(layout: Layout) -> list[Group]:
    """The groups of the program's two-dimensional convolutions, with what either layout would move."""
    found: list[Group] = []
    for step in layout.program.steps:
        group = Group({*reads(step), *writes(step)} & layout.chosen)
        if isinstance(step, Conv) and is_image(step):
            _weigh_convolution(group, step, layout)
        elif isinstance(step, Kernel) and group.temporaries:
            _weigh_kernel(group, step, layout)
        else:
            continue
        for other in [g for g in found if g.temporaries & group.temporaries]:
            group.absorb(other)
            found.remove(other)
        found.append(group)
    return [g for g in found if g.convs]


def _weigh_convolution(group: Group, step: Conv, layout: Layout) -> None:
    group.convs.add(step.out)
    for view in (step.x, step.residual, _whole(layout.buffers[step.out])):
        if view is None:
            continue
        nbytes = 2 * layout.buffers[view.buffer].dtype.itemsize * prod(hint(n) for n in view.size)
        if view is step.x and has_few_channels(step, layout.buffers):
            continue  # our own code reads it in any layout
        if view.buffer not in layout.chosen and _far_from_last(view):
            group.planes[_place(view)] = nbytes
        if hint(view.size[1]) > FEW_CHANNELS:
            group.library += nbytes


def _weigh_kernel(group: Group, step: Kernel, layout: Layout) -> None:
    """A kernel between temporaries of the group and other memory: what lies along pixels there, or along channels, suits one layout."""
    extents = extents_in(step)
    along: tuple[set[sympy.Basic], set[sympy.Basic]] = (set(), set())
    others = []
    for name, index, mask in accesses(step):
        if name not in layout.chosen:
            others.append((name, index))
            continue
        where = dimensions(layout.buffers[name], index, mask, extents)
        if where is not None:
            _, c, h, w = (where[s].free_symbols for s in ix.symbols(4))
            along[0].update(h | w)
            along[1].update(c)
    symbols = tuple(s for s, _ in extents)
    for name, index in others:
        found = ix.coefficients(index, symbols)
        if found is None or name not in layout.buffers:
            continue
        inner = {s for s, step_size in zip(symbols, found[1], strict=True) if step_size == 1}
        for symbols_there, weight in zip((along[0] - along[1], along[1] - along[0]), (group.planes, group.pixels), strict=True):
            if inner & symbols_there:
                weight[_place(_whole(layout.buffers[name]))] = 2 * nbytes_hint(layout.buffers[name])


def _contiguous(step: Conv) -> Conv:
    """A convolution that stays contiguous. The library goes by the weight's strides too, where those of a 1x1 weight say nothing."""
    weight = step.weight
    unit = all(n == 1 for n in weight.size[2:])
    return replace(step, weight=replace(weight, stride=(*weight.stride[:2], 1, 1))) if unit else step


def _place(view: View) -> Place:
    return (view.buffer, view.size, view.stride, view.offset)


def _whole(buffer: Buffer) -> View:
    return View(buffer.name, buffer.size, buffer.stride)


def _far_from_last(view: View) -> bool:
    """Whether an image has to be copied to be channels-last."""
    _, c, h, w = view.size
    return view.stride[1] != 1 and c != 1 and not (h == 1 and w == 1)


def _with_copies(program: Program, chosen: Collection[str], temporaries: Collection[str]) -> tuple[Program, set[str]]:
    """Every operand of the chosen convolutions that is not channels-last, and will not be, as a copy that is; and every such result made
    in a temporary and copied. With them the names of the convolutions' results.
    """
    buffers = {b.name: b for b in program.buffers}
    copies: dict[Place, str] = {}
    results: set[str] = set()
    steps: list[Step] = []

    def last(view: View) -> str:
        name = next(n for n in (f"{view.buffer}_last{i or ''}" for i in count()) if n not in buffers)
        buffers[name] = replace(buffers[view.buffer], name=name, size=view.size, stride=last_strides(view.size))
        return name

    def operand(view: View) -> View:
        place = _place(view)
        if view.dtype is not None or view.stride[1] == 1 or (view.buffer in temporaries and place == _place(_whole(buffers[view.buffer]))):
            return view
        if view.size[1] == 1 and view.stride == ix.contiguous_strides(view.size):
            return replace(view, stride=last_strides(view.size))  # the same memory: the library tells layouts by strides
        if not _far_from_last(view):
            return view
        if place not in copies:
            copies[place] = last(view)
            steps.append(into_layout(view, buffers[copies[place]], f"{view.buffer}_channels_last"))
        return _whole(buffers[copies[place]])

    for step in program.steps:
        written = set(writes(step))
        if not isinstance(step, Conv) or step.out not in chosen:
            steps.append(step)
            copies = {p: n for p, n in copies.items() if p[0] not in written}
            continue
        x = step.x if has_few_channels(step, buffers) else operand(step.x)
        step = replace(step, x=x, residual=None if step.residual is None else operand(step.residual))
        copies = {p: n for p, n in copies.items() if p[0] not in written}
        result = _whole(buffers[step.out])
        if step.out in temporaries or not _far_from_last(result):
            steps.append(step)
        else:
            step = replace(step, out=last(result))
            steps.append(step)
            copies[_place(result)] = step.out
            steps.append(in_memory_order(into_layout(_whole(buffers[step.out]), buffers[result.buffer], f"{result.buffer}_contiguous")))
        results.add(step.out)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers.values())), results
