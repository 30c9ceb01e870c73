"""Compiled modules: an `nn.Module` that is the original in every respect (attributes, `state_dict`, `isinstance` …) except its call."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.runtime.frames.entry import Entry, own_call, parameters

_OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _OWN_HOOKS)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether calling `module` runs hooks around `forward`, its own or global ones."""
    own = module.__dict__
    if own["_backward_hooks"] or own["_backward_pre_hooks"] or own["_forward_hooks"] or own["_forward_pre_hooks"]:
        return True
    everywhere = torch_module.__dict__
    return any(everywhere[name] for name in _GLOBAL_HOOKS)


def is_forward(entry: Entry, module: torch.nn.Module) -> bool:
    """Whether a module's entry is its `forward`, around which its call may run hooks; not what runs them itself."""
    return entry.function is not torch.nn.Module._call_impl and entry.function is not own_call(type(module))


def wrapper_guards(entry: Entry, module: torch.nn.Module) -> tuple[Guard, ...]:
    """What has to hold of a module for its compiled `forward` to be what calling it means: no hooks, and the class's `forward`.

    `_call_impl` asks for both itself, as does a `__call__` of the class's own, and the tracer guards what it found.
    """
    if not is_forward(entry, module):
        return ()
    names = parameters(entry.function.__code__)
    root: Path = (("local", names[0]),) if entry.function.__code__.co_argcount else (("local", names[0]), ("item", ("int", 0)))
    guards = [Guard(root, Predicate.LACKS_OWN, {"__dict__": ("forward",)}), Guard(root, Predicate.HAS_ATTR, "forward")]
    guards += [Guard((*root, ("attr", name)), Predicate.EMPTY) for name in _OWN_HOOKS]
    guards += [Guard((("global", torch_module.__name__, name),), Predicate.EMPTY) for name in _GLOBAL_HOOKS]
    return tuple(guards)


class CompiledModule:
    """Mixed in before the original's class. The instance shares the original's `__dict__`, so there is one state and not two.

    `_orig_mod` is the original module.
    """

    __slots__ = ()
    _orig_mod: torch.nn.Module
    _precast_again: Callable[[torch.nn.Module], Any]
    _precast_site: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Stops here: the original's class was registered with whatever counts its subclasses; this is no new kind of module."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._precast_site.quickest(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._precast_again(copy.deepcopy(self._orig_mod, memo))

    def __copy__(self) -> Any:
        return self._precast_again(copy.copy(self._orig_mod))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"a compiled {type(self).__name__} cannot be pickled: save its state_dict() (its keys are the original's), "
            "or pickle `_orig_mod` and call precast.compile again after loading; the compiled artifacts are in the store"
        )


# A tracer that meets a compiled module inside another program traces the original's call, as torch.compile does.
CompiledModule.__call__._torchdynamo_inline = torch.nn.Module.__call__  # type: ignore[attr-defined]


class CompiledLazyModule(CompiledModule):
    """Of a module such as `nn.LazyLinear`, which gets its parameters, and its class, from its first call."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._orig_mod
        if hasattr(module, "_initialize_hook"):
            module._infer_parameters(module, args, kwargs)  # as `torch.compile` does: a hook that goes away cannot be traced
            object.__setattr__(self, "_precast_site", self._precast_again(module)._precast_site)
        return self._precast_site.quickest(*args, **kwargs)


_classes: dict[tuple[type, type], type] = {}


def _call_around(cls: type) -> Any:
    """The call of compiled modules of a class with a `__call__` of its own, which is what a tracer traces that meets one."""

    def call(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        return self._precast_site.quickest(*args, **kwargs)

    call.__name__ = "__call__"
    call._torchdynamo_inline = own_call(cls)  # type: ignore[attr-defined]
    return call


def mixed_class(mixin: type, cls: type, slots: tuple[str, ...]) -> type:
    """A subclass of `cls` with `mixin` before it; the same one each time. `slots`: what its instances hold beside the shared `__dict__`."""
    made = _classes.get((mixin, cls))
    if made is not None:
        return made
    namespace = {
        "__slots__": slots,
        "__module__": cls.__module__,
        "__qualname__": f"{cls.__qualname__}.<locals>.compiled",  # a guard on the type must not look for the original under this name
        "__doc__": cls.__doc__,
    }
    if mixin is CompiledModule and own_call(cls) is not None:
        namespace["__call__"] = _call_around(cls)
    made = types.new_class(cls.__name__, (mixin, cls), exec_body=lambda body: body.update(namespace))
    return _classes.setdefault((mixin, cls), made)


def share_state(cls: type, module: torch.nn.Module, slots: Mapping[str, Any]) -> Any:
    """An instance of `cls` (see `mixed_class`) that shares the `__dict__` of `module`."""
    make: Any = cls
    try:
        wrapper = object.__new__(make)  # a class's own `__new__` may want arguments, or make something else, as those of fully_shard do
    except TypeError:  # a class that is a dict, say, as well
        wrapper = make.__new__(make)
    object.__setattr__(wrapper, "__dict__", module.__dict__)
    for name, value in slots.items():
        object.__setattr__(wrapper, name, value)
    return wrapper


def wrap_module(module: torch.nn.Module, site: Any, again: Callable[[torch.nn.Module], Any]) -> Any:
    """`module`, whose calls go to `site`. `again` compiles another module in the same way (for deepcopy)."""
    slots = {"_orig_mod": module, "_precast_again": again, "_precast_site": site}
    lazy = hasattr(module, "_initialize_hook") and callable(getattr(module, "_infer_parameters", None))
    mixin = CompiledLazyModule if lazy else CompiledModule
    return share_state(mixed_class(mixin, type(module), tuple(slots)), module, slots)
