"""Dynamo's Source objects -> paths (artifact_store/format/guards.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from precast.artifact_store.format.guards import Path, Step
from precast.artifact_store.format.import_names import Untaggable
from precast.artifact_store.format.tagged_constants import tag
from precast.capture.adapters.guards import source as S
from precast.capture.common.hook_steps import hook_step
from precast.runtime.paths.paths import PathError, resolve


class NotPortable(Exception):
    """A source or a guard constant that means nothing in another process."""


@dataclass
class SourceContext:
    """The context of a source's names: the frame's module, the aliases that Dynamo installed, and the live values, in which keys are
    found.
    """

    module: str | None  # None: the frame's globals are no module's
    aliases: Mapping[str, Path]
    local_values: Mapping[str, Any]
    free: frozenset[str] = frozenset()  # the entry's free variables: their cells outlive the call; an argument in a cell is a local

    def __post_init__(self) -> None:
        self.memo: dict[Any, Path] = {}

    def path(self, source: Any) -> Path:
        """The path of a source. Raises NotPortable."""
        found = self.memo.get(source)
        if found is None:
            found = self.memo[source] = compress(self._convert(source))
        return found

    def value(self, path: Path) -> Any:
        return resolve(path, self.local_values)

    def _convert(self, source: Any) -> Path:
        match source:
            case S.LocalSource():
                return (("cell" if source.local_name in self.free else "local", source.local_name),)
            case S.GlobalSource():
                return self.aliases.get(source.global_name) or self._global(source.global_name)
            case S.ImportSource():
                return (("module", source.module_name),)
            case S.CallMethodItemSource(base=S.FloatTensorSource(base=number)):  # how torch 2.11 names a float that varies
                return self._convert(number)
        base = getattr(source, "base", None)
        if base is None:
            raise NotPortable(f"its origin is a {type(source).__name__}")
        before = self.path(base)
        rule = _CHAINED.get(type(source))
        if rule is None:
            rule = next((r for cls, r in _CHAINED.items() if isinstance(source, cls)), None)
        if rule is None:
            raise NotPortable(f"it is reached through a {type(source).__name__}")
        return before + rule(self, source, before)

    def _global(self, name: str) -> Path:
        if self.module is None:
            return (("namespace",), ("item", ("str", name)))
        return (("global", self.module, name),)

    def key_step(self, index: Any, before: Path) -> Step:
        """("item", tagged key); positions of keys are replaced by the keys themselves."""
        if isinstance(index, S.ConstDictKeySource):
            try:
                index = self.value((*before, ("key", index.index)))
            except PathError as error:
                raise NotPortable(str(error)) from None
        if (hook := hook_step(index, before, self.value)) is not None:
            return hook
        try:
            return ("item", tag(index))
        except Untaggable as error:
            raise NotPortable(f"a key on its path cannot be named: {error}") from None


FLATTENED: Path = (("method", "__tensor_flatten__"),)
"""The step from a wrapping tensor subclass to the names of its inner tensors and its metadata."""


def _nothing(context: SourceContext, source: Any, before: Path) -> Path:
    return ()


def _attr(context: SourceContext, source: Any, before: Path) -> Path:
    return (("attr", source.member),)


def _item(context: SourceContext, source: Any, before: Path) -> Path:
    index = source.unpack_slice() if getattr(source, "index_is_slice", False) else source.index
    return (context.key_step(index, before),)


def _default(context: SourceContext, source: Any, before: Path) -> Path:
    return (("kwdefault", source.idx_key) if source.is_kw else ("default", source.idx_key),)


def _tensor_property(context: SourceContext, source: Any, before: Path) -> Path:
    name = source.prop.method_name()
    return (("method", name),) if source.idx is None else (("method", name), ("item", ("int", source.idx)))


def _context_value(context: SourceContext, source: Any, before: Path) -> Path:
    if not source.has_default:
        return (("method", "get"),)
    try:
        return (("get", tag(source.default_value)),)
    except Untaggable as error:
        raise NotPortable(f"the default of a context variable on its path cannot be named: {error}") from None


_Rule = Callable[[SourceContext, Any, Path], Path]
_CHAINED: dict[type, _Rule] = {
    S.NNModuleSource: _nothing,
    S.SkipGuardSource: _nothing,
    S.OptimizerSource: _nothing,
    S.GradSource: _attr,
    S.CellContentsSource: _attr,
    S.AttrSource: _attr,
    S.GenericAttrSource: lambda c, s, b: (("raw", s.member),),
    S.TypeDictSource: lambda c, s, b: (("dict",),),
    S.TypeMROSource: lambda c, s, b: (("attr", "__mro__"),),
    S.CodeSource: lambda c, s, b: (("attr", "__code__"),),
    S.ClosureSource: lambda c, s, b: (("attr", "__closure__"),),
    S.DefaultsSource: _default,
    S.TupleIteratorGetItemSource: lambda c, s, b: (("next", s.index),),
    S.DictGetItemSource: _item,
    S.DictSubclassGetItemSource: _item,
    S.GetItemSource: _item,
    S.ConstDictKeySource: lambda c, s, b: (("key", s.index),),
    S.NamedTupleFieldsSource: lambda c, s, b: (("namedtuple_fields",),),
    S.DataclassFieldsSource: lambda c, s, b: (("dataclass_fields",),),
    S.TypeSource: lambda c, s, b: (("type",),),
    S.CallFunctionNoArgsSource: lambda c, s, b: (("call",),),
    S.CallMethodItemSource: lambda c, s, b: (("method", "item"),),
    S.TensorPropertySource: _tensor_property,
    S.SubclassAttrListSource: lambda c, s, b: (*FLATTENED, ("item", ("int", 0))),
    S.NumpyTensorSource: lambda c, s, b: (("as_tensor",),),
}
_NEWER: dict[str, _Rule] = {
    "ContextVarGetSource": _context_value,
    "ListReverseIteratorBackingListSource": lambda c, s, b: (("method", "__reduce__"), ("item", ("int", 1)), ("item", ("int", 0))),
}
"""Sources that came with torch 2.14 and 2.15, by name."""
_CHAINED |= {getattr(S, name): rule for name, rule in _NEWER.items() if hasattr(S, name)}

_MODULE_TABLES = {"_modules": "submodule", "_parameters": "param", "_buffers": "buffer"}


def compress(path: Path) -> Path:
    """The canonical short form: `._modules['h']` becomes one step, a module's attribute becomes a global."""
    steps: list[Step] = []
    for step in path:
        before = steps[-1] if steps else None
        if before is not None:
            match before, step:
                case ("attr" | "raw", table), ("item", ("str", name)) if table in _MODULE_TABLES:
                    steps[-1] = (_MODULE_TABLES[table], name)
                    continue
                case ("module", module), ("attr", name) if len(steps) == 1 and name != "__dict__":
                    steps[-1] = ("global", module, name)
                    continue
                case ("attr", "__closure__"), ("item", ("int", i)):
                    steps[-1] = ("cellobject", i)
                    continue
                case ("cellobject", i), ("attr", "cell_contents"):
                    steps[-1] = ("closure", i)
                    continue
                case ("attr", "__dict__"), ("item", ("str", name)) if len(steps) == 2 and steps[0][0] == "module":
                    steps[:] = [("global", steps[0][1], name)]
                    continue
        if step == ("attr", "__dict__"):
            step = ("dict",)
        steps.append(step)
    return tuple(steps)
