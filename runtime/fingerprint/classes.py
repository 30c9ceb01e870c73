"""Fingerprints of how classes resolve attributes: which class of the MRO provides a name, and with what code.

The meaning of traced code depends on how `type(obj)` resolves each name that it looks up, and on names that it lacks: an override added to
a subclass, a property in place of a constant or a new `__bool__` change it without changing any function that was traced.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_, itemgetter
from typing import Any

from precast.artifact_store.format.import_names import type_name
from precast.runtime.fingerprint.bytecode import digest, functions_within

IMPLICIT = frozenset(
    f"__{name}__"
    for name in (
        "call get set delete getattr getattribute setattr delattr len bool contains iter next getitem setitem delitem missing reversed "
        "length_hint "
        "enter exit hash index int float complex eq ne lt le gt ge add sub mul truediv floordiv mod divmod pow matmul and or xor "
        "lshift rshift neg pos abs invert round trunc floor ceil radd rsub rmul rtruediv rfloordiv rmod rdivmod rpow rmatmul rand ror rxor "
        "rlshift rrshift iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift str repr format bytes "
        "instancecheck subclasscheck torch_function torch_dispatch array array_wrap copy deepcopy"
    ).split()
).union(("forward", "_call_impl", "_wrapped_call_impl"))
"""Names that are looked up without being written in the traced code: by syntax, built-in functions and calls of modules."""
CONSTRUCTORS = frozenset(("__init__", "__new__", "__post_init__"))
"""Names that matter only where traced code may make instances of the class."""
VERSIONED = frozenset((*sys.stdlib_module_names, "torch"))
"""Packages whose versions are part of every artifact's key, so that the attributes which they define themselves need no digest."""
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_PARTS = (property, staticmethod, classmethod, functools.cached_property, functools.partialmethod, types.MethodType)


def can_change(cls: type) -> bool:
    """Whether attributes of a class of the MRO may change: at run time, or by an edit of the user's source."""
    return any(not base.__flags__ & _IMMUTABLE for base in cls.__mro__)


def looked_up(names: Iterable[str]) -> frozenset[str]:
    """The names that may be looked up by code that writes `names`."""
    return IMPLICIT.union(names, CONSTRUCTORS)


Known = dict[tuple[type, bool], list[str]]


def class_digest(cls: type, names: frozenset[str], constructs: bool, known: Known) -> str:
    """A digest of how `cls` resolves `names` (which `looked_up` made). `constructs`: include its constructors.

    `known`: a cache of what single classes say of these names, for several calls in a row.
    """
    lines = [f"of {type_name(type(cls))}"] if can_change(type(cls)) else []
    for base in cls.__mro__:
        if base.__flags__ & _IMMUTABLE:
            continue
        found = known.get((base, constructs))
        if found is None:
            found = known[base, constructs] = _resolutions(base, names, constructs)
        lines += found
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _resolutions(base: type, names: frozenset[str], constructs: bool) -> list[str]:
    owner = type_name(base)
    lines = [] if is_versioned(base.__module__) else [owner]
    return lines + [f"{owner} {name} {_describe(value)}" for name, value in sorted(_entries(base, names, constructs), key=itemgetter(0))]


def _entries(base: type, names: frozenset[str], constructs: bool) -> Iterator[tuple[str, Any]]:
    """The entries of `base`'s own namespace among `names`, without those that its library's version determines."""
    library = is_versioned(base.__module__)
    for name in filter(names.__contains__, base.__dict__):
        value = base.__dict__[name]
        if (constructs or name not in CONSTRUCTORS) and not (library and _belongs(name, value)):
            yield name, value


def functions_described(constant: Mapping[str, Any], classes: Sequence[Any]) -> dict[types.FunctionType, None]:
    """The functions whose code a CLASSES guard covers. Replacing a function's code changes no namespace and no class's version tag."""
    names = looked_up(constant["names"])
    found: dict[types.FunctionType, None] = {}
    for (_, constructs, _), cls in zip(constant["classes"], classes, strict=True):
        for base in cls.__mro__:
            if not base.__flags__ & _IMMUTABLE:
                for _, value in _entries(base, names, constructs):
                    found.update(dict.fromkeys(functions_within(value)))
    return found


def is_versioned(module: Any) -> bool:
    """Whether a module belongs to torch or the standard library."""
    return isinstance(module, str) and module.partition(".")[0] in VERSIONED and module != "__main__"


def _belongs(name: str, value: Any) -> bool:
    """Whether a library's class probably defines this attribute itself: its value belongs to the library."""
    if isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)):
        return value.__name__ == name
    return all(is_versioned(function.__globals__.get("__name__")) for function in functions_within(value))


def _describe(value: Any) -> str:
    """The kind and code of a namespace entry. Of plain data only the presence counts: guards hold the values that were read."""
    codes = ",".join(digest(function.__code__) for function in functions_within(value))
    if codes or isinstance(value, _PARTS):
        return f"{type(value).__qualname__}({codes})"
    if isinstance(value, type):
        return f"class {type_name(value)}"
    if callable(value) or hasattr(type(value), "__get__"):
        return f"{type_name(type(value))} {getattr(value, '__qualname__', '')}"
    return "data"


def failing_class(constant: Mapping[str, Any], classes: Sequence[Any]) -> int:
    """Index of the first class whose digest is not the one in the CLASSES guard, or -1."""
    names = looked_up(constant["names"])
    known: Known = {}
    for i, ((_, constructs, wanted), cls) in enumerate(zip(constant["classes"], classes, strict=True)):
        if not isinstance(cls, type) or class_digest(cls, names, constructs, known) != wanted:
            return i
    return -1


class ClassCheck:
    """A memoised CLASSES guard: its result is kept while no namespace and no function's code has changed."""

    def __init__(self, constant: Mapping[str, Any]) -> None:
        self._constant = constant
        self._mros: tuple[tuple[type, tuple[type, ...]], ...] = ()
        self._seen: list[tuple[type, tuple[Any, ...], tuple[Any, ...]]] = []
        self._codes: tuple[tuple[types.FunctionType, types.CodeType], ...] = ()

    def __call__(self, classes: Sequence[Any]) -> bool:
        """Whether the guard holds for these classes, in the guard's order."""
        if self._unchanged(classes):
            return True
        bases = dict.fromkeys(base for cls in classes if isinstance(cls, type) for base in cls.__mro__ if not base.__flags__ & _IMMUTABLE)
        seen = [(base, tuple(base.__dict__), tuple(base.__dict__.values())) for base in bases]
        mros = tuple((type(cls), cls.__mro__) for cls in classes if isinstance(cls, type))
        codes = tuple((f, f.__code__) for f in functions_described(self._constant, classes)) if len(mros) == len(classes) else ()
        if failing_class(self._constant, classes) >= 0:
            return False
        self._mros, self._seen, self._codes = mros, seen, codes
        return True

    def _unchanged(self, classes: Sequence[Any]) -> bool:
        if not self._mros or len(self._mros) != len(classes):
            return False
        for cls, (meta, mro) in zip(classes, self._mros, strict=True):
            if type(cls) is not meta or not isinstance(cls, type) or cls.__mro__ is not mro:
                return False
        for base, keys, values in self._seen:
            namespace = base.__dict__
            if len(namespace) != len(values) or tuple(namespace) != keys or not all(map(is_, namespace.values(), values)):
                return False
        return all(function.__code__ is code for function, code in self._codes)
