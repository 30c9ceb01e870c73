"""Replay of side effects on containers: where Dynamo loses or changes what the traced code did to a list, dict, set or deque.

The bytecode of a frame applies what its Python code changed after the graph has run. What is replayed, and how, is the table of
docs/side-effects.md; a change that cannot be replayed exactly ends the graph, so that Python makes it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from precast.capture.adapters.dynamo import create_instruction, raise_observed_exception, unimplemented
from precast.capture.adapters.guards import AttrSource, GuardBuilder, install_guard
from precast.capture.adapters.variables import (
    ConstantVariable,
    ConstDictVariable,
    DequeVariable,
    ListIteratorVariable,
    OrderedDictVariable,
    SideEffects,
    ValueMutationNew,
    VariableBuilder,
    VariableTracker,
    asked_for_methods,
    dicts,
    holds_items,
    lists,
    user_defined,
    variables,
)
from precast.capture.common.patching import patched


def refuse(what: str, hint: str) -> Any:
    """Breaks the graph here; Python runs the instruction."""
    unimplemented(gb_type=what, context="", explanation="its replay would not be exact, so Python runs it", hints=[hint])


# -- deques


_ADD_ON_THE_LEFT = ("appendleft", "extendleft")


@contextlib.contextmanager
def bounds_of_deques() -> Iterator[None]:
    """A deque of the caller's keeps its `maxlen`, which is guarded; the tracer assumes none."""
    wrap: Any = VariableBuilder.wrap_listlike
    call: Any = DequeVariable.call_method
    update: Any = SideEffects.codegen_update_mutated

    def wrap_listlike(self: VariableBuilder, value: Any) -> Any:
        result = wrap(self, value)
        if type(value) is collections.deque:
            install_guard(AttrSource(self.get_source(), "maxlen").make_guard(GuardBuilder.CONSTANT_MATCH))
            result.maxlen = ConstantVariable.create(value.maxlen)
        return result

    def call_method(self: DequeVariable, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in ("pop", "popleft") and not args and not kwargs and not self.items:
            raise_observed_exception(IndexError, tx, args=["pop from an empty deque"])
        if name == "copy" and not args and not kwargs:
            return DequeVariable(list(self.items), maxlen=self.maxlen, mutation_type=ValueMutationNew())
        result = call(self, tx, name, args, kwargs)
        bound = self.maxlen.as_python_constant()
        if bound is not None and len(self.items) > bound:
            self.items[:] = self.items[:bound] if name in _ADD_ON_THE_LEFT else self.items[len(self.items) - bound :]
        return result

    def codegen_update_mutated(self: SideEffects, cg: Any, *args: Any, **kwargs: Any) -> None:
        """A bounded deque that holds what fits may be emptied and filled again, as an unbounded one is."""
        bounded = [v for v in self._get_modified_vars() if isinstance(v, DequeVariable) and v.source is not None]
        bounds = [v.maxlen for v in bounded]
        for variable in bounded:
            variable.maxlen = ConstantVariable.create(None)
        try:
            update(self, cg, *args, **kwargs)
        finally:
            for variable, bound in zip(bounded, bounds, strict=True):
                variable.maxlen = bound

    with (
        patched(VariableBuilder, "wrap_listlike", wrap_listlike),
        patched(DequeVariable, "call_method", call_method),
        patched(SideEffects, "codegen_update_mutated", codegen_update_mutated),
    ):
        yield


@contextlib.contextmanager
def operators_of_deques() -> Iterator[None]:
    """Operators on deques keep the bound: those that the tracer has as lists do. An iterator notices that its deque has changed."""
    with contextlib.ExitStack() as stack:
        for name in ("sq_concat_impl", "sq_repeat_impl", "sq_inplace_repeat_impl"):
            stack.enter_context(patched(DequeVariable, name, _bounded(getattr(DequeVariable, name))))
        stack.enter_context(patched(DequeVariable, "tp_iter_impl", _iterator))
        yield


def _bounded(original: Any) -> Any:
    def operator(self: DequeVariable, *args: Any) -> Any:
        result = original(self, *args)
        bound = self.maxlen.as_python_constant()
        if bound is not None and isinstance(result, DequeVariable):
            result.maxlen = self.maxlen
            result.items[:] = result.items[max(len(result.items) - bound, 0) :]
        return result

    return operator


@contextlib.contextmanager
def deques_made_otherwise() -> Iterator[None]:
    """`copy` of a deque of a user's class is of that class, which the tracer's is not, and `__init__` may give another bound, which cannot
    be replayed: from torch 2.14 on the tracer has both. Iterators over deques have no form in which they could outlive the call.
    """
    users: Any = user_defined.UserDefinedDequeVariable  # type: ignore[attr-defined]
    call: Any = users.call_method
    begin: Any = DequeVariable.tp_init_impl  # type: ignore[attr-defined]

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in ("copy", "__copy__"):
            refuse("a deque of a user's class is copied", "make a new one of it")
        return call(self, tx, name, args, kwargs)

    def tp_init_impl(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.source is not None:
            refuse("a deque of before the call is initialised again", "clear and extend it")
        return begin(self, tx, args, kwargs)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(users, "call_method", call_method))
        stack.enter_context(patched(DequeVariable, "tp_init_impl", tp_init_impl))
        for cls in (lists.DequeIteratorVariable, lists.DequeReverseIteratorVariable):  # type: ignore[attr-defined]
            stack.enter_context(patched(cls, "reconstruct", _no_iterator))
        yield


def _no_iterator(self: Any, codegen: Any) -> None:
    refuse("an iterator over a deque outlives the compiled code", "iterate over a list of it")


class _DequeIterator(ListIteratorVariable):
    """An iterator over a deque whose length must not change while it runs."""

    _nonvar_fields = {"deque", "length", *ListIteratorVariable._nonvar_fields}

    def __init__(self, deque: DequeVariable, **kwargs: Any) -> None:
        super().__init__(list(deque.items), **kwargs)
        self.deque = deque
        self.length = len(deque.items)

    def tp_iternext_impl(self, tx: Any) -> Any:
        if len(self.deque.items) != self.length:
            raise_observed_exception(RuntimeError, tx, args=["deque mutated during iteration"])
        return super().tp_iternext_impl(tx)

    def reconstruct(self, codegen: Any) -> None:
        _no_iterator(self, codegen)


def _iterator(self: DequeVariable, tx: Any) -> Any:
    return _DequeIterator(self, mutation_type=ValueMutationNew())


# -- dicts


@contextlib.contextmanager
def orders_of_dicts() -> Iterator[None]:
    """A dict that the replay clears and refills must have the keys of the traced one, in their order: both are guarded. `move_to_end` of an
    OrderedDict is a change, and `popitem` depends on the order.
    """
    update: Any = SideEffects.codegen_update_mutated

    def codegen_update_mutated(self: SideEffects, cg: Any, *args: Any, **kwargs: Any) -> None:
        for variable in self._get_modified_vars():
            for each in (variable, holds_items(variable)):
                if isinstance(each, ConstDictVariable) and each.source is not None and _filled_again(each):
                    each.install_dict_keys_match_guard()
                    cg.tx.output.guard_on_key_order.add(each.source)
        update(self, cg, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for cls in asked_for_methods(ConstDictVariable):
            stack.enter_context(patched(cls, "call_method", _of_dicts(cls.call_method)))
        stack.enter_context(patched(SideEffects, "codegen_update_mutated", codegen_update_mutated))
        yield


def _of_dicts(original: Any) -> Any:
    def call_method(self: ConstDictVariable, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in _BY_ORDER or (name == "pop" and args and args[0] in self):
            _before(self, tx, name, args)
        return original(self, tx, name, args, kwargs)

    return call_method


def moves_in_ordered_dicts() -> contextlib.AbstractContextManager[Any]:
    """The same for an OrderedDict, which from torch 2.13 on is a variable of its own."""
    return patched(OrderedDictVariable, "call_method", _of_ordered_dicts(OrderedDictVariable.call_method))


@contextlib.contextmanager
def own_dicts_in_order() -> Iterator[None]:
    """The keys of an object's `__dict__`: those that it had, then new ones. From torch 2.12 on the tracer has them the other way round,
    and guards neither which they are nor their order, nor that a name is not among them. A `__dict__` that the traced code made is that of
    its object, and no copy.
    """
    made: Any = dicts.DunderDictVariable
    create, rebuild, contains = made.create, made.reconstruct, dicts.SideEffectsProxyDict.__contains__
    current: list[Any] = []

    def created(tx: Any, vt: Any) -> Any:
        current[:] = [tx.output]
        return create(tx, vt)

    def iterated(self: Any) -> Iterator[Any]:
        if self.item.source is not None and self.item_dict and current:
            held = AttrSource(self.item.source, "__dict__")
            install_guard(held.make_guard(GuardBuilder.DICT_KEYS_MATCH))
            current[0].guard_on_key_order.add(held)
        return _own_dicts_in_order(self)

    def __contains__(self: Any, key: Any) -> bool:
        found: bool = contains(self, key)
        name = self._maybe_unwrap_key(key)
        if not found and isinstance(name, str) and self.item.source is not None and name not in self.item_dict:
            absent = functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)
            install_guard(self.item.source.make_guard(absent))
        return found

    def reconstruct(self: Any, codegen: Any) -> None:
        if self.source is None:
            refuse("the __dict__ of an object that the compiled code made outlives it", "use the object's attributes")
        rebuild(self, codegen)

    with (
        patched(made, "create", staticmethod(created)),
        patched(dicts.SideEffectsProxyDict, "__iter__", iterated),
        patched(dicts.SideEffectsProxyDict, "__contains__", __contains__),
        patched(made, "reconstruct", reconstruct),
    ):
        yield


_BY_ORDER = ("popitem", "move_to_end")


def _of_ordered_dicts(original: Any) -> Any:
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in _BY_ORDER:
            _before(holds_items(self), tx, name, args)
        return original(self, tx, name, args, kwargs)

    return call_method


def _before(held: Any, tx: Any, name: str, args: Any) -> None:
    held.install_dict_keys_match_guard()
    if name in _BY_ORDER and held.source is not None:
        tx.output.guard_on_key_order.add(held.source)
    if name == "move_to_end":
        if args and args[0] not in held:
            raise_observed_exception(KeyError, tx, args=[args[0]])
        held.should_reconstruct_all = True


def _filled_again(variable: ConstDictVariable) -> bool:
    """Whether the replay rewrites keys that the caller's dict had before."""
    held = variable.original_items
    return variable.should_reconstruct_all and any(not variable.is_new_item(held.get(k.vt), value) for k, value in variable.items.items())


def _own_dicts_in_order(self: Any) -> Iterator[Any]:
    hashed: Any = dicts.HashableTracker  # type: ignore[attr-defined]
    changed = self.side_effects_table()
    for name in (*self.item_dict, *(name for name in changed if name not in self.item_dict)):
        if not isinstance(changed.get(name), variables.DeletedVariable):
            yield hashed(ConstantVariable.create(name))


# -- one object in many places


@contextlib.contextmanager
def containers_are_themselves() -> Iterator[None]:
    """A container of the caller's that contains itself, or that another one contains, stays that object. The tracer builds a new
    container to fill the old one from, and would then use the new one in its place.
    """
    refers: Any = VariableTracker._contains_self_reference
    rebuild: Any = DequeVariable.reconstruct

    def _contains_self_reference(self: VariableTracker) -> bool:
        return self.source is None and bool(refers(self))

    def reconstruct(self: DequeVariable, codegen: Any) -> None:
        if self.source is None:
            rebuild(self, codegen)
            return
        codegen.foreach(self.items)
        codegen.append_output(create_instruction("BUILD_LIST", arg=len(self.items)))

    with (
        patched(VariableTracker, "_contains_self_reference", _contains_self_reference),
        patched(DequeVariable, "reconstruct", reconstruct),
    ):
        yield


# -- views of dicts


@contextlib.contextmanager
def views_of_dicts() -> Iterator[None]:
    """A `keys()` view sees later changes of its dict. The tracer has a copy, which is right only while no dict changes."""
    wrap: Any = VariableBuilder._wrap
    change: Any = SideEffects.mutation
    seen: list[Any] = []
    views: tuple[type, ...] = (type({}.keys()), type(collections.OrderedDict().keys()))
    hint = "call keys() inside the compiled function"

    def _wrap(self: VariableBuilder, value: Any) -> Any:
        if isinstance(value, views):
            if self.tx.output.side_effects.has_existing_dict_mutation():
                refuse("a dict's keys() of before the call are read after a dict was changed", hint)
            seen.append(value)
        return wrap(self, value)

    def mutation(self: SideEffects, variable: VariableTracker) -> None:
        if seen and variable.source is not None and isinstance(variable, ConstDictVariable):
            refuse("a dict is changed while keys() of before the call are in use", hint)
        change(self, variable)

    with patched(VariableBuilder, "_wrap", _wrap), patched(SideEffects, "mutation", mutation):
        yield


# -- sets


@contextlib.contextmanager
def members_of_sets() -> Iterator[None]:
    """`set.pop` of several members breaks the graph: which one it takes depends on the hash table, which the tracer lacks."""
    sets: Any = variables.SetVariable  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        for cls in asked_for_methods(sets):
            stack.enter_context(patched(cls, "call_method", _of_sets(cls, cls.call_method)))
        yield


def _of_sets(cls: Any, original: Any) -> Any:
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "pop" and type(self) is cls and len(self.items) > 1:
            refuse("set.pop takes the member that the set's hash table has first", "take a member by its value")
        return original(self, tx, name, args, kwargs)

    return call_method


def members_taken_in_place() -> contextlib.AbstractContextManager[Any]:
    """`s -= t` of a set of the caller's takes members away: torch 2.13 and 2.14 replay what is left as an `update`, which takes none."""
    sets: Any = variables.SetVariable  # type: ignore[attr-defined]
    subtract: Any = sets.nb_inplace_subtract_impl

    def nb_inplace_subtract_impl(self: Any, tx: Any, other: Any) -> Any:
        self.should_reconstruct_all = True
        return subtract(self, tx, other)

    return patched(sets, "nb_inplace_subtract_impl", nb_inplace_subtract_impl)


# -- iterators


@contextlib.contextmanager
def kinds_of_iterators() -> Iterator[None]:
    """A list iterator that outlives the call stays one over the list; the tracer would make one over a tuple."""

    def reconstruct(self: ListIteratorVariable, codegen: Any) -> None:
        codegen.add_push_null(lambda: codegen.append_output(codegen.create_load_python_module(iter)))
        remaining = [] if self.is_exhausted else self.items[self.index :]
        codegen.foreach(remaining)
        kind = "BUILD_TUPLE" if isinstance(self, lists.TupleIteratorVariable) else "BUILD_LIST"
        codegen.append_output(create_instruction(kind, arg=len(remaining)))
        codegen.call_function(1, False)

    with patched(ListIteratorVariable, "reconstruct", reconstruct):
        yield


__all__ = [
    "bounds_of_deques",
    "containers_are_themselves",
    "deques_made_otherwise",
    "kinds_of_iterators",
    "members_of_sets",
    "members_taken_in_place",
    "moves_in_ordered_dicts",
    "operators_of_deques",
    "orders_of_dicts",
    "own_dicts_in_order",
    "refuse",
    "views_of_dicts",
]
