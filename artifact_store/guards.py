"""The guard vocabulary: what capture writes, the store keeps and the runtime checks. Data only.

A guard is `(path, predicate, constant)`. A path starts at a root and walks steps; both are tuples of strings and ints, so that a
guard set is msgpack as it stands. Constants are *tagged* (`tag_constant` / `untag_constant` in this module): `("int", 3)`,
`("float", "0x1.8p+0")`, `("dtype", "float32")` …; plain Python values would lose the difference between `1`, `True` and `1.0`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Step = tuple[Any, ...]
Path = tuple[Step, ...]
"""Root first. Roots: ("local", name) a frame local or closure cell's content, ("global", module, name) a name in a module's dict,
("module", name) an entry of sys.modules, ("builtin", name), ("state",) torch's global state.
Steps: ("attr", name), ("dict", name) `obj.__dict__[name]`, ("item", tagged key), ("key", i) the i-th key of a dict, ("type",),
("closure", i) cell content, ("code",), ("default", i), ("kwdefault", name), ("func",) `__func__`, ("bound",) `__self__`,
("mro", module:qualname, name) an attribute found on that class, ("grad",), ("param", name), ("buffer", name), ("submodule", name)."""


class Predicate(StrEnum):
    """How the object at a path is compared with the constant."""

    TYPE = "type"  # type(obj) is module:qualname
    EQUALS = "equals"  # same type and ==, against a tagged constant
    IS = "is"  # obj is the object at module:qualname
    SAME_AS = "same_as"  # obj is the object at another path
    NOT_ALIASED = "not_aliased"  # these tensors (constant: paths) are pairwise different objects and do not overlap
    TENSOR = "tensor"  # a TensorSpec
    LENGTH = "length"
    KEYS = "keys"  # {"keys": tagged, "ordered": bool}
    HAS_KEY = "has_key"
    LACKS_KEY = "lacks_key"  # obj.__dict__ or mapping does not hold the key
    HAS_ATTR = "has_attr"
    LACKS_ATTR = "lacks_attr"
    CODE = "code"  # digest of the function's code
    EMPTY = "empty"  # a hook dict with no entry
    GLOBAL_STATE = (
        "global_state"  # {"grad": bool, "autocast": …, "deterministic": …, "default_device": …, "default_dtype": …, "torch_function": …}
    )
    SHAPE = "shape"  # integer expression over paths, for dynamic shapes: {"expr": "s0 < 8*s1", "symbols": {"s0": [path, "size", 0]}}


@dataclass(frozen=True)
class Guard:
    """One check that must hold for a compiled frame to be valid."""

    path: Path
    predicate: Predicate
    constant: Any

    def sort_key(self) -> tuple[str, str, str]:
        return (repr(self.path), self.predicate, repr(self.constant))
