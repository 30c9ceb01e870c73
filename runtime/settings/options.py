"""Compile options: one table. `precast.list_options()` prints it; an unknown name is an error that names the closest one."""

from __future__ import annotations

import ctypes
import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from precast.runtime.common.errors import OptionError
from precast.runtime.settings import guard_filters


@dataclass(frozen=True)
class Option:
    """One option. `changes_key`: whether its value can change compiled code, and so is part of the program key. `instead`: for options
    about tracing, guards or weights, what to use with torch.compile(backend="precast"), where these belong to torch.
    """

    name: str
    type: type
    default: Any
    doc: str
    changes_key: bool = True
    choices: tuple[Any, ...] = ()
    instead: str = ""
    least: float | None = None
    """The least number that is allowed; no option takes an infinite one, or NaN."""


_TABLE = (
    Option(
        "freeze",
        bool,
        False,
        "Keep packed, fused or folded copies of weights, redone when a weight's storage or version changes. "
        "Writes through `.data` (`p.data.add_()`) change neither and cannot be seen: call `precast.reset()` after them.",
        instead="use precast.compile: torch's guards do not say that a weight has changed",
    ),
    Option(
        "fullgraph",
        bool,
        False,
        "Raise instead of running eagerly when the program cannot be captured as one graph.",
        instead="torch.compile(fullgraph=True)",
    ),
    Option(
        "dynamic",
        str,
        "auto",
        "Dynamic shapes: 'no', 'yes', or 'auto' (static first).",
        choices=("auto", "no", "yes"),
        instead="torch.compile(dynamic=...)",
    ),
    Option(
        "epilogue_fusion",
        bool,
        True,
        "Let matrix products and convolutions take over the bias, activation and residual that follow them. False keeps these in kernels "
        "of their own.",
    ),
    Option(
        "fallback_random",
        bool,
        True,
        "Random numbers are eager's, drawn by torch's operators in eager's order. False: dropout, bernoulli, rand, randn, uniform and "
        "normal are computed inside the kernels that use them, from keys that torch's generator draws once a call: repeated by "
        "manual_seed, but other numbers than eager's.",
    ),
    Option(
        "activation_memory",
        str,
        "default",
        "What a backward graph computes again rather than reads from memory: 'default', what moves fewer bytes so; 'less', also what a "
        "product reads, such as activations: of transformers 13 to 25 % less is kept, for 4 to 18 % more bytes moved between the passes.",
        choices=("default", "less"),
    ),
    Option(
        "memory_growth",
        float,
        0.1,
        "The share of a graph's peak of memory that may be added to it for speed: by kernels that run early to share a launch, and by "
        "values that are computed once and kept. (Some 5 MiB are always allowed.)",
        least=0,
    ),
    Option(
        "max_autotune",
        bool,
        False,
        "Measure every library call that has more than one implementation, for as long as it takes and whatever was measured before. "
        "False: within 0.6 s a graph, and records of earlier measurements are reused.",
    ),
    Option(
        "max_autotune_seconds",
        int,
        0,
        "Seconds of one graph's compile that max_autotune may measure for; what is expected to take longest is measured first, and what is "
        "left takes the default. 0: as long as it takes.",
        changes_key=False,
        least=0,
    ),
    Option(
        "sanitize",
        str,
        "",
        "For those who look for faults of precast: generated C++ is instrumented by the compiler's sanitizers, which end the process "
        "where it reads or writes outside of memory. The process has to be started with AddressSanitizer and then libstdc++ in "
        "LD_PRELOAD, and ASAN_OPTIONS=detect_leaks=0: `make asan` does so. CPU only.",
        choices=("", "address", "address,undefined"),
    ),
    Option(
        "target",
        str,
        "cpu:native",
        "What to compile for: cpu:native or native (this machine: its CPU, or the GPU that a graph's tensors are on), cpu:x86-64-v3, "
        "cpu:x86-64-v4, cuda:sm_80, cuda:sm_90, …, cuda:ptx_80. A graph with a tensor on a GPU is for the GPU, whatever this says.",
    ),
    Option(
        "triton.cudagraphs",
        bool,
        False,
        "On a GPU: each compiled graph is captured as a CUDA graph and replayed (docs/cuda-graphs.md). On the CPU it changes nothing.",
        changes_key=False,
    ),
    Option(
        "triton.cudagraph_skip_dynamic_graphs",
        bool,
        False,
        "No CUDA graph where sizes are symbolic, which would take one for each distinct size.",
        changes_key=False,
    ),
    Option(
        "recompile_limit",
        int,
        8,
        "Variants compiled for one frame in one process before it runs eagerly.",
        changes_key=False,
        instead="torch._dynamo.config.recompile_limit",
    ),
    Option(
        "accumulated_recompile_limit",
        int,
        256,
        "Compiles of one program in one process before it runs eagerly.",
        changes_key=False,
        instead="torch._dynamo.config.accumulated_recompile_limit",
    ),
    Option(
        "error_on_graph_break",
        bool,
        False,
        "Raise at a graph break, where the program does not say otherwise (precast.error_on_graph_break).",
        instead="torch._dynamo.error_on_graph_break",
    ),
    Option(
        "isolate_recompiles",
        bool,
        False,
        "Count the compiles of this call of precast.compile by themselves. False: calls on one function with equal options count together.",
        changes_key=False,
        instead="torch.compile(isolate_recompiles=True)",
    ),
    Option(
        "guard_filter_fn",
        Callable,  # type: ignore[arg-type]
        None,
        "A function from the list of guard entries (name, has_value, value, guard_type, derived_guard_types, is_global, orig_guard) to a "
        "list of bools, False for a guard that is not to be checked, or its name 'package.module:function'. Unsafe: what is not checked "
        "may have changed. Guards on tensors that generated code reads stay.",
        instead="torch.compile(options={'guard_filter_fn': ...})",
    ),
    Option(
        "background_compile",
        bool,
        False,
        "A call that misses is captured, and the rest of its compile runs in a background thread; such calls run eagerly until it is done.",
        changes_key=False,
        instead="use precast.compile: torch waits for its backend",
    ),
    Option(
        "trace.enabled",
        bool,
        False,
        "Write one numbered file per stage of each compile (Dynamo's graph, bytecode, guards, ATen graph, IR before and after scheduling, "
        "generated sources, choices) into a folder of its own.",
        changes_key=False,
    ),
    Option(
        "trace.graph_diagram",
        bool,
        False,
        "As trace.enabled, with a drawing of the fused graph (SVG).",
        changes_key=False,
    ),
    Option(
        "trace.dir",
        str,
        "",
        "Where these folders are made: by default what PRECAST_TRACE says, else ./precast_trace.",
        changes_key=False,
    ),
    Option(
        "capture_scalar_outputs",
        bool,
        False,
        "Numbers taken out of tensors (`.item()`) stay in the graph, as they do under fullgraph=True; otherwise the graph ends there.",
        instead="torch._dynamo.config.capture_scalar_outputs",
    ),
    Option(
        "capture_dynamic_output_shape_ops",
        bool,
        False,
        "Operators whose output sizes depend on data (`nonzero`, `x[mask]`) stay in the graph, as they do under fullgraph=True; otherwise "
        "the graph ends there.",
        instead="torch._dynamo.config.capture_dynamic_output_shape_ops",
    ),
    Option("store_results", bool, True, "Put what is compiled into the store (False: keep it in this process).", changes_key=False),
)
OPTIONS = {option.name: option for option in _TABLE}

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune": {"max_autotune": True, "triton.cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}
"""Mode name -> the options that it sets. `reduce-overhead` differs from `default`, and the `max-autotune` modes from each other, in CUDA
graphs only: those do nothing on the CPU and are no part of an artifact, so one artifact serves both modes.
"""


MODE_NOTES = {
    "default": "measures library choices within 0.6 s a graph, and reuses what was measured before",
    "reduce-overhead": "as default, and on a GPU replays CUDA graphs; on the CPU a call's overhead is microseconds anyway",
    "max-autotune": "measures every library choice anew, for as long as it takes, and on a GPU replays CUDA graphs",
    "max-autotune-no-cudagraphs": "measures every library choice anew, for as long as it takes",
}
"""What each mode does, for people."""

TORCHS = {
    "freezing": "precast's is 'freeze'",
    "shape_padding": "products of odd sizes are padded on a GPU where that pays, without being asked; the CPU needs none",
    "max_autotune_gemm": "precast's is 'max_autotune'",
    "max_autotune_pointwise": "precast's is 'max_autotune'",
    "coordinate_descent_tuning": "precast's is 'max_autotune'",
    "triton.cudagraph_trees": "CUDA graphs are single ones that share memory: outputs may be kept, so there is no tree of what is alive",
    "cpp_wrapper": "the host program is always native",
    "fx_graph_cache": "the store is always on; see 'store_results'",
    "trace.debug_dir": "precast's is 'trace.dir'",
}
"""Options of Inductor that precast does not have, and why."""


def list_options() -> list[str]:
    """Names of all compile options."""
    return sorted(OPTIONS)


def list_mode_options(mode: str | None = None, dynamic: bool | None = None) -> dict[str, Any]:
    """The options that `mode` sets, or those of every mode by name."""
    if mode is None:
        return {name: dict(options) for name, options in MODES.items()}
    return dict(MODES[_known_mode(mode)])


def describe_options() -> str:
    """The table as text, one option a paragraph."""
    return "\n".join(f"{o.name} ({o.type.__name__}, default {o.default!r}): {o.doc}" for o in sorted(_TABLE, key=lambda o: o.name))


def _known_mode(mode: str) -> str:
    if mode not in MODES:
        raise OptionError(f"unknown mode {mode!r}{_closest(mode, list(MODES))}")
    return mode


def _closest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(str(name), known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known))}"


_GENERATED = (
    "activation_memory",
    "freeze",
    "epilogue_fusion",
    "fallback_random",
    "memory_growth",
    "max_autotune",
    "max_autotune_seconds",
    "triton.cudagraphs",
    "triton.cudagraph_skip_dynamic_graphs",
)


def merge_options(mode: str | None = None, options: Mapping[str, Any] | None = None, **fixed: Any) -> dict[str, Any]:
    """All options with their values: defaults, then the mode's, then `options`, then `fixed` (None leaves the default).

    Raises OptionError for an unknown mode or option and for a value of the wrong type.
    """
    if mode is not None and options:
        raise OptionError("give either mode= or options=, not both: a mode is a set of options (see precast.list_mode_options())")
    merged = {name: option.default for name, option in OPTIONS.items()}
    merged.update(MODES[_known_mode(mode)] if mode is not None else {})
    for name, value in (options or {}).items():
        merged[_known_option(name).name] = _checked(_known_option(name), value)
    for name, value in fixed.items():
        if value is not None:
            merged[name] = _checked(_known_option(name), value)
    return merged


def without_generated_code() -> dict[str, Any]:
    """The defaults of those options that concern code generated by precast: what a program with another backend gets."""
    return {name: OPTIONS[name].default for name in _GENERATED}


def graph_options(mode: str | None = None, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`merge_options` for `torch.compile(backend="precast")`. Raises OptionError for options that belong to torch there, too."""
    for name in options or {}:
        option = _known_option(name)
        if option.instead:
            raise OptionError(f'option {name!r} has no meaning in torch.compile(backend="precast"); instead: {option.instead}')
    return merge_options(mode, options)


def _known_option(name: str) -> Option:
    if name in TORCHS:
        raise OptionError(f"precast has no option {name!r}: {TORCHS[name]}")
    if name not in OPTIONS:
        raise OptionError(f"unknown option {name!r}{_closest(name, list(OPTIONS))}")
    return OPTIONS[name]


def _checked(option: Option, value: Any) -> Any:
    if option.name == "guard_filter_fn":
        return _checked_filter(value)
    if type(value) is not option.type:
        raise OptionError(f"option {option.name!r} wants {option.type.__name__}, got {type(value).__name__} ({value!r})")
    if option.least is not None and isinstance(value, int | float) and not option.least <= value < math.inf:
        raise OptionError(f"option {option.name!r} wants a number, {option.least} or more, got {value!r}")
    if option.choices and value not in option.choices:
        raise OptionError(f"option {option.name!r}: {value!r} is not one of {', '.join(map(repr, option.choices))}")
    if option.name == "sanitize" and value and not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise OptionError(
            "option 'sanitize' needs a process that AddressSanitizer was loaded into, or the first library of generated code ends it: "
            "start it with LD_PRELOAD='libasan.so libstdc++.so' (paths: g++ -print-file-name=…) and ASAN_OPTIONS=detect_leaks=0"
        )
    return value


def built_by(options: Mapping[str, Any]) -> dict[str, Any]:
    """What code is generated by: the key's part of `options`, and what bounds the time that this takes."""
    return {**key_options(options), "max_autotune_seconds": options.get("max_autotune_seconds", 0)}


def key_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `options` that can change compiled code, without the target, which the manifest holds by itself."""
    kept = {name: options[name] for name in sorted(options) if OPTIONS[name].changes_key and name != "target"}
    if kept.get("guard_filter_fn") is None:
        kept.pop("guard_filter_fn", None)  # most programs have none: it is no part of their keys
    elif not isinstance(kept["guard_filter_fn"], str):  # a stored artifact's options hold the content already
        kept["guard_filter_fn"] = guard_filters.content(kept["guard_filter_fn"])
    if not kept.get("sanitize"):
        kept.pop("sanitize", None)
    if kept.get("activation_memory") == "default":
        kept.pop("activation_memory")
    if kept.get("memory_growth") == OPTIONS["memory_growth"].default:
        kept.pop("memory_growth")
    return kept


@dataclass(frozen=True)
class CudaGraphOptions:
    """Options about CUDA graphs. `skip_dynamic`: use none where sizes are symbolic."""

    skip_dynamic: bool = False

    @staticmethod
    def of(options: Mapping[str, Any]) -> CudaGraphOptions | None:
        """From a program's options; None where CUDA graphs were not asked for."""
        return CudaGraphOptions(options["triton.cudagraph_skip_dynamic_graphs"]) if options["triton.cudagraphs"] else None


def _checked_filter(value: Any) -> Any:
    if isinstance(value, str):
        value = guard_filters.find(value)
    if value is not None and not callable(value):
        raise OptionError(f"option 'guard_filter_fn' wants a function or its name 'package.module:function', got {value!r}")
    if value is not None:
        guard_filters.content(value)
    return value
