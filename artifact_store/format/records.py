"""What the store keeps of a captured frame, as plain data: its rewritten bytecode, its graphs' inputs and outputs, its code digests."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from precast.artifact_store.format.expressions import Expression
from precast.artifact_store.format.guards import Path, freeze, thaw


class _Record:
    """Dataclass <-> msgpack map, field by field."""

    def to_data(self) -> dict[str, Any]:
        return {f.name: thaw(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Any:
        """Raises TypeError when a field is missing or unknown."""
        return cls(**{k: freeze(v) for k, v in data.items()})


@dataclass(frozen=True)
class GraphInput(_Record):
    """One placeholder of the graph, in order.

    `bound` inputs are tensors that an `nn.Module` owns: the runtime fetches them by `path` once and again when the module changed.
    The others arrive by the call, at `position` of the graph callable's arguments. `constant` inputs are tensors that the record carries
    (`path` is `(("constant", i),)`): they are bound for ever. An int with `read` is neither passed nor bound: it is ("size" | "stride",
    k, dim) or ("offset", k) of the graph's input `k`.

    An `object` is bound, too, and no graph takes it: what the call gives back holds it (the mesh of a DTensor).

    `part`: what of the object at `position` the graph takes, where that is a tensor subclass that wraps others: names of attributes, and
    ("size" | "stride", dim) for a number; ("to_local", tagged placements, size, stride) for the local tensor of a DTensor that records
    gradients, which lie so on its mesh. (The `path` of a bound input leads to the inner tensor itself.)
    """

    path: Path
    bound: bool
    position: int | None
    kind: Literal["tensor", "int", "float", "constant", "object"] = "tensor"
    mutated: bool = False
    parameter: bool = False  # an nn.Parameter
    read: tuple[Any, ...] | None = None
    part: tuple[Any, ...] = ()


Wrap = int | tuple[Any, ...]
"""What the bytecode gets at one position, where a graph's outputs are not it: output `i` of the graph; ("input", i), the object that the
call passed at position `i`; ("part", i, steps), what is inside of that; ("object", i), the bound object `i`; ("subclass", class, tagged
metadata, ((attribute, Wrap), …), sizes, strides), an instance made by the class's `__tensor_unflatten__`; ("dtensor", i, tagged placements,
sizes, strides, tagged placements of its gradient or None, Wrap of the mesh), a DTensor of output `i`, whose history autograd knows. Sizes
and strides are integers, or ("output", i), the integer that the graph gives back there."""


@dataclass(frozen=True)
class GraphOutput(_Record):
    """One position of what the graph callable gives back to the bytecode.

    raw: output `index` of the compiled graph, as it is; input: the object of graph input `index`; view: a fresh view of graph input
    `index` (strided as given, `offset` in elements of `dtype` counted from that input's own first element); output_view: the same on
    raw output `index`; int: the number `value`, or, where `value` is None, raw output `index`; none: None; grad_mode: no position, but
    torch's grad mode, which is `value` once the others are made. Sizes, strides, offsets and values may be expressions over the graph's
    inputs and raw outputs (`artifact_store/format/expressions.py`).
    """

    kind: Literal["raw", "input", "view", "output_view", "int", "none", "grad_mode"]
    index: int | None = None
    size: tuple[Expression, ...] = ()
    stride: tuple[Expression, ...] = ()
    offset: Expression = 0
    dtype: str | None = None  # set where the view reinterprets the base's elements: torch's name ("int32")
    value: Expression | bool | None = None
    detach: bool = False  # a view or input that must not carry the base's requires_grad


@dataclass(frozen=True)
class TensorConstant(_Record):
    """A tensor built from literals in the traced code. `data` are its elements, dense and row-major, in native byte order."""

    dtype: str
    size: tuple[int, ...]
    data: bytes
    device: str = "cpu"


@dataclass(frozen=True)
class AutogradRecord(_Record):
    """How a call records gradients: what the forward graph gives, what its backward graph takes, and which gradients that gives.

    The forward graph's raw outputs are its results (one entry of `results` each: whether gradients flow into it), and after them what is
    only kept for the backward graph. `inputs`: indices of the forward graph's inputs that require gradients.
    `saved`: tensors kept for the backward graph, each ("input", i) of the forward graph's inputs or ("raw", i) of its raw outputs;
    `numbers`: integers kept, as expressions over these. `tangents`: (index of a result, order of its gradient's dimensions in memory,
    outermost first, its strides where it is not dense): the backward graph takes the gradients of these results, laid out so.
    `written`: (index of an input, index of a result, whether autograd may not see it): inputs that get a result's value after the call.
    `backward`: the backward graph's inputs (numbers first, then saved tensors, then tangents, then constants); `gradients`: one output
    for each of `inputs`, "none" where that gets no gradient. `reached`: for each of `inputs` the positions in `tangents` of the gradients
    that its own is made of, () where that is all of them: it gets none where none of these is given.
    """

    results: tuple[bool, ...]
    inputs: tuple[int, ...]
    saved: tuple[tuple[str, int], ...]
    numbers: tuple[Expression, ...]
    tangents: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    written: tuple[tuple[int, int, bool], ...]
    backward: tuple[GraphInput, ...]
    gradients: tuple[GraphOutput, ...]
    constants: tuple[TensorConstant, ...] = ()
    reached: tuple[tuple[int, ...], ...] = ()

    def to_data(self) -> dict[str, Any]:
        lists = ("backward", "gradients", "constants")
        return {**super().to_data(), **{name: [item.to_data() for item in getattr(self, name)] for name in lists}}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> AutogradRecord:
        backward = tuple(GraphInput.from_data(item) for item in data["backward"])
        gradients = tuple(GraphOutput.from_data(item) for item in data["gradients"])
        constants = tuple(TensorConstant.from_data(item) for item in data["constants"])
        lists = {"backward": backward, "gradients": gradients, "constants": constants}
        return AutogradRecord(**{**{k: freeze(v) for k, v in data.items() if k not in lists}, **lists})


@dataclass(frozen=True)
class CodeDigest(_Record):
    """The position-free digest of one function that was traced into. `module` is "" for the entry function itself."""

    module: str
    qualname: str
    digest: str


@dataclass(frozen=True)
class ResumeRecord(_Record):
    """What continues a frame after a graph break: the rest of the original function, as code of its own that is not rewritten.

    `module`: whose globals it reads, "" for the frame's own. `digest`: position-free (`runtime/fingerprint/bytecode.py`); it names the
    program that is compiled from this code. `constants`: as in FrameRecord.
    """

    name: str
    module: str
    digest: str
    code: bytes
    constants: tuple[Any, ...]


@dataclass(frozen=True)
class FrameRecord(_Record):
    """How to rebuild the rewritten entry function (`runtime/frames/rewritten_code.py`) without the tracer.

    `names` maps each private global name of the bytecode to what supplies it: ("graph",), ("module", name), ("builtins",),
    ("shims", module of torch._dynamo), ("step", function in runtime/frames/reconstruct.py), ("random", calls), ("resume", index into
    `resumes`).
    `constants` lists what marshal refuses: (indices from the outer code object through nested ones to the constant, tagged value).
    """

    python: str  # "3.11": marshal and bytecode belong to it
    code: bytes
    constants: tuple[Any, ...]
    names: tuple[tuple[str, tuple[Any, ...]], ...]
    tensors: tuple[TensorConstant, ...] = ()
    resumes: tuple[ResumeRecord, ...] = ()
    broken: bool = False  # it ends at a graph break: Python code runs before the function returns

    def to_data(self) -> dict[str, Any]:
        tensors, resumes = [t.to_data() for t in self.tensors], [r.to_data() for r in self.resumes]
        return {**super().to_data(), "tensors": tensors, "resumes": resumes}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> FrameRecord:
        tensors = tuple(TensorConstant.from_data(t) for t in data["tensors"])
        resumes = tuple(ResumeRecord.from_data(r) for r in data.get("resumes", ()))  # older records have none
        return FrameRecord(**{**{k: freeze(v) for k, v in data.items()}, "tensors": tensors, "resumes": resumes})
