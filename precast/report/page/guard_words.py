"""Guards for people: what each predicate asks for, in words, with its guards as `precast show --guards` and misses print them."""

from __future__ import annotations

from dataclasses import dataclass

from precast.artifact_store import Manifest, Predicate
from precast.runtime.guards.tensor_spec import describe_tensor
from precast.runtime.guards.text import guard_columns

WORDS = {
    Predicate.TENSOR: "Tensors have this type, size, stride and device",
    Predicate.SHAPE: "Sizes are related in this way",
    Predicate.GLOBAL_STATE: "torch's global state is this",
    Predicate.NOT_ALIASED: "Tensors share no memory, and are different objects",
    Predicate.SAME_DEVICE: "Tensors are on one GPU",
    Predicate.RUNS_ON: "Tensors are on a GPU that runs the target",
    Predicate.UNMARKED: "Tensors carry no marks of dynamic sizes",
    Predicate.MARKS: "Tensors carry no other marks of dynamic sizes than these",
    Predicate.EQUALS: "Values are these",
    Predicate.BASE_EQUALS: "Values, taken as their base type, are these",
    Predicate.LENGTH: "Containers have this many elements",
    Predicate.KEYS: "Mappings have these keys",
    Predicate.HAS_KEY: "Mappings have a key",
    Predicate.LACKS_KEY: "Mappings lack a key",
    Predicate.EMPTY: "Modules have no hooks here",
    Predicate.TYPE: "Objects are of exactly this class",
    Predicate.CODE: "Functions have the code that was traced",
    Predicate.KERNEL: "Triton kernels are the ones that were compiled",
    Predicate.CLASSES: "Classes look names up as they did",
    Predicate.IS: "Names stand for these objects",
    Predicate.SAME_AS: "Two paths lead to one object",
    Predicate.NOT_NONE: "Values are not None",
    Predicate.HAS_ATTR: "Objects have an attribute",
    Predicate.LACKS_ATTR: "Objects lack an attribute",
    Predicate.LACKS_OWN: "Objects do not cover up what their classes say",
    Predicate.ITERATOR: "Iterators are at this place",
}

_FACTS = {"dtype", "size", "stride", "device", "layout", "requires_grad", "offset", "type", "conj", "neg"}


@dataclass(frozen=True)
class GuardKind:
    """`rows`: path and value of each guard of one predicate."""

    predicate: str
    words: str
    rows: tuple[tuple[str, str], ...]


def guard_kinds(manifest: Manifest) -> list[GuardKind]:
    """All guards of an artifact by their predicates, those about a call's tensors first."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path, predicate, constant in sorted(manifest.guard_rows, key=lambda row: len(row[0]) > 1):  # the call's own arguments first
        where, _, value = guard_columns(path, predicate, constant)
        whole = predicate == Predicate.TENSOR and constant.keys() >= _FACTS  # another precast's may lack some
        found.setdefault(str(predicate), []).append((where, describe_tensor(constant) if whole else value))
    order = {str(predicate): (place, words) for place, (predicate, words) in enumerate(WORDS.items())}
    names = sorted(found, key=lambda name: order.get(name, (len(order), ""))[0])
    return [GuardKind(name, order.get(name, (0, name))[1], tuple(found[name])) for name in names]


__all__ = ["WORDS", "GuardKind", "guard_kinds"]
