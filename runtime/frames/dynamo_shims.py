"""What rewritten bytecode takes from `torch._dynamo` modules, written again so that the tracer is not imported to run it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from precast.runtime.common.supported_torch import is_before
from precast.runtime.frames.reconstruct import own_dict, set_own
from precast.runtime.settings.graph_break_errors import error_on_graph_break


def _create_nested_fn(
    code: types.CodeType, f_globals: dict[str, Any], name: str, defaults: Any, closure: Any, kwdefaults: Any, annotations: Any
) -> Any:
    function = types.FunctionType(code, f_globals, name, defaults, closure)
    function.__kwdefaults__ = kwdefaults
    if isinstance(annotations, tuple):
        annotations = (
            dict(itertools.batched(annotations, 2))
            if hasattr(itertools, "batched")
            else dict(zip(annotations[::2], annotations[1::2], strict=True))
        )
    function.__annotations__ = annotations or {}
    return function


def _make_cell(value: Any = None) -> types.CellType:
    return types.CellType(value)


def _object_delattr(target: Any, name: str) -> None:
    del own_dict(target)[name]


_OWN_ORDER = is_before(torch.__version__, "2.12")


def dict_key(of: dict[Any, Any], place: int) -> Any:
    """The key at a place as this torch's tracer counts them, whatever the class overrides: its 2.11 goes by the order that an OrderedDict
    keeps for itself, later ones by that of the dict beneath.
    """
    kind = OrderedDict if _OWN_ORDER and isinstance(of, OrderedDict) else dict
    return next(itertools.islice(kind.keys(of), place, place + 1))


def _invalid_handle() -> RemovableHandle:
    class Gone(dict[Any, Any]):
        """So that there can be a weak reference to it, which is dead at once."""

    return RemovableHandle(Gone())


def _tuple_iterator_getitem(iterator: Any, index: int) -> Any:
    _, (sequence,), consumed = iterator.__reduce__()
    return sequence[consumed + index]


def _reversed_list(iterator: Any) -> Any:
    """The list that a `reversed(list)` goes through."""
    return iterator.__reduce__()[1][0]


def _turned_to(iterator: Any, index: int) -> Any:
    iterator.__setstate__(index)
    return iterator


def _clear_cell(cell: types.CellType) -> None:
    with contextlib.suppress(ValueError):  # it is empty
        del cell.cell_contents


def _iter_next(iterator: Any) -> Any:
    return next(iterator)


def _to_numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().numpy(force=True)
    if isinstance(value, (tuple, list)):
        return type(value)(_to_numpy(v) for v in value)
    return value


def _set_modes(modes: list[Any]) -> None:
    for _ in range(torch._C._len_torch_function_stack()):
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _get_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def _to_subclass(tensor: Any, cls: type) -> Any:
    return tensor.as_subclass(cls)


_UTILS: dict[str, Callable[..., Any]] = {
    "record_pregraph_bytecode_enter": lambda: None,
    "record_pregraph_bytecode_exit": lambda context: None,
    "call_size": lambda tensor, i: tensor.size(i),
    "call_stride": lambda tensor, i: tensor.stride(i),
    "call_storage_offset": lambda tensor: tensor.storage_offset(),
    "dict_keys_getitem": dict_key,
    "set_getitem": lambda s, n: list(s)[n],
    "dict_getitem": dict.__getitem__,
    "list_getitem": list.__getitem__,
    "tuple_iterator_getitem": _tuple_iterator_getitem,
    "list_reverseiterator_backing_list": _reversed_list,  # this one, the next, and clear_cell: from torch 2.15 on
    "list_reverseiterator_setstate": _turned_to,
    "clear_cell": _clear_cell,
    "dataclass_fields": lambda cls: dataclasses.fields(cls),
    "iter_next": _iter_next,
    "make_cell": _make_cell,
    "object_new": object.__new__,
    "object_setattr_ignore_descriptor": set_own,
    "object_delattr_ignore_descriptor": _object_delattr,
    "invalid_removeable_handle": _invalid_handle,
    "to_subclass": _to_subclass,
    "to_numpy_helper": _to_numpy,
    "get_torch_function_mode_stack": _get_modes,
    "get_torch_function_mode_stack_at": lambda place: torch._C._get_function_stack_at(place),
    "set_torch_function_mode_stack": _set_modes,
    "_pop_torch_function_stack": lambda: torch._C._pop_torch_function_stack(),
}

SHIMS: dict[str, types.SimpleNamespace] = {
    "torch._dynamo": types.SimpleNamespace(error_on_graph_break=error_on_graph_break),
    "torch._dynamo.utils": types.SimpleNamespace(**_UTILS),
    "torch._dynamo.variables.functions": types.SimpleNamespace(_create_nested_fn=_create_nested_fn),
}
