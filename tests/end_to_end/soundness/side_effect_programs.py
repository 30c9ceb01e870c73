"""Programs whose answer is what they leave behind: containers, closures, objects and globals that the traced code changes.

Each case makes a function with fresh state, and the calls; `outcome` runs them and says all that a program could tell: results, arguments,
closures, order, types, bounds, and which of all these objects are one.
"""

from __future__ import annotations

import array
import bisect
import collections
import contextlib
import contextvars
import dataclasses
import functools
import heapq
import io
import itertools
import random
import threading
import types
import warnings
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from typing import Any, NamedTuple

import torch


class Made(NamedTuple):
    """A program: what is called, with which arguments, and what else it leaves behind."""

    function: Callable[..., Any]
    calls: list[Any]
    """Arguments of each call; a function instead is run between two calls."""
    seen: Callable[[], Any] = lambda: None


CASES: dict[str, Callable[[], Made]] = {}


def case(make: Callable[[], Made]) -> Callable[[], Made]:
    CASES[make.__name__] = make
    return make


def xs(*rest: Any, sizes: tuple[int, ...] = (2, 2, 3)) -> list[tuple[Any, ...]]:
    """Calls with tensors of these sizes, and the same other arguments each time."""
    return [(torch.arange(1.0, n + 1), *rest) for n in sizes]


# ---------------------------------------------------------------- what a program can tell


def outcome(made: Made, function: Callable[..., Any] | None = None) -> list[Any]:
    """Results of the calls (or the exceptions that they raise), then everything that is left behind, then what was printed and warned."""
    call, results, printed = function or made.function, [], io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        torch.manual_seed(3)
        random.seed(3)
        for args in made.calls:
            if callable(args):
                args()
                continue
            try:
                results.append(call(*args))
            except (ValueError, KeyError, IndexError, TypeError, StopIteration, AttributeError, RuntimeError) as error:
                results.append((type(error).__name__, str(error.args)))
    own = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    memo: dict[int, int] = {}
    told = [results, made.calls, closure(made.function), vars(made.function), made.seen()]
    return [*(describe(part, memo) for part in told), random.random(), printed.getvalue(), own]


def closure(function: Any) -> list[Any]:
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append("empty")
    return found


def describe(value: Any, memo: dict[int, Any]) -> Any:
    """A value as plain data: types, contents in their order, and a number for each object that can change (equal numbers: one object)."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, type, complex)) and type(value).__module__ == "builtins":
        return (type(value).__name__, repr(value) if not isinstance(value, type) else value.__qualname__)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType)):
        return ("function", value.__name__ if hasattr(value, "__name__") else value.co_name)
    if isinstance(value, type):
        return ("class", value.__qualname__)
    if type(value) in (tuple, frozenset):
        return (type(value).__name__, *_parts(value, functools.partial(describe, memo=memo)))
    if id(value) in memo:
        return ("again", memo[id(value)][0])
    memo[id(value)] = (len(memo), value)
    inner = functools.partial(describe, memo=memo)
    return (memo[id(value)][0], type(value).__qualname__, *_parts(value, inner))


def _parts(value: Any, inner: Callable[[Any], Any]) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), tuple(value.shape), [round(v, 4) for v in value.double().flatten().tolist()]]
    found: list[Any] = []
    if isinstance(value, deque):
        found.append(("maxlen", value.maxlen))
    if isinstance(value, (list, deque, UserList)) or isinstance(value, tuple):
        found += [inner(item) for item in value]
    elif isinstance(value, OrderedDict):
        found += [(inner(k), inner(v)) for k, v in OrderedDict.items(value)]
    elif isinstance(value, (dict, types.MappingProxyType)):
        found += [(inner(k), inner(v)) for k, v in (dict.items(value) if isinstance(value, dict) else value.items())]
    elif isinstance(value, (set, frozenset)):
        found += sorted(str(inner(item)) if not isinstance(item, (int, str)) else repr(item) for item in value)
    elif isinstance(value, weakref.WeakKeyDictionary | weakref.WeakValueDictionary):
        return [inner(list(value.items()))]
    elif isinstance(value, bytearray | array.array | range | slice):
        return [repr(value)]
    elif isinstance(value, memoryview):
        return [bytes(value)]
    elif isinstance(value, Iterator) and not isinstance(value, types.GeneratorType):
        return [inner(list(itertools.islice(value, 50)))]
    elif isinstance(value, types.GeneratorType):
        return [inner(list(itertools.islice(value, 50)))]
    elif isinstance(value, types.CellType):
        return [inner(value.cell_contents)]
    elif isinstance(value, types.MethodType):
        return [inner(value.__func__), inner(value.__self__)]
    if isinstance(value, defaultdict):
        found.append(inner(value.default_factory))
    for cls in type(value).__mro__:
        for name in vars(cls).get("__slots__", ()):
            if name != "__dict__" and hasattr(value, name):
                found.append((name, inner(getattr(value, name))))
    skip = torch.nn.Module().__dict__ if isinstance(value, torch.nn.Module) else ()
    found += [(name, inner(v)) for name, v in getattr(value, "__dict__", {}).items() if name not in skip]
    return found


# ---------------------------------------------------------------- order of dicts


@case
def ordered_move_to_end() -> Made:
    def f(x, d):
        d.move_to_end("a")
        return x + 1

    return Made(f, xs(OrderedDict(a=1, b=2, c=3)))


@case
def ordered_move_to_front() -> Made:
    def f(x, d):
        d.move_to_end("c", last=False)
        return x + 1

    return Made(f, xs(OrderedDict(a=1, b=2, c=3)))


@case
def ordered_moved_there_and_back() -> Made:
    def f(x, d):
        d.move_to_end("a")
        d.move_to_end("a", last=False)
        return x + len(d)

    return Made(f, xs(OrderedDict(a=1, b=2, c=3)))


@case
def ordered_move_and_set() -> Made:
    def f(x, d):
        d["b"] = x * 2
        d.move_to_end("a")
        d["new"] = x
        return x + 1

    return Made(f, xs(OrderedDict(a=1, b=2, c=3)))


@case
def ordered_popitem_first() -> Made:
    def f(x, d):
        k, v = d.popitem(last=False)
        d[k] = v + 1
        return x + v

    return Made(f, xs(OrderedDict(a=1, b=2, c=3)))


@case
def ordered_popitem_last() -> Made:
    def f(x, d):
        k, v = d.popitem()
        d["z" + k] = v
        return x + v

    return Made(f, xs(OrderedDict(a=1, b=2, c=3)))


@case
def ordered_reinserted() -> Made:
    def f(x, d):
        d["a"] = d.pop("a")
        return x + 1

    return Made(f, xs(OrderedDict(a=1, b=2, c=3)))


@case
def ordered_deleted_and_set() -> Made:
    def f(x, d):
        v = d["b"]
        del d["b"]
        d["b"] = v
        return x + 1

    return Made(f, xs(OrderedDict(a=1, b=2, c=3)))


@case
def dict_reinserted() -> Made:
    def f(x, d):
        d["a"] = d.pop("a")
        return x + 1

    return Made(f, xs({"a": 1, "b": 2, "c": 3}))


@case
def dict_popped_and_set_elsewhere() -> Made:
    def f(x, d):
        v = d.pop("a")
        d["a"] = v
        d["b"] = x
        return x + v

    return Made(f, xs({"a": 1, "b": 2, "c": 3}))


@case
def dict_popitem_and_set() -> Made:
    def f(x, d):
        k, v = d.popitem()
        first = next(iter(d))
        d[k] = d.pop(first)
        d[first] = v
        return x + 1

    return Made(f, xs({"a": 1, "b": 2, "c": 3}))


@case
def dict_cleared_and_filled_alike() -> Made:
    def f(x, d):
        old = list(d.items())
        d.clear()
        for k, v in reversed(old):
            d[k] = v
        return x + 1

    return Made(f, xs({"a": 1, "b": 2, "c": 3}))


@case
def dict_update_and_or() -> Made:
    def f(x, d, other):
        d |= other
        d.update([("q", x)], r=2)
        d.setdefault("a", 9)
        d.setdefault("s", [])
        d["s"].append(x)
        return x + 1

    return Made(f, xs({"a": 1, "b": 2}, {"b": 5, "z": 1}))


@case
def dict_cleared() -> Made:
    def f(x, d):
        d.clear()
        return x + 1

    return Made(f, xs({"a": 1, "b": 2}))


@case
def dict_emptied_by_pop() -> Made:
    def f(x, d):
        while d:
            d.popitem()
        return x + 1

    return Made(f, xs({"a": 1, "b": 2}))


@case
def dict_del_missing_raises() -> Made:
    def f(x, d):
        d["n"] = d.get("n", 0) + 1
        del d["missing"]
        return x + 1

    return Made(f, xs({"a": 1}))


@case
def dict_equal_key_of_another_type() -> Made:
    def f(x, d):
        d[True] = x
        d[1.0] = 5
        return x + 1

    return Made(f, xs({1: "one", 2: "two"}))


@case
def dict_values_are_swapped() -> Made:
    def f(x, d):
        d["a"], d["b"] = d["b"], d["a"]
        return x + 1

    return Made(f, xs({"a": [1], "b": [2]}))


@case
def dict_same_value_set_again() -> Made:
    def f(x, d):
        v = d["a"]
        d["a"] = 3
        d["a"] = v
        return x + 1

    return Made(f, xs({"a": 1, "b": 2}))


@case
def dict_fromkeys_and_copy() -> Made:
    def f(x, d):
        e = d.copy()
        e["a"] = x
        g = dict.fromkeys(d, 0)
        d.update(g)
        return e, g

    return Made(f, xs({"a": 1, "b": 2}))


@case
def ordered_dict_of_a_subclass() -> Made:
    class LRU(OrderedDict):
        def touch(self, key):
            self.move_to_end(key)
            return self[key]

    def f(x, d):
        return x + d.touch("a")

    return Made(f, xs(LRU(a=1, b=2, c=3)))


@case
def ordered_dict_that_moves_in_its_getitem() -> Made:
    def f(x, d):
        d["k"] = x
        return x + d["a"]

    return Made(f, xs(Recent(a=1, b=2, c=3)))


class Recent(OrderedDict):
    """As in the documentation of collections: a key that is read or set becomes the last."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.move_to_end(key)

    def __getitem__(self, key):
        value = super().__getitem__(key)
        self.move_to_end(key)
        return value


@case
def ordered_dict_made_inside() -> Made:
    def f(x):
        d = OrderedDict(a=1, b=x, c=3)
        d.move_to_end("a")
        d.move_to_end("c", last=False)
        return d, list(d)

    return Made(f, xs())


@case
def ordered_dict_in_a_module() -> Made:
    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = OrderedDict()

        def forward(self, x):
            n = x.shape[0]
            if n in self.cache:
                self.cache.move_to_end(n)
            else:
                self.cache[n] = x * 2
                if len(self.cache) > 2:
                    self.cache.popitem(last=False)
            return self.cache[n] + 1

    m = Cache()
    return Made(m.forward, xs(sizes=(2, 3, 2, 4, 3, 3)), lambda: m)


@case
def ordered_dict_order_read_after_move() -> Made:
    def f(x, d):
        before = list(d)
        d.move_to_end("a")
        d.popitem(last=False)
        return x + d["c"], before, list(d), list(d.items()), list(reversed(d))

    return Made(f, [(torch.ones(2), OrderedDict(a=1, b=2, c=3, d=4)) for _ in range(3)])


@case
def ordered_popitem_of_empty_raises() -> Made:
    def f(x, d):
        d["n"] = x
        d.popitem()
        d.popitem()
        return x

    return Made(f, xs(OrderedDict()))


@case
def ordered_move_missing_raises() -> Made:
    def f(x, d):
        d["n"] = 1
        d.move_to_end("missing")
        return x

    return Made(f, xs(OrderedDict(a=1)))


@case
def ordered_dict_in_a_closure_and_returned() -> Made:
    d = OrderedDict(a=1, b=2)

    def f(x):
        d.move_to_end(next(iter(d)))
        return x + 1, d

    return Made(f, xs())


# ---------------------------------------------------------------- dicts with ways of their own


@case
def default_dict_inserts() -> Made:
    def f(x, d):
        d["a"].append(x)
        d["b"]
        return x + len(d)

    return Made(f, xs(defaultdict(list)))


@case
def default_dict_get_does_not_insert() -> Made:
    def f(x, d):
        v = d.get("a")
        w = d.get("b", 5)
        return x + w, v

    return Made(f, xs(defaultdict(list)))


@case
def default_dict_with_order() -> Made:
    def f(x, d):
        d["a"] = d.pop("a")
        d["n"] += 1
        return x + 1

    return Made(f, xs(defaultdict(int, a=1, b=2)))


@case
def default_dict_of_a_lambda() -> Made:
    def f(x, d):
        d[x.shape[0]]["n"] = x
        return x + 1

    return Made(f, xs(defaultdict(lambda: {"made": True})))


@case
def counter_counts() -> Made:
    def f(x, c):
        c["a"] += 1
        c.update(["b", "a"])
        return x + c["missing"]

    return Made(f, xs(Counter("xa")))


@case
def counter_subtracts() -> Made:
    def f(x, c):
        c.subtract({"a": 1})
        c += Counter("zz")
        return x + 1, c

    return Made(f, xs(Counter("aab")))


@case
def chain_map_writes_the_first() -> Made:
    a, b = {"k": 1}, {"k": 2, "z": 3}

    def f(x, m):
        m["k"] = x
        m["new"] = m["z"]
        return x + 1

    return Made(f, xs(ChainMap(a, b)), lambda: (a, b))


@case
def user_dict_writes() -> Made:
    def f(x, d):
        d["a"] = x
        d.pop("b", None)
        d["b"] = 2
        return x + 1

    return Made(f, xs(UserDict(a=1, b=2, c=3)))


@case
def user_list_writes() -> Made:
    def f(x, items):
        items.append(x)
        items[0] = 5
        return x + len(items)

    return Made(f, xs(UserList([1, 2])))


class Loud(dict):
    """Each of its writes is counted."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.writes = 0

    def __setitem__(self, key, value):
        self.writes += 1
        super().__setitem__(key, value)

    def __delitem__(self, key):
        self.writes += 100
        super().__delitem__(key)

    def __missing__(self, key):
        self.writes += 1000
        return 7


@case
def dict_subclass_with_overrides() -> Made:
    def f(x, d):
        d["a"] = x
        del d["b"]
        d["b"] = d["missing"]
        d.update(q=1)
        d.setdefault("r", 3)
        return x + d.writes

    return Made(f, xs(Loud(a=1, b=2, c=3)))


@case
def dict_subclass_reordered() -> Made:
    class Plain(dict):
        pass

    def f(x, d):
        d["a"] = d.pop("a")
        d.pop("b")
        return x + 1

    return Made(f, [(torch.ones(2), Plain(a=1, b=2, c=3)) for _ in range(2)])


@case
def dict_subclass_emptied() -> Made:
    class Plain(dict):
        pass

    def f(x, d):
        d.clear()
        return x + 1

    return Made(f, [(torch.ones(2), Plain(a=1, b=2, c=3)) for _ in range(2)])


class Log(list):
    def append(self, item):
        super().append(("logged", item))

    def __setitem__(self, i, v):
        super().__setitem__(i, ("set", v))


@case
def list_subclass_with_overrides() -> Made:
    def f(x, log):
        log.append(1)
        log[0] = x
        log.extend([3, 4])
        log += [5]
        return x + len(log)

    return Made(f, xs(Log([0])))


class Registry(MutableMapping):
    def __init__(self):
        self.inner, self.reads = {}, 0

    def __getitem__(self, k):
        self.reads += 1
        return self.inner[k]

    def __setitem__(self, k, v):
        self.inner[k] = v

    def __delitem__(self, k):
        del self.inner[k]

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)


@case
def mapping_mixin() -> Made:
    def f(x, r):
        r["a"] = x
        r.update(b=2)
        r.setdefault("c", 3)
        r.pop("b")
        return x + r["c"]

    return Made(f, xs(Registry()))


class Sequence_(MutableSequence):
    def __init__(self):
        self.inner = []

    def __getitem__(self, i):
        return self.inner[i]

    def __setitem__(self, i, v):
        self.inner[i] = v

    def __delitem__(self, i):
        del self.inner[i]

    def insert(self, i, v):
        self.inner.insert(i, v)

    def __len__(self):
        return len(self.inner)


@case
def sequence_mixin() -> Made:
    def f(x, s):
        s.append(x)
        s.extend([1, 2])
        s.reverse()
        s.pop()
        return x + len(s)

    return Made(f, xs(Sequence_()))


class Set_(MutableSet):
    def __init__(self):
        self.inner = {}

    def __contains__(self, k):
        return k in self.inner

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)

    def add(self, k):
        self.inner[k] = None

    def discard(self, k):
        self.inner.pop(k, None)


@case
def set_mixin() -> Made:
    def f(x, s):
        s.add(3)
        s |= {1, 2}
        s.discard(1)
        s.add(1)
        return x + len(s)

    return Made(f, xs(Set_()))


@case
def mapping_proxy_sees_writes() -> Made:
    d = {"a": 1}
    p = types.MappingProxyType(d)

    def f(x):
        d["a"] += 1
        d["b"] = x
        return x + p["a"], len(p)

    return Made(f, xs(), lambda: p)


# ---------------------------------------------------------------- deques


def _deque(*items: Any, maxlen: int | None = 3) -> deque:
    return deque(items, maxlen=maxlen)


@case
def deque_append_bounded() -> Made:
    def f(x, d):
        d.append(x)
        return x + len(d)

    return Made(f, xs(_deque(1, 2)))


@case
def deque_appendleft_bounded() -> Made:
    def f(x, d):
        d.appendleft(x)
        return x + len(d), d.maxlen

    return Made(f, xs(_deque(1, 2)))


@case
def deque_extend_bounded() -> Made:
    def f(x, d):
        d.extend([x, 5, 6])
        d.extend(range(2))
        return x + len(d), d.maxlen

    return Made(f, xs(_deque(1, 2)))


@case
def deque_extendleft_bounded() -> Made:
    def f(x, d):
        d.extendleft([x, x * 2])
        return len(d), d.maxlen

    return Made(f, xs(_deque(1, 2)))


@case
def deque_iadd_bounded() -> Made:
    def f(x, d):
        d += [x, 7, 8]
        return x + len(d), d

    return Made(f, xs(_deque(1, 2)))


@case
def deque_rotate_bounded() -> Made:
    def f(x, d):
        d.rotate(1)
        d.rotate(-2)
        d.rotate()
        return x + d[0]

    return Made(f, xs(_deque(1, 2, 3)))


@case
def deque_insert_bounded() -> Made:
    def f(x, d):
        d.insert(1, 9)
        return x + len(d)

    return Made(f, xs(_deque(1, 2)))


@case
def deque_insert_at_the_bound_raises() -> Made:
    def f(x, d):
        d.insert(1, 9)
        return x + len(d)

    return Made(f, xs(_deque(1, 2, 3)))


@case
def deque_pops_bounded() -> Made:
    def f(x, d):
        a, b = d.pop(), d.popleft()
        d.appendleft(a)
        return x + b

    return Made(f, xs(_deque(1, 2, 3, 4, maxlen=4), sizes=(2, 2)))


@case
def deque_set_del_reverse_bounded() -> Made:
    def f(x, d):
        d[0] = x
        del d[1]
        d.reverse()
        d.append(4)
        d.append(5)
        return x + len(d)

    return Made(f, xs(_deque(1, 2, 3)))


@case
def deque_clear_remove_bounded() -> Made:
    def f(x, d, e):
        d.clear()
        e.remove(2)
        return x + len(d) + e.count(3) + e.index(3)

    return Made(f, [(torch.ones(2), _deque(1, 2, 3), _deque(1, 2, 3)) for _ in range(2)])


@case
def deque_copies_keep_the_bound() -> Made:
    def f(x, d):
        e = d.copy()
        e.append(x)
        g = d * 2
        h = d + d
        return x + len(e), e, g, h, e.maxlen, g.maxlen, h.maxlen

    return Made(f, xs(_deque(1, 2)))


@case
def deque_repeated_in_place_bounded() -> Made:
    def f(x, d):
        d *= 2
        return x + len(d), d.maxlen

    return Made(f, xs(_deque(1, 2)))


@case
def deque_made_inside() -> Made:
    def f(x, items):
        d = deque(items, maxlen=2)
        d.append(x)
        d.appendleft(1)
        e = deque([1, 2, 3, 4], 3)
        g = deque(maxlen=2)
        g.extendleft([1, 2, 3])
        return d, e, g, d.maxlen, len(e)

    return Made(f, xs([1, 2, 3]))


@case
def deque_made_inside_from_a_deque() -> Made:
    def f(x, d):
        e = deque(d)
        e.extend([x, x])
        g = deque(d, maxlen=1)
        g.appendleft(x)
        return e, g, e.maxlen, g.maxlen

    return Made(f, xs(_deque(1, 2)))


@case
def deque_of_length_zero() -> Made:
    def f(x, d):
        d.append(x)
        d.appendleft(x)
        d.extend([1])
        d.extendleft([2])
        return x + len(d)

    return Made(f, xs(_deque(maxlen=0)))


@case
def deque_unbounded() -> Made:
    def f(x, d):
        d.extendleft([1, x])
        d.rotate(2)
        d.insert(1, 5)
        d.append(2)
        d.popleft()
        d[0] = 8
        d.reverse()
        return x + len(d)

    return Made(f, xs(_deque(1, 2, maxlen=None)))


@case
def deque_in_an_attribute() -> Made:
    class Window(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = deque(maxlen=2)

        def forward(self, x):
            self.seen.append(x.sum())
            return x + sum(self.seen)

    m = Window()
    return Made(m.forward, xs(sizes=(2, 3, 2, 3)), lambda: m)


@case
def deque_of_a_subclass() -> Made:
    class Mine(deque):
        pass

    def f(x, d):
        d.append(x)
        d.rotate(1)
        return x + len(d)

    return Made(f, xs(Mine([1, 2], 3)))


@case
def deque_replaced_in_an_object() -> Made:
    o = types.SimpleNamespace(d=deque([1], maxlen=2))

    def f(x):
        o.d = deque(o.d, maxlen=o.d.maxlen + 1)
        o.d.append(x)
        return x + len(o.d)

    return Made(f, xs(), lambda: o)


# ---------------------------------------------------------------- lists


@case
def list_slices() -> Made:
    def f(x, items):
        items[1:3] = [x, 7, 8]
        del items[0]
        items[::2] = [0] * len(items[::2])
        items[len(items) :] = [1]
        return x + len(items)

    return Made(f, [(torch.ones(2), [1, 2, 3, 4]) for _ in range(2)])


@case
def list_sort_and_reverse() -> Made:
    def f(x, items, pairs):
        items.sort(reverse=True)
        pairs.sort(key=lambda p: p[1])
        pairs.reverse()
        return x + items[0]

    return Made(f, xs([3, 1, 2], [("a", 2), ("b", 1), ("c", 2)]))


@case
def list_times_and_plus() -> Made:
    def f(x, items):
        items *= 2
        items += (x,)
        items.insert(-1, 5)
        items.remove(1)
        return x + len(items), items

    return Made(f, xs([1, 2], sizes=(2, 2)))


@case
def list_pop_and_extend_from_itself() -> Made:
    def f(x, items):
        items.extend(items)
        items.pop(0)
        items.extend(i for i in items[:1])
        return x + len(items)

    return Made(f, xs([1, 2], sizes=(2, 2)))


@case
def list_seen_by_two_paths() -> Made:
    shared = [1]
    o = types.SimpleNamespace(a=shared, b=shared)

    def f(x):
        o.a.append(2)
        o.b.append(3)
        return x + len(o.a), o.a is o.b

    return Made(f, xs(), lambda: (o, shared))


@case
def list_argument_is_returned() -> Made:
    def f(x, items):
        items.append(x)
        return items

    return Made(f, xs([1]))


@case
def list_inside_list() -> Made:
    def f(x, items):
        items[0].append(x)
        items.append(items[0])
        items[1] = items
        return x + len(items)

    return Made(f, [(torch.ones(2), [[1], 2]) for _ in range(2)])


@case
def list_new_in_two_places() -> Made:
    def f(x, d, items):
        fresh = [x]
        d["fresh"] = fresh
        items.append(fresh)
        fresh.append(1)
        return fresh

    return Made(f, xs({}, []))


@case
def list_in_a_default() -> Made:
    def f(x, seen=[]):  # noqa: B006 - what is written to a default is seen by the next call
        seen.append(x.shape[0])
        return x + len(seen)

    return Made(f, xs(), lambda: f.__defaults__)


@case
def list_while_iterated() -> Made:
    def f(x, items):
        for i in items:
            if i < 3:
                items.append(i + 1)
        return x + len(items)

    return Made(f, xs([1]))


# ---------------------------------------------------------------- sets and bytes


@case
def set_operations() -> Made:
    def f(x, s, t):
        s |= {5}
        s.discard(1)
        s.add(7)
        s -= {2}
        t &= {1, 2}
        t ^= {2, 9}
        return x + len(s), s, t

    return Made(f, xs({1, 2, 3}, {1, 2}))


@case
def set_pop_and_clear() -> Made:
    def f(x, s, t):
        v = s.pop()
        t.clear()
        s.update({4}, [5])
        s.difference_update([4])
        return x + v

    return Made(f, [(torch.ones(2), {1}, {1, 2}) for _ in range(2)])


@case
def set_cleared() -> Made:
    def f(x, s):
        s.clear()
        return x + 1

    return Made(f, xs({1, 2}))


@case
def set_removed_only() -> Made:
    def f(x, s):
        s.remove(1)
        return x + 1

    return Made(f, xs({1, 2}))


@case
def frozenset_rebound() -> Made:
    o = types.SimpleNamespace(s=frozenset({1}))

    def f(x):
        o.s |= {2}
        return x + len(o.s)

    return Made(f, xs(), lambda: o)


@case
def bytearray_writes() -> Made:
    b = bytearray(b"abc")

    def f(x):
        b[0] = 100
        b.extend(b"z")
        return x + len(b)

    return Made(f, xs())


@case
def array_writes() -> Made:
    a = array.array("i", [1, 2])

    def f(x, a):
        a[0] = 5
        a.append(x.shape[0])
        return x + len(a)

    return Made(f, xs(a))


@case
def memoryview_writes() -> Made:
    b = bytearray(b"abc")

    def f(x, m):
        m[0] = 100
        return x + m[1]

    return Made(f, xs(memoryview(b)), lambda: b)


@case
def heap_and_bisect() -> Made:
    def f(x, h, s):
        heapq.heappush(h, 2)
        v = heapq.heappop(h)
        bisect.insort(s, 4)
        return x + v

    return Made(f, xs([1, 5, 3], [1, 3, 9]))


# ---------------------------------------------------------------- closures and local classes


@case
def method_of_an_outer_class() -> Made:
    log, stats = [], {"calls": 0}

    class Recorder:
        def note(self, x):
            log.append(tuple(x.shape))
            stats["calls"] += 1

    def f(x):
        Recorder().note(x)
        return x * 2

    return Made(f, xs(), lambda: (log, stats))


@case
def method_of_an_outer_class_with_state() -> Made:
    log: list[Any] = []

    class Recorder:
        made = 0

        def __init__(self, name):
            self.name = name
            log.append(("made", name))

        def note(self, x):
            log.append((self.name, x))
            return self

    def f(x):
        r = Recorder("a").note(x).note(x + 1)
        return x * 2, r

    return Made(f, xs(), lambda: log)


@case
def init_of_an_outer_class() -> Made:
    log: list[Any] = []

    class Entry:
        def __init__(self, n):
            log.append(n)

    def f(x):
        Entry(x.shape[0])
        return x + 1

    return Made(f, xs(), lambda: log)


@case
def nonlocal_in_a_method() -> Made:
    count = 0

    class Counting:
        def step(self):
            nonlocal count
            count += 1
            return count

    def f(x):
        return x + Counting().step()

    return Made(f, xs(), lambda: count)


@case
def object_outside_with_a_local_class() -> Made:
    log: list[Any] = []

    class Recorder:
        def note(self, x):
            log.append(x.shape[0])

    r = Recorder()

    def f(x):
        r.note(x)
        return x * 2

    return Made(f, xs(), lambda: log)


@case
def class_made_inside() -> Made:
    log: list[Any] = []

    def f(x):
        class Recorder:
            def note(self, x):
                log.append(x.shape[0])

        Recorder().note(x)
        return x * 2

    return Made(f, xs(), lambda: log)


@case
def static_and_class_methods() -> Made:
    log: list[Any] = []

    class Tools:
        @staticmethod
        def s(x):
            log.append(("s", x.shape[0]))

        @classmethod
        def c(cls, x):
            log.append(("c", cls.__name__))

        @property
        def p(self):
            log.append("p")
            return 2

    def f(x):
        Tools.s(x)
        Tools.c(x)
        return x * Tools().p

    return Made(f, xs(), lambda: log)


@case
def special_methods_of_a_local_class() -> Made:
    log: list[Any] = []

    class Item:
        def __add__(self, other):
            log.append(("add", other))
            return other

        def __getitem__(self, k):
            log.append(("get", k))
            return 3

        def __setitem__(self, k, v):
            log.append(("set", k, v))

        def __call__(self, x):
            log.append("call")
            return x

        def __len__(self):
            log.append("len")
            return 2

        def __enter__(self):
            log.append("enter")
            return self

        def __exit__(self, *error):
            log.append("exit")

        def __contains__(self, k):
            log.append(("in", k))
            return True

        def __eq__(self, other):
            log.append("eq")
            return True

        __hash__ = None

    def f(x):
        with Item() as i:
            v = (i + 1) * i[2]
            i[4] = 5
            if 3 in i and i == 4:
                v += len(i)
        return i(x) * v

    return Made(f, xs(), lambda: log)


@case
def inherited_method_of_a_local_class() -> Made:
    log: list[Any] = []

    class Base:
        def note(self, x):
            log.append("base")

    class Sub(Base):
        def note(self, x):
            super().note(x)
            log.append("sub")

    def f(x):
        Sub().note(x)
        return x + 1

    return Made(f, xs(), lambda: log)


@case
def iterator_of_a_local_class() -> Made:
    log: list[Any] = []

    class Steps:
        def __init__(self, n):
            self.left = n

        def __iter__(self):
            log.append("iter")
            return self

        def __next__(self):
            log.append(self.left)
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            return self.left

    def f(x):
        for i in Steps(2):
            x = x + i
        return x

    return Made(f, xs(), lambda: log)


@case
def dataclass_of_a_local_scope() -> Made:
    log: list[Any] = []

    @dataclasses.dataclass
    class Point:
        a: int
        b: list = dataclasses.field(default_factory=list)

        def __post_init__(self):
            log.append(self.a)
            self.b.append(self.a)

    def f(x, p):
        p.a += 1
        q = Point(p.a)
        p.b = q.b
        return x + q.a, q

    return Made(f, xs(Point(1)), lambda: log)


@case
def module_of_a_local_class() -> Made:
    log: list[Any] = []
    stats = {"n": 0}

    class Net(torch.nn.Module):
        def forward(self, x):
            log.append(x.shape[0])
            stats["n"] += 1
            return x * 2

    m = Net()

    def f(x):
        return m(x)

    return Made(f, xs(), lambda: (log, stats))


@case
def nested_functions_and_lambdas() -> Made:
    log: list[Any] = []
    table: dict[str, Any] = {}
    n = 0

    def f(x):
        def inner(v):
            nonlocal n
            n += 1
            log.append((v, n))

        put = lambda k, v: table.__setitem__(k, v)  # noqa: E731
        inner(1)
        put("k", x)
        [inner(i) for i in range(2)]
        return x + n

    return Made(f, xs(), lambda: (log, table, n))


@case
def helper_closure_outside() -> Made:
    log: list[Any] = []
    n = 0

    def helper(v):
        nonlocal n
        n += 1
        log.append(v)
        return n

    def f(x):
        return x + helper(x.shape[0])

    return Made(f, xs(), lambda: (log, n, closure(helper)))


@case
def helper_closure_two_levels() -> Made:
    def counter():
        n = 0

        def step():
            nonlocal n
            n += 1
            return n

        return step

    a, b = counter(), counter()

    def f(x):
        return x + a() * 10 + b() + b()

    return Made(f, xs(), lambda: (closure(a), closure(b)))


@case
def closure_returned() -> Made:
    def f(x):
        seen = [x]
        n = 0

        def more(v):
            nonlocal n
            n += 1
            seen.append(v)
            return n, seen

        more(1)
        return more

    box: list[Any] = []

    def g(x):
        more = f(x)
        return x + 1, more

    return Made(lambda x: g(x), xs(), lambda: box)


@case
def partial_and_method_bound() -> Made:
    log: list[Any] = []
    add = functools.partial(log.append)
    bound = log.extend

    def f(x):
        add(x.shape[0])
        bound([1, 2])
        return x + 1

    return Made(f, xs(), lambda: log)


@case
def generator_with_effects() -> Made:
    log: list[Any] = []

    def steps(n):
        for i in range(n):
            log.append(i)
            yield i
        log.append("end")

    def f(x):
        for i in steps(2):
            x = x + i
        g = steps(3)
        next(g)
        return x

    return Made(f, xs(), lambda: log)


@case
def decorated_helper() -> Made:
    calls: list[str] = []

    def noted(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            calls.append(function.__name__)
            return function(*args, **kwargs)

        return wrapper

    @noted
    def double(x):
        return x * 2

    def f(x):
        return double(double(x))

    return Made(f, xs(), lambda: calls)


@case
def context_manager_of_a_generator() -> Made:
    log: list[str] = []

    @contextlib.contextmanager
    def noted():
        log.append("in")
        try:
            yield len(log)
        finally:
            log.append("out")

    def f(x):
        with noted() as n:
            return x * n

    return Made(f, xs(), lambda: log)


# ---------------------------------------------------------------- iterators as arguments


@case
def list_iterator_argument() -> Made:
    def f(x, it):
        return x + next(it)

    return Made(f, xs(iter([1, 2, 3, 4, 5])))


@case
def tuple_and_range_iterators() -> Made:
    def f(x, a, b):
        return x + next(a) + next(b)

    return Made(f, xs(iter((1, 2, 3, 4, 5)), iter(range(10))))


@case
def dict_and_set_iterators() -> Made:
    def f(x, a, b):
        next(a)
        return x + next(b)

    return Made(f, xs(iter({"a": 1, "b": 2, "c": 3, "d": 4}), iter({"a": 1, "b": 2, "c": 3, "d": 4}.values())))


@case
def generator_argument() -> Made:
    def f(x, g):
        return x + next(g)

    return Made(f, xs(i for i in range(10)))


@case
def count_and_cycle() -> Made:
    def f(x, c, d):
        return x + next(c) + next(c) + next(d)

    return Made(f, xs(itertools.count(3), itertools.cycle([1, 2])))


@case
def count_in_a_closure() -> Made:
    ids = itertools.count()

    def f(x):
        return x + next(ids)

    return Made(f, xs(), lambda: ids)


@case
def other_iterators() -> Made:
    def f(x, e, z, m, r):
        i, v = next(e)
        a, b = next(z)
        return x + i + v + a + b + next(m) + next(r)

    items = [1, 2, 3, 4, 5]
    return Made(f, xs(enumerate(items), zip(items, items, strict=False), map(abs, items), reversed(items)))


@case
def itertools_iterators() -> Made:
    def f(x, c, s):
        return x + next(c) + next(s)

    return Made(f, xs(itertools.chain([1, 2], [3, 4]), itertools.islice([5, 6, 7, 8], 1, None)))


@case
def iterator_exhausted_by_a_loop() -> Made:
    def f(x, it):
        for i in it:
            x = x + i
        return x

    return Made(f, xs(iter([1, 2, 3])))


@case
def iterator_zipped() -> Made:
    def f(x, it):
        for i, j in zip(it, it, strict=False):
            x = x + i * j
            if i > 2:
                break
        return x

    return Made(f, xs(iter(list(range(12)))))


@case
def iterator_of_a_user_class() -> Made:
    class Steps:
        def __init__(self):
            self.n = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.n += 1
            return self.n

    def f(x, s):
        return x + next(s) + next(s)

    return Made(f, xs(Steps()))


@case
def iterator_made_inside_and_kept() -> Made:
    o = types.SimpleNamespace(it=None)

    def f(x):
        o.it = iter([1, 2, 3])
        return x + next(o.it)

    return Made(f, xs(), lambda: o)


# ---------------------------------------------------------------- objects and classes


@case
def class_attribute_written() -> Made:
    class Stats:
        count = 0
        log: list[int] = []

    def f(x):
        Stats.count += 1
        Stats.log.append(Stats.count)
        return x + Stats.count

    return Made(f, xs(), lambda: (Stats.count, Stats.log))


@case
def class_attribute_of_self() -> Made:
    class Stats:
        count = 0

        def step(self):
            type(self).count += 1
            self.__class__.total = self.count
            return self.count

    s = Stats()

    def f(x):
        return x + s.step()

    return Made(f, xs(), lambda: (Stats.count, Stats.total, s))


@case
def property_setter() -> Made:
    class Box:
        def __init__(self):
            self._v, self.sets = 1, 0

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, value):
            self.sets += 1
            self._v = value * 2

        @v.deleter
        def v(self):
            self.sets = -1
            del self._v

    def f(x, b):
        b.v = 5
        r = b.v
        b.v += 1
        return x + r

    def g(x, b):
        y = f(x, b)
        del b.v
        b._v = 3
        return y

    return Made(g, xs(Box()))


@case
def slots() -> Made:
    class Slotted:
        __slots__ = ("a", "b")

        def __init__(self):
            self.a = 1

    def f(x, s):
        s.a += 1
        s.b = x
        del s.b
        s.b = 2
        return x + s.a

    return Made(f, xs(Slotted()))


@case
def setattr_override() -> Made:
    class Watched:
        def __init__(self):
            object.__setattr__(self, "log", [])

        def __setattr__(self, name, value):
            self.log.append(name)
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            self.log.append("del " + name)
            object.__delattr__(self, name)

    def f(x, w):
        w.a = x
        w.b = 2
        del w.b
        return x + len(w.log)

    return Made(f, xs(Watched()))


@case
def attributes_in_order() -> Made:
    def f(x, o):
        o.b = o.__dict__.pop("b", 0)
        o.c = x
        del o.a
        o.a = 1
        return x + 1

    return Made(f, xs(types.SimpleNamespace(a=1, b=2)))


class Simple:
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)


@case
def attributes_deleted_and_set() -> Made:
    def f(x, o):
        del o.a
        o.a = 1
        o.c = x
        return x + 1

    return Made(f, xs(Simple(a=1, b=2)))


@case
def own_dict_written() -> Made:
    def f(x, o):
        o.__dict__["z"] = x
        vars(o)["y"] = 2
        o.__dict__.update(w=3)
        o.__dict__.pop("a", None)
        return x + o.y

    return Made(f, xs(Simple(a=1, b=2)))


@case
def own_dict_reordered() -> Made:
    def f(x, o):
        o.__dict__["a"] = o.__dict__.pop("a")
        return x + 1

    return Made(f, xs(Simple(a=1, b=2)))


@case
def setattr_and_delattr() -> Made:
    def f(x, o):
        o.c = x
        for name in ("a", "b"):
            delattr(o, name)
        o.b = 5
        return x + o.b, hasattr(o, "a")

    return Made(f, [(torch.ones(2), Simple(a=1, b=2)) for _ in range(2)])


@case
def function_attributes() -> Made:
    def f(x):
        f.calls += 1
        return x + f.calls

    f.calls = 0
    return Made(f, xs())


@case
def helper_attributes() -> Made:
    def helper(x):
        helper.calls = getattr(helper, "calls", 0) + 1
        return x

    def f(x):
        return helper(x) + helper.calls

    return Made(f, xs(), lambda: helper.calls)


TOTAL = 0
ITEMS: list[Any] = []
MADE = None


@case
def globals_written() -> Made:
    global TOTAL, MADE
    TOTAL, MADE = 0, None
    ITEMS.clear()

    def f(x):
        global TOTAL, MADE
        TOTAL += 1
        ITEMS.append(x.shape[0])
        MADE = {"x": x, "items": ITEMS}
        return x + TOTAL

    return Made(f, xs(), lambda: (TOTAL, ITEMS, MADE))


@case
def global_deleted() -> Made:
    globals()["GOING"] = 1

    def f(x):
        global GOING
        y = x + GOING
        del GOING
        GOING = 5  # noqa: F841 - a global
        return y

    return Made(f, xs(), lambda: globals().get("GOING"))


@case
def globals_of_another_module() -> Made:
    other = types.ModuleType("side_effect_other")
    other.level, other.log = 0, []
    collections._precast_other = other

    def f(x):
        o = collections._precast_other
        o.level += 1
        o.log.append(o.level)
        return x + o.level

    return Made(f, xs(), lambda: (other.level, other.log))


@case
def del_method() -> Made:
    log: list[str] = []

    class Gone:
        def __del__(self):
            log.append("gone")

    def f(x):
        g = Gone()
        del g
        return x + len(log)

    return Made(f, xs(), lambda: log)


VAR: contextvars.ContextVar[int] = contextvars.ContextVar("side_effects", default=0)


@case
def context_variable() -> Made:
    VAR.set(0)

    def f(x):
        VAR.set(VAR.get() + 1)
        return x + VAR.get()

    return Made(f, xs(), VAR.get)


LOCAL = threading.local()


@case
def thread_local() -> Made:
    LOCAL.__dict__.clear()
    LOCAL.n = 0

    def f(x):
        LOCAL.n += 1
        LOCAL.last = x
        return x + LOCAL.n

    return Made(f, xs(), lambda: dict(LOCAL.__dict__))


@case
def weak_dict() -> Made:
    key = Simple(a=1)
    d: Any = weakref.WeakKeyDictionary()

    def f(x, k):
        d[k] = x
        return x + len(d)

    return Made(f, xs(key), lambda: d)


@case
def lru_cached_helper() -> Made:
    log: list[int] = []

    @functools.lru_cache(maxsize=2)
    def helper(n):
        log.append(n)
        return n * 2

    def f(x):
        return x + helper(x.shape[0])

    return Made(f, xs(sizes=(2, 2, 3, 2)), lambda: (log, tuple(helper.cache_info())))


@case
def cached_property_() -> Made:
    class Lazy:
        def __init__(self):
            self.made = 0

        @functools.cached_property
        def v(self):
            self.made += 1
            return [self.made]

    def f(x, o):
        o.v.append(2)
        return x + len(o.v) + o.made

    return Made(f, xs(Lazy()))


@case
def named_tuple_of_lists() -> Made:
    class P(NamedTuple):
        a: list
        b: int

    def f(x, p):
        p.a.append(p.b)
        q = p._replace(b=p.b + 1)
        return x + len(p.a), q

    return Made(f, xs(P([], 1)))


@case
def string_io_and_print() -> Made:
    buffer = io.StringIO()

    def f(x):
        buffer.write("hello")
        print("called with", x.shape[0])
        return x + 1

    return Made(f, xs(), lambda: buffer.getvalue())


@case
def warnings_and_writes_in_order() -> Made:
    log: list[str] = []

    def f(x):
        log.append("before")
        warnings.warn("a warning of the program", RuntimeWarning, stacklevel=1)
        log.append("after")
        return x + len(log)

    return Made(f, xs(), lambda: log)


@case
def exception_after_effects() -> Made:
    log: list[Any] = []
    d: dict[str, int] = OrderedDict(a=1, b=2)

    def f(x):
        log.append(x.shape[0])
        d.move_to_end("a")
        if x.shape[0] == 3:
            raise ValueError("three")
        return x + 1

    return Made(f, xs(sizes=(2, 3, 2, 3)), lambda: (log, d))


@case
def exception_caught_after_effects() -> Made:
    log: list[Any] = []

    def risky(n):
        log.append(n)
        raise KeyError(n)

    def f(x):
        try:
            risky(x.shape[0])
        except KeyError as e:
            log.append(e.args)
        finally:
            log.append("finally")
        return x + len(log)

    return Made(f, xs(), lambda: log)


@case
def random_state() -> Made:
    def f(x, r):
        return x + random.random() + r.randint(0, 9)

    return Made(f, xs(random.Random(5)))


@case
def random_shuffle() -> Made:
    def f(x, items):
        random.shuffle(items)
        return x + items[0]

    return Made(f, xs([1, 2, 3, 4, 5]))


@case
def several_containers_in_order() -> Made:
    class Ordered(dict):
        pass

    a: list[Any] = []
    b: dict[str, Any] = {}
    o = Simple(n=0)

    def f(x):
        a.append(b)
        b["a"] = a
        o.n += 1
        o.a = a
        b["o"] = o
        a.append(o)
        return x + len(a)

    return Made(f, xs(sizes=(2, 2)), lambda: (a, b, o))


@case
def swap_between_containers() -> Made:
    def f(x, a, b):
        a[0], b[0] = b[0], a[0]
        a[:], b[:] = list(b), list(a)
        return x + 1

    return Made(f, xs([[1], 2], [[3], 4]))


@case
def object_swapped_with_attribute() -> Made:
    def f(x, o, p):
        o.v, p.v = p.v, o.v
        o.other, p.other = p, o
        return x + 1

    return Made(f, xs(Simple(v=[1]), Simple(v=[2])))


@case
def tensor_in_many_places() -> Made:
    def f(x, d, items, o):
        y = x * 2
        d["y"] = y
        items.append(y)
        o.y = y
        o.x = x
        return y

    return Made(f, xs({}, [], Simple()))


@case
def tuple_with_a_list() -> Made:
    def f(x, t):
        t[0].append(x)
        t[1]["k"] = t
        return t

    return Made(f, xs(([], {})))


@case
def graph_break_between_effects() -> Made:
    d = OrderedDict(a=1, b=2, c=3)
    q = deque([1, 2], maxlen=3)

    def f(x):
        d.move_to_end("a")
        q.append(x)
        torch._dynamo.graph_break()
        d.move_to_end("b")
        q.appendleft(1)
        return x + len(q)

    return Made(f, xs(), lambda: (d, q))


@case
def dict_views_after_writes() -> Made:
    d = {"a": 1, "b": 2}
    keys, items = d.keys(), d.items()

    def f(x):
        d["c"] = 3
        d["a"] = d.pop("a")
        return x + len(keys), list(keys), list(items)

    return Made(f, xs(), lambda: d)


@case
def enum_and_type_keys() -> Made:
    def f(x, d):
        d[torch.float32] = d.pop(int)
        d[int] = x
        return x + 1

    return Made(f, xs({int: 1, str: 2}))


@case
def dict_keyed_by_tensor_or_module() -> Made:
    m = torch.nn.ReLU()
    d: dict[Any, Any] = {m: 1, "k": 2}

    def f(x):
        d[m] = d.pop(m)
        return x + d["k"]

    return Made(f, xs(), lambda: [(getattr(k, "__class__", k).__name__, v) for k, v in d.items()])


@case
def parameters_dict_order() -> Made:
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(1))
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            self.n = self.n + 1
            self.last = x
            return x + self.n

    m = Net()
    return Made(m.forward, xs(), lambda: (m.steps, list(m._buffers), m.n, list(m.__dict__), m.last))


# ---------------------------------------------------------------- what calls in between change


@case
def dict_pop_with_other_keys_later() -> Made:
    def f(x, d):
        return x + d.pop("a")

    dicts = [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, {"c": 3, "b": 2, "a": 1}, {"a": 1}]
    return Made(f, [(torch.ones(2), d) for d in dicts])


@case
def dict_popitem_with_other_keys_later() -> Made:
    def f(x, d):
        k, v = d.popitem()
        return x + v, k

    dicts = [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, {"b": 2, "a": 1}, {"a": 1}]
    return Made(f, [(torch.ones(2), d) for d in dicts])


@case
def dict_del_with_other_order_later() -> Made:
    def f(x, d):
        del d["b"]
        return x

    dicts = [{"a": 1, "b": 2, "c": 3}, {"c": 3, "b": 2, "a": 1}, {"b": 2, "c": 3, "a": 1, "q": 5}]
    return Made(lambda x, d: f(x * 2, d), [(torch.ones(2), d) for d in dicts])


@case
def dict_clear_with_other_keys_later() -> Made:
    def f(x, d):
        d.clear()
        d["k"] = x
        return x * 2

    dicts = [{"a": 1, "b": 2}, {"k": 1, "b": 2, "c": 3}, {}]
    return Made(f, [(torch.ones(2), d) for d in dicts])


@case
def dict_pop_default_with_the_key_later() -> Made:
    def f(x, d):
        return x + d.pop("z", 7)

    dicts = [{"a": 1}, {"a": 1, "z": 2}, {"z": 3, "a": 1, "b": 2}]
    return Made(f, [(torch.ones(2), d) for d in dicts])


@case
def ordered_popitem_with_other_order_later() -> Made:
    def f(x, d):
        k, v = d.popitem(last=False)
        return x + v, k

    a, b = OrderedDict(a=1, b=2), OrderedDict(a=1, b=2)
    b.move_to_end("a")
    return Made(f, [(torch.ones(2), d) for d in (a, b, OrderedDict(a=1, b=2, c=3), OrderedDict(b=2, a=1))])


@case
def ordered_read_after_moves_from_outside() -> Made:
    d = OrderedDict(a=1, b=2)

    def f(x):
        return x + next(iter(d.values())), list(d)

    def move():
        d.move_to_end("a")
        d.move_to_end(next(iter(d)))
        d.move_to_end(next(iter(d)))

    return Made(f, [*xs(sizes=(2, 2, 2)), move, *xs(sizes=(2, 2, 2)), move, *xs(sizes=(2, 2))])


@case
def ordered_move_with_other_order_later() -> Made:
    def f(x, d):
        d.move_to_end("b")
        return x + 1

    dicts = [OrderedDict(a=1, b=2, c=3), OrderedDict(c=3, b=2, a=1), OrderedDict(b=2, a=1, c=3, d=4)]
    dicts[2].move_to_end("c", last=False)
    return Made(f, [(torch.ones(2), d) for d in dicts])


@case
def ordered_set_with_other_order_later() -> Made:
    def f(x, d):
        d["n"] = x
        d["a"] = 4
        return x + 1

    dicts = [OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), OrderedDict(a=1, b=2)]
    dicts[2].move_to_end("a")
    return Made(f, [(torch.ones(2), d) for d in dicts])


SHARED: dict[str, Any] = {}


@case
def global_dict_with_other_order_later() -> Made:
    def fill(*keys):
        SHARED.clear()
        SHARED.update((k, ord(k)) for k in keys)

    fill("a", "b")

    def f(x):
        SHARED["n"] = x
        return x + 1

    return Made(
        f, [*xs(sizes=(2, 2)), lambda: fill("b", "a"), *xs(sizes=(2,)), lambda: fill("n", "b", "a"), *xs(sizes=(2,))], lambda: SHARED
    )


@case
def set_changes_with_other_members_later() -> Made:
    def f(x, s):
        s.discard(1)
        s.add(5)
        return x + 1

    return Made(f, [(torch.ones(2), s) for s in ({1, 2}, {1, 2, 3}, {2, 3}, {5}, {"k", 1})])


@case
def set_remove_with_other_members_later() -> Made:
    def f(x, s):
        s.remove(1)
        return x + 1

    return Made(f, [(torch.ones(2), s) for s in ({1, 2}, {1, 2, 3}, {2, 3}, {1})])


@case
def set_of_the_closure_with_other_members_later() -> Made:
    s = {1, 2}

    def f(x):
        s.discard(1)
        s.add(5)
        return x + 1

    return Made(f, [*xs(sizes=(2, 2)), lambda: s.update({1, 9}), *xs(sizes=(2, 2)), s.clear, *xs(sizes=(2,))])


@case
def deque_of_another_bound_later() -> Made:
    def f(x, d):
        d.append(x)
        return x + len(d)

    return Made(f, [(torch.ones(2), d) for d in (_deque(1, 2), _deque(1, 2, maxlen=2), _deque(1, 2, maxlen=None), _deque(1, 2, maxlen=3))])


@case
def cell_of_a_local_class_changed_from_outside() -> Made:
    scale = [2.0]

    class Scaled:
        def run(self, x):
            return x * scale[0]

    def f(x):
        return Scaled().run(x)

    return Made(f, [*xs(sizes=(2, 2)), lambda: scale.__setitem__(0, 5.0), *xs(sizes=(2, 2))])


@case
def number_in_a_local_class_changed_from_outside() -> Made:
    scale = 2.0

    class Scaled:
        def run(self, x):
            return x * scale

        def __add__(self, x):
            return x + scale

    def f(x):
        return Scaled() + Scaled().run(x)

    def change():
        nonlocal scale
        scale += 3.0

    return Made(f, [*xs(sizes=(2, 2)), change, *xs(sizes=(2, 2)), change, *xs(sizes=(2, 2))])


@case
def class_attribute_read_by_instance_and_subclass() -> Made:
    class Base:
        level = 1

        @classmethod
        def raised(cls):
            cls.level += 1
            return cls.level

    class Sub(Base):
        pass

    o = Sub()

    def f(x):
        Base.level = 5
        a = o.level, Sub.level, Base.level
        Sub.level = 7
        Base.fresh = 3
        return x + 1, a, o.level, Sub.raised(), o.fresh, getattr(o, "none", 2)

    def reset():
        Base.level = 1
        del Sub.level, Base.fresh

    return Made(f, [*xs(sizes=(2,)), reset, *xs(sizes=(2, 2))], lambda: (Base.level, Sub.level, Base.fresh))


@case
def class_method_replaced() -> Made:
    class Worker:
        def run(self, x):
            return x + 1

    w = Worker()

    def f(x):
        a = w.run(x)
        Worker.run = lambda self, x: x * 10
        b = w.run(x)
        return a, b

    first = Worker.run
    return Made(f, [*xs(sizes=(2,)), lambda: setattr(Worker, "run", first), *xs(sizes=(2,))])


@case
def attribute_of_a_function_deleted() -> Made:
    def helper(x):
        return x * getattr(helper, "scale", 1)

    def f(x):
        return helper(x)

    return Made(
        f, [*xs(sizes=(2, 2)), lambda: setattr(helper, "scale", 3), *xs(sizes=(2, 2)), lambda: delattr(helper, "scale"), *xs(sizes=(2,))]
    )


@case
def lru_cached_list_is_one_object() -> Made:
    @functools.lru_cache
    def helper(n):
        return [n]

    def f(x):
        helper(2).append(x.shape[0])
        return x + len(helper(2)), helper(2)

    return Made(f, xs())


@case
def lru_cached_tensor_is_one_object() -> Made:
    @functools.lru_cache
    def table(n):
        return torch.zeros(n)

    def f(x):
        t = table(2)
        t.add_(1)
        return x + t.sum(), t is table(2)

    return Made(f, xs())


@case
def lru_cached_reads_what_changes() -> Made:
    state = {"v": 1}

    @functools.lru_cache
    def helper(n):
        return state["v"] + n

    def f(x):
        return x + helper(1)

    return Made(f, [*xs(sizes=(2, 2)), lambda: state.update(v=10), *xs(sizes=(2, 2)), helper.cache_clear, *xs(sizes=(2,))])


@case
def lru_cached_constants() -> Made:
    @functools.lru_cache
    def helper(n):
        return n * 2, "k"

    def f(x):
        return x + helper(3)[0]

    return Made(f, xs())


@case
def sets_sorted() -> Made:
    def f(x, s):
        t = {10, 3, 1, 2}
        t.add(0)
        s.add(4)
        s.discard(9)
        return x + 1, sorted(t), sorted(s), len(t), 4 in s

    return Made(f, [(torch.ones(2), {9, 3, 17, 2}) for _ in range(2)])


@case
def set_pop_of_many() -> Made:
    def f(x, s):
        a = s.pop()
        t = {10, 3, 1, 2}
        return x + a, t.pop()

    return Made(f, [(torch.ones(2), {9, 3, 17, 2}) for _ in range(2)])


@case
def iterators_returned() -> Made:
    def f(x, items):
        it = iter(items)
        next(it)
        made = iter([1, 2])
        return x + 1, it, made, iter((1, 2)), iter(range(3)), enumerate([5, 6]), zip([1], [2], strict=True), map(abs, [1]), reversed([1, 2])

    return Made(f, xs([1, 2, 3]))


@case
def views_returned() -> Made:
    def f(x, d):
        d["n"] = x
        return x + 1, d.keys(), d.values(), d.items()

    return Made(lambda x, d: f(x, d)[0] + len(f(x, d)[1]), xs({"a": 1}))


@case
def instance_dict_kept() -> Made:
    def f(x, o, keep):
        d = o.__dict__
        o.c = x
        d["z"] = 2
        keep.append(d)
        return x + len(d), o.z

    return Made(f, xs(Simple(a=1), []))


@case
def unbound_methods() -> Made:
    def f(x, d, items, s, e):
        dict.__setitem__(e, "k", x)
        dict.pop(e, "a", None)
        list.append(items, 1)
        list.sort(items)
        set.add(s, 3)
        OrderedDict.move_to_end(d, "b")
        return x + 1

    return Made(f, xs(OrderedDict(a=1, b=2, c=3), [5, 4], {1}, {"a": 1}))


@case
def super_calls_of_a_dict() -> Made:
    class Counting(OrderedDict):
        hits = 0

        def get(self, key, default=None):
            self.hits += 1
            if key in self:
                super().move_to_end(key)
            return super().get(key, default)

        def pop(self, key):
            value = super().pop(key)
            super().__setitem__("popped", key)
            return value

    def f(x, d):
        d.get("a")
        d["q"] = d.pop("b")
        return x + d.hits

    return Made(f, [(torch.ones(2), Counting(a=1, b=2, c=3)) for _ in range(2)])


@case
def equal_but_other_containers() -> Made:
    def f(x, a, b):
        same = a == b
        a.move_to_end("p")
        return x + 1, same, a == b, a == dict(b), a is b

    return Made(f, [(torch.ones(2), OrderedDict(p=1, q=2), OrderedDict(p=1, q=2)) for _ in range(2)])


@case
def deque_popleft_of_empty_raises() -> Made:
    def f(x, d):
        d.append(x)
        d.popleft()
        d.popleft()
        return x

    return Made(f, xs(_deque()))


@case
def deque_while_iterated_raises() -> Made:
    def f(x, d):
        for i in d:
            d.append(i)
        return x + 1

    return Made(f, xs(_deque(1, 2, maxlen=None), sizes=(2,)))


@case
def dict_while_iterated_raises() -> Made:
    def f(x, d):
        try:
            for k in d:
                d[k + "x"] = 1
        except RuntimeError as e:
            return x + 1, str(e)
        return x + 2

    return Made(f, xs({"a": 1, "b": 2}, sizes=(2,)))


@case
def deque_aliased() -> Made:
    o = Simple(d=None)
    d = _deque(1, 2)

    def f(x):
        d.append(x)
        o.d = d
        d.appendleft(5)
        o.twice = [d, d]
        return x + len(o.d), d

    return Made(f, xs(), lambda: (o, d))


@case
def dict_inside_itself() -> Made:
    def f(x, d, q, od, s):
        d["self"] = d
        q.append(q)
        od["self"] = [od]
        od.move_to_end("a")
        s.append((s,))
        return x + len(d)

    return Made(f, [(torch.ones(2), {"a": 1}, _deque(1), OrderedDict(a=1, b=2), [1]) for _ in range(2)])


@case
def two_dicts_in_each_other() -> Made:
    def f(x, a, b):
        fresh = {"a": a}
        fresh["self"] = fresh
        a["b"], b["a"] = b, a
        a["fresh"] = fresh
        b["list"] = [a, b, fresh]
        return x + 1, fresh

    return Made(f, [(torch.ones(2), {"k": 1}, OrderedDict(k=2)) for _ in range(2)])


@case
def own_dict_read_after_writes() -> Made:
    def f(x, o):
        o.z = x
        o.a = 5
        o.__dict__["y"] = 2
        del o.b
        return x + 1, list(o.__dict__), [k for k in vars(o)], len(o.__dict__)

    return Made(f, [(torch.ones(2), Simple(a=1, b=2, c=3)) for _ in range(2)])
