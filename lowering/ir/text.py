"""Prints a `Program` as readable text: golden tests, `precast show`, the docs. Shared values are named once, as in the generated code."""

from __future__ import annotations

from typing import Any

from precast.lowering.ir.nodes import (
    Alu,
    Attention,
    Cast,
    Checked,
    Const,
    Conv,
    Extern,
    Gather,
    Gemm,
    Index,
    Kernel,
    Load,
    Output,
    Program,
    Reduce,
    Scan,
    Step,
    Store,
    Value,
    View,
    operands,
    walk,
)
from precast.lowering.ir.scalars import Op

INFIX = {
    Op.ADD: "+",
    Op.SUB: "-",
    Op.MUL: "*",
    Op.DIV: "/",
    Op.FLOORDIV: "//",
    Op.LT: "<",
    Op.LE: "<=",
    Op.EQ: "==",
    Op.NE: "!=",
    Op.AND: "&",
    Op.OR: "|",
    Op.XOR: "^",
}


def program_text(program: Program) -> str:
    """The whole program, one step per paragraph."""
    buffers = {b.name: b for b in program.buffers}
    lines = [f"program {program.name}({', '.join(str(i) for i in program.inputs)})"]
    slots = {s.buffer: s for s in program.workspace}
    for name, buffer in buffers.items():
        role = " input" if name in program.inputs else " persistent" if name in program.persistent else ""
        place = f" @ {slots[name].offset}+{slots[name].nbytes}" if name in slots else ""
        lines.append(f"  {buffer!r}{role}{place}")
    if program.workspace:
        lines.append(f"  workspace {program.workspace_bytes} bytes")
    for title, steps in (("prepare", program.prepare), ("steps", program.steps)):
        if steps:
            lines.append(f"{title}:")
        for step in steps:
            lines.extend("  " + line for line in step_text(step).splitlines())
    lines.append("return " + ", ".join(_output(o) for o in program.outputs))
    lines.extend(f"note: {note}" for note in program.notes)
    return "\n".join(lines) + "\n"


def step_text(step: Step) -> str:
    """One step, over several lines."""
    match step:
        case Kernel():
            return _kernel(step)
        case Extern(op=op, args=args, kwargs=kwargs, outs=outs, mutates=mutates):
            inside = [_arg(a) for a in args] + [f"{k}={_arg(a)}" for k, a in kwargs]
            target = ", ".join((*outs, *(f"{b.symbol}" for b in step.binds))) or "mutates " + ", ".join(mutates)
            return f"{target} = {op}({', '.join(inside)})"
        case Gemm():
            return f"{step.out} = gemm({view_text(step.a)}, {view_text(step.b)}{_epilogue(step)})"
        case Conv():
            behind = "" if step.padding_behind is None else f" behind {step.padding_behind}"
            shape = f"stride {step.stride} padding {step.padding}{behind} dilation {step.dilation} groups {step.groups}"
            kind = "conv_transpose" if step.transposed else "conv"
            return f"{step.out} = {kind}({view_text(step.x)}, {view_text(step.weight)}{_epilogue(step)}) {shape}"
        case Attention():
            mask = "" if step.mask is None else f", mask={view_text(step.mask)}"
            causal = ", causal" if step.causal else ""
            return (
                f"{step.out} = attention({view_text(step.q)}, {view_text(step.k)}, {view_text(step.v)}{mask}{causal}, scale={step.scale!r})"
            )


def view_text(view: View) -> str:
    offset = f"+{view.offset}" if view.offset != 0 else ""
    dtype = f" as {view.dtype.value}" if view.dtype is not None else ""
    return f"{view.buffer}{offset}[{'x'.join(str(s) for s in view.size)} by {','.join(str(s) for s in view.stride)}]{dtype}"


def _epilogue(step: Gemm | Conv) -> str:
    parts = [] if step.bias is None else [f"bias={view_text(step.bias)}"]
    act = step.activation + (str(step.activation_args) if step.activation_args else "")
    residual = [] if step.residual is None else [f"residual={view_text(step.residual)}"]
    activation = [] if step.activation == "none" else [act]
    parts += residual + activation if step.residual_order == "before" else activation + residual
    return "".join(", " + p for p in parts)


def _output(output: Output) -> str:
    return view_text(output.view) if output.view is not None else str(output.scalar)


def _arg(arg: Any) -> str:
    match arg:
        case View():
            return view_text(arg)
        case Index(expr=expr):
            return str(expr)
        case tuple() | list():
            return "(" + ", ".join(_arg(a) for a in arg) + ")"
        case _:
            return repr(arg)


def _kernel(kernel: Kernel) -> str:
    printer = _Values()
    body: list[str] = []
    for store in kernel.stores:
        body.extend(printer.store(store))
    axes = ", ".join(repr(a) for a in kernel.axes)
    return "\n".join([f"kernel {kernel.name}[{axes}]", *("  " + line for line in body)])


class _Values:
    """Names values that are used more than once (or are reductions), in order of first need."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}

    def store(self, store: Store) -> list[str]:
        roots = [store.value, *(g.value for g in store.gathers), *((store.mask,) if store.mask is not None else ())]
        uses: dict[Value, int] = {}
        values = list(walk(*roots))
        for value in values:
            for operand in operands(value):
                uses[operand] = uses.get(operand, 0) + 1
        lines = []
        for value in values:
            simple = isinstance(value, Const | Index)
            if value not in self.names and not simple and (uses.get(value, 0) > 1 or isinstance(value, Reduce | Scan)):
                text = self.define(value)
                self.names[value] = f"v{len(self.names)}"
                lines.append(f"{self.names[value]} = {text}")
        mode = "=" if store.mode == "set" else f"{store.mode}="
        over = "" if store.axes is None else f"  over {', '.join(str(a.symbol) for a in store.axes)}"
        where = "" if store.mask is None else f"  where {self.use(store.mask)}"
        lines.append(f"{store.buffer}[{store.index}{self.gathers(store.gathers)}] {mode} {self.use(store.value)}{where}{over}")
        return lines

    def gathers(self, gathers: tuple[Gather, ...]) -> str:
        said: dict[Checked, str] = {True: "", False: " unchecked"}
        return "".join(
            f"; {g.symbol} <- {self.use(g.value)} of {g.size}{'' if g.wraps else ' from 0'}{said.get(g.checked, f' or {g.checked}')}"
            for g in gathers
        )

    def use(self, value: Value) -> str:
        return self.names.get(value) or self.define(value)

    def define(self, value: Value) -> str:
        match value:
            case Const(value=number, dtype=dtype):
                return f"{number!r}:{dtype.value}"
            case Index(expr=expr, dtype=dtype):
                return f"index({expr}):{dtype.value}"
            case Load(buffer=buffer, index=index, gathers=gathers, mask=mask):
                where = "" if mask is None else f" if {self.use(mask)}"
                return f"{buffer}[{index}{self.gathers(gathers)}{where}]"
            case Cast(value=inner, dtype=dtype):
                return f"{dtype.value}({self.use(inner)})"
            case Alu(op=op, args=args) if op in INFIX:
                return f"({self.use(args[0])} {INFIX[op]} {self.use(args[1])})"
            case Alu(op=op, args=args):
                return f"{op.value}({', '.join(self.use(a) for a in args)})"
            case Reduce(op=op, value=inner, axes=axes):
                return f"{op.value}[{', '.join(repr(a) for a in axes)}]({self.use(inner)})"
            case Scan(op=op, value=inner, axis=axis):
                return f"scan_{op.value}[{axis.symbol}]({self.use(inner)})"
