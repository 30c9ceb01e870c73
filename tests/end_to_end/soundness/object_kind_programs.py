"""More programs that leave something behind, by the kind of object: subclasses of containers, namespaces, byte arrays, generators, errors.

Their variables are those that torch 2.14 and 2.15 have written anew along CPython's slots. They are cases of side_effect_programs.py.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import operator
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import torch

from tests.end_to_end.soundness import side_effect_programs
from tests.end_to_end.soundness.side_effect_programs import Made, xs

CASES: dict[str, Any] = {}


def case(make: Any) -> Any:
    CASES[make.__name__] = make
    return side_effect_programs.case(make)


class Listing(list):
    pass


class Tailing(list):
    def append(self, item):
        super().append(item)
        super().append("after")

    def pop(self, *place):
        self.popped = getattr(self, "popped", 0) + 1
        return super().pop(*place)


class Ring(deque):
    def append(self, item):
        self.appended = getattr(self, "appended", 0) + 1
        super().append(item)


class Members(set):
    def add(self, member):
        self.last = member
        super().add(member)


class Fixed(frozenset):
    pass


class Table(dict):
    pass


class Missing(dict):
    def __missing__(self, key):
        self[key] = key + "!"
        return self[key]


class Ordered(OrderedDict):
    pass


class Defaults(defaultdict):
    pass


class Tally(Counter):
    pass


class Pair(collections.namedtuple("Pair", "a b")):
    pass


class Plain:
    kind = "plain"

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Odd(ValueError):
    def __init__(self, code, *rest):
        super().__init__(code, *rest)
        self.code = code


# ---------------------------------------------------------------- byte arrays and namespaces


@case
def bytearray_of_the_caller() -> Made:
    data = bytearray(b"abc")
    alias = [data]

    def f(x, b):
        b.append(1)
        b.extend(b"xy")
        b[0:1] = b"zz"
        del b[-1]
        b += b"!"
        data.reverse()
        alias[0].append(b.pop())
        return x + len(b) + b[0], b.hex(), bytes(b)

    return Made(f, [(torch.ones(2), bytearray(b"q")) for _ in range(3)], lambda: (data, alias))


@case
def bytearray_with_other_contents_later() -> Made:
    def f(x, b):
        b[0] += 1
        return x * b[0], b"k" in b, b.find(b"k"), bytearray(b)

    return Made(f, [(torch.ones(2), bytearray(given)) for given in (b"ak", b"bk", b"cc", b"dddd")])


@case
def bytearray_made_inside() -> Made:
    kept = []

    def f(x):
        b = bytearray(3)
        b[1] = 7
        c = b * 2
        kept.append(c)
        c[0] = 9
        return x + sum(c), b, c, b is c, b == bytearray(b), iter(b)

    return Made(f, xs(), lambda: kept)


@case
def namespace_of_the_caller() -> Made:
    def f(x, n):
        n.c = n.a
        n.a = x
        del n.b
        n.__dict__["d"] = 4
        return x + n.d, list(vars(n)), hasattr(n, "b"), getattr(n, "b", None)

    return Made(f, [(torch.ones(2), types.SimpleNamespace(a=1, b=2)) for _ in range(3)])


@case
def namespace_with_other_attributes_later() -> Made:
    def f(x, n):
        n.total = sum(vars(n).values())
        return x + n.total, list(vars(n))

    spaces = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {"a": 3, "b": 2}]
    return Made(f, [(torch.ones(2), types.SimpleNamespace(**given)) for given in spaces])


@case
def namespace_made_inside() -> Made:
    def f(x):
        n = types.SimpleNamespace(b=[1], a=x)
        m = types.SimpleNamespace(**vars(n))
        m.b.append(2)
        n.me = n
        return n, m, n.b is m.b, m == types.SimpleNamespace(b=[1, 2], a=x), repr(types.SimpleNamespace(z=1, y="s"))

    return Made(f, xs())


@case
def own_dict_replaced() -> Made:
    def f(x, o):
        held = o.__dict__
        o.__dict__ = {"b": x, "c": 3}
        o.d = 4
        held["a"] = 5
        return x + o.d, held, list(o.__dict__), hasattr(o, "a")

    return Made(f, [(torch.ones(2), Plain(a=1)) for _ in range(2)])


@case
def own_dict_held_and_changed() -> Made:
    def f(x, o):
        held = vars(o)
        o.z = x
        held["y"] = 2
        held |= {"w": 1}
        held.update(v=0)
        o.__dict__.pop("a")
        return x + o.y, held is o.__dict__, list(held), len(held), "a" in held

    return Made(f, [(torch.ones(2), Plain(a=1, b=2)) for _ in range(2)])


# ---------------------------------------------------------------- lists, deques and sets of users


@case
def list_of_a_subclass() -> Made:
    def f(x, items):
        items.append(x)
        items[0] = "first"
        items.name = "n"
        items += [4]
        items.sort(key=str)
        del items[1]
        items.insert(1, items.name)
        items[2:] = [7, 8]
        items *= 2
        return x + len(items), items.pop(0), items.index(7), items[1:3], type(items[1:3]) is list, items == list(items)

    return Made(f, [(torch.ones(2), Listing([1, 2, 3])) for _ in range(3)])


@case
def list_of_a_subclass_that_overrides() -> Made:
    items = Tailing([1])

    def f(x):
        items.append(2)
        got = items.pop(), items.pop(0)
        items.extend([x])
        list.append(items, "native")
        items.pop()
        return x + items.popped, got

    return Made(f, xs(), lambda: items)


@case
def list_of_a_subclass_made_inside() -> Made:
    def f(x):
        items = Tailing()
        items.append(x)
        items.owner = items
        other = Listing(items)
        other.append(1)
        return items, other, Listing([1]) + Listing([2]), isinstance(other.copy(), Listing)

    return Made(f, xs())


@case
def list_of_a_subclass_with_other_items_later() -> Made:
    def f(x, items):
        items.append(len(items))
        return x + items[0], items[-1]

    return Made(f, [(torch.ones(2), Listing(given)) for given in ([1], [1, 2], [3], [3, 2, 1])])


@case
def list_of_a_subclass_in_two_places() -> Made:
    items = Listing([1])
    holder = {"a": items, "b": [items]}

    def f(x):
        holder["a"].append(2)
        holder["b"][0].append(len(items))
        holder["c"] = items
        return x + len(items), holder["c"] is holder["a"]

    return Made(f, xs(), lambda: (items, holder))


@case
def deque_of_a_subclass_bounded() -> Made:
    def f(x, q):
        q.append(x)
        q.appendleft(0)
        q.rotate(1)
        q.extend([5, 6])
        deque.append(q, 7)
        q.tag = "t"
        return x + len(q), q.maxlen, q[0], list(q), q.copy(), q.popleft()

    return Made(f, [(torch.ones(2), Ring([1, 2], bound)) for bound in (3, 3, None, 4)])


@case
def deque_of_a_subclass_made_inside() -> Made:
    def f(x):
        q = Ring([1, 2, 3], maxlen=2)
        q.append(x)
        r = Ring(maxlen=3)
        r.extendleft(q)
        return q, r, q + r, q * 2

    return Made(f, xs())


@case
def deque_made_again() -> Made:
    q = deque([1, 2, 3], maxlen=3)

    def f(x):
        q.__init__([4, 5, 6, 7], 2)
        q.append(x)
        return x + len(q), q.maxlen

    return Made(f, xs(), lambda: q)


@case
def deque_iterators_kept_and_hinted() -> Made:
    q = deque([1, 2, 3])

    def f(x):
        it, back = iter(q), reversed(q)
        first = next(it), next(back)
        hints = operator.length_hint(it), operator.length_hint(back)
        q.append(4)
        try:
            next(it)
        except RuntimeError as error:
            first += (str(error),)
        return x + len(q), first, hints, list(reversed(q))

    return Made(f, xs(), lambda: q)


@case
def set_of_a_subclass() -> Made:
    def f(x, s):
        s.add(4)
        s |= {5}
        s.discard(1)
        s.name = "n"
        s.update([6, 7])
        s -= {7}
        set.add(s, 8)
        return x + len(s), s.last, sorted(s), s == {2, 4, 5, 6, 8}, type(s | {1}) is Members

    return Made(f, [(torch.ones(2), Members([1, 2])) for _ in range(3)])


@case
def set_of_a_subclass_with_other_members_later() -> Made:
    def f(x, s):
        s.add(3)
        return x + len(s), 1 in s

    return Made(f, [(torch.ones(2), Members(given)) for given in ([1], [1, 2], [2], [3])])


@case
def set_of_a_subclass_pop() -> Made:
    def f(x, s):
        taken = s.pop()
        return x + len(s), taken

    return Made(f, [(torch.ones(2), Members(given)) for given in ([33, 1, 17], [1], [17, 33])])


@case
def frozenset_of_a_subclass() -> Made:
    def f(x, s):
        s.seen = True
        t = Fixed([1, *s])
        return x + len(t), t, t | {9}, s & t, frozenset(s) == s, frozenset(t := frozenset([1, 2])) is t

    return Made(f, [(torch.ones(2), Fixed([2, 3])) for _ in range(2)])


@case
def set_operations_on_themselves() -> Made:
    s, t = {1, 2, 3}, {2, 3, 4}

    def f(x):
        u = s & t
        s.intersection_update(t)
        t.symmetric_difference_update({4, 5})
        u.difference_update(u)
        s.update(s, [9])
        return x + len(s), u, s.isdisjoint(u), s <= t, sorted(s ^ t)

    return Made(f, xs(), lambda: (s, t))


# ---------------------------------------------------------------- dicts of users


@case
def dict_of_a_subclass_with_other_order_later() -> Made:
    def f(x, d):
        d["new"] = x
        return x + d["a"]

    return Made(f, [(torch.ones(2), Table(given)) for given in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"c": 3, "a": 1}, {"a": 4, "b": 2})])


@case
def dict_of_a_subclass_popitem_with_other_order_later() -> Made:
    def f(x, d):
        d.name = d.popitem()
        return x + d.name[1]

    return Made(f, [(torch.ones(2), Table(given)) for given in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2})])


@case
def dict_of_a_subclass_del_and_set() -> Made:
    def f(x, d):
        d["a"] = d.pop("a")
        del d["b"]
        d.setdefault("b", []).append(x)
        d |= {"c": 1}
        d.update({"d": 2}, e=3)
        return x + len(d), list(d), d.get("zz"), dict(d) == d, d.copy(), type(d.copy()) is dict, d | {"q": 1}

    return Made(f, [(torch.ones(2), Table(a=1, b=2)) for _ in range(2)])


@case
def dict_with_missing() -> Made:
    def f(x, d):
        got = d["a"], d["a"], d.get("b")
        del d["a"]
        return x + len(d), got, d["c"], "b" in d

    return Made(f, [(torch.ones(2), Missing(z="z")) for _ in range(2)] + [(torch.ones(2), Missing(a="own"))])


@case
def ordered_dict_of_a_subclass_with_other_order_later() -> Made:
    def f(x, d):
        d.move_to_end("a", last=False)
        d["k"] = d.pop("b", 0)
        d.who = "me"
        return x + len(d), next(iter(d)), next(reversed(d))

    orders = ({"a": 1, "b": 2, "c": 3}, {"c": 3, "b": 2, "a": 1}, {"a": 1, "b": 2, "c": 3}, {"b": 2, "a": 1})
    return Made(f, [(torch.ones(2), Ordered(given)) for given in orders])


@case
def ordered_dicts_compared_and_joined() -> Made:
    a, b = OrderedDict(x=1, y=2), OrderedDict(y=2, x=1)

    def f(x):
        joined = a | b
        b.move_to_end("y")
        a.__ior__({"z": x})
        return x + len(joined), joined, a == b, OrderedDict(x=1, y=2) == b, dict(b) == {"y": 2, "x": 1}, list(reversed(a)), {"q": 1} | b

    return Made(f, xs(), lambda: (a, b))


@case
def ordered_dict_moved_with_last_by_place() -> Made:
    def f(x, d):
        d.move_to_end("b", False)
        k, v = d.popitem(False)
        d[k] = v
        return x + v, list(d.items())

    return Made(f, [(torch.ones(2), OrderedDict(a=1, b=2, c=3)) for _ in range(2)])


@case
def default_dict_factory_replaced() -> Made:
    d = defaultdict(list, a=[1])

    def f(x):
        d["b"].append(x)
        d.default_factory = dict
        d["c"]["k"] = 1
        d["a"].append(len(d))
        d.default_factory = list
        return x + len(d), d.get("zz"), d.copy(), d | {"j": 2}

    return Made(f, xs(), lambda: d)


@case
def default_dict_with_other_order_later() -> Made:
    def f(x, d):
        d["n"] += 1
        k, _ = d.popitem()
        d["m"] = d.pop("a")
        return x + d["m"], k, list(d)

    return Made(f, [(torch.ones(2), defaultdict(int, given)) for given in ({"a": 1, "n": 2}, {"n": 2, "a": 1}, {"a": 1, "b": 2})])


@case
def default_dict_of_a_subclass() -> Made:
    def f(x, d):
        d["b"].append(x)
        d.name = "n"
        d["a"] = d.pop("a")
        return x + len(d), list(d), d.default_factory is list

    return Made(f, [(torch.ones(2), Defaults(list, given)) for given in ({"a": 1}, {"a": 1, "z": 2}, {"z": 2, "a": 1})])


@case
def counter_of_a_subclass() -> Made:
    c, t = Counter("aab"), Tally("xxy")

    def f(x):
        c.update("bc")
        t["x"] -= 1
        del c["a"]
        t.subtract({"y": 2})
        c["q"] += 2
        return x + c["b"], c.most_common(1), t.total(), +t, c + Counter(b=1), c["none"], list(c)

    return Made(f, xs(), lambda: (c, t))


@case
def dict_views_and_their_operations() -> Made:
    d = {"a": 1, "b": 2}

    def f(x):
        keys, items = d.keys(), d.items()
        d["c"] = 3
        both = keys & {"a", "c"}, keys - {"a"}, ("b", 2) in items, len(items)
        del d["a"]
        return x + len(keys), both, list(items), list(reversed(d)), list(reversed(d.values())), keys == {"b", "c"}, keys.mapping["b"]

    return Made(f, [(torch.ones(2),)], lambda: d)


# ---------------------------------------------------------------- lists


@case
def lists_share_what_they_repeat() -> Made:
    def f(x, outer):
        rows = [[]] * 3
        rows[0].append(x)
        outer *= 2
        outer[0].append(1)
        outer[1:3] = outer[::-1][:2]
        outer[::2] = ["even"] * len(outer[::2])
        del outer[::3]
        return rows, rows[0] is rows[2], outer, x + len(outer)

    return Made(f, [(torch.ones(2), [[], [0]]) for _ in range(2)])


class Colour(enum.IntFlag):
    RED = 1
    BLUE = 2


@case
def flags_of_several_members() -> Made:
    kept = [Colour.RED]

    def f(x, items):
        kept[0] = Colour.RED | Colour.BLUE if items else Colour(0)
        return x + int(kept[0]), kept[0]

    return Made(f, [(torch.ones(2), [1]), (torch.ones(2), []), (torch.ones(2), [1])], lambda: [str(kept[0]), int(kept[0])])


@case
def random_sample_and_seed() -> Made:
    def f(x):
        first = random.sample(range(10), 3)
        random.seed(5)
        return x * random.random(), first, random.randint(0, 100), random.getstate()[1][:2]

    return Made(f, [(torch.ones(2),) for _ in range(3)])


@case
def generator_of_the_caller() -> Made:
    def count():
        i = 0
        while True:
            i += 1
            yield i

    held = count()

    def f(x):
        return x * next(held)

    return Made(f, [(torch.ones(2),) for _ in range(3)], lambda: next(held))


@case
def list_sorted_by_a_key_with_effects() -> Made:
    asked = []

    def key(item):
        asked.append(item)
        return -item

    def broken(item):
        if item == 3:
            raise KeyError(item)
        return item

    def f(x, items):
        items.sort(key=key)
        try:
            items.sort(key=broken)
        except KeyError as error:
            asked.append(error.args)
        return x + items[0], sorted(items, key=key, reverse=True), max(items, key=key), min(items)

    return Made(f, [(torch.ones(2), [3, 1, 2]) for _ in range(2)], lambda: asked)


@case
def iterators_while_their_list_changes() -> Made:
    items, d = [1, 2, 3], {"a": 1, "b": 2}

    def f(x):
        back = reversed(items)
        first = next(back)
        items.append(4)
        rest = next(back)
        forward = iter(items)
        seen = next(forward)
        items.append(5)
        return x + first, rest, seen, list(back), list(reversed(d)), list(forward)

    return Made(f, [(torch.ones(2),)], lambda: items)


@case
def iterator_of_the_caller_is_taken_from() -> Made:
    def f(x, it):
        first = next(it)
        second = next(it, "none")
        return x + first, second

    kinds = (lambda: iter([1, 2, 3]), lambda: iter((1, 2, 3)), lambda: iter(range(1, 4)), lambda: reversed([3, 2, 1]), lambda: iter([1]))
    return Made(f, [(torch.ones(2), make()) for make in kinds])


@case
def lazy_iterators_run_when_asked() -> Made:
    log = []

    def note(item):
        log.append(item)
        return item

    def f(x):
        lazy = map(note, [1, 2, 3])
        unused = filter(note, [7])
        log.append("made")
        first = next(lazy)
        a, b = iter([1, 2, 3]), iter([4])
        zipped = list(zip(a, b, strict=False))
        left = list(a)
        tail, head = itertools.tee(map(note, [8, 9]))
        got = next(tail), list(head), list(tail)
        chained = itertools.chain.from_iterable([note(5)] for _ in range(2))
        log.append("before the chain")
        list(chained)
        grouped = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])]
        del unused
        return x + first, zipped, left, got, grouped, lazy

    return Made(f, xs(), lambda: log)


@case
def augmented_assignments_keep_identity() -> Made:
    held = {"list": [1], "set": {1}, "tuple": ([1],)}

    def f(x):
        a = held["list"]
        a += [2]
        b = held["list"]
        b = b + [3]
        operator.iadd(held["list"], (4,))
        s = held["set"]
        s |= {2}
        try:
            held["tuple"][0] += [5]
        except TypeError as error:
            a.append(str(error))
        held["set"] -= {1}
        return x + len(a), a is held["list"], b is a, s is held["set"], held["tuple"]

    return Made(f, xs(), lambda: held)


@case
def copies_that_are_none() -> Made:
    t, fs, items, d = (1, 2), frozenset([1]), [1], {"a": 1}

    class Here:
        def method(self):
            return self

    here = Here()

    def f(x):
        same = tuple(t) is t, t[:] is t, frozenset(fs) is fs, fs.copy() is fs, t * 1 is t, here.method() is here
        other = list(items) is items, items[:] is items, dict(d) is d, d.copy() is d, items * 1 is items
        methods = here.method == here.method, here.method is here.method, here.method.__func__ is Here.method
        return x + 1, same, other, methods, d.items() == d.items(), d.keys() is d.keys()

    return Made(f, xs())


# ---------------------------------------------------------------- generators and comprehensions


@case
def generators_with_send_throw_and_close() -> Made:
    log = []

    def talk(start):
        total = start
        try:
            while True:
                try:
                    got = yield total
                except KeyError as error:
                    log.append(("thrown", error.args))
                    got = 100
                total += got or 0
        finally:
            log.append(("closed", total))

    def f(x):
        g = talk(1)
        seen = [next(g), g.send(5), g.throw(KeyError("k"))]
        g.close()
        try:
            next(g)
        except StopIteration:
            seen.append("stopped")
        return x + sum(seen[:3]), seen

    return Made(f, xs(), lambda: log)


@case
def generator_returns_through_yield_from() -> Made:
    log = []

    def inner(n):
        for i in range(n):
            log.append(i)
            yield i
        return "result"

    def outer(n):
        got = yield from inner(n)
        log.append(got)
        yield got
        yield from [7, 8]

    def f(x, n):
        g = outer(n)
        first = next(g)
        log.append("between")
        return x + first, list(g), sum(inner(2)), any(i == 0 for i in inner(3))

    return Made(f, xs(2), lambda: log)


@case
def generator_kept_between_calls() -> Made:
    holder = Plain(count=0)

    def numbers():
        while True:
            holder.count += 1
            yield holder.count

    holder.numbers = numbers()

    def f(x):
        return x + next(holder.numbers), holder.count

    return Made(f, xs(), lambda: holder.count)


@case
def generator_made_inside_and_returned() -> Made:
    log = []

    def f(x):
        values = [1, 2]
        lazy = (log.append(v) or v * 2 for v in values)
        values.append(3)
        first = next(lazy)
        return x + first, lazy

    return Made(f, [(torch.ones(2),)], lambda: log)


@case
def comprehensions_with_effects() -> Made:
    seen, table = [], {}

    def f(x, n):
        got = [last := i * 2 for i in range(n) if seen.append(i) is None]
        functions = [lambda: i for i in range(3)]  # noqa: B023 - the late binding is what is tested
        keep = {k: table.setdefault(k, []) for k in ("b", "a", "b")}
        keep["a"].append(last)
        nested = [[(i, j) for j in range(i)] for i in range(3)]
        return x + last, got, [g() for g in functions], keep, nested, {v % 2 for v in got}, keep["a"] is table["a"]

    return Made(f, xs(3), lambda: (seen, table))


@case
def comprehension_with_a_graph_break() -> Made:
    seen = []

    def step(x, i):
        seen.append(i)
        torch._dynamo.graph_break()
        return x * i

    def f(x):
        parts = [step(x, i) for i in (1, 2)]
        d = {i: step(x, i) for i in (3,)}
        return parts[0] + parts[1], d, len(seen)

    return Made(f, xs(), lambda: seen)


# ---------------------------------------------------------------- exceptions


@case
def exceptions_with_attributes() -> Made:
    caught = []

    def risky(n):
        if n:
            error = Odd(n, "rest")
            error.extra = [n]
            raise error
        return n

    def f(x, n):
        try:
            risky(n)
        except Odd as error:
            error.extra.append("caught")
            error.code += 1
            error.args = (*error.args, "more")
            caught.append((type(error).__name__, error.args, error.code, error.extra, str(error), error.__cause__ is None))
        else:
            caught.append("none")
        finally:
            caught.append("finally")
        return x + len(caught)

    return Made(f, [(torch.ones(2), n) for n in (1, 1, 0, 2)], lambda: caught)


@case
def exceptions_chained() -> Made:
    caught = []

    def f(x):
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                caught.append(error.args)
                raise ValueError("outer") from error
        except ValueError as error:
            caught.append((error.args, type(error.__cause__), error.__cause__.args, error.__suppress_context__))
        try:
            try:
                {}["absent"]
            finally:
                caught.append("cleanup")
        except LookupError as error:
            caught.append((type(error), error.args, error.__context__ is None))
        return x + len(caught)

    return Made(f, xs(), lambda: caught)


@case
def exception_of_the_caller_is_changed() -> Made:
    def f(x, error):
        error.args = (1, 2)
        error.note = x
        try:
            raise error
        except ValueError as same:
            return x + len(same.args), same is error, same.note

    return Made(f, [(torch.ones(2), ValueError("v")) for _ in range(2)])


@case
def exception_made_inside_and_returned() -> Made:
    def f(x):
        error = Odd(3, "r")
        error.extra = x
        other = KeyError("k")
        other.__cause__ = error
        return error, error.args, other.args, other.__cause__ is error, isinstance(error, ValueError)

    return Made(f, xs())


@case
def loops_left_by_exceptions() -> Made:
    log = []

    class Guard:
        def __enter__(self):
            log.append("enter")
            return self

        def __exit__(self, kind, error, trace):
            log.append(None if kind is None else kind.__name__)
            return kind is KeyError

    def f(x):
        for i in range(4):
            with Guard():
                try:
                    if i == 1:
                        continue
                    if i == 2:
                        raise KeyError(i)
                    if i == 3:
                        break
                finally:
                    log.append(i)
        else:
            log.append("else")
        return x + i

    return Made(f, xs(), lambda: log)


# ---------------------------------------------------------------- closures, classes, functions


@case
def cells_deleted_and_set() -> Made:
    value: Any = 1
    other: Any = [1]

    def f(x, n):
        nonlocal value, other
        had = value
        del value
        if n > 1:
            value = n
        else:
            try:
                had = value
            except NameError as error:
                had = type(error).__name__
            value = "again"
        other = [*other, n]
        return x + n, had

    return Made(f, [(torch.ones(2), n) for n in (1, 2, 1)], lambda: (value, other))


@case
def cell_left_empty() -> Made:
    value: Any = 1

    def f(x):
        nonlocal value
        try:
            r = x + value
        except NameError:
            return x
        del value
        return r

    return Made(f, xs())


@case
def attributes_of_functions_and_defaults() -> Made:
    def helper(x, into=[], *, also={}):  # noqa: B006 - the default that stays is what is tested
        into.append(len(into))
        also[len(also)] = 1
        helper.calls = getattr(helper, "calls", 0) + 1
        return x + len(into)

    def f(x):
        def local():
            return local.tag

        local.tag = "t"
        return helper(x), local(), helper.__name__, vars(local), local.__defaults__

    return Made(f, xs(), lambda: (helper.__defaults__, helper.__kwdefaults__, vars(helper)))


@case
def descriptors_with_state() -> Made:
    class Logged:
        def __set_name__(self, owner, name):
            self.name, self.log = name, []

        def __get__(self, instance, owner):
            self.log.append("get")
            return self if instance is None else instance.__dict__.get(self.name, "unset")

        def __set__(self, instance, value):
            self.log.append("set")
            instance.__dict__[self.name] = value

        def __delete__(self, instance):
            self.log.append("delete")
            instance.__dict__.pop(self.name, None)

    class Owner:
        field = Logged()

    owner = Owner()

    def f(x):
        before = owner.field
        owner.field = x
        after = owner.field
        del owner.field
        owner.other = 1
        return x + 1, before, after, owner.field

    return Made(f, xs(), lambda: (vars(Owner)["field"].log, owner))


@case
def class_attributes_through_class_methods() -> Made:
    class Registry:
        made: list[Any] = []
        count = 0

        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            Registry.made.append(cls.__name__)

        @classmethod
        def add(cls, item):
            cls.count += 1
            cls.made.append(item)
            return cls

    class Sub(Registry):
        pass

    def f(x):
        Registry.add("r")
        same = Sub.add("s") is Sub
        setattr(Registry, "extra", len(Registry.made))  # noqa: B010 - the call is what is tested
        return x + Registry.count, same, Sub.__dict__.get("count"), hasattr(Sub, "extra")

    return Made(f, [(torch.ones(2),) for _ in range(3)], lambda: (Registry.made, Registry.count, Sub.count, Registry.extra))


@case
def class_of_an_object_replaced() -> Made:
    class A:
        def who(self):
            return "A"

    class B:
        def who(self):
            return "B"

    def f(x, o):
        before = o.who()
        o.__class__ = B
        return x + 1, before, o.who(), type(o) is B, isinstance(o, A)

    return Made(f, [(torch.ones(2), A()) for _ in range(2)])


@case
def data_classes_of_all_kinds() -> Made:
    @dataclasses.dataclass(slots=True)
    class Slotted:
        a: Any
        b: list[Any] = dataclasses.field(default_factory=list)

    @dataclasses.dataclass(frozen=True, order=True)
    class Frozen:
        a: int
        b: int = 2

    def f(x, s):
        s.b.append(x)
        s.a += 1
        new = Slotted(x)
        new.b.append(1)
        fixed = dataclasses.replace(Frozen(1), b=5)
        try:
            fixed.a = 3
        except AttributeError as error:
            new.b.append(type(error).__name__)
        return x + s.a, new, fixed, fixed > Frozen(1), Frozen(1) == Frozen(1), hash(Frozen(1)) == hash(Frozen(1)), dataclasses.asdict(fixed)

    return Made(f, [(torch.ones(2), Slotted(1)) for _ in range(2)])


@case
def named_tuple_of_a_subclass() -> Made:
    def f(x, p):
        q = p._replace(b=x)
        p.b.append(1)
        p.note = "n"
        a, b = q
        return x + a, q, q.b is x, p[1] is p.b, p == (1, [1]), Pair(*p) == p, p + (3,)

    return Made(f, [(torch.ones(2), Pair(1, [])) for _ in range(2)])


@case
def random_generator_of_the_caller() -> Made:
    r = random.Random(5)

    def f(x):
        a = r.random()
        b = r.randint(1, 10)
        items = [1, 2, 3, 4]
        r.shuffle(items)
        return x + a, b, items, r.choice(items), r.uniform(0, 1)

    return Made(f, xs(), lambda: r.random())


@case
def partials_with_state() -> Made:
    def helper(into, x, *, by=1):
        into.append(by)
        return x * by

    p = functools.partial(helper, [], by=2)

    def f(x):
        q = functools.partial(p, by=3)
        q.tag = "t"
        r = functools.reduce(lambda total, v: total + v, [1, 2, 3])
        return p(x) + q(x), q.keywords, q.args[0] is p.args[0], q.tag, r

    return Made(f, xs(), lambda: (p.args, p.keywords))


__all__ = ["CASES"]
