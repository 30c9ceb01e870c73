"""The tally of a build, and how the display draws it."""

from __future__ import annotations

import io

from rich.console import Console

from precast.building.progress import Tally, span
from precast.cli.output import Output
from precast.cli.programs import build_progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def drawn(tally: Tally) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(build_progress.drawing(tally))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_rate_and_time_left() -> None:
    clock = Clock()
    tally = Tally(10, clock)
    assert tally.rate == 0.0 and tally.left is None and str(tally) == "0 of 10, 0 failed"
    for _ in range(4):
        clock.now += 2
        tally.ended(good=True)
    assert tally.rate == 0.5 and tally.left == 12.0 and str(tally) == "4 of 10, 0 failed, 30.0 a minute, about 12 s left"
    tally.ended(good=False)
    tally.again = 1
    assert str(tally).startswith("5 of 10, 1 failed, 1 run again, ")


def test_the_rate_is_that_of_the_last_minute() -> None:
    clock = Clock()
    tally = Tally(1000, clock)
    for _ in range(10):  # a slow beginning
        clock.now += 100
        tally.ended(good=True)
    for _ in range(120):
        clock.now += 0.5
        tally.ended(good=True)
    assert 1.9 < tally.rate < 2.1


def test_more_signatures_than_expected_are_counted() -> None:
    tally = Tally(1, Clock())
    for _ in range(3):
        tally.ended(good=True)
    assert tally.total == 3 and "3 of 3" in str(tally)


def test_what_each_worker_does_is_drawn_the_longest_first() -> None:
    clock = Clock()
    tally = Tally(40, clock)
    for number in range(20):
        tally.began(f"process {number}", f"p{number}: compiling")
        clock.now += 1
    tally.idle("process 0")
    tally.ended(good=True)
    lines = drawn(tally).splitlines()
    assert "1 of 40, 0 failed" in lines[0] and "20 s so far" in lines[0]
    assert lines[1].split() == ["process", "1", "19", "s", "p1:", "compiling"]
    assert lines[-1].strip() == "and 3 more" and len(lines) == 1 + build_progress.ROWS + 1


def test_a_name_with_brackets_is_no_style() -> None:
    tally = Tally(1, Clock())
    tally.began("a", "net[bold]: compiling")
    assert "net[bold]: compiling" in drawn(tally)


def test_a_log_gets_a_sign_of_life() -> None:
    said: list[str] = []
    out = Output()
    out.note = said.append  # type: ignore[method-assign]
    clock = Clock()
    tally, lines = Tally(2, clock), build_progress.Lines(out)
    tally.began("a", "net: compiling signature 1 of 2 for cpu:x86-64-v3")
    lines.show(tally)
    assert said == []
    clock.now = 31
    lines._said -= 31
    lines.show(tally)
    lines.show(tally)
    assert said == ["0 of 2, 0 failed; for 31 s: net: compiling signature 1 of 2 for cpu:x86-64-v3"]


def test_spans_as_people_say_them() -> None:
    assert [span(seconds) for seconds in (0.4, 61, 600, 7200)] == ["0 s", "61 s", "10 min", "2.0 h"]
