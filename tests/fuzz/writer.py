"""Random Python programs around tensors, as source text: loops, branches on data, closures, containers, mutation, side effects, breaks."""

from __future__ import annotations

from collections.abc import Sequence

HEAD = """
import math
import torch

SCALE = 2.0
LOG = []
STATE = {"calls": 0, "seen": []}


class Box:
    limit = 3

    def __init__(self):
        self.count = 0
        self.value = 1.5
        self.last = None

    def step(self, t, by=1):
        self.count += by
        return t * self.value + min(self.count, self.limit)

    @property
    def double(self):
        return self.value * 2

    def __len__(self):
        return self.count


BOX = Box()


def helper(t, k=2, *rest, shift=0.0):
    for r in rest:
        t = t + r
    return t * k + shift


def chatty(t):
    print("chatty", tuple(t.shape))
    return t - 1


def numbers(n):
    for i in range(n):
        yield i * SCALE


def deep(t, n):
    return t if n <= 0 else deep(t + n, n - 1)


def make_adder(k):
    def add(t):
        return t + k
    return add
"""
SIGNATURE = "def program(x, y, n, flag, items, options):"
"""x: float tensor (r, 4), y: float tensor (4,), n: int, flag: bool, items: list of floats, options: dict of str to float."""

EXPRESSIONS = (
    "{a} + {b}",
    "{a} * y",
    "torch.relu({a})",
    "torch.tanh({a}) * SCALE",
    "{a} - {a}.mean()",
    "{a}.softmax(-1)",
    "torch.where({a} > 0, {a}, {b})",
    "helper({a}, n + 1, shift=k)",
    "helper({a}, 1.5, *items[:2])",
    "BOX.step({a})",
    "BOX.step({a}, by=n) * BOX.double",
    "chatty({a})",
    "deep({a}, n)",
    "make_adder(n * 0.5)({a})",
    "{a} + sum(items)",
    "{a} * options.get('gain', 1.0)",
    "{a} + len(BOX) + Box.limit",
    "(lambda t, s=n: t * s + k)({a})",
    "sum((v * {a} for v in numbers(n)), {b})",
    "torch.stack([{a} + i for i in range(n + 1)]).sum(0)",
    "{{'p': {a}, 'q': {b}}}['p' if flag else 'q']",
    "max(({a}, {b}), key=lambda t: t.dim())",
    "functools_like({a})",
    "{a}[:, :2].repeat(1, 2)",
    "torch.cat([{a}[:, 2:], {b}[:, :2]], 1)",
    "{a} * math.sqrt(n + 1.0)",
    "{a} + {a}.shape[0] * 0.25",
    "{a}.clone().add_(k)",
    "{a} / (1.0 + {b}.abs())",
    "torch.no_grad()(lambda t: t + 1)({a})",
)
SIMPLE = (
    "k += 1",
    "k = k * 0.5 + n",
    "LOG.append(n)",
    "LOG.append(round(k, 3))",
    "STATE['calls'] += 1",
    "STATE.setdefault('seen', []).append(flag)",
    "SCALE = SCALE + 0.5",
    "BOX.value = BOX.value + 0.25",
    "BOX.last = {a}",
    "print('k', round(float(k), 3), n)",
    "print(f'{{n}} {{flag}} {{len(items)}}')",
    "items.append(k)",
    "items[0] = items[0] + 1.0",
    "options['seen'] = options.get('seen', 0.0) + 1.0",
    "x.add_(0.125)",
    "{a}, {b} = {b}, {a}",
    "k = float({a}.sum().item() > 0)",
    "assert n >= 0, 'n'",
    "del LOG[:-3]",
    "parts = [*items, k]; k = sorted(parts)[0]",
    "pairs = dict(zip(('u', 'v'), ({a}, {b}))); {a} = pairs['v']",
    "first, *others = ({a}, {b}, {c}); {b} = others[-1]",
    "BOX.note = 'n%d' % n",
    "{a}[0, 0] = k",
    "seen = {{i % 2 for i in range(n + 1)}}; k += len(seen)",
)
HEADS = (
    "for i in range(n):",
    "for v in items[:3]:",
    "for i, v in enumerate(items[:2]):",
    "for key, v in sorted(options.items()):",
    "while k < 2 and turns < 4:",
    "if flag:",
    "if n > 1:",
    "if {a}.sum() > 0:",
    "if {a}.max().item() > 1.0 and not flag:",
    "if 'gain' in options:",
    "if BOX.count > 2 or len(LOG) > 2:",
    "try:",
    "with torch.no_grad():",
    "def inner(t):",
    "for t in ({a}, {b}):",
    "if isinstance(n, int) and items:",
)
EXITS = ("break", "continue", "if k > 3: break", "if n == 2: continue", "if {a}.sum() < 0: break")
RAISES = ("raise ValueError(n)", "_ = options['absent']", "_ = items[99]", "_ = 1 / (n - n)", "pass")
NAMES = ("a", "b", "c")


RETURNS = ("return a, b, k", "return {'a': a, 'b': [b, c], 'k': k}", "return a + b", "return a, x, BOX.count, tuple(items)")


class Writer:
    """Consumes choices (whole numbers) and writes one program; equal choices give an equal text. Choices that run out count as 0."""

    head = HEAD
    expressions: Sequence[str] = EXPRESSIONS
    simple: Sequence[str] = SIMPLE
    heads: Sequence[str] = HEADS
    returns: Sequence[str] = RETURNS

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = iter(choices)
        self._lines: list[str] = []

    def write(self) -> str:
        """The source of a module with a function `program`."""
        self._lines = [SIGNATURE, "    global SCALE", "    k = 1.0", "    a, b, c = x * 2, x + y, x - 1"]
        for _ in range(2 + self._pick(6)):
            self._statement(1, in_loop=False)
        self._line(1, self.returns[self._pick(len(self.returns))])
        return self.head + FUNCTOOLS_LIKE + "\n\n" + "\n".join(self._lines) + "\n"

    def _pick(self, count: int) -> int:
        return next(self._choices, 0) % count

    def _line(self, depth: int, text: str) -> None:
        self._lines.append("    " * depth + text)

    def _filled(self, template: str) -> str:
        at = self._pick(3)
        a, b, c = NAMES[at:] + NAMES[:at]
        return template.format(a=a, b=b, c=c)

    def _statement(self, depth: int, in_loop: bool) -> None:
        kind = self._pick(8)
        if kind < 3 or (kind > 5 and depth > 3):
            self._line(depth, f"{NAMES[self._pick(3)]} = {self._filled(self.expressions[self._pick(len(self.expressions))])}")
        elif kind < 6:
            self._line(depth, self._filled(self.simple[self._pick(len(self.simple))]))
        else:
            self._block(depth, in_loop)

    def _block(self, depth: int, in_loop: bool) -> None:
        head = self._filled(self.heads[self._pick(len(self.heads))])
        loop = head.startswith(("for", "while"))
        if head.startswith("while"):
            self._line(depth, "turns = 0")
        self._line(depth, head)
        if head.startswith("def"):
            self._line(depth + 1, "nonlocal k")
            self._line(depth + 1, "k += 0.5")
            self._line(depth + 1, f"return t * k + {NAMES[self._pick(3)]}")
            self._line(depth, f"{NAMES[self._pick(3)]} = inner({NAMES[self._pick(3)]}) + inner(y)")
            return
        if head.startswith("while"):
            self._line(depth + 1, "k, turns = k + 1, turns + 1")
        for _ in range(1 + self._pick(2)):
            self._statement(depth + 1, in_loop or loop)
        if head == "try:":
            self._line(depth + 1, RAISES[self._pick(len(RAISES))])
            self._line(
                depth, ("except (ValueError, LookupError, ZeroDivisionError) as error:", "except Exception as error:")[self._pick(2)]
            )
            self._line(depth + 1, "LOG.append(type(error).__name__)")
            if self._pick(2):
                self._line(depth, "finally:")
                self._line(depth + 1, "k += 0.25")
        elif loop and self._pick(3) == 0:
            self._line(depth + 1, self._filled(EXITS[self._pick(len(EXITS))]))
        elif head.startswith("if") and self._pick(2):
            self._line(depth, "else:")
            self._statement(depth + 1, in_loop)


FUNCTOOLS_LIKE = """

def functools_like(t, *, memo={}):
    memo["n"] = memo.get("n", 0) + 1
    return t * memo["n"]
"""
