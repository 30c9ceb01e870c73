"""The public functions: compile, load, explain_miss, reset. `precast/__init__.py` offers them lazily."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from precast.artifact_store import Store, StoreError
from precast.artifact_store.place import default_root
from precast.runtime.api.sharded_modules import warn_of_sharded
from precast.runtime.common.errors import OptionError, PrecastError
from precast.runtime.common.log import configure
from precast.runtime.common.upward_imports import EXPLAIN_CALL
from precast.runtime.directives.directives import innermost
from precast.runtime.dispatch import call_site as sites
from precast.runtime.dispatch.call_site import Site
from precast.runtime.frames.compiled_module import CompiledModule, wrap_module
from precast.runtime.frames.entry import entry_of
from precast.runtime.programs.identity import Settings
from precast.runtime.settings import stance
from precast.runtime.settings.backends import make_backend
from precast.runtime.settings.options import merge_options

if TYPE_CHECKING:
    from precast.runtime.programs.explain_miss import Explanation

StoreLike = Store | str | os.PathLike[str] | None
RemoteLike = str | Sequence[str] | None
"""A remote's URL (or several, nearest first; an empty list is none); None for those that PRECAST_REMOTE or a file names."""
_SITE = "_precast_site"


@functools.cache
def _open(root: Path | str | None, remote: tuple[str, ...] | None = None) -> Store:
    if remote is None:
        return Store.open(root)
    from precast.artifact_store.remote.attach import checked  # only where one is named

    try:
        return Store.open(root, remote=checked(remote, "remote="))
    except StoreError as error:
        raise OptionError(str(error)) from error


def open_store(store: StoreLike, remote: RemoteLike = None) -> Store:
    """A Store from a Store, a path, a file:// URL or None (PRECAST_STORE, then the platform's cache folder). `remote`: what is behind it.

    Raises TypeError, and OptionError for what names no remote.
    """
    if isinstance(store, Store):
        if remote is not None:
            raise OptionError("remote= goes with a store that is named by its path; a Store brings its own: Store.open(path, remote=…)")
        return store
    named = None if remote is None else (remote,) if isinstance(remote, str) else tuple(remote)
    if named is not None and not all(isinstance(url, str) for url in named):
        raise TypeError(f"remote= takes a URL or a list of URLs, not {remote!r}")
    if store is not None and not isinstance(store, str | os.PathLike):
        raise TypeError(f"store= takes a Store, a path or None, not {store!r}")
    try:
        root: Path | str | None = default_root(store)
    except StoreError:
        root = None if store is None else os.fspath(store)  # empty and read-only; the reason is said once
    return _open(root, named)


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "precast",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    store: StoreLike = None,
    remote: RemoteLike = None,
    name: str | None = None,
) -> Any:
    """Compile `model` (a function, bound method, `functools.partial` or `nn.Module`) on its first call, or load it from the store.

    Without `model`, a decorator with these settings. A module comes back as a module with the same state; a function as a function.
    `backend`: a name of `list_backends()` or a callable of (graph_module, example_inputs); one other than "precast" gets `mode` and
    `options` (but for those of dispatch, such as recompile_limit), and what it makes lives in this process only.
    `recompile_limit`, `isolate_recompiles`: the options of these names. `remote`: URLs of where a miss looks beyond the store, and what is
    compiled goes (docs/remote.md). Raises OptionError for unknown options, modes and backends.
    """
    if model is None:
        return functools.partial(
            compile,
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=backend,
            mode=mode,
            options=options,
            disable=disable,
            recompile_limit=recompile_limit,
            isolate_recompiles=isolate_recompiles,
            store=store,
            remote=remote,
            name=name,
        )
    other, ours = make_backend(backend, mode, options, dynamic)
    fixed: dict[str, Any] = {"fullgraph": fullgraph or None, "dynamic": _dynamic(dynamic)}
    fixed |= {"recompile_limit": recompile_limit, "isolate_recompiles": isolate_recompiles or None}
    merged = merge_options(mode if other is None else None, ours, **fixed)
    if disable:
        return model
    return compile_with(model, Settings(merged, open_store(store, remote), name, backend=other))


def _dynamic(dynamic: bool | None) -> str | None:
    if dynamic is not None and type(dynamic) is not bool:
        raise OptionError(f"dynamic takes True, False or None, not {dynamic!r}; the option of that name takes 'yes', 'no' or 'auto'")
    return None if dynamic is None else "yes" if dynamic else "no"


def compile_with(model: Any, settings: Settings) -> Any:
    """`compile` with validated settings."""
    configure()
    _record_if_asked()
    if isinstance(model, CompiledModule):
        model = model._orig_mod
    model = innermost(model)
    model = getattr(model, "_torchdynamo_inline", model) if hasattr(model, _SITE) else model
    if settings.backend is None and getattr(model, "__name__", "") == "step" and (step := _optimizer_step(model, settings)) is not None:
        return step
    site = Site(model, settings)
    if isinstance(model, torch.nn.Module):
        warn_of_sharded(model)
        return wrap_module(model, site, lambda other: compile_with(other, settings))
    return _wrap_function(model, site)


def _optimizer_step(model: Any, settings: Settings) -> Any:
    if "torch.optim.optimizer" not in sys.modules:
        return None
    from precast.runtime.optimizers.step import compiled_step  # only where there are optimisers

    return compiled_step(model, settings)


def compile_module(module: torch.nn.Module, **settings: Any) -> None:
    """Compile `module` in place, as `nn.Module.compile` does: its calls go through precast from now on; it stays the object that it is.

    `settings`: those of `compile`. Copies of the module (deepcopy, pickle) are not compiled. Raises OptionError, as `compile` does.
    """
    if not isinstance(module, torch.nn.Module):
        raise OptionError(f"compile_module takes an nn.Module, not {type(module).__name__}: precast.compile returns a compiled function")
    compiled = compile(module, **settings)
    if compiled is module:  # disable=True
        return
    module._compiled_call_impl = site_of(compiled).in_place().call


@functools.cache
def _record_if_asked() -> None:
    """Once a process: calls are recorded where PRECAST_RECORD says where to."""
    if path := os.environ.get("PRECAST_RECORD"):
        from precast.runtime.counting.record_calls import record

        record(path)


def _wrap_function(function: Callable[..., Any], site: Site) -> Any:
    call = site.call

    def compiled(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    functools.update_wrapper(compiled, function)
    compiled._torchdynamo_inline = function  # type: ignore[attr-defined]  # a tracer that meets this traces the original
    compiled._torchdynamo_orig_callable = function  # type: ignore[attr-defined]  # `disable` of this disables the original
    compiled._torchdynamo_wrapper_id = id(compiled)  # type: ignore[attr-defined]
    setattr(compiled, _SITE, site)
    return compiled


def site_of(compiled: Any) -> Site:
    """The site behind what `compile` or `load` returned. Raises PrecastError for anything else."""
    found = getattr(compiled, _SITE, None) or getattr(getattr(compiled, "__func__", None), _SITE, None)
    if found is None and isinstance(compiled, torch.nn.Module) and compiled._compiled_call_impl is not None:
        found = sites.called_by(compiled._compiled_call_impl)
    if isinstance(found, Site):
        return found
    raise PrecastError(f"{compiled!r} was not made by precast.compile or precast.load")


def load(
    model: Any,
    *,
    store: StoreLike = None,
    remote: RemoteLike = None,
    require: str = "hit",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    canary: bool | float = False,
    refresh_seconds: float | None = None,
) -> Any:
    """`model` served from the store only: a call that no stored artifact fits raises GuardMiss with the explanation. Never compiles.

    `mode`, `options` and `name` must be those that it was compiled with. `require="any"` runs such calls eagerly instead. `remote`: as for
    `compile`; what is fetched is put into the store.
    `canary`: the first call that an artifact serves is run eagerly as well, and an artifact that answers otherwise is not used; a number is
    the tolerance, relative to the largest magnitude. `refresh_seconds`: how often to look for better artifacts, without a restart.
    """
    if refresh_seconds is not None and not refresh_seconds > 0:
        raise OptionError(f"refresh_seconds={refresh_seconds!r}: give a number of seconds above 0")
    if type(canary) is not bool and not (isinstance(canary, int | float) and canary > 0):
        raise OptionError(f"canary={canary!r}: give True, False or a tolerance above 0")
    if require not in ("hit", "any"):
        raise OptionError(f"require={require!r}: use 'hit' (a miss raises GuardMiss) or 'any' (a miss runs eagerly)")
    if isinstance(model, str | os.PathLike):
        raise OptionError(f"precast.load({model!r}): give the model, whose code and weights it keeps, and the folder as store=")
    merged = merge_options(mode, options)
    if require == "any":
        merged["recompile_limit"] = 0
    loaded = compile_with(model, Settings(merged, open_store(store, remote), name, require_hit=require == "hit", canary=canary))
    if refresh_seconds is not None:
        from precast.runtime.dispatch.refresher import refresher  # wanted by servers only

        refresher.add(site_of(loaded), refresh_seconds)
    return loaded


def explain_miss(model: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Why this call hits or misses: every stored variant, guard by guard, nearest first. `model`: compiled, or a plain callable.

    Of an optimiser's `step`: what the store has of the updates that the next step would launch; no step is taken.
    """
    if getattr(model, "__name__", "") == "step" and (of_step := _explained_step(model)) is not None:
        return of_step
    try:
        site = site_of(model)
    except PrecastError:
        site = Site(model, Settings(merge_options(), open_store(None)))
    program, entry = site.program_for_call()
    from precast.runtime.programs.explain_miss import explain as explain_why  # asked for seldom

    return explain_why(program, (*entry.prefix, *args), {**entry.keywords, **kwargs})


def _explained_step(model: Any) -> Explanation | None:
    if "torch.optim.optimizer" not in sys.modules:
        return None
    from precast.runtime.optimizers.step import optimizer_of, settings_of  # only where there are optimisers

    optimizer = optimizer_of(model)
    if optimizer is None:
        return None
    from precast.runtime.optimizers.explain_step import explain_step  # asked for seldom

    return explain_step(optimizer, model, settings_of(model) or Settings(merge_options(), open_store(None)))


def explain(model: Any) -> Callable[..., Any]:
    """`explain(f)(*args, **kwargs)`: run the call once and report its graphs, where and why it breaks, and each graph's ops and guards.

    The report is a `GraphReport`, which prints. Nothing is stored, and what `f` does besides computing happens once.
    """
    try:
        settings = site_of(model).settings.options
    except PrecastError:
        settings = merge_options()

    def explained(*args: Any, **kwargs: Any) -> Any:
        return EXPLAIN_CALL.load()(model, settings, args, kwargs)

    return explained


def reset() -> None:
    """Forget everything that this process has loaded or compiled; the store keeps its artifacts."""
    sites.reset()


__all__ = ["compile", "compile_module", "entry_of", "explain", "explain_miss", "load", "open_store", "reset", "site_of", "stance"]
