"""`precast diff A B` of two artifacts, or of two programs, of one store: in words, with what to do about the misses that follow."""

from __future__ import annotations

from precast.artifact_store import Manifest, RecordError, Store
from precast.cli.output import ANSWER_NO, Failure, Output, finish, open_store
from precast.cli.store.show import find
from precast.report.artifact_diff import artifact_differences, lines, program_differences


def diff_artifacts(out: Output, first: str, second: str, store_path: str | None) -> None:
    """`first` and `second`: ids of artifacts, or the first characters of some, or program keys. Exit code 1 where they differ."""
    store = open_store(store_path, existing=True)
    left, right = _variants(store, first), _variants(store, second)
    try:
        if left is not None and right is not None:
            names, found = (first, second), program_differences(left, right)
        elif left is None and right is None:
            one, two = find(store, first), find(store, second)
            names, found = (_name(one), _name(two)), artifact_differences(one, two)
        else:
            raise Failure("one of the two is a program key, and the other is not: give two keys, or two ids of artifacts")
    except RecordError as error:
        raise Failure(f"{error}; `precast verify --repair` sets it aside") from error
    out.data({"first": names[0], "second": names[1], "same": not found, "differences": [item.to_dict() for item in found]})
    out.text(f"{names[0]} and {names[1]}:")
    for line in lines(found):
        out.text(line)
    finish(ANSWER_NO if found else 0)


def _variants(store: Store, key: str) -> list[Manifest] | None:
    """The artifacts of the program with this key; None where there is no such program."""
    return store.variants(key) if key in store.program_keys() else None


def _name(manifest: Manifest) -> str:
    return f"{manifest.program_name} {manifest.artifact_id[:12]}"
