"""The guard vocabulary: what capture writes, the store keeps and the runtime checks. Data only.

A guard is `(path, predicate, constant)`. A path starts at a root and walks steps; both are tuples of strings and ints, so that a
guard set is msgpack as it stands. Constants are *tagged* (`artifact_store/format/tagged_constants.py`): `("int", 3)`, `("float",
"0x1.8p+0")`,
`("dtype", "float32")` …; plain Python values would lose the difference between `1`, `True` and `1.0`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

Step = tuple[Any, ...]
Path = tuple[Step, ...]
"""Root first.

Roots: ("local", name) a frame local; ("cell", name) the content of the entry function's closure cell; ("namespace",) the dict of its
globals, where that is no module's (code made by `exec`); ("closure",) the tuple of its closure cells; ("global", module, name) a name in
a module's dict; ("module", name) an entry of sys.modules; ("builtin", name); ("constant", i) a tensor that the frame record carries;
("state",) torch's global state.
Steps: ("attr", name) getattr; ("raw", name) object.__getattribute__; ("dict",) `obj.__dict__`; ("item", tagged key); ("key", i) the i-th
key of a dict; ("hook", i) its i-th value; ("flagged", name) places of a module's hooks that are in the table of that name;
("submodule" | "param" | "buffer", name) `obj._modules[name]` …; ("type",); ("closure", i) content of a function's cell; ("default", i),
("kwdefault", name); ("next", i) the element that a tuple iterator yields after i others; ("namedtuple_fields",) `obj._fields`;
("dataclass_fields",) `dataclasses.fields(obj)`; ("call",) `obj()`; ("method", name) `obj.name()`;
("get", tagged default) `obj.get(default)` of a context variable."""


class Predicate(StrEnum):
    """How the object at a path is compared with the constant."""

    TYPE = "type"  # type(obj) is module:qualname
    EQUALS = "equals"  # same type and ==, against a tagged constant
    BASE_EQUALS = "base_equals"  # an instance of a subclass of a constant type, compared as its base type: ("int", 3)
    IS = "is"  # obj is the object at module:qualname
    SAME_AS = "same_as"  # obj is the object at another path
    # {"distinct": paths of pairwise different objects, "mutated": paths whose memory overlaps no other of "mutated" or "others"}
    NOT_ALIASED = "not_aliased"
    # {"paths": tensors that are on one and the same GPU, "index": its index where the code names it, else None}; stands at ("state",)
    SAME_DEVICE = "same_device"
    RUNS_ON = "runs_on"  # a tensor on a GPU that runs the target: asked by machines with GPUs of several kinds only, never stored
    # {"type", "dtype", "device", "layout", "requires_grad", "size", "stride", "conj", "neg", "offset"}; a size or stride of None is free
    TENSOR = "tensor"
    UNMARKED = "unmarked"  # a tensor without torch._dynamo.mark_dynamic and kindred marks
    LENGTH = "length"
    KEYS = (
        "keys"  # {"keys": tagged, "ordered": bool}, and "beneath": keys in the order of the dict beneath an OrderedDict, where it differs
    )
    HAS_KEY = "has_key"  # a mapping or set holds the tagged key
    LACKS_KEY = "lacks_key"
    # {"__dict__": names, "_parameters": names, "_buffers": names}: an object's own tables (the latter two are entries of the first) that
    # are asked before what answers a look-up; none of them holds any of its names
    LACKS_OWN = "lacks_own"
    HAS_ATTR = "has_attr"
    LACKS_ATTR = "lacks_attr"
    NOT_NONE = "not_none"
    # {"names": names that traced code looks up, "classes": (path of a class, whether it is instantiated, digest of how it resolves them)…}
    CLASSES = "classes"
    CODE = "code"  # a function whose code (or a code object that) has this digest
    KERNEL = "kernel"  # a Triton kernel with this (name, digest): made of an artifact's digests when it is opened, never stored
    EMPTY = "empty"  # a hook dict with no entry
    ITERATOR = "iterator"  # ["range", start, stop, step] | ["tuple" | "reversed", remaining] | ["count", tagged start, tagged step]
    GLOBAL_STATE = "global_state"  # {"grad": bool, "autocast": …, …}: `runtime/paths/torch_state.py` makes it
    # {"expr": expression (artifact_store/format/expressions.py), "paths": the objects that its leaves number}; stands at ("state",)
    SHAPE = "shape"
    # a tensor without torch._dynamo marks but these: {"_dynamo_dynamic_indices": dims, …}; a marked tensor's dims are among them
    MARKS = "marks"


@dataclass(frozen=True)
class Guard:
    """One check that must hold for a compiled frame to be valid."""

    path: Path
    predicate: Predicate
    constant: Any = None

    def sort_key(self) -> tuple[str, str, str]:
        return self._sort_key

    @cached_property
    def _sort_key(self) -> tuple[str, str, str]:
        """Asked for several times of each guard: by its order, and by the hash of all."""
        return (repr(self.path), self.predicate, canonical(self.constant))

    def to_data(self) -> list[Any]:
        """The msgpack form."""
        return [thaw(self.path), self.predicate.value, thaw(self.constant)]

    @staticmethod
    def from_data(data: list[Any]) -> Guard:
        """Inverse of `to_data`; raises ValueError on anything else."""
        path, predicate, constant = data
        return Guard(freeze(path), Predicate(predicate), freeze(constant))


def canonical(value: Any) -> str:
    """A text that is equal for equal data, whatever the order in which dicts were filled."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{canonical(k)}:{canonical(v)}" for k, v in sorted(value.items(), key=lambda kv: repr(kv[0]))) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(canonical, value)) + "]"
    return f"{type(value).__name__}={value!r}"


def freeze(value: Any) -> Any:
    """Lists (as msgpack gives them) to tuples, deeply; dicts stay dicts."""
    if isinstance(value, (list, tuple)):
        return tuple([v if type(v) in _LEAVES else freeze(v) for v in value])  # thousands at each warm start
    if isinstance(value, dict):
        return {k: freeze(v) for k, v in value.items()}
    return value


_LEAVES = frozenset((str, int, bool, float, type(None)))


def thaw(value: Any) -> Any:
    """Tuples to lists, deeply; dict keys sorted."""
    if isinstance(value, (list, tuple)):
        return [thaw(v) for v in value]
    if isinstance(value, dict):
        return {k: thaw(value[k]) for k in sorted(value)}
    return value


def canonical_order(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """Each distinct guard once, in the order that the guard hash is taken over."""
    keyed = {guard.sort_key(): guard for guard in guards}
    return tuple(keyed[key] for key in sorted(keyed))


def guard_hash(guards: Iterable[Guard]) -> str:
    """Hex sha-256 of a guard set, independent of process, machine and PYTHONHASHSEED."""
    return hash_of_texts(guard.sort_key() for guard in guards)


def hash_of_texts(keys: Iterable[tuple[str, str, str]]) -> str:
    """The same, by the guards' sort keys: `repr` of the path, predicate, `canonical` of the constant."""
    text = "".join([f"{path}\x1f{predicate}\x1f{constant}\x1e" for path, predicate, constant in sorted(set(keys))])
    return hashlib.sha256(text.encode()).hexdigest()
