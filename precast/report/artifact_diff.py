"""How two artifacts, or two programs, differ, in words: which function changed, which version, which guard, and what follows from that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from precast.artifact_store import Manifest
from precast.artifact_store.format.text import inline, many
from precast.artifact_store.statistics.causes import WORDS, Cause

SHOWN = 20
"""Guards and functions that are named of each kind; the others are counted."""


@dataclass(frozen=True)
class Difference:
    """One difference. `text`: in words; `cause`: of the misses that it makes, "" where it makes none; `fix`: what to do about these."""

    text: str
    cause: str = ""

    @property
    def fix(self) -> str:
        return WORDS[Cause(self.cause)].fix if self.cause else ""

    def to_dict(self) -> dict[str, str]:
        """For programs."""
        return {"text": self.text, "cause": self.cause, "fix": self.fix}


def artifact_differences(left: Manifest, right: Manifest) -> list[Difference]:
    """What differs between two artifacts, what decides their code first. Raises RecordError for a manifest that cannot be read."""
    return [
        *_programs(left, right),
        *_versions(left, right),
        *_code(left.digests, right.digests),
        *_options(left.options, right.options),
        *_guards(left, right),
        *_results(left, right),
    ]


def program_differences(left: Iterable[Manifest], right: Iterable[Manifest]) -> list[Difference]:
    """What differs between the artifacts of two program keys: of each pair for one target and with the fewest differences between them."""
    mine, others = list(left), list(right)
    found: list[Difference] = []
    if not mine or not others:
        return [Difference("one of the two has no artifacts", Cause.NO_ARTIFACT)] if mine or others else []
    for manifest in mine:
        pairs = [artifact_differences(manifest, other) for other in others]
        nearest = min(pairs, key=len)
        found += [difference for difference in nearest if difference not in found]
    return found


def _programs(left: Manifest, right: Manifest) -> Iterator[Difference]:
    if left.program_name != right.program_name:
        yield Difference(f"the program: {left.program_name} != {right.program_name}", Cause.NO_ARTIFACT)
    elif left.program_key != right.program_key and left.options == right.options:
        yield Difference(f"the code of {_function(left.program_name)} itself changed, or the name that it was given", Cause.CODE)
    if left.target != right.target:
        yield Difference(f"the target: {left.target} != {right.target}", Cause.TARGET)


def _versions(left: Manifest, right: Manifest) -> Iterator[Difference]:
    causes = {"torch": Cause.TORCH, "python": Cause.PYTHON, "lowering": Cause.LOWERING}
    words = {"torch": "torch", "python": "Python", "lowering": "lowering version", "compiler": "compiler"}
    for field, name in words.items():
        mine, other = getattr(left.versions, field), getattr(right.versions, field)
        if mine != other:
            yield Difference(f"{name} {mine or 'none'} != {other or 'none'}", causes.get(field, ""))


def _function(name: str) -> str:
    """`module:qualname` as "function `qualname` in `module.py`"; without the number that tells functions of one name apart."""
    module, _, qualname = name.partition("#")[0].partition(":")
    kind, _, home = module.rpartition(" ")
    if not module or not qualname:
        return f"function `{qualname or name}`"
    what = {"operator": "operator"}.get(kind, "function")
    return f"{what} `{qualname}` in `{home.replace('.', '/')}.py`"


def _code(left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[Difference]:
    mine, others = _by_function(left), _by_function(right)
    changed = sorted(name for name in mine.keys() & others.keys() if mine[name] != others[name])
    gone, new = sorted(mine.keys() - others.keys()), sorted(others.keys() - mine.keys())
    yield from _named((f"{_function(name)} changed" for name in changed), len(changed), "function changed", "functions changed")
    yield from _named((f"{_function(name)} is compiled in by the first only" for name in gone), len(gone), "function", "functions")
    yield from _named((f"{_function(name)} is compiled in by the second only" for name in new), len(new), "function", "functions")


def _by_function(digests: Mapping[str, str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, digest in digests.items():
        found.setdefault(name.partition("#")[0], set()).add(digest)
    return found


def _named(texts: Iterable[str], count: int, one: str, several: str) -> Iterator[Difference]:
    for number, text in enumerate(texts):
        if number == SHOWN:
            yield Difference(f"and {many(count - SHOWN, f'further {one}', f'further {several}')}", Cause.CODE)
            return
        yield Difference(text, Cause.CODE)


def _options(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Difference]:
    for name in sorted({*left, *right}):
        if left.get(name) != right.get(name):
            yield Difference(f"option {name}: {left.get(name)!r} != {right.get(name)!r}", Cause.OPTIONS)


def _guards(left: Manifest, right: Manifest) -> Iterator[Difference]:
    if left.guard_hash == right.guard_hash:
        return
    mine, others = _by_place(left), _by_place(right)
    places = list(dict.fromkeys((*mine, *others)))
    differing = [place for place in places if mine.get(place) != others.get(place)]
    for place in differing[:SHOWN]:
        yield Difference(_guard_text(place, mine.get(place), others.get(place)), Cause.GUARDS)
    if len(differing) > SHOWN:
        yield Difference(f"and {many(len(differing) - SHOWN, 'further guard')}", Cause.GUARDS)


_Place = tuple[str, str]
_Guards = list[tuple[str, Any]]


def _by_place(manifest: Manifest) -> dict[_Place, _Guards]:
    """Guards, in words and as data, by what they look at and how."""
    from precast.runtime.guards.text import guard_columns  # words need torch

    found: dict[_Place, _Guards] = {}
    for path, predicate, constant in manifest.guard_rows:
        where, kind, value = guard_columns(path, predicate, constant)
        found.setdefault((where, kind), []).append((value, constant))
    return found


def _guard_text(place: _Place, mine: _Guards | None, other: _Guards | None) -> str:
    where, kind = place
    head = f"guard {kind} on {where}"
    if mine is None or other is None:
        words = "; ".join(value for value, _ in mine or other or ())
        return f"{head}{f' ({words})' if words else ''} is asked by the {'first' if other is None else 'second'} only"
    return f"{head} expects {_words(mine, other)}, and {_words(other, mine)} in the second"


def _words(guards: _Guards, others: _Guards) -> str:
    """What these guards expect; of two that are maps, the fields in which they differ."""
    if len(guards) == len(others) == 1 and isinstance(guards[0][1], Mapping) and isinstance(others[0][1], Mapping):
        one, two = guards[0][1], others[0][1]
        return inline({name: value for name, value in one.items() if two.get(name) != value}) or "nothing more"
    return "; ".join(value for value, _ in guards)


def _results(left: Manifest, right: Manifest) -> Iterator[Difference]:
    """What a compilation of one and the same identity may still make otherwise: choices that were measured, the compiler's output."""
    if left.artifact_id != right.artifact_id or left.checksum == right.checksum:
        return
    if left.evidence != right.evidence:
        yield Difference("the same identity, and other choices were measured (`precast show ID`)")
    if set(left.blobs) != set(right.blobs):
        yield Difference(f"the same identity, and {many(len(set(left.blobs) ^ set(right.blobs)), 'blob differs', 'blobs differ')}")
    if not set(left.blobs) ^ set(right.blobs) and left.evidence == right.evidence:
        yield Difference("the same content, made at another time or by another build")


def lines(differences: Iterable[Difference]) -> list[str]:
    """For people: each difference, and once for each cause what to do."""
    found = list(differences)
    if not found:
        return ["no difference"]
    texts = [f"- {difference.text}" for difference in found]
    causes = dict.fromkeys(difference.cause for difference in found if difference.cause)
    return [*texts, *(f"{cause}: {WORDS[Cause(cause)].fix}" for cause in causes)]


__all__ = ["Difference", "artifact_differences", "lines", "program_differences"]
