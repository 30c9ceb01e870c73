"""Places where Dynamo goes on as Python would not: without a guard, or with an exception that Python does not raise."""

from __future__ import annotations

import contextlib
import dis
import types
from collections.abc import Iterator
from typing import Any

from precast.capture.adapters.dynamo import InstructionTranslatorBase, symbolic_convert, unimplemented
from precast.capture.adapters.variables import (
    AsPythonConstantNotImplementedError,
    BuiltinVariable,
    ConstantVariable,
    ConstDictVariable,
    ListMethods,
    RandomVariable,
    SymNodeVariable,
    TupleVariable,
    VariableBuilder,
    asked_for_methods,
    object_protocol,
)
from precast.capture.common.patching import patched
from precast.capture.soundness.container_effects import refuse


@contextlib.contextmanager
def absent_keys() -> Iterator[None]:
    """`d[key]` that raises KeyError depends on the key's absence, as `d.get(key)` does: it is guarded."""
    original: Any = ConstDictVariable.getitem_const_raise_exception_if_absent

    def getitem_const_raise_exception_if_absent(self: ConstDictVariable, tx: Any, arg: Any) -> Any:
        if arg not in self:
            self.install_dict_contains_guard(tx, [arg])
        return original(self, tx, arg)

    name = "getitem_const_raise_exception_if_absent"
    with patched(ConstDictVariable, name, getitem_const_raise_exception_if_absent):
        yield


@contextlib.contextmanager
def places_in_lists() -> Iterator[None]:
    """`items.pop(n)`, `items.insert(n, x)` and `items *= n` take a number that varies as the constant that it is. The tracer fails."""
    with contextlib.ExitStack() as stack:
        for cls in asked_for_methods(ListMethods):
            stack.enter_context(patched(cls, "call_method", _with_constant_places(cls.call_method)))
        yield


def _with_constant_places(original: Any) -> Any:
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in ("pop", "insert", "__imul__", "__mul__", "rotate") and args:
            args = [_constant(tx, args[0].realize()), *args[1:]]
        return original(self, tx, name, args, kwargs)

    return call_method


@contextlib.contextmanager
def calls_that_want_constants() -> Iterator[None]:
    """A call that needs a constant where the traced code has none ends the graph. The tracer fails."""
    function: Any = InstructionTranslatorBase.call_function

    def call_function(self: InstructionTranslatorBase, fn: Any, args: Any, kwargs: Any) -> Any:
        try:
            return function(self, fn, args, kwargs)
        except AsPythonConstantNotImplementedError as error:
            what = f"the tracer wants a constant where the call has {type(error.vt).__name__.removesuffix('Variable').lower()}"
            unimplemented(gb_type=what, context=str(fn), explanation="Python makes the call", hints=[])

    with patched(InstructionTranslatorBase, "call_function", call_function):
        yield


@contextlib.contextmanager
def numbers_in_every_operation() -> Iterator[None]:
    """An operation that the tracer has no rule for with a number that varies, such as `"%d" % n` or `n + 1j`, takes the number as the
    constant that it is. The tracer raises a TypeError in the traced code's name, which that may even catch.
    """
    original: Any = object_protocol.binary_op1

    def binary_op1(tx: Any, v: Any, w: Any, slot: str) -> Any:
        if slot == "nb_remainder" and v.realize().is_python_constant() and isinstance(v.as_python_constant(), str | bytes):
            w = _constants(tx, w.realize())
        result = original(tx, v, w, slot)
        if not object_protocol.is_nb_not_implemented(result) or not any(isinstance(x.realize(), SymNodeVariable) for x in (v, w)):
            return result
        return original(tx, *(_constant(tx, x.realize()) for x in (v, w)), slot)

    with patched(object_protocol, "binary_op1", binary_op1):
        yield


def results_of_generators() -> contextlib.AbstractContextManager[Any]:
    """`x = yield from g()` is what `g` returns: before torch 2.14 the tracer has None in its place, so that Python runs the generator."""
    translator: Any = symbolic_convert.InliningGeneratorInstructionTranslator
    table = [*translator.dispatch_table]  # what the tracer goes by: the methods are taken from the class when it is made
    begin = table[dis.opmap["GET_YIELD_FROM_ITER"]]

    def GET_YIELD_FROM_ITER(self: Any, inst: Any) -> None:
        place = self.indexof[inst]
        send = next((one for one in self.instructions[place:] if one.opname == "SEND"), None)
        after = self.instructions[self.indexof[send.target] :] if send is not None else ()
        used = next((one.opname != "POP_TOP" for one in after if one.opname != "END_SEND"), True)
        if used:
            refuse("a generator goes on with what `yield from` gives", "call a function in place of the inner generator")
        begin(self, inst)

    table[dis.opmap["GET_YIELD_FROM_ITER"]] = GET_YIELD_FROM_ITER
    return patched(translator, "dispatch_table", table)


def keys_of_extremes() -> contextlib.AbstractContextManager[Any]:
    """`max(items, key=f)` and `min` call `f`: before torch 2.14 the tracer runs it while it traces, and what it does besides is lost."""
    call: Any = BuiltinVariable.call_function

    def call_function(self: BuiltinVariable, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn in (max, min) and "key" in kwargs:
            refuse(f"{self.fn.__name__} is given a key", "use sorted(…, key=…)[0], or call it outside")
        return call(self, tx, args, kwargs)

    return patched(BuiltinVariable, "call_function", call_function)


def states_of_generators() -> contextlib.AbstractContextManager[Any]:
    """What these methods make of a random generator of before the call depends on its state, which has no guard, or sets it, of which
    the draws that bytecode makes for `random()` and its like know nothing: Python runs them.
    """
    call: Any = RandomVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if self.source is not None and name in ("getstate", "sample", "seed", "setstate", "shuffle"):
            refuse(f"{name} of a random generator depends on its state, or sets it", "call it outside")
        return call(self, tx, name, args, kwargs)

    return patched(RandomVariable, "call_method", call_method)


def generators_of_the_caller() -> contextlib.AbstractContextManager[Any]:
    """How far a generator of before the call has come has no guard, and its next value would not be taken from it: Python asks it."""
    wrap: Any = VariableBuilder._wrap

    def _wrap(self: VariableBuilder, value: Any) -> Any:
        if self.source is not None and isinstance(value, types.GeneratorType):
            refuse("a generator of before the call is used", "make it inside, or take its values outside")
        return wrap(self, value)

    return patched(VariableBuilder, "_wrap", _wrap)


def _constants(tx: Any, variable: Any) -> Any:
    """What a text is formatted with: a value, or a tuple or dict of values."""
    if isinstance(variable, TupleVariable):
        return TupleVariable([_constant(tx, item.realize()) for item in variable.items])
    if type(variable) is ConstDictVariable:
        items = {key.vt: _constant(tx, item.realize()) for key, item in variable.items.items()}
        return ConstDictVariable(items, *([variable.user_cls] if hasattr(variable, "user_cls") else ()))  # before torch 2.14
    return _constant(tx, variable)


def _constant(tx: Any, variable: Any) -> Any:
    return ConstantVariable.create(variable.evaluate_expr(tx.output)) if isinstance(variable, SymNodeVariable) else variable


__all__ = [
    "absent_keys",
    "calls_that_want_constants",
    "generators_of_the_caller",
    "keys_of_extremes",
    "numbers_in_every_operation",
    "places_in_lists",
    "results_of_generators",
    "states_of_generators",
]
