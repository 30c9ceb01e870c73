"""One function per predicate: (value, constant) -> (holds, what was expected, what was found)."""

from __future__ import annotations

import itertools
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from precast.artifact_store.constants import equals, tag, untag
from precast.artifact_store.guards import Path, Predicate
from precast.artifact_store.import_names import Untaggable, find_object, named, same_object, type_name
from precast.runtime.code_digest import digest
from precast.runtime.kernel_digest import kernel_digest
from precast.runtime.paths import describe_constant
from precast.runtime.standins import address, class_of
from precast.runtime.targets import rules_of

MARKS = frozenset(
    (
        "_dynamo_dynamic_indices",
        "_dynamo_weak_dynamic_indices",
        "_dynamo_unbacked_indices",
        "_dynamo_strict_unbacked_indices",
        "_dynamo_static_indices",
    )
)
Ruled = tuple[bool, str, str]


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {describe_tensor(_spec_of(value))}"
    try:
        return describe_constant(tag(value))[:120]
    except Untaggable:
        return f"an object of type {type_name(type(value))}"


def _type(value: Any, name: str) -> Ruled:
    cls = class_of(value)
    found = type_name(cls)
    if found == name and not _stands(cls, name):
        return False, f"type {name}", "another class of that name"
    return found == name, f"type {name}", f"type {found}"


def _stands(cls: type, name: str) -> bool:
    """Whether a class of this name is the one that stands there, where any does: one that was shadowed is another class."""
    if "<locals>" in name:
        return True
    try:
        found = find_object(name)
    except LookupError:
        return True
    return found is cls or not isinstance(found, type)  # `sys.version_info` is an object, and its class bears the name


def _equals(value: Any, constant: Any) -> Ruled:
    return equals(value, constant), describe_constant(constant), _show(value)


def _base_equals(value: Any, constant: Any) -> Ruled:
    base = {"int": int, "bigint": int, "float": float, "str": str, "bytes": bytes, "complex": complex}[constant[0]]
    return isinstance(value, base) and equals(base(value), constant), describe_constant(constant), _show(value)


def _is(value: Any, name: str) -> Ruled:
    if isinstance(value, type) and "<locals>" in name:
        holds = type_name(value) == name
    else:
        try:
            holds = same_object(find_object(name), value) and named(value, name)
        except LookupError:
            holds = False
    return holds, name, _show(value)


def _tensor(value: Any, spec: dict[str, Any]) -> Ruled:
    if not isinstance(value, torch.Tensor):
        return False, f"a tensor {describe_tensor(spec)}", _show(value)
    found = _spec_of(value)
    return _spec_fits(spec, found), f"a tensor {describe_tensor(spec)}", f"a tensor {describe_tensor(found, spec)}"


def tensor_fits(value: Any, spec: dict[str, Any]) -> bool:
    """The rule for tensors without its words, which take as long as the comparison: a model has hundreds."""
    return isinstance(value, torch.Tensor) and _spec_fits(spec, _spec_of(value))


def _spec_of(value: torch.Tensor) -> dict[str, Any]:
    strided = value.layout is torch.strided
    return {
        "type": type_name(class_of(value)),
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": value.device.type,
        "layout": str(value.layout).removeprefix("torch."),
        "requires_grad": value.requires_grad,
        "size": tuple(value.shape),
        "stride": value.stride() if strided else (),
        "conj": value.is_conj(),
        "neg": value.is_neg(),
        "offset": value.storage_offset() if strided else None,
    }


def _spec_fits(spec: dict[str, Any], found: dict[str, Any]) -> bool:
    for key, wanted in spec.items():
        have = found[key]
        if key in ("size", "stride"):
            if len(wanted) != len(have) or any(w is not None and w != h for w, h in zip(wanted, have, strict=True)):
                return False
        elif key == "offset":
            if wanted is not None and wanted != have:
                return False
        elif wanted != have:
            return False
    return True


def describe_tensor(spec: dict[str, Any], against: dict[str, Any] | None = None) -> str:
    """`float32[2, 8] stride (8, 1) on cpu`; free sizes show as `?`; other facts only where unusual or different from `against`."""
    sizes = ", ".join("?" if s is None else str(s) for s in spec["size"])
    strides = ", ".join("?" if s is None else str(s) for s in spec["stride"])
    text = f"{spec['dtype']}[{sizes}] stride ({strides}) on {spec['device']}"
    if spec["type"] not in ("torch:Tensor", "torch.nn.parameter:Parameter") or (against and against["type"] != spec["type"]):
        text += f" of type {spec['type']}"
    if spec["layout"] != "strided":
        text += f" layout {spec['layout']}"
    if spec["requires_grad"] or (against and against["requires_grad"]):
        text += f" requires_grad={spec['requires_grad']}"
    if spec["offset"] is not None and against and against["offset"] is not None:
        text += f" storage offset {spec['offset']}"
    return text + " conj" * bool(spec["conj"]) + " neg" * bool(spec["neg"])


def _unmarked(value: Any, _: Any) -> Ruled:
    marks = MARKS.intersection(getattr(value, "__dict__", ()))
    return not marks, "a tensor without dynamic-shape marks", f"marks {', '.join(sorted(marks))}"


def _marks(value: Any, allowed: dict[str, tuple[int, ...]]) -> Ruled:
    found = {name: set(getattr(value, name)) for name in MARKS.intersection(getattr(value, "__dict__", ()))}
    holds = all(dims <= set(allowed.get(name, ())) for name, dims in found.items())
    return holds, f"no dynamic-shape marks beside {dict(allowed)}", f"marks {found}"


def keys_of(value: Any) -> dict[str, Any]:
    """The keys in their order. An OrderedDict keeps an order of its own; that of the dict beneath is added where it is another one, as
    rewritten bytecode counts keys by it.
    """
    beneath = tuple(tag(k) for k in (dict.keys(value) if isinstance(value, dict) else value.keys()))
    keys = tuple(tag(k) for k in OrderedDict.keys(value)) if isinstance(value, OrderedDict) else beneath
    return {"keys": keys, "ordered": True, **({} if keys == beneath else {"beneath": beneath})}


def _keys(value: Any, constant: dict[str, Any]) -> Ruled:
    found = keys_of(value)
    keys = found["keys"] if constant["ordered"] else tuple(sorted(found["keys"], key=repr))
    if constant["ordered"] and found.get("beneath") != constant.get("beneath"):
        return False, "an OrderedDict whose keys were moved, or not, as before", "one whose keys were moved otherwise"
    shown = [describe_constant(("list", k)) for k in (constant["keys"], keys)]
    return keys == constant["keys"], f"keys {shown[0]}" + " in this order" * constant["ordered"], f"keys {shown[1]}"


def _contains(value: Any, key: Any) -> bool:
    plain = untag(key)
    return dict.__contains__(value, plain) if isinstance(value, dict) else plain in value


def _length(value: Any, size: int) -> Ruled:
    found = dict.__len__(value) if isinstance(value, dict) else len(value)
    return found == size, f"length {size}", f"length {found}"


def holder(value: Any, tables: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """The first of an object's own tables that holds one of the names that a LACKS_OWN guard keeps out of it, and the name."""
    own = value.__dict__
    for table, names in tables.items():
        held = own if table == "__dict__" else own[table]
        for name in names:
            if name in held:
                return table, name
    return None


def _lacks_own(value: Any, tables: Mapping[str, Sequence[str]]) -> Ruled:
    found = holder(value, tables)
    if found is None:
        return True, f"no entries {dict(tables)}", ""
    table, name = found
    return False, f"the attribute {name} not to be in its {table}, which is asked first", "it there: the name means another object"


def _code(value: Any, wanted: str) -> Ruled:
    code = value if isinstance(value, types.CodeType) else getattr(value, "__code__", None)
    if not isinstance(code, types.CodeType):
        return False, f"a Python function with code {wanted[:12]}", _show(value)
    found = digest(code)
    return found == wanted, f"code {wanted[:12]}", f"code {found[:12]} ({code.co_qualname}, {code.co_filename}:{code.co_firstlineno})"


def _iterator(value: Any, constant: Any) -> Ruled:
    kind = constant[0]
    if kind == "tuple":
        found: tuple[Any, ...] = ("tuple", operator.length_hint(value)) if type(value) is type(iter(())) else ("other",)
    elif kind == "range" and type(value) in (type(iter(range(0))), type(iter(range(1 << 70)))):
        _, (source,), consumed = value.__reduce__()
        found = ("range", source.start + (consumed or 0) * source.step, source.stop, source.step)
    elif kind == "count" and type(value) is itertools.count:
        parts = value.__reduce__()[1]
        found = ("count", tag(parts[0]), tag(parts[1] if len(parts) > 1 else 1))
    else:
        found = ("other",)
    return found == constant, f"an iterator {constant}", f"{type_name(type(value))} {found}"


def _kernel(value: Any, constant: tuple[str, str]) -> Ruled:
    name, wanted = constant
    found = kernel_digest(name)
    return found == wanted, f"the Triton kernel {name} with digest {wanted[:12]}", f"digest {found[:12]}" if found else _show(value)


def _runs_on(value: torch.Tensor, target: str) -> Ruled:
    return rules_of(target).runs_on(target, value.device)


RULES: dict[Predicate, Callable[[Any, Any], Ruled]] = {
    Predicate.TYPE: _type,
    Predicate.EQUALS: _equals,
    Predicate.BASE_EQUALS: _base_equals,
    Predicate.IS: _is,
    Predicate.TENSOR: _tensor,
    Predicate.RUNS_ON: _runs_on,
    Predicate.UNMARKED: _unmarked,
    Predicate.LENGTH: _length,
    Predicate.MARKS: _marks,
    Predicate.KEYS: _keys,
    Predicate.HAS_KEY: lambda v, c: (_contains(v, c), f"the key {describe_constant(c)}", "no such key"),
    Predicate.LACKS_KEY: lambda v, c: (not _contains(v, c), f"no key {describe_constant(c)}", "that key"),
    Predicate.LACKS_OWN: _lacks_own,
    Predicate.HAS_ATTR: lambda v, c: (hasattr(v, c), f"an attribute {c}", "none"),
    Predicate.LACKS_ATTR: lambda v, c: (not hasattr(v, c), f"no attribute {c}", "one"),
    Predicate.NOT_NONE: lambda v, c: (v is not None, "an object", "None"),
    Predicate.CODE: _code,
    Predicate.KERNEL: _kernel,
    Predicate.EMPTY: lambda v, c: (len(v) == 0, "no hooks", f"{len(v)} of them"),
    Predicate.ITERATOR: _iterator,
}


def strays(tensors: Sequence[torch.Tensor], index: int | None) -> int:
    """Position of the first tensor on another device than the first one, or than that of `index`; -1 where there is none."""
    found = [tensor.device.index for tensor in tensors]
    wanted = found[0] if index is None else index
    return next((i for i, other in enumerate(found) if other != wanted), -1)


def aliased(
    distinct: Sequence[tuple[Any, Any]], mutated: Sequence[tuple[Any, Any]], others: Sequence[tuple[Any, Any]]
) -> tuple[Any, Any] | None:
    """The labels of the first two (label, object) pairs that break the rule of NOT_ALIASED, or None."""
    return one_object(distinct) or overlapping(mutated, others)


def one_object(distinct: Sequence[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    """The labels of the first two that are one and the same object, or None."""
    seen: dict[int, Any] = {}
    for label, value in distinct:
        if id(value) in seen:
            return seen[id(value)], label
        seen[id(value)] = label
    return None


def overlapping(mutated: Sequence[tuple[Any, Any]], others: Sequence[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    """The labels of the first two tensors that share memory, of which one at least is among `mutated`, or None."""
    spans = [(*span(v), p, True) for p, v in mutated] + [(*span(v), p, False) for p, v in others] if mutated else []
    spans.sort(key=lambda s: s[:2])
    open_end, written_end = -1, -1
    open_path: Path | None = None
    written_path: Path | None = None
    for start, end, path, written in spans:
        if start == end:
            continue
        if start < written_end and written_path is not None:
            return written_path, path
        if written and start < open_end and open_path is not None:
            return open_path, path
        if end > open_end:
            open_end, open_path = end, path
        if written and end > written_end:
            written_end, written_path = end, path
    return None


def joined(spans: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """The bytes in any of the spans, as sorted disjoint ranges: start, end, start, end, …"""
    found: list[int] = []
    for start, end in sorted(s for s in spans if s[0] != s[1]):
        if found and start <= found[-1]:
            found[-1] = max(found[-1], end)
        else:
            found += (start, end)
    return tuple(found)


def span(value: torch.Tensor) -> tuple[int, int]:
    """First byte and one past the last byte that the tensor can reach; equal for an empty one."""
    if value.numel() == 0:
        return (0, 0)
    start = address(value)
    reach = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return start, start + (reach + 1) * value.element_size()
