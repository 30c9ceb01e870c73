"""What changes between the build and a call, one row each: in the environment, in the source, before the artifact is loaded, or after."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import subject
import torch
from program import Program
from subject import seeded

Change = Callable[[Program], None]


@dataclass(frozen=True)
class Case:
    """One row. `before` and `after` change a program before the artifact is loaded or after a first right answer (or its next call);
    `edit` replaces text of the program's source; `context` surrounds the call; `environment` is that of the loading process;
    `other_torch` builds with another release of torch;
    `found` concerns only ways that find their artifact by themselves."""

    name: str
    title: str
    program: str = "block"
    before: Change | None = None
    after: Change | None = None
    edit: tuple[str, str] | None = None
    context: Callable[[], Any] = contextlib.nullcontext
    environment: tuple[tuple[str, str], ...] = ()
    other_torch: bool = False
    found: bool = False
    calls: int = 1


def _argument(make: Callable[[], Any], index: int = 0) -> Change:
    def change(program: Program) -> None:
        program.args = (*program.args[:index], make(), *program.args[index + 1 :])

    return change


def _double(program: Program) -> None:
    program.model.double()
    program.args = tuple(a.double() for a in program.args)


def _checkpoint(program: Program) -> None:
    with torch.no_grad():
        for i, parameter in enumerate(program.model.parameters()):
            parameter.copy_(torch.sin(torch.arange(parameter.numel()) + i).reshape(parameter.shape))


def _other_parameter(program: Program) -> None:
    program.model.inner.weight = torch.nn.Parameter(seeded(32, 16, seed=5))


def _attribute(name: str, make: Callable[[], Any]) -> Change:
    return lambda program: setattr(program.model, name, make())


def _global(name: str, value: Any) -> Change:
    return lambda program: setattr(subject, name, value)


def _train(program: Program) -> None:
    program.model.train()


def _hook(program: Program) -> None:
    program.model.inner.register_forward_hook(lambda module, args, output: output + 1)


def _method(program: Program) -> None:
    program.model.outer.forward = lambda x: x[:, :8] - 1


def _threads(program: Program) -> None:
    torch.set_num_threads(1)


def _transposed(program: Program) -> None:
    program.args = (seeded(16, 4, seed=3).t(),)


def _needs_grad(program: Program) -> None:
    program.args = tuple(a.requires_grad_() for a in program.args)


def _same_twice(program: Program) -> None:
    program.args = (program.args[0], program.args[0])


def _other_closure(program: Program) -> None:
    program.model = subject.closure(scale=7.0, shift=-2.0)


def _cell(program: Program) -> None:
    program.model.__closure__[0].cell_contents = 7.0


def _namesake(program: Program) -> None:
    """The function of the same name at the same line of another file, which computes something else."""
    path = Path(subject.__file__).with_name("namesake.py")
    path.write_text(Path(subject.__file__).read_text().replace("+ exponent", "- exponent"))
    program.model = importlib.import_module("namesake").powered


def _more(x: torch.Tensor) -> torch.Tensor:
    return x * 10


NO_COMPILER = (("PATH", "/nonexistent"), ("CXX", "/nonexistent/g++"), ("CC", "/nonexistent/gcc"))

ABILITIES = (
    Case("block", "a small module, called again", calls=2),
    Case("break", "a graph break", "break", calls=2),
    Case("branch", "data-dependent control flow, the way it was built with", "branch"),
    Case("branch_other", "data-dependent control flow, the other way", "branch", after=_argument(lambda: -seeded(4, 16).abs())),
    Case("dynamic_more", "a dynamic batch: 4, then 9", "dynamic", after=_argument(lambda: seeded(9, 16, seed=3))),
    Case("dynamic_one", "a dynamic batch: 4, then 1", "dynamic", after=_argument(lambda: seeded(1, 16, seed=3))),
    Case("buffer", "a buffer that is written, three calls", "buffer", calls=3),
    Case("closure", "a closure", "closure", calls=2),
    Case("alias", "an argument that is written to", "alias"),
)
ASSUMPTIONS = (
    Case("batch", "another batch size", after=_argument(lambda: seeded(9, 16, seed=3))),
    Case("layout", "a transposed input of the same shape", after=_transposed),
    Case("dtype", "model and input in float64", after=_double),
    Case("number", "an argument that is another number", "number", after=_argument(lambda: 3, 1)),
    Case("aliased", "the same tensor for both arguments, one of them written to", "alias", after=_same_twice),
    Case("checkpoint_before", "other weights (a new checkpoint), before the load", before=_checkpoint),
    Case("checkpoint_after", "weights written to in place, after the load", after=_checkpoint),
    Case("parameter", "another Parameter object", after=_other_parameter),
    Case("buffer_value", "another buffer object", after=_attribute("shift", lambda: torch.full((8,), 5.0))),
    Case("submodule_before", "a submodule of another class, before the load", before=_attribute("activation", torch.nn.ReLU)),
    Case("submodule", "a submodule of another class, after the load", after=_attribute("activation", torch.nn.ReLU)),
    Case(
        "submodule_option", "a submodule of that class with another option", after=_attribute("activation", lambda: torch.nn.GELU("tanh"))
    ),
    Case("attribute_before", "an attribute that is another number, before the load", before=_attribute("gain", lambda: 9.0)),
    Case("attribute", "an attribute that is another number, after the load", after=_attribute("gain", lambda: 9.0)),
    Case("global_before", "a global that is another number, before the load", before=_global("FACTOR", 7.0)),
    Case("global", "a global that is another number, after the load", after=_global("FACTOR", 7.0)),
    Case("function", "a global function that is another one", after=_global("scaled", _more)),
    Case("closure_other", "a closure over other values, before the load", "closure", before=_other_closure),
    Case("closure_cell", "a closure's variable that is rebound", "closure", after=_cell),
    Case("train", "model.train()", after=_train),
    Case("hook", "a forward hook on a submodule", after=_hook),
    Case("method", "a submodule's forward that is replaced", after=_method),
    Case("grad", "gradients wanted (built without)", context=torch.enable_grad),
    Case("input_grad", "an input that requires a gradient", context=torch.enable_grad, after=_needs_grad),
    Case("inference", "inference mode (built without gradients)", context=torch.inference_mode),
    Case("autocast", "autocast to bfloat16", context=lambda: torch.autocast("cpu", torch.bfloat16)),
    Case("threads", "one thread (built with two)", after=_threads),
    Case("source", "the source of a helper is edited between build and load", edit=("return x * FACTOR", "return x * FACTOR + 100")),
    Case("source_forward", "the source of the module's forward is edited", edit=("* self.gain + self.shift", "* self.gain - self.shift")),
    Case("source_unused", "other source in the same file is edited", edit=("return x.abs() - 5", "return x.abs() - 6")),
    Case("namesake", "a function of the same name at the same line of another file", "number", before=_namesake, found=True),
    Case("no_compiler", "no C++ compiler on the loading machine", environment=NO_COMPILER),
    Case("other_torch", "an artifact of another release of torch", other_torch=True),
)
CASES = {case.name: case for case in (*ABILITIES, *ASSUMPTIONS)}
