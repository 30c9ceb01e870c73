"""The variants of a program: several threads ask for them at once, the store changes meanwhile, users' modules do as they like."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from precast.artifact_store import Store
from precast.artifact_store.trust.trusted import made_here
from precast.runtime.common.errors import LoadError
from precast.runtime.guards.differentiating import Differing
from precast.runtime.programs import variant_cache as shelves
from precast.runtime.programs.variant_cache import Shelf, _preference

WAIT = 20.0
"""Seconds; only a test that fails waits for so long."""


class OneVariant:
    """Stands in for a variant that fits or does not; `asked` runs at each check."""

    stored, symbolic, breaks, target = True, False, False, "cpu:x86-64-v3"
    compiled, manifest = True, None
    guards = ()

    def __init__(self, artifact_id: str, fits: bool = True, asked: Callable[[], Any] = lambda: None) -> None:
        self.artifact_id = artifact_id
        self.fits = fits
        self.asked = asked
        self.hits = 0

    def check(self, local_values: Any, cells: Any) -> bool:
        self.asked()
        return self.fits

    def bind(self, local_values: Any, cells: Any) -> Any:
        return self


class Owner:
    """A program with artifacts in a folder that last changed long ago. `judge` stands for users' modules, imported when one is judged."""

    name, key = "program", "key"

    def __init__(self, root: Path, *held: str) -> None:
        self.held = list(held)
        self.used: list[str] = []
        self.judge: Callable[[], str] = lambda: ""
        self.opened: list[OneVariant] = []
        self.folder = root / "programs" / self.key
        self.folder.mkdir(parents=True)
        self.change(1)
        self.store: Any = SimpleNamespace(
            changed=Store(root).changed, used=self.used.append, trusted_variants=lambda key: [self.document(held) for held in self.held]
        )

    @staticmethod
    def document(artifact_id: str) -> Any:
        return made_here(SimpleNamespace(artifact_id=artifact_id, target="cpu:x86-64-v3"))

    def change(self, nanoseconds: int) -> None:
        os.utime(self.folder, ns=(nanoseconds, nanoseconds))

    def open_variant(self, artifact: Any) -> Any:
        self.opened.append(OneVariant(artifact.document.content.artifact_id))
        return self.opened[-1]

    def useless(self, manifest: Any) -> str:
        return self.judge()


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path, "first")


def find(shelf: Shelf) -> Any:
    return shelf.find({}, {}, look=True)


def in_thread(do: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(do()), daemon=True)
    thread.start()
    return thread, results


def test_a_thread_that_asked_while_another_looked_gets_what_that_one_found(owner: Owner) -> None:
    shelf = Shelf(owner)
    judging, asked = threading.Event(), threading.Event()

    def judge() -> str:
        judging.set()
        assert asked.wait(WAIT)
        return ""

    def note() -> None:
        if threading.current_thread() is not first:
            asked.set()  # the second thread has seen the shelf as it was

    shelf.variants = (OneVariant("no fit", fits=False, asked=note),)  # type: ignore[assignment]
    owner.judge = judge
    first = threading.Thread(target=lambda: results.append(find(shelf)), daemon=True)
    results: list[Any] = []
    first.start()
    assert judging.wait(WAIT)
    second, others = in_thread(lambda: find(shelf))
    first.join(WAIT)
    second.join(WAIT)
    assert results == others == owner.opened


def test_a_module_whose_import_waits_for_another_call_of_the_program(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "PATIENCE_SECONDS", 0.01, raising=False)
    shelf = Shelf(owner)
    judging, done = threading.Event(), threading.Event()

    def judge() -> str:
        if not judging.is_set():
            judging.set()
            assert done.wait(WAIT), "deadlock"
        return ""

    owner.judge = judge
    thread, found = in_thread(lambda: find(shelf))
    assert judging.wait(WAIT)
    other, others = in_thread(lambda: (find(shelf), done.set()))
    thread.join(WAIT)
    other.join(WAIT)
    assert [found[0], others[0][0]] == [*shelf.variants] * 2 and len(shelf.variants) == 1


def test_an_import_that_calls_the_program_itself(owner: Owner) -> None:
    shelf = Shelf(owner)
    inner: list[Any] = []

    def judge() -> str:
        owner.judge = lambda: "half of the module is there"
        inner.append(find(shelf))
        return ""

    owner.judge = judge
    assert find(shelf) in shelf.variants and inner == [None]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_a_module_raises_while_it_is_imported_loses_nothing(owner: Owner, error: type[BaseException]) -> None:
    shelf = Shelf(owner)
    owner.held.append("second")
    raised: list[int] = []

    def judge() -> str:
        if not raised:
            raised.append(1)
            raise error("from a user's module")
        return ""

    owner.judge = judge
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            find(shelf)
    else:
        assert find(shelf).artifact_id == "second", "the others are looked at all the same"
    for variant in shelf.variants:
        variant.fits = False  # type: ignore[union-attr]
    assert find(shelf).artifact_id == "first"


def test_a_reset_while_the_store_is_looked_through(owner: Owner) -> None:
    shelf = Shelf(owner)

    def judge() -> str:
        owner.judge = lambda: ""
        shelf.clear()  # as another thread may, after code was reloaded: what was judged before does not count
        return ""

    owner.judge = judge
    found = find(shelf)
    assert [found] == list(shelf.variants) == owner.opened[1:] and len(owner.opened) == 2


def test_a_reset_while_a_hit_is_counted(owner: Owner) -> None:
    shelf = Shelf(owner)

    class Cleared(tuple):  # type: ignore[type-arg]
        def __getitem__(self, at: Any) -> Any:
            shelf.clear()
            return super().__getitem__(at)

    variant: Any = OneVariant("first")
    shelf.variants = Cleared([OneVariant("another"), variant])
    shelf.count_hit(variant)
    assert variant.hits == 1 and owner.used == ["first"], "the call did use it"
    assert shelf.variants == (), "what was forgotten meanwhile is not put in front again"


def test_the_first_use_is_noted_when_two_calls_count_at_once(owner: Owner) -> None:
    class Busy(OneVariant):
        count = 0

        @property
        def hits(self) -> int:
            return self.count

        @hits.setter
        def hits(self, value: int) -> None:
            self.count = value and value + 1  # another thread counts its own just now

    shelf = Shelf(owner)
    shelf.count_hit(Busy("first"))  # type: ignore[arg-type]
    assert owner.used == ["first"]


def test_an_artifact_that_came_at_the_same_time_as_the_one_that_was_seen(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(owner)
    now = 1_000_000_000_000
    monkeypatch.setattr("time.time_ns", lambda: now)
    owner.change(now)
    find(shelf).fits = False
    owner.held.append("second")
    owner.change(now)
    assert find(shelf).artifact_id == "second"


def test_what_was_dropped_is_tried_again_when_the_folder_has_changed(owner: Owner) -> None:
    shelf = Shelf(owner)
    find(shelf)

    def damaged(local_values: Any, cells: Any) -> Any:
        raise LoadError("blobs are missing")

    owner.opened[0].bind = damaged  # type: ignore[method-assign]
    assert find(shelf) is None and find(shelf) is None and len(owner.opened) == 1
    owner.change(2)
    assert find(shelf) is owner.opened[1]


def test_what_tells_variants_apart_is_asked_for_different_ones_at_once() -> None:
    class Interrupted(Differing):
        """Another thread checks others as soon as this one has noted anything."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if getattr(self, "others", None):
                others = self.others
                super().__setattr__("others", ())
                self.check(others[0], others, {}, {})

        others: tuple[Any, ...] = ()

    one, other = (OneVariant(name) for name in ("first", "second"))
    differing = Interrupted()
    object.__setattr__(differing, "others", (other,))
    assert differing.check(one, (one,), {}, {})


def test_whole_frames_are_tried_before_those_that_break_and_static_sizes_before_symbolic_ones() -> None:
    """Whatever their ids are, which differ from machine to machine: of two artifacts that fit a call the better one serves it."""
    from precast.runtime.targets.ladder import resolve

    here = resolve("cpu:native")
    wanted = [(False, False), (False, True), (True, False), (True, True)]
    variants = [SimpleNamespace(target=here, breaks=breaks, symbolic=symbolic) for breaks, symbolic in reversed(wanted)]
    assert [(v.breaks, v.symbolic) for v in sorted(variants, key=_preference)] == wanted  # type: ignore[arg-type]
