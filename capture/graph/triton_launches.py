"""Launches of users' Triton kernels in a graph: a kernel is called by name, and everything but tensors and sizes is plain data.

torch keeps kernels and constants in a process-wide table, and functionalises each launch. Here a launch writes its arguments in place
again, which are copied first only where the old value is still read (as capture/graph/reinplace.py does for operators).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.fx
from torch.utils import _triton

from precast.artifact_store.format.import_names import Untaggable, object_name
from precast.artifact_store.format.records import CodeDigest
from precast.artifact_store.format.tagged_constants import tag
from precast.capture.adapters.higher_order_ops import kernel_side_table, triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.common.patching import patched, replaced
from precast.capture.graph.reinplace import may_write, only_copied_back
from precast.capture.graph.window_overlap import apart, same_window, strided_storage, symbolic
from precast.runtime.fingerprint.triton_kernels import KERNEL, find_kernel, kernel_digest, layers, unreadable

FUNCTIONAL = triton_kernel_wrapper_functional
LAUNCH = triton_kernel_wrapper_mutation
"""The target of a launch. Its keywords here: `kernel` (module:qualname), `digests` (of it and of kernels among the constants), `launch` (a
text of data: constants and configurations), `grid` (one per configuration), `arguments` by parameter (nodes and numbers), `written`: which
of them the kernel writes."""


def is_launch(node: torch.fx.Node) -> bool:
    """Whether the node is a launch in precast's form."""
    return node.target is LAUNCH and "launch" in node.kwargs


def name_launch(module: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    """Replaces torch's functional launch.

    Raises CaptureRefused for a kernel, or a constant, that another process could not find or tell from others, and for a kernel that
    writes memory which it is given in another form, too.
    """
    given: dict[str, Any] = dict(node.kwargs)
    kernel = kernel_side_table.get_kernel(given["kernel_idx"])
    name = kernel_name(kernel)
    if given["tma_descriptor_metadata"]:
        raise CaptureRefused(f"the Triton kernel {name} is launched with a tensor descriptor (TMA)", hint="pass the tensor itself")
    if reason := unreadable(find_kernel(name)):
        raise CaptureRefused(f"the Triton kernel {name} cannot be stored: {reason}", hint="use a plain function there")
    _refuse_overlaps(name, node)
    constants = {k: v for k, v in kernel_side_table.get_constant_args(given["constant_args_idx"]).items() if k not in given["kwargs"]}
    try:
        launch = repr((tag(constants), *_configurations(name, kernel)))
    except Untaggable as error:
        raise CaptureRefused(f"a launch of the Triton kernel {name} cannot be stored: {error}") from None
    results = {str(user.args[1]): user for user in node.users}
    with module.graph.inserting_before(node):
        arguments = _with_copies(module, node, results)
        made = module.graph.call_function(
            LAUNCH,
            (),
            {
                "kernel": name,
                "digests": tuple(
                    (used, kernel_digest(used, again=True)) for used in dict.fromkeys([name, *_kernels_in(constants.values())])
                ),
                "launch": launch,
                "grid": tuple(tuple(sizes) for sizes in given["grid"]),
                "arguments": arguments,
                "written": tuple(given["tensors_to_clone"]),
            },
        )
    made.meta.update({k: v for k, v in node.meta.items() if k != "val"})
    for parameter, user in results.items():
        _give(module, user, arguments[parameter], made)
    module.graph.erase_node(node)


def _with_copies(module: torch.fx.GraphModule, node: torch.fx.Node, results: Mapping[str, torch.fx.Node]) -> dict[str, Any]:
    """The launch's arguments, with copies of those that it may not write in place. Arguments that alias each other get one copy."""
    given: Any = node.kwargs["kwargs"]
    arguments = dict(given)
    bases: dict[torch.fx.Node, list[str]] = {}
    for parameter in cast(Any, node.kwargs["tensors_to_clone"]):
        bases.setdefault(given[parameter], []).append(parameter)
    for base, parameters in bases.items():
        if arguments[parameters[0]] is not base:
            continue  # copied with another view of the same memory
        if not any(may_write(node, base, results.get(parameter)) for parameter in parameters):
            copy = module.graph.call_function(torch.ops.aten.clone.default, (base,))
            copy.meta["val"] = node.meta["val"][parameters[0]]
            arguments = {k: copy if _shows(v, base) else v for k, v in arguments.items()}
    return arguments


def _refuse_overlaps(name: str, node: torch.fx.Node) -> None:
    """Raises CaptureRefused where the kernel writes an argument that overlaps another one: as a function of each, it would lose writes."""
    given: Any = node.kwargs["kwargs"]
    for written in cast(Any, node.kwargs["tensors_to_clone"]):
        base = given[written]
        for parameter, other in given.items():
            if _shares_storage(other, base) and not _shows(other, base) and not apart(other.meta["val"], base.meta["val"]):
                reason = f"the Triton kernel {name} writes {written}, which shares memory with {parameter}"
                refused = CaptureRefused(reason, hint="pass a copy of one of them")
                refused.symbols = symbolic(other.meta["val"]) or symbolic(base.meta["val"])  # with plain sizes more can be told apart
                raise refused


def _shares_storage(argument: Any, base: torch.fx.Node) -> bool:
    if not isinstance(argument, torch.fx.Node):
        return False
    storage = strided_storage(base.meta.get("val"))
    return storage is not None and strided_storage(argument.meta.get("val")) == storage


def _shows(argument: Any, base: torch.fx.Node) -> bool:
    """Whether an argument is this node, or another view of the same elements."""
    return argument is base or _shares_storage(argument, base) and same_window(argument.meta["val"], base.meta["val"])


def _give(module: torch.fx.GraphModule, result: torch.fx.Node, written: torch.fx.Node, launch: torch.fx.Node) -> None:
    """Replaces a result of torch's functional launch by the argument that the launch wrote."""
    if written.op == "placeholder":
        for user in list(result.users):
            if only_copied_back({user}, written, result):
                module.graph.erase_node(user)  # it is there already
        value = result.meta["val"]
        with module.graph.inserting_after(launch):  # what the caller takes for a new tensor must be one
            written = module.graph.call_function(torch.ops.aten.clone.default, (written,))
        written.meta["val"] = value
    else:
        written.meta["val"] = result.meta["val"]
    result.replace_all_uses_with(written)
    module.graph.erase_node(result)
    if written.op != "placeholder" and not written.users:
        module.graph.erase_node(written)


def kernel_name(kernel: Any) -> str:
    """`module:qualname` of the kernel inside of its decorators. Raises CaptureRefused where it is not found by that name."""
    inner = layers(kernel)[-1]
    name = f"{inner.fn.__module__}:{inner.fn.__qualname__}"
    found = find_kernel(name)
    if found is None or layers(found)[-1] is not inner:
        raise CaptureRefused(f"the Triton kernel {name} cannot be found again by that name", hint="define it at the top of a module")
    return name


def _kernels_in(constants: Iterable[Any]) -> list[str]:
    """Names of the Triton functions among a launch's constants."""
    return [object_name(value) for value in constants if layers(value)]


def _configurations(name: str, kernel: Any) -> tuple[Any, ...]:
    """What is launched, as data, and what tells its configurations apart, for their grids.

    None: the kernel itself; "own": the autotuner around it that stands under its name; else an autotuner of torch's making (for `num_warps`
    of one launch, heuristics, pruned configurations) by its configurations and the names that it goes by.
    """
    if not hasattr(kernel, "configs"):
        return (None, ())
    told = tuple(tag(config.kwargs) for config in kernel.configs)
    found = find_kernel(name)
    if any(layer is kernel for layer in layers(found)):
        return ("own", told)
    tuner = next((layer for layer in layers(found) if hasattr(layer, "configs")), kernel)
    names = tuple(tuple(getattr(tuner, attribute)) for attribute in ("keys", "reset_to_zero", "restore_value"))
    return ((tuple(tag(config.all_kwargs()) for config in kernel.configs), names), told)


def launched(graph_module: torch.fx.GraphModule) -> Iterator[CodeDigest]:
    """One record per launch of the graph and of the graphs nested in it."""
    for module in graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                if is_launch(node):
                    digests: Any = node.kwargs["digests"]
                    for name, digest in digests:
                        home, _, qualname = name.partition(":")
                        yield CodeDigest(f"{KERNEL}{home}", qualname, digest)


@contextlib.contextmanager
def kernels_known() -> Iterator[None]:
    """Patches Dynamo so that it recognises launches on a machine without a GPU."""
    if "triton" not in sys.modules or _triton.has_triton():
        yield
        return
    with patched(_triton, "has_triton", lambda *asked, **given: True):
        yield


class _AnyDevice:
    """A substitute for Triton's driver: which arguments a kernel writes is found in Triton's first IR, which is the same for all GPUs."""

    def get_current_target(self) -> Any:
        return sys.modules["triton.backends.compiler"].GPUTarget("cuda", 90, 32)


@contextlib.contextmanager
def writes_known() -> Iterator[None]:
    """Patches torch so that it finds which arguments kernels write on a machine without a GPU, instead of assuming all."""
    triton: Any = sys.modules.get("triton")
    if triton is None or torch.cuda.is_available() or triton.runtime.driver._active is not None:
        yield
        return
    with replaced(triton.runtime.driver, "_active", _AnyDevice()):
        yield
