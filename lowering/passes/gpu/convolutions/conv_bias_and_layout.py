"""Convolutions in the form that cuDNN computes in one kernel: a bias only together with a relu, and weights in channels-last.

For a convolution with only a bias, and for any transposed one with a bias, torch launches two kernels, the second of which passes over the
whole result. So the bias of a shortcut convolution is added to that of the convolution which adds its result, and any other bias becomes a
pointwise kernel, for later passes to fuse. A result that leaves the program in another layout than channels-last is passed over anyway, by
what brings it there: that kernel has the whole epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from precast.lowering.analysis.buffers import add_buffer
from precast.lowering.analysis.effects import lasting_inputs, reads
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Buffer, Conv, Kernel, Load, Program, Step, Store, View
from precast.lowering.ir.scalars import Op
from precast.lowering.ir.substitution import shared_axis
from precast.lowering.passes.fusion.library_loops import finish, in_compute_type
from precast.lowering.passes.gpu.convolutions.patch_conv_as_matmul import is_patch
from precast.lowering.passes.layout.channels_last import channels_last, is_image
from precast.lowering.passes.layout.planes import between_planes


def conv_biases(program: Program) -> Program:
    """The program without convolutions that have a bias and no activation, or of which a result in rows of pixels is an output."""
    return _Biases(program).run()


def _bare(step: Step) -> bool:
    if not isinstance(step, Conv) or is_patch(step):
        return False
    return step.bias is not None and step.activation == "none" and step.residual is None


def _unfused(step: Conv) -> bool:
    """Whether cuDNN has no fast operator with an epilogue: a group for each channel."""
    epilogue = step.bias is not None or step.residual is not None or step.activation != "none"
    return epilogue and not step.transposed and step.groups != 1 and step.weight.size[1] == 1


class _Biases:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers = {b.name: b for b in program.buffers}
        self.outputs = {o.view.buffer for o in program.outputs if o.view is not None}
        self.users: dict[str, int] = {}
        for step in program.steps:
            for name in reads(step):
                self.users[name] = self.users.get(name, 0) + 1
        self.moved = self._shortcuts()

    def _shortcuts(self) -> dict[str, Conv]:
        """Convolutions whose result is used only as the residual of another convolution with a bias, by the name of the result."""
        bare = {s.out: s for s in self.program.steps if isinstance(s, Conv) and _bare(s)}
        found: dict[str, Conv] = {}
        for step in self.program.steps:
            if isinstance(step, Conv) and step.residual is not None and step.residual_order == "before":
                name = step.residual.buffer
                if name in bare and self.users[name] == 1 and name not in self.outputs:
                    found[name] = bare[name]
        return found

    def run(self) -> Program:
        steps: list[Step] = []
        for step in self.program.steps:
            if isinstance(step, Conv) and step.out in self.moved:
                steps.append(replace(step, bias=None))
            elif isinstance(step, Conv) and step.residual is not None and step.residual.buffer in self.moved:
                steps += self._with_both(step, self.moved[step.residual.buffer])
            elif isinstance(step, Conv) and (_bare(step) or _unfused(step) or self._leaves_in_planes(step)):
                steps += self._split(step)
            else:
                steps.append(step)
        return replace(self.program, steps=tuple(steps), buffers=tuple(self.buffers.values()))

    def _with_both(self, step: Conv, shortcut: Conv) -> list[Step]:
        """The step with the sum of both biases."""
        assert shortcut.bias is not None
        if step.bias is None:
            return [replace(step, bias=shortcut.bias)]
        dtype, channels = self.buffers[step.out].dtype, step.bias.size[0]
        (c,) = ix.symbols(1)
        parts = [Load(b.buffer, ix.affine(b.offset, ((b.stride[0], c),)), dtype) for b in (step.bias, shortcut.bias)]
        target = add_buffer(self.buffers, f"{step.out}_biases", (channels,), (1,), dtype)
        kernel = Kernel(f"add_{target}", (shared_axis(c, channels),), (Store(target, c, Alu(Op.ADD, tuple(parts), dtype.compute)),))
        return [kernel, replace(step, bias=View(target, (channels,), (1,)))]

    def _leaves_in_planes(self, step: Conv) -> bool:
        """Whether the result is an output whose channels do not lie side by side, as those of cuDNN's result do."""
        out = self.buffers[step.out]
        if step.out not in self.outputs or not is_image(step) or is_patch(step) or step.x.size[1] == 1:
            return False
        one_pixel = all(n == 1 for n in out.size[2:])
        return out.size[1] != 1 and not one_pixel and out.stride == ix.contiguous_strides(out.size)

    def _split(self, step: Conv) -> list[Step]:
        """The convolution alone, and a kernel with its epilogue."""
        result, bias = self.buffers[step.out], step.bias
        plain = add_buffer(self.buffers, f"{step.out}_plain", result.size, result.stride, result.dtype)
        symbols = ix.symbols(len(result.size))
        axes = tuple(shared_axis(s, n) for s, n in zip(symbols, result.size, strict=True))
        index = ix.affine(0, tuple(zip(result.stride, symbols, strict=True)))
        load = Load(plain, index, result.dtype)
        if bias is None:
            value = in_compute_type(load)
        else:
            addend = Load(bias.buffer, ix.affine(bias.offset, ((bias.stride[0], symbols[1]),)), result.dtype)
            value = Alu(Op.ADD, (load, addend), result.dtype.compute)
        kernel = Kernel(f"bias_{step.out}", axes, (Store(step.out, index, finish(step, value, axes, self.buffers)),), step.origins)
        return [replace(step, out=plain, bias=None, activation="none", activation_args=(), residual=None), kernel]


def images_channels_last(program: Program) -> Program:
    """The program with channels-last images, except around what cuDNN multiplies pixel by pixel as fast where the pixels lie in planes."""
    apart = between_planes(program)
    pixelwise = {s.out for s in program.steps if isinstance(s, Conv) and s.out in apart and _is_pixelwise(s)}
    return channels_last(program, is_patch, pixelwise)


def _is_pixelwise(step: Conv) -> bool:
    single = all(n == 1 for n in step.weight.size[2:]) and all(n == 0 for n in step.padding)
    return is_image(step) and single and step.groups == 1


def weights_channels_last(freeze: bool, bound: Collection[str] | None = None) -> Callable[[Program], Program]:
    """The pass that copies each convolution's contiguous weight into channels-last, which torch would otherwise do at each call, by a
    kernel for each weight, right in front of the first convolution that reads it. With `freeze` the copies are made once per binding of
    the weights that `bound` names (None: every input).
    """

    def change(program: Program) -> Program:
        lasting = lasting_inputs(program, bound) if freeze else frozenset()
        buffers = {b.name: b for b in program.buffers}
        inputs = {i for i in program.inputs if isinstance(i, str)}
        copies: dict[str, Kernel] = {}
        kept: list[Kernel] = []
        steps: list[Step] = []
        for step in program.steps:
            if isinstance(step, Conv) and step.weight.buffer in inputs and _misplaced(step) and not is_patch(step):
                source = step.weight.buffer
                fresh = source not in copies
                step = replace(step, weight=_copy(step.weight, buffers, copies))
                if fresh:
                    (kept if source in lasting else steps).append(copies[source])
            steps.append(step)
        return replace(
            program,
            steps=tuple(steps),
            buffers=tuple(buffers.values()),
            prepare=(*program.prepare, *kept),
            persistent=(*program.persistent, *(k.stores[0].buffer for k in kept)),
        )

    return change


def _misplaced(conv: Conv) -> bool:
    """Whether the weight's channels are not innermost in memory, and moving them there would change the order of elements."""
    weight = conv.weight
    plain = len(weight.size) == 4 and not conv.transposed and weight.stride == ix.contiguous_strides(weight.size) and weight.offset == 0
    return plain and weight.size[1] != 1 and any(n != 1 for n in weight.size[2:])


def _copy(weight: View, buffers: dict[str, Buffer], copies: dict[str, Kernel]) -> View:
    source = buffers[weight.buffer]
    o, c, h, w = weight.size
    inner = ix.contiguous_strides((o, h, w, c))
    stride = (inner[0], inner[3], inner[1], inner[2])
    name = f"{source.name}_last"
    if source.name not in copies:
        buffers[name] = Buffer(name, source.dtype, weight.size, stride)
        symbols = ix.symbols(4)
        place = (symbols[0], symbols[3], symbols[1], symbols[2])  # the axes run as the copy lies
        value = Load(source.name, ix.affine(0, tuple(zip(weight.stride, place, strict=True))), source.dtype)
        axes = tuple(shared_axis(s, n) for s, n in zip(symbols, (o, h, w, c), strict=True))
        target = ix.affine(0, tuple(zip(stride, place, strict=True)))
        copies[source.name] = Kernel(f"copy_{name}", axes, (Store(name, target, value),))
    return View(name, weight.size, stride)
