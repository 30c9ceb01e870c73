"""What `runtime/directives/directives.py` has noted, handed to the tracer."""

from __future__ import annotations

import types
from typing import Any

from precast.capture.adapters.dynamo import allow_in_graph, external_utils, substitute_in_graph, trace_rules
from precast.capture.adapters.variables import PolyfilledFunctionVariable, VariableBuilder
from precast.runtime.common.eval_frame import eval_frame
from precast.runtime.common.log import warn
from precast.runtime.directives.directives import Notes, notes
from precast.runtime.settings.graph_break_errors import error_on_graph_break

_told_of_breaks: list[Any] = []
_told: set[int] = set()  # ids of substitutes that the tracer knows


def tell_tracer() -> None:
    """Make the tracer respect every directive given so far. What torch has a rule for keeps it, with a warning."""
    allow: Any = allow_in_graph
    while notes.allowed:
        allow(notes.allowed.pop())
    _substitutes(notes)
    _guard_collectives()
    if not _told_of_breaks:
        _told_of_breaks.append(substitute_in_graph(error_on_graph_break)(_as_torchs_own(_BREAK_ERRORS)))


_told_of_collectives: list[bool] = []


def _guard_collectives() -> None:
    """Says once that `torch.compiler.set_enable_guard_collectives` does not reach what precast dispatches itself."""
    set_hook: Any = getattr(eval_frame, "set_guard_complete_hook", None)
    if _told_of_collectives or set_hook is None:
        return
    hook = set_hook(None)
    set_hook(hook)
    if hook is not None:
        _told_of_collectives.append(True)
        warn(
            "precast: torch.compiler.set_enable_guard_collectives is on, and precast.compile does not act on it: each rank decides for "
            "itself whether it compiles. Build the artifacts beforehand (precast build), or use torch.compile(backend='precast'), whose "
            "guards are torch's"
        )


def _as_torchs_own(source: str) -> Any:
    """A function that counts as torch's: frames traced through it get no guards on it, whose check would import this module or torch's."""
    place: Any = external_utils  # of these torch traces
    found: dict[str, Any] = {}
    exec(compile(source, place.__file__, "exec"), found)  # a literal of this file
    return types.FunctionType(found["traced"].__code__, place.__dict__)


_BREAK_ERRORS = """
def traced(error_on_graph_break):
    return torch._dynamo.error_on_graph_break(error_on_graph_break)
"""


def _substitutes(given: Notes) -> None:
    for stand_in, original, handler, fold in given.substituted:
        if id(stand_in) not in _told:
            _told.add(id(stand_in))  # once: a substitute that torch refuses must not end every trace to come
            register: Any = substitute_in_graph(original, can_constant_fold_through=fold, skip_signature_check=True)
            try:
                made = register(handler)
            except ValueError:  # torch has a rule of its own for it; which functions have one differs by version
                made = PolyfilledFunctionVariable._get_polyfill_handlers().get(original)
                warn(f"precast.substitute_in_graph: this torch traces {original!r} by a rule of its own, which stays")
            if made is not None:
                _also(stand_in, made)


def _also(stand_in: Any, made: Any) -> None:
    """`stand_in`, which users call by its name, is traced like `made`, which torch registered for the same handler."""
    builders = VariableBuilder._id_dispatch()
    builders[id(stand_in)] = builders[id(made)]
    trace_rules._polyfilled_function_ids.add(id(stand_in))
    trace_rules.get_torch_obj_rule_map()[stand_in] = PolyfilledFunctionVariable
    PolyfilledFunctionVariable._get_polyfill_handlers()[stand_in] = made


__all__ = ["tell_tracer"]
