"""precast: an ahead-of-time graph compiler for PyTorch with an on-disk artifact cache.

Importing this imports neither torch nor the tracer; each name below is loaded on first use.
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precast.runtime.api.compile import compile, compile_module, explain, explain_miss, load, reset
    from precast.runtime.api.metrics import METRICS_TYPE, metrics
    from precast.runtime.api.precompile import precompile
    from precast.runtime.api.repeated_blocks import compile_repeated_blocks
    from precast.runtime.api.serving import refresh, warm_up
    from precast.runtime.common.errors import (
        DirectiveError,
        GraphBreakError,
        GuardMiss,
        MarkError,
        OptionError,
        PrecastError,
        RecompileForbidden,
        RegionError,
    )
    from precast.runtime.counting.record_calls import record
    from precast.runtime.directives.directives import (
        allow_in_graph,
        assume_constant_result,
        cudagraph_mark_step_begin,
        disable,
        is_compiling,
        is_exporting,
        substitute_in_graph,
    )
    from precast.runtime.directives.dynamic_marks import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic
    from precast.runtime.settings.backends import list_backends, register_backend
    from precast.runtime.settings.graph_break_errors import error_on_graph_break
    from precast.runtime.settings.guard_filters import (
        keep_portable_guards_unsafe,
        keep_tensor_guards_unsafe,
        skip_all_guards_unsafe,
        skip_guard_on_all_nn_modules_unsafe,
        skip_guard_on_globals_unsafe,
        skip_guard_on_inbuilt_nn_modules_unsafe,
    )
    from precast.runtime.settings.options import describe_options, list_mode_options, list_options
    from precast.runtime.settings.stance import set_stance

__version__ = "0.1.0"
_MODULES = {
    "allow_in_graph": "directives.directives",
    "assume_constant_result": "directives.directives",
    "compile": "api.compile",
    "compile_module": "api.compile",
    "compile_repeated_blocks": "api.repeated_blocks",
    "cudagraph_mark_step_begin": "directives.directives",
    "disable": "directives.directives",
    "is_compiling": "directives.directives",
    "is_exporting": "directives.directives",
    "substitute_in_graph": "directives.directives",
    "keep_portable_guards_unsafe": "settings.guard_filters",
    "skip_all_guards_unsafe": "settings.guard_filters",
    "keep_tensor_guards_unsafe": "settings.guard_filters",
    "skip_guard_on_all_nn_modules_unsafe": "settings.guard_filters",
    "skip_guard_on_globals_unsafe": "settings.guard_filters",
    "skip_guard_on_inbuilt_nn_modules_unsafe": "settings.guard_filters",
    "DirectiveError": "common.errors",
    "GraphBreakError": "common.errors",
    "RegionError": "common.errors",
    "error_on_graph_break": "settings.graph_break_errors",
    "explain": "api.compile",
    "explain_miss": "api.compile",
    "load": "api.compile",
    "reset": "api.compile",
    "GuardMiss": "common.errors",
    "MarkError": "common.errors",
    "METRICS_TYPE": "api.metrics",
    "metrics": "api.metrics",
    "record": "counting.record_calls",
    "mark_dynamic": "directives.dynamic_marks",
    "mark_static": "directives.dynamic_marks",
    "mark_unbacked": "directives.dynamic_marks",
    "maybe_mark_dynamic": "directives.dynamic_marks",
    "OptionError": "common.errors",
    "PrecastError": "common.errors",
    "RecompileForbidden": "common.errors",
    "describe_options": "settings.options",
    "list_backends": "settings.backends",
    "list_mode_options": "settings.options",
    "list_options": "settings.options",
    "precompile": "api.precompile",
    "refresh": "api.serving",
    "register_backend": "settings.backends",
    "set_stance": "settings.stance",
    "warm_up": "api.serving",
}
_RESULTS = {
    "BackendError": "precast.runtime.common.errors",
    "CompileStopped": "precast.runtime.common.errors",
    "CompilerBroken": "precast.runtime.common.errors",
    "Explanation": "precast.runtime.programs.explain_miss",
    "FrameReport": "precast.compiling.explain_graphs",
    "GraphReport": "precast.compiling.explain_graphs",
    "LoadError": "precast.runtime.common.errors",
    "Report": "precast.runtime.api.precompile",
    "SignatureReport": "precast.runtime.api.precompile",
    "StoreUnwritable": "precast.runtime.common.errors",
    "VariantReport": "precast.runtime.programs.explain_miss",
    "WarmUp": "precast.runtime.api.serving",
}
"""Where classes are that users meet as errors and results, and do not call; pickles find them by `precast`."""
__all__ = [
    "METRICS_TYPE",
    "DirectiveError",
    "GraphBreakError",
    "GuardMiss",
    "MarkError",
    "OptionError",
    "PrecastError",
    "RecompileForbidden",
    "RegionError",
    "__version__",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_module",
    "compile_repeated_blocks",
    "cudagraph_mark_step_begin",
    "describe_options",
    "disable",
    "error_on_graph_break",
    "explain",
    "explain_miss",
    "is_compiling",
    "is_exporting",
    "keep_portable_guards_unsafe",
    "keep_tensor_guards_unsafe",
    "list_backends",
    "list_mode_options",
    "list_options",
    "load",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "metrics",
    "precompile",
    "refresh",
    "record",
    "register_backend",
    "reset",
    "set_stance",
    "skip_all_guards_unsafe",
    "skip_guard_on_all_nn_modules_unsafe",
    "skip_guard_on_globals_unsafe",
    "skip_guard_on_inbuilt_nn_modules_unsafe",
    "substitute_in_graph",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    if name in _RESULTS:
        return getattr(importlib.import_module(_RESULTS[name]), name)
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'precast' has no attribute {name!r}")
    value = getattr(_imported(f"precast.runtime.{module}"), name)
    globals()[name] = value
    return value


def _imported(module: str) -> ModuleType:
    """The module, imported without collections of garbage: what an import makes stays, and one full collection among all of torch's
    objects takes 0.1 s, twice as long as the rest of a warm start.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return sorted(__all__)
