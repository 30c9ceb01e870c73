"""The ways to keep what was compiled, upstream's and ours: each builds into a folder, and loads from it in another process.

Each is used as its documentation says. Where a way has no counterpart of something (a dynamic size, keyword arguments), `build` raises what
torch raises.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from program import Program

Call = Callable[..., Any]


@dataclass(frozen=True)
class Way:
    """`build(program, folder)` leaves the artifact in the folder; `load(program, folder)` returns what is called in the program's place.

    `imports` are its own modules; `environment` it needs in both processes; `lacking` says why this torch has it not, or nothing.
    `finds`: it looks for the artifact by itself, where others are told the file. `timed`: its figures are not those of another way here.
    """

    name: str
    title: str
    build: Callable[[Program, Path], None]
    load: Callable[[Program, Path], Call]
    imports: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    lacking: Callable[[], str] = lambda: ""
    finds: bool = False
    timed: bool = True


def _forward(model: Any) -> Any:
    return model.forward if isinstance(model, torch.nn.Module) else model


def _mark(program: Program) -> None:
    """Torch's own mark of a size that varies, for what traces with Dynamo."""
    if program.dynamic:
        torch._dynamo.mark_dynamic(program.args[0], 0)


def _eager_build(program: Program, folder: Path) -> None:
    """Nothing to build."""


def _eager_load(program: Program, folder: Path) -> Call:
    return program.model


def _whole(model: Any, names: tuple[str, ...]) -> Call:
    """The function that is captured: inputs by position, as make_fx takes them, without gradients; a module is an argument of it."""

    def of_module(module: torch.nn.Module, *args: Any) -> Any:
        positional = len(args) - len(names)
        with torch.no_grad():
            return module(*args[:positional], **dict(zip(names, args[positional:], strict=True)))

    def of_function(*args: Any) -> Any:
        with torch.no_grad():
            return model(*args)

    return of_module if isinstance(model, torch.nn.Module) else of_function


def _precompile_build(program: Program, folder: Path) -> None:
    args = (*program.args, *program.kwargs.values())
    if program.dynamic:
        torch._dynamo.decorators.mark_unbacked(program.args[0], 0)
    if isinstance(program.model, torch.nn.Module):
        args = (program.model, *args)
    function, api = _whole(program.model, tuple(program.kwargs)), torch.compiler.precompile
    code, cache = folder / "program.py", folder / "program.cache"
    if hasattr(api, "capture"):
        with api.capture(function, artifact_path=code, cache_path=cache) as capture:
            capture(*args)
        return
    source, kernels = api(function, *args)  # torch 2.14
    code.write_text(source)
    cache.write_bytes(kernels)


def _precompile_load(program: Program, folder: Path) -> Call:
    api, code, cache = torch.compiler.precompile, folder / "program.py", folder / "program.cache"
    loaded = api.load(code, cache) if hasattr(api, "capture") else api.load(code.read_text(), cache.read_bytes())
    first = (program.model,) if isinstance(program.model, torch.nn.Module) else ()
    return lambda *args, **kwargs: loaded(*first, *args, *kwargs.values())


def _aot_build(program: Program, folder: Path, options: Mapping[str, Any] | None = None) -> None:
    _mark(program)
    compiled = torch.compile(program.model, fullgraph=True, options=options)
    artifact = _forward(compiled).aot_compile((program.args, program.kwargs))
    artifact.save_compiled_function(str(folder / "function.pt"))


def _aot_load(program: Program, folder: Path, f_globals: dict[str, Any] | None = None) -> Call:
    with (folder / "function.pt").open("rb") as file:
        loaded = torch.compiler.load_compiled_function(file, f_globals=f_globals)
    return partial(loaded, program.model) if isinstance(program.model, torch.nn.Module) else loaded


def _serializable(entries: Any) -> list[bool]:
    """What a guard filter can keep at most: all guards but those that torch refuses to write, those of globals among them."""
    from torch._dynamo.guards import CheckFunctionManager

    refused = CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES
    return [e.guard_type not in refused and not set(e.derived_guard_types) & set(refused) for e in entries]


def _aot_globals_build(program: Program, folder: Path) -> None:
    _aot_build(program, folder, {"guard_filter_fn": _serializable})


def _aot_globals_load(program: Program, folder: Path) -> Call:
    return _aot_load(program, folder, _forward(program.model).__globals__)


def _caches_build(program: Program, folder: Path) -> None:
    """Compile, call, and keep what the caches took up; with caching_precompile that includes the guards and the bytecode."""
    _mark(program)
    torch.compile(program.model)(*program.args, **program.kwargs)
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        raise RuntimeError("save_cache_artifacts returned None: nothing was cached")
    (folder / "caches.bin").write_bytes(saved[0])


def _caches_load(program: Program, folder: Path) -> Call:
    torch.compiler.load_cache_artifacts((folder / "caches.bin").read_bytes())
    return torch.compile(program.model)


class _Function(torch.nn.Module):
    """torch.export takes modules only."""

    def __init__(self, function: Call) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _aoti_build(program: Program, folder: Path) -> None:
    model = program.model if isinstance(program.model, torch.nn.Module) else _Function(program.model)
    shapes = None
    if program.dynamic:
        shapes = ({0: torch.export.Dim("batch")},)
    exported = torch.export.export(model, program.args, program.kwargs, dynamic_shapes=shapes)
    torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "model.pt2"))


def _aoti_load(program: Program, folder: Path) -> Call:
    loaded: Call = torch._inductor.aoti_load_package(str(folder / "model.pt2"))
    return loaded


def _precast_build(program: Program, folder: Path) -> None:
    import precast

    _mark(program)
    report = precast.precompile(program.model, [(program.args, program.kwargs)], store=folder)
    if not report.ok:
        raise RuntimeError(str(report))


def _precast_load(program: Program, folder: Path) -> Call:
    import precast

    loaded: Call = precast.load(program.model, store=folder, require="hit")
    return loaded


def _precast_warm(program: Program, folder: Path) -> Call:
    import precast

    compiled: Call = precast.compile(program.model, store=folder)
    return compiled


def _has_precompile() -> str:
    return "" if hasattr(torch.compiler, "precompile") else f"torch {torch.__version__} has no torch.compiler.precompile"


def _has_guard_scope() -> str:
    """Whether a loaded function's guards can read live globals: what `f_globals` means since 2.15."""
    import inspect

    from torch._dynamo.aot_compile import AOTCompiledFunction

    if "guard_globals" in inspect.signature(AOTCompiledFunction.deserialize).parameters:
        return ""
    return f"torch {torch.__version__} has no live scope for the guards of a loaded function"


TRACER = ("torch._dynamo", "torch._inductor", "torch._inductor.compile_fx")
CHECKED = (("AOTI_RUNTIME_CHECK_INPUTS", "1"),)
SERVER = ("precast", "precast.runtime.api.compile")
WAYS = {
    way.name: way
    for way in (
        Way("eager", "eager", _eager_build, _eager_load),
        Way("precompile", "`torch.compiler.precompile`", _precompile_build, _precompile_load, TRACER, lacking=_has_precompile),
        Way("aot_compile", "`aot_compile`", _aot_build, _aot_load, TRACER),
        Way(
            "aot_globals",
            "`aot_compile`, global guards kept",
            _aot_globals_build,
            _aot_globals_load,
            TRACER,
            lacking=_has_guard_scope,
            timed=False,
        ),
        Way("caching", "`caching_precompile`", _caches_build, _caches_load, TRACER, (("TORCH_CACHING_PRECOMPILE", "1"),), finds=True),
        Way("caches", "`save_cache_artifacts`", _caches_build, _caches_load, TRACER, finds=True),
        Way("aoti", "AOTInductor", _aoti_build, _aoti_load, (*TRACER, "torch._inductor.package")),
        Way(
            "aoti_checked",
            "AOTInductor, inputs checked",
            _aoti_build,
            _aoti_load,
            (*TRACER, "torch._inductor.package"),
            CHECKED,
            timed=False,
        ),
        Way("precast_load", "precast `load`", _precast_build, _precast_load, SERVER, finds=True),
        Way("precast", "precast `compile`, warm", _precast_build, _precast_warm, SERVER, finds=True),
    )
}


def caches_in(folder: Path) -> dict[str, str]:
    """Environment that makes torch and precast remember in a folder what they remember besides the artifact."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "PRECAST_STORE": str(folder / "precast"),
    }


def environment(way: Way, caches: Path) -> dict[str, str]:
    """Environment of a process of this way: its caches are empty where a machine is new."""
    return {
        **os.environ,
        **caches_in(caches),
        "PYTHONDONTWRITEBYTECODE": "1",  # a source that is edited within one second must not be read from its bytecode
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        **dict(way.environment),
    }
