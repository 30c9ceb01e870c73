"""Launches of users' Triton kernels from compiled graphs: the kernel is found by name, and Triton compiles it as in eager."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from precast.artifact_store.format.import_names import find_object
from precast.artifact_store.format.tagged_constants import untag
from precast.runtime.common.locks import Lock
from precast.runtime.fingerprint.triton_kernels import find_kernel, layers

LAUNCH = "triton-kernel::"
"""The prefix of a launch's operator name; the kernel's `module:qualname` follows. No operator of torch.library can have such a name."""


class Launch:
    """One launch of a graph. `text`: what capture/graph/triton_launches.py wrote about it.

    The kernel and the objects among its constants are looked up by name when this is made (`is_current`: whether the names still lead to
    them).
    """

    def __init__(self, name: str, text: str) -> None:
        constants, layer, told = ast.literal_eval(text)
        self._held = [(used, _standing(used)) for used in (name, *_objects_in(constants))]
        self.constants = {k: executable(v) if layers(v) else v for k, v in untag(constants).items()}
        self.configs: list[dict[str, Any]] = [untag(config) for config in told]
        self.kernel = executable(chosen(name, layer))

    def is_current(self) -> bool:
        """Whether nothing that it names was defined anew. Where that changed anything, a guard of the variant has failed before."""
        return all(_standing(name) is held for name, held in self._held)

    def __call__(self, grids: Sequence[Sequence[int]], given: Mapping[str, Any]) -> None:
        """Launches the kernel on the current stream."""
        named = {**given, **self.constants}
        positional = []
        for parameter in self.kernel.arg_names:  # by position as far as it goes: hooks of Triton's see no others
            if parameter not in named:
                break
            positional.append(named.pop(parameter))
        grid = tuple(grids[0]) if len(grids) == 1 else self._grid_of(grids)
        self.kernel[grid](*positional, **named)

    def _grid_of(self, grids: Sequence[Sequence[int]]) -> Callable[[Mapping[str, Any]], tuple[int, ...]]:
        """The grid of the configuration that the autotuner tries or has chosen."""

        def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
            fitting = [
                (len(config), tuple(sizes))
                for config, sizes in zip(self.configs, grids, strict=True)
                if all(name in meta and meta[name] == value for name, value in config.items())
            ]
            if not fitting:
                raise RuntimeError("a Triton kernel is launched in a configuration that it did not have when the graph was compiled")
            return max(fitting, key=lambda found: found[0])[1]  # a configuration that names fewer constants fits others, too

        return grid


def executable(kernel: Any) -> Any:
    """What is launched for a kernel: the kernel. Tests put Triton's interpreter here."""
    return kernel


def _standing(name: str) -> Any:
    try:
        return find_object(name)
    except LookupError:
        return None  # its module may be imported yet


def _objects_in(tagged: Any) -> Iterator[str]:
    """The names of objects in a tagged constant."""
    match tagged:
        case ("object", str(name)):
            yield name
        case tuple():
            for part in tagged:
                yield from _objects_in(part)


_tuners: dict[tuple[str, str], tuple[Any, Any]] = {}
"""Kernels and their autotuners that are not the users' own, by name and configurations: what one launch measured serves the others."""
_TUNERS_LIMIT = 256
_lock = Lock()


def chosen(name: str, layer: Any) -> Any:
    """The kernel or the autotuner around it. Raises RuntimeError where the process has none of that name."""
    found = find_kernel(name)
    if found is None:
        raise RuntimeError(f"the Triton kernel {name} is not found: import the module that defines it before the call")
    if layer is None:
        return layers(found)[-1]
    if layer == "own":
        return next(kernel for kernel in layers(found) if hasattr(kernel, "configs"))
    key = (name, repr(layer))
    with _lock:
        kernel, tuner = _tuners.get(key, (None, None))
        if kernel is not found:
            tuner = _tuner(found, layer)
            _tuners[key] = found, tuner
            while len(_tuners) > _TUNERS_LIMIT:
                del _tuners[next(iter(_tuners))]
    return tuner


def _tuner(found: Any, layer: Any) -> Any:
    """An autotuner of stored configurations, which measures as the user's own one around the kernel does, where there is one."""
    configs, (keys, to_zero, restored) = layer
    triton: Any = sys.modules["triton"]
    made = [_config(triton.Config, untag(config)) for config in configs]
    own = next((kernel for kernel in layers(found) if hasattr(kernel, "configs")), None)
    measure = getattr(own, "_do_bench", None)
    decorate = triton.autotune(
        made, list(keys), reset_to_zero=list(to_zero) or None, restore_value=list(restored) or None, do_bench=measure
    )
    tuner = decorate(layers(found)[-1])
    if own is not None and hasattr(own, "cache_results"):
        tuner.cache_results = own.cache_results
    return tuner


_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")


def _config(make: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    options = {k: v for k, v in values.items() if k in _OPTIONS}
    return make({k: v for k, v in values.items() if k not in _OPTIONS}, **options)


def launcher(op: str) -> Callable[..., Any]:
    """The callable behind a record's operator name: of (the launch's text, its grids), and the arguments by name."""
    name = op.removeprefix(LAUNCH)
    known: dict[str, Launch] = {}

    def call(*place: Any, **arguments: Any) -> list[Any]:
        text, grids = place
        launch = known.get(text)
        if launch is None or not launch.is_current():
            launch = known[text] = Launch(name, text)
        launch(grids, arguments)
        return []

    return call


__all__ = ["LAUNCH", "Launch", "executable", "launcher"]
