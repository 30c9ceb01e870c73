"""Fingerprints of code: what was read of a function, in a form that a later process can compare, naming the parts that differ."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_MOST = 200
"""How many parts a fingerprint lists one by one; a longer one only tells code from constants."""
_CODE = "code of "


@dataclass(frozen=True)
class Line:
    """One part of a fingerprint: a label for people, and the text that is digested."""

    label: str
    text: str


def code_line(function: str, digest: str) -> Line:
    """The part that says which code a function has."""
    return Line(_CODE + function, digest)


@dataclass(frozen=True)
class Account:
    """A fingerprint. `digest`: of all parts; `modules`: those that must be imported to compute it again; `items`: label -> short digest."""

    digest: str
    modules: tuple[str, ...]
    items: dict[str, str]

    @classmethod
    def of(cls, lines: Iterable[Line], modules: Iterable[str]) -> Account:
        """The fingerprint of these parts, with the modules from which they were read."""
        whole, code, rest = (hashlib.sha256() for _ in range(3))
        items: dict[str, str] = {}
        seen: Counter[str] = Counter()
        for line in lines:
            data = line.text.encode("utf-8", "surrogatepass")
            for part in (whole, code if line.label.startswith(_CODE) else rest):
                part.update(data + b"\n")
            seen[line.label] += 1
            label = line.label if seen[line.label] == 1 else f"{line.label} #{seen[line.label]}"
            items[label] = hashlib.sha256(data).hexdigest()[:8]
        if len(items) > _MOST:
            items = {f"{_CODE}one of many functions": code.hexdigest()[:8], "one of many constants": rest.hexdigest()[:8]}
        return cls(whole.hexdigest()[:32], tuple(sorted(modules)), items)

    @classmethod
    def read(cls, text: str) -> Account:
        """The inverse of `text`. Text of another form gives a fingerprint that equals none."""
        digest, _, rest = text.partition(" ")
        try:
            modules, items = json.loads(rest) if rest else ([], {})
            return cls(digest, tuple(map(str, modules)), {str(label): str(value) for label, value in items.items()})
        except (ValueError, TypeError, AttributeError):
            return cls("", (), {})

    def text(self) -> str:
        """The form that manifests hold: the digest first."""
        return f"{self.digest} {json.dumps([self.modules, self.items], separators=(',', ':'))}"

    def differing(self, other: Account) -> list[str]:
        """The labels of the parts in which the two differ."""
        return sorted(label for label in self.items.keys() | other.items.keys() if self.items.get(label) != other.items.get(label))

    def differs_in_values(self, other: Account) -> list[str]:
        """The labels of the constants in which the two differ; empty where they differ in code as well."""
        found = self.differing(other)
        return [] if self.items.keys() != other.items.keys() or any(label.startswith(_CODE) for label in found) else found


def names_of(labels: Iterable[str]) -> str:
    """`: a, b, c, …`; empty where there are none."""
    first, rest = (every := list(labels))[:3], every[3:]
    return f": {', '.join(first)}{f' and {len(rest)} more' if rest else ''}" if first else ""
