"""Every kind of Dynamo guard -> portable guards.

Rules for what is left out, all stated here:
* guards rooted in a `torch._dynamo` module (polyfills and such): the torch version is part of every artifact's key;
* GRAD_MODE, DETERMINISTIC_ALGORITHMS, GLOBAL_STATE, TORCH_FUNCTION_STATE, DEFAULT_DEVICE, FSDP_TRAINING_STATE, DUAL_LEVEL,
  FUNCTORCH_STACK_MATCH (a call under a functorch transform is refused): one
  GLOBAL_STATE guard of our own says more (`runtime/paths/torch_state.py`);
* AUTOGRAD_SAVED_TENSORS_HOOKS: such hooks act on backward graphs only, and a frame that would record one is not compiled;
* SHAPE_ENV: its parts become SHAPE guards of their own (`capture/common/symbolic_shapes.py`); sizes that are not symbolic are in the
TENSOR guards;
* the length of a dict in a module's namespace whose keys are looked up one by one, and which key stands at which position of it:
  Dynamo adds a keys guard itself where the traced code counts or iterates them, and registries grow as a process lives;
* the device of the innermost `torch.device` context, which is in the global state.
"""

from __future__ import annotations

import contextvars
import functools
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._device import DeviceContext

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.artifact_store.format.import_names import Untaggable, hold, object_name, type_name
from precast.artifact_store.format.tagged_constants import tag
from precast.capture.adapters.dtensors import is_mesh
from precast.capture.adapters.dynamo import DynamoConfigPatchProxy
from precast.capture.adapters.guards import AttrSource, TorchFunctionModeStackSource
from precast.capture.common.hook_steps import hook_guards
from precast.capture.common.source_paths import FLATTENED, NotPortable, SourceContext
from precast.capture.soundness.process_groups import group_guards, is_group
from precast.runtime.common.supported_torch import written_for
from precast.runtime.fingerprint.bytecode import digest
from precast.runtime.guards.container_predicates import keys_of
from precast.runtime.guards.tensor_spec import MARKS, metadata
from precast.runtime.paths.fake_tensors import class_of
from precast.runtime.paths.paths import PathError

DROPPED = frozenset(
    "GRAD_MODE DETERMINISTIC_ALGORITHMS GLOBAL_STATE TORCH_FUNCTION_STATE DEFAULT_DEVICE FSDP_TRAINING_STATE DUAL_LEVEL "
    "AUTOGRAD_SAVED_TENSORS_HOOKS SHAPE_ENV FUNCTORCH_STACK_MATCH".split()
)
_AUTOCASTS = (torch.autocast, torch.cuda.amp.autocast, torch.cpu.amp.autocast_mode.autocast)
_GRAD_MODES: dict[type, tuple[str, ...]] = {
    torch.no_grad: (),
    torch.enable_grad: (),
    torch.set_grad_enabled: ("mode",),
    torch.inference_mode: ("mode",),
}
"""Decorators that set the grad mode -> what they are made of. A decorated function holds a method of one, which makes another."""
_AUTOCAST = ("device", "fast_dtype", "_enabled", "_cache_enabled")
_IDENTITY = frozenset("ID_MATCH FUNCTION_MATCH BUILTIN_MATCH CLASS_MATCH MODULE_MATCH NN_MODULE".split())


@dataclass
class Translation:
    """Portable guards, and for each guard that has none a sentence naming source and kind.

    `unchecked`: those of these sentences whose guard cannot even be checked in this process.
    """

    guards: list[Guard] = field(default_factory=list)
    uncacheable: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def without_form(self, sentence: str, instead: list[Guard]) -> None:
        """Notes a guard that has no portable form; `instead`: what holds for it in this process."""
        self.uncacheable.append(sentence)
        self.guards += instead
        if not instead:
            self.unchecked.append(sentence)


@dataclass
class GuardContext:
    """What translation needs beside the guard: paths, and which dicts are guarded by key order."""

    sources: SourceContext
    ordered: frozenset[Any]  # sources of dicts whose key order the traced code saw
    sizes: Mapping[Any, Any]  # source -> {"size", "stride"} with None where free
    compared: frozenset[Any] = frozenset()  # sources of objects of which only `id()` was taken, to compare it


def translate(dynamo_guards: Iterable[Any], context: GuardContext) -> Translation:
    """All guards of a frame. Must run before the frame's bytecode: constants are read from the live objects."""
    result = Translation()
    kept = [g for g in dynamo_guards if g.create_fn_name() not in DROPPED]
    keyed = {g.originating_source for g in kept if g.create_fn_name() == "DICT_KEYS_MATCH"}
    looked_up = {g.originating_source for g in kept if g.create_fn_name() in ("DICT_CONTAINS", "DICT_NOT_CONTAINS")}
    compared: list[Path] = []
    looked_up |= {base for g in kept if (base := getattr(g.originating_source, "base", None)) is not None}
    for guard in kept:
        kind = guard.create_fn_name()
        if _is_default_device(guard.originating_source):
            continue
        try:
            path = context.sources.path(guard.originating_source)
            if from_dynamo(path):
                continue
            if path[-1][0] == "key" and _is_registry(path[:-1], context):
                continue
            if (of_hooks := hook_guards(kind, path, context.sources.value)) is not None:
                result.guards.extend(of_hooks)
                continue
            looked_at = guard.originating_source
            if kind == "SEQUENCE_LENGTH" and looked_at in looked_up - keyed and _is_registry(path, context):
                continue
            if kind == "ID_MATCH" and guard.originating_source in context.compared:
                compared.append(path)
                continue
            if kind == "ID_MATCH" and isinstance(optimizer := context.sources.value(path), torch.optim.Optimizer):
                inner = tuple(f"{_source_name(guard)}.{name}" for name in ("param_groups", "state", "defaults"))
                if not any(_source_name(other).startswith(inner) for other in kept):
                    # torch pins it because it may trace `_init_group` on the object itself; here only methods of its class are called
                    result.guards.append(Guard(path, Predicate.TYPE, type_name(type(optimizer))))
                    continue
            result.guards.extend(_translate_one(kind, path, guard, context))
        except (NotPortable, Untaggable, PathError) as error:
            held = held_here(guard.originating_source, context.sources) if kind in _IDENTITY else []
            result.without_form(f"guard {kind} on {_source_name(guard)}: {error}", held)
    result.guards.extend(_same_pattern(compared, context))
    return result


def _is_default_device(source: Any) -> bool:
    """Whether this is the `torch.device` context that decides where tensors are made, or its device: the global state has it."""
    mode = source.base if isinstance(source, AttrSource) and source.member == "device" else source
    if not isinstance(mode, TorchFunctionModeStackSource):
        return False
    stack = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    contexts = [i for i, mode in enumerate(stack) if isinstance(mode, DeviceContext)]
    return contexts[-1:] == [mode.ind]


def _same_pattern(paths: list[Path], context: GuardContext) -> list[Guard]:
    """Objects whose ids were compared with one another: of the same types, and equal or different as they were."""
    guards = []
    first: dict[int, Path] = {}
    for path in sorted(set(paths), key=repr):
        value = context.sources.value(path)
        guards.append(Guard(path, Predicate.TYPE, type_name(class_of(value))))
        known = first.setdefault(id(value), path)
        if known is not path:
            guards.append(Guard(path, Predicate.SAME_AS, known))
    if len(first) > 1:
        guards.append(Guard((("state",),), Predicate.NOT_ALIASED, {"distinct": tuple(first.values()), "mutated": (), "others": ()}))
    return guards


def held_here(source: Any, sources: SourceContext) -> list[Guard]:
    """For an object without a name: the frame is not stored, but in this process another object must not pass for it."""
    try:
        path = sources.path(source)
        value = sources.value(path)
        lasts = sources.value(path) is value  # and is not made anew by each look
    except (NotPortable, PathError, LookupError):
        return []
    return [Guard(path, Predicate.IS, hold(value))] if lasts else []


def _source_name(guard: Any) -> str:
    try:
        return str(guard.originating_source.name)
    except NotImplementedError:
        return type(guard.originating_source).__name__


def from_dynamo(path: Path) -> bool:
    """Whether it leads into one of the tracer's own modules (polyfills and such), which no process that serves has."""
    root = path[0]
    return root[0] in ("global", "module") and (root[1] == "torch._dynamo" or root[1].startswith("torch._dynamo."))


def _is_registry(path: Path, context: GuardContext) -> bool:
    return path[0][0] == "global" and isinstance(context.sources.value(path), dict)


def _translate_one(kind: str, path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    if kind in _IDENTITY:
        return same_object_guards(path, context.sources.value(path))
    rule = _RULES.get(kind)
    if rule is None:
        raise NotPortable("this kind of guard has no portable form")
    return rule(path, guard, context)


def identity(path: Path, value: Any) -> Guard:
    """`is` against an importable object; a plain function without a name is held by its code instead, a constant by its value."""
    if isinstance(value, (bool, type(None))):
        return Guard(path, Predicate.EQUALS, tag(value))
    try:
        return Guard(path, Predicate.IS, object_name(value))
    except Untaggable:
        if isinstance(value, types.FunctionType):
            return Guard(path, Predicate.CODE, digest(value.__code__))
        if isinstance(value, types.CodeType):
            return Guard(path, Predicate.CODE, digest(value))
        if isinstance(value, type):
            return Guard(path, Predicate.IS, type_name(value))
        if isinstance(value, (types.BuiltinMethodType, types.MethodType)) and not isinstance(value.__self__, types.ModuleType):
            raise NotPortable(f"it pins the method {value.__qualname__} of one particular object") from None
        return Guard(path, Predicate.EQUALS, tag(value))


def same_object_guards(path: Path, value: Any) -> list[Guard]:
    """`identity`; a function is held to its module too, whose globals its code reads: a wrapper may bear its name, and stand there.

    A compiled regular expression has no name, and needs none: it is its text and its flags; an autocast is what it sets, and so is
    what decorates a function with a grad mode; and of a context variable the values count.
    """
    if isinstance(value, contextvars.ContextVar):  # what it holds has guards of its own
        return [Guard(path, Predicate.TYPE, type_name(type(value))), Guard((*path, ("attr", "name")), Predicate.EQUALS, tag(value.name))]
    if is_group(value):
        return group_guards(path, value)
    if isinstance(value, re.Pattern):
        told = [Guard((*path, ("attr", name)), Predicate.EQUALS, tag(getattr(value, name))) for name in ("pattern", "flags")]
        return [Guard(path, Predicate.TYPE, type_name(re.Pattern)), *told]
    if type(value) in _AUTOCASTS:  # of a decorated function: Dynamo enters another one that is made of these
        said = [Guard((*path, ("attr", name)), Predicate.EQUALS, tag(getattr(value, name))) for name in _AUTOCAST]
        return [Guard(path, Predicate.TYPE, type_name(type(value))), *said]
    if isinstance(value, types.MethodType) and type(value.__self__) in _GRAD_MODES:
        mode = (*path, ("attr", "__self__"))
        said = [
            Guard((*mode, ("attr", name)), Predicate.EQUALS, tag(getattr(value.__self__, name)))
            for name in _GRAD_MODES[type(value.__self__)]
        ]
        return [
            identity((*path, ("attr", "__func__")), value.__func__),
            Guard(mode, Predicate.TYPE, type_name(type(value.__self__))),
            *said,
        ]
    if isinstance(value, DynamoConfigPatchProxy):  # around the guards of an exported module
        return [
            Guard(path, Predicate.TYPE, type_name(type(value))),
            Guard((*path, ("attr", "changes")), Predicate.EQUALS, tag(value.changes)),
        ]
    guards = [identity(path, value)]
    if isinstance(value, types.FunctionType):
        guards += _namespace(path, value)
        if "_torchdynamo_disable" in value.__dict__:
            guards.append(Guard(path, Predicate.HAS_ATTR, "_torchdynamo_disable"))
    return guards


def _namespace(path: Path, value: types.FunctionType) -> list[Guard]:
    """What a function of the same code in another module would fail. Methods need none: the class that holds them has a guard."""
    if ("type",) in path or "__name__" not in value.__globals__:
        return []
    return [Guard((*path, ("attr", "__globals__"), ("item", ("str", "__name__"))), Predicate.EQUALS, tag(value.__globals__["__name__"]))]


def _keyword(guard: Any, name: str) -> Any:
    return guard.create_fn.keywords[name]


def _value_rule(make: Callable[[Any], tuple[Predicate, Any]]) -> Callable[[Path, Any, GuardContext], list[Guard]]:
    def rule(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
        return [Guard(path, *make(context.sources.value(path)))]

    return rule


def _constant(value: Any) -> tuple[Predicate, Any]:
    if isinstance(value, types.CodeType):
        return Predicate.CODE, digest(value)
    return Predicate.EQUALS, tag(value)


def _constant_subclass(value: Any) -> tuple[Predicate, Any]:
    bases: tuple[Any, ...] = (int, float, str, bytes, complex)
    for base in bases:
        if isinstance(value, base):
            return Predicate.BASE_EQUALS, tag(base(value))
    raise NotPortable(f"{type(value).__qualname__} extends no constant type")


def _closure(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    value = context.sources.value(path)
    if type(value) is functools.partial:
        return _partial(path, value)
    if type(value) is not types.FunctionType:
        return same_object_guards(path, value) if isinstance(value, re.Pattern) else [Guard(path, Predicate.IS, object_name(value))]
    if str(value.__module__).partition(".")[0] == "torch":
        # Calls of torch's own functions enter the graph whole, and many share one code and differ by their closures.
        return same_object_guards(path, value)
    return [Guard(path, Predicate.CODE, digest(value.__code__)), *_namespace(path, value)]


def _partial(path: Path, value: functools.partial[Any]) -> list[Guard]:
    """A partial is what it calls and with what; the arguments that the traced code takes out of it have guards of their own."""
    return [
        Guard(path, Predicate.TYPE, type_name(functools.partial)),
        *same_object_guards((*path, ("attr", "func")), value.func),
        Guard((*path, ("attr", "args")), Predicate.LENGTH, len(value.args)),
        Guard((*path, ("attr", "keywords")), Predicate.KEYS, {"keys": tuple(map(tag, value.keywords)), "ordered": True}),
    ]


def _length(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    value = context.sources.value(path)
    return [Guard(path, Predicate.TYPE, type_name(type(value))), Guard(path, Predicate.LENGTH, len(value))]


def _keys(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    value = context.sources.value(path)
    if value is torch.utils._pytree.SUPPORTED_NODES:
        # Dynamo guards this table's version; which node types it knows matters only where a traced value has the type, and that is guarded.
        return []
    keys = keys_of(value)
    if guard.originating_source not in context.ordered and guard.create_fn_name() != "MAPPING_KEYS_CHECK":
        keys = {"keys": tuple(sorted(keys["keys"], key=repr)), "ordered": False}
    return [Guard(path, Predicate.KEYS, keys)]


def _has_attr(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    name, value = _keyword(guard, "attr"), context.sources.value(path)
    if type(value) is functools.partial and name in value.__dict__:
        raise NotPortable(f"the tracer does not know that a functools.partial may have an attribute {name}")
    return [Guard(path, Predicate.HAS_ATTR if hasattr(value, name) else Predicate.LACKS_ATTR, name)]


def _absent(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    """None for a tensor that has the attribute: what the traced code found in its `__dict__` is guarded."""
    name, value = _keyword(guard, "attr"), context.sources.value(path)
    if isinstance(value, torch.Tensor) and name in value.__dict__:
        return []
    return [Guard(path, Predicate.LACKS_OWN, {"__dict__": (name,)})]


def _duplicate(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    other = context.sources.path(_keyword(guard, "source_b"))
    value = context.sources.value(path)
    if is_mesh(value):  # equal ones are as good, and the tracer looks at one of the two
        return [*group_guards(path, value), *group_guards(other, value)]
    first, second = sorted((path, other), key=repr)
    return [] if first == second else [Guard(second, Predicate.SAME_AS, first)]


def _tensor(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    return _tensor_of(path, guard.originating_source, context)


def _tensor_of(path: Path, source: Any, context: GuardContext) -> list[Guard]:
    value = context.sources.value(path)
    known = context.sizes.get(source)
    size = tuple(value.shape) if known is None else tuple(_concrete(s) for s in known["size"])
    stride = (
        tuple(value.stride())
        if known is None and value.layout is torch.strided
        else tuple(_concrete(s) for s in (known or {}).get("stride") or ())
    )
    return [Guard(path, Predicate.TENSOR, {**metadata(value, size, stride), "offset": None}), _marks(path, value)]


def _metadata(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    """What a tensor subclass says of itself beside its inner tensors."""
    _, metadata = context.sources.value(path).__tensor_flatten__()
    return [Guard((*path, *FLATTENED, ("item", ("int", 1))), Predicate.EQUALS, tag(metadata))]


def _dtensor_spec(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    """What a DTensor says of itself, at its `_spec`; its mesh and its local tensor have guards of their own. The tracer has none on the
    global sizes.
    """
    source, whole = guard.originating_source.base, path[:-1]
    spec = context.sources.value(path)
    if written_for(torch.__version__) == "2.11":
        raise NotPortable("torch 2.11 does not tell what of the mesh is in the graph")
    told = ["placements", "shard_order", "use_strided_shard_as_shard_order"]
    if not _varies(context.sizes.get(source)):
        told.append("tensor_meta")
    found = [Guard((*path, ("attr", name)), Predicate.EQUALS, tag(getattr(spec, name))) for name in told if hasattr(spec, name)]
    if "device_mesh" not in context.sources.value(whole).__tensor_flatten__()[0]:  # where the tracer has a guard on it
        found += group_guards((*path, ("attr", "mesh")), spec.mesh)
    return [*_tensor_of(whole, source, context), *found]


def _varies(known: Any) -> bool:
    """Whether a size or stride of an input is symbolic; `known`: what `GuardContext.sizes` says of it."""
    return known is not None and any(_concrete(size) is None for size in (*known["size"], *known["stride"]))


def _marks(path: Path, value: torch.Tensor) -> Guard:
    """A tensor with other marks of dynamic dimensions than these has to be compiled anew; one without marks has not."""
    marks = {name: tuple(sorted(getattr(value, name))) for name in sorted(MARKS) if hasattr(value, name)}
    return Guard(path, Predicate.MARKS, marks) if marks else Guard(path, Predicate.UNMARKED)


def _concrete(size: Any) -> int | None:
    """None for what is still symbolic at the end of tracing."""
    if isinstance(size, torch.SymInt):
        found: int | None = size.node.maybe_as_int()
        return found
    return None if size is None else int(size)


def _tuple_iterator(value: Any) -> tuple[Predicate, Any]:
    return Predicate.ITERATOR, ("tuple", value.__length_hint__())


def _reverse_iterator(value: Any) -> tuple[Predicate, Any]:
    return Predicate.ITERATOR, ("reversed", value.__length_hint__())


def _range_iterator(value: Any) -> tuple[Predicate, Any]:
    _, (source,), consumed = value.__reduce__()
    return Predicate.ITERATOR, ("range", source.start + consumed * source.step, source.stop, source.step)


def _count_iterator(value: Any) -> tuple[Predicate, Any]:
    parts = value.__reduce__()[1]
    return Predicate.ITERATOR, ("count", tag(parts[0]), tag(parts[1] if len(parts) > 1 else 1))


def _of_this_process(why: str) -> Callable[[Path, Any, GuardContext], list[Guard]]:
    """The rule of a kind that makes a frame uncacheable."""

    def rule(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
        raise NotPortable(why)

    return rule


def _group(path: Path, guard: Any, context: GuardContext) -> list[Guard]:
    value = context.sources.value(path)
    if not is_group(value):
        raise NotPortable("this kind of guard has no portable form")
    return group_guards(path, value)


_RULES: dict[str, Callable[[Path, Any, GuardContext], list[Guard]]] = {
    "TYPE_MATCH": _value_rule(lambda v: (Predicate.TYPE, type_name(class_of(v)))),
    "CONSTANT_MATCH": _value_rule(_constant),
    "EQUALS_MATCH": _value_rule(_constant),
    "BOOL_MATCH": _value_rule(_constant),
    "NONE_MATCH": _value_rule(_constant),
    "CONSTANT_SUBCLASS_MATCH": _value_rule(_constant_subclass),
    "NOT_NONE_MATCH": _value_rule(lambda v: (Predicate.NOT_NONE, None)),
    "CLOSURE_MATCH": _closure,
    "SEQUENCE_LENGTH": _length,
    "DICT_KEYS_MATCH": _keys,
    "MAPPING_KEYS_CHECK": _keys,
    "DICT_CONTAINS": lambda p, g, c: [Guard(p, Predicate.HAS_KEY, tag(_keyword(g, "key")))],
    "DICT_NOT_CONTAINS": lambda p, g, c: [Guard(p, Predicate.LACKS_KEY, tag(_keyword(g, "key")))],
    "SET_CONTAINS": lambda p, g, c: [Guard(p, Predicate.HAS_KEY, tag(_keyword(g, "key")))],
    "SET_NOT_CONTAINS": lambda p, g, c: [Guard(p, Predicate.LACKS_KEY, tag(_keyword(g, "key")))],
    "NOT_PRESENT_IN_GENERIC_DICT": _absent,
    "EMPTY_NN_MODULE_HOOKS_DICT": lambda p, g, c: [Guard(p, Predicate.EMPTY)],
    "HASATTR": _has_attr,
    "DUPLICATE_INPUT": _duplicate,
    "TENSOR_MATCH": _tensor,
    "TENSOR_SUBCLASS_METADATA_MATCH": _metadata,
    "DTENSOR_SPEC_MATCH": _dtensor_spec,
    "TUPLE_ITERATOR_LEN": _value_rule(_tuple_iterator),
    "RANGE_ITERATOR_MATCH": _value_rule(_range_iterator),
    "COUNT_ITERATOR_MATCH": _value_rule(_count_iterator),
    "LIST_REVERSEITERATOR_LEN": _value_rule(_reverse_iterator),
    "FAKE_SCRIPT_TYPE_MATCH": _group,
    "OPAQUE_OBJ_GUARD_FN_MATCH": _group,
    "WEAKREF_ALIVE": _of_this_process("it depends on one particular object staying alive"),
    "COW_TENSOR_MATCH": _of_this_process("whether a tensor's memory is shared until it is written depends on what this process did before"),
    "CURRENT_STREAM_MATCH": _of_this_process("which stream is the current one is no property of the stream"),
}


def has_rule(kind: str) -> bool:
    """Whether a kind of Dynamo's guards has a portable form, or needs none."""
    return kind in _RULES or kind in _IDENTITY or kind in DROPPED


__all__ = ["DROPPED", "GuardContext", "Translation", "from_dynamo", "has_rule", "identity", "same_object_guards", "translate"]
