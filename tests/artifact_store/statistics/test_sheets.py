"""Sheets of counts: many processes, crashes at any byte, folding, limits, and the figures that are made of them."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import pytest

from precast.artifact_store import Store
from precast.artifact_store.statistics import sheets
from precast.artifact_store.statistics.causes import WORDS, Cause, Outcome
from precast.artifact_store.statistics.fold import DAY, HOUR, fold
from precast.artifact_store.statistics.places import FOLDER, folder_to_write, state_folder
from precast.artifact_store.statistics.series import FIGURES, LONGEST, MOST, Ledger, Series
from precast.artifact_store.statistics.sheets import FOLDED, Sheet, append, files, machine_name, read
from precast.artifact_store.statistics.summary import Summary, summarise, summary_of
from tests.artifact_store.sample import fill

KEY = "model-0123abcd"
CALLS = Series("calls", KEY)


def sheet(end: float, calls: int = 1, process: int = 1, **more: float) -> Sheet:
    sums = {CALLS: calls, **{Series(figure, KEY): value for figure, value in more.items()}}
    return Sheet(end - 1, end, machine_name(), "/store", sums, {KEY: "model"}, 1, process)


def calls_in(folder: Path) -> float:
    return sum(item.sums.get(CALLS, 0) for item in read(folder))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    append(tmp_path / "new" / "folder", sheet(time.time(), 3, saved_seconds=1.5))
    (found,) = read(tmp_path / "new" / "folder")
    assert found.sums == {CALLS: 3, Series("saved_seconds", KEY): 1.5} and found.names == {KEY: "model"} and found.process == 1


def _append_many(folder: Path, process: int) -> None:
    for _ in range(200):
        append(folder, sheet(time.time(), 1, process))


def test_many_processes_append_to_one_file_and_lose_nothing(tmp_path: Path) -> None:
    workers = [multiprocessing.get_context("fork").Process(target=_append_many, args=(tmp_path, number)) for number in range(1, 9)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert calls_in(tmp_path) == 1600 and len(files(tmp_path)) == 1
    assert summarise(read(tmp_path)).processes == 8


def test_a_file_cut_anywhere_loses_its_last_line_at_most(tmp_path: Path) -> None:
    now = time.time()
    for number in range(3):
        append(tmp_path, sheet(now, 10**number))
    (name,) = files(tmp_path)
    whole = (tmp_path / name).read_bytes()
    ends = [place for place in range(1, len(whole)) if whole[place - 1 : place + 1] == b"}\n"]
    for cut in range(0, len(whole), 7):
        (tmp_path / name).write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends)  # a line without its line end is whole, too
        assert calls_in(tmp_path) == [0, 1, 11, 111][complete]
        append(tmp_path, sheet(now, 1000))
        assert calls_in(tmp_path) == [0, 1, 11, 111][complete] + 1000, "a torn line takes no other with it"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"v":2}',
        b"[" * 100_000,
        b'{"v":1,"begin":0,"end":1,"machine":"m","store":"s","processes":1,"names":{},"sums":[["calls"]]}',
        b'{"v":1,"begin":0,"end":1,"machine":"m","store":"s","processes":1,"names":{},"sums":[["calls","","","","","",NaN]]}',
        b'{"v":1,"begin":0,"end":1,"machine":"m","store":"s","processes":1,"names":{},"sums":[["calls","","","","","",true]]}',
        b'{"v":1,"begin":0,"end":1,"machine":"m","store":"s","processes":1,"names":{},"sums":[["calls","","","","","",-1]]}',
        b'{"v":1,"begin":0,"end":1,"machine":"m","store":"s","processes":1,"names":[],"sums":[]}',
    ],
)
def test_lines_that_are_no_sheets_are_left_out(line: bytes, tmp_path: Path) -> None:
    append(tmp_path, sheet(time.time(), 5))
    (name,) = files(tmp_path)
    with open(tmp_path / name, "ab") as file:
        file.write(line + b"\n")
    append(tmp_path, sheet(time.time(), 7))
    assert calls_in(tmp_path) == 12


def test_a_full_file_takes_no_more_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    append(tmp_path, sheet(time.time()))
    monkeypatch.setattr(sheets, "LIMIT", 10)
    append(tmp_path, sheet(time.time()))
    assert calls_in(tmp_path) == 1 and "is full" in caplog.text


def old_files(folder: Path, now: float, days: int) -> None:
    for day in range(days):
        for hour in range(3):
            append(folder, sheet(now - day * DAY - hour * HOUR, 1, process=day + 1))


def test_folding_keeps_every_count_and_makes_one_file_of_many(tmp_path: Path) -> None:
    now = float(int(time.time() // DAY) * DAY + DAY // 2)
    old_files(tmp_path, now, 30)
    before = summarise(read(tmp_path))
    assert len(files(tmp_path)) == 30
    assert fold(tmp_path, now=now) == 28
    after = summarise(read(tmp_path))
    assert len(files(tmp_path)) == 3 and FOLDED in files(tmp_path)
    assert after.sums == before.sums == {CALLS: 90} and after.names == before.names
    assert after.processes == 30
    assert {begin: totals.calls for begin, totals in after.over_time().items()} == {
        begin: totals.calls for begin, totals in before.over_time().items()
    }
    assert fold(tmp_path, now=now) == 0
    assert fold(tmp_path, now=now + 500 * DAY) == 2 and calls_in(tmp_path) == 0, "older than 400 days"


def test_a_crash_between_folding_and_removing_counts_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = float(int(time.time() // DAY) * DAY + DAY // 2)
    old_files(tmp_path, now, 5)

    def killed(self: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        fold(tmp_path, now=now)
    assert len(files(tmp_path)) == 6 and calls_in(tmp_path) == 15
    (tmp_path / "folding.lease").unlink(missing_ok=True)
    assert fold(tmp_path, now=now) == 3 and calls_in(tmp_path) == 15 and len(files(tmp_path)) == 3


def test_where_counts_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = fill(tmp_path / "s")[0].root
    assert folder_to_write(root, readonly=False) == (root / "statistics", root)
    assert folder_to_write(root, readonly=True) == (state_folder(root), None)
    assert str(state_folder(root)).startswith(str(tmp_path / "state"))
    monkeypatch.setenv(FOLDER, str(tmp_path / "chosen"))
    assert folder_to_write(root, readonly=False) == (tmp_path / "chosen", None)


def test_what_lies_in_three_places_is_one_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = fill(tmp_path / "s")[0]
    monkeypatch.setenv(FOLDER, str(tmp_path / "chosen"))
    mine = Sheet(0, time.time(), "m", str(store.root), {CALLS: 1}, process=1)
    append(store.root / "statistics", mine, store.root)
    append(state_folder(store.root), mine)
    append(tmp_path / "chosen", mine)
    append(tmp_path / "chosen", Sheet(0, time.time(), "m", "/another", {CALLS: 100}, process=1))
    assert summary_of(store.root).total.calls == 3


def _summary(*rows: tuple[Series, float]) -> Summary:
    return summarise([Sheet(0, 1, "m", "/s", dict(rows), {KEY: "model"}, 1, 1)])


def test_the_hit_rate_counts_each_call_once() -> None:
    def miss(outcome: Outcome) -> Series:
        return Series("misses", KEY, "", str(Cause.GUARDS), "", str(outcome))

    ended = ((Outcome.COMPILED, 2), (Outcome.WAITED, 3), (Outcome.EAGER, 10), (Outcome.RAISED, 5))
    total = _summary((CALLS, 100), *((miss(outcome), count) for outcome, count in ended)).total
    assert (total.hits, round(total.misses), total.calls) == (95, 20, 115)
    assert total.hit_rate == pytest.approx(95 / 115)
    assert _summary().total.hit_rate is None


def test_since_leaves_out_what_is_older() -> None:
    found = summarise([sheet(100.0, 1), sheet(7300.0, 2)], since=5000)
    assert found.total.calls == 2 and found.begin == 7299.0
    assert list(summarise([sheet(100.0), sheet(7300.0)]).over_time(HOUR)) == [0, 7200]


def test_a_ledger_is_bounded_and_what_was_written_is_no_news() -> None:
    ledger = Ledger()
    for number in range(MOST + 50):
        ledger.add("bypasses", program=KEY, reason=f"{number} " + "x" * 1000)
    sums = ledger.sums()
    assert len(sums) == MOST + 1 and sum(sums.values()) == MOST + 50 and max(len(item.reason) for item in sums) == LONGEST
    ledger.written(ledger.news())
    assert ledger.news() == {}
    ledger.add("calls", 2, program=KEY)
    assert ledger.news() == {CALLS: 2}
    with pytest.raises(ValueError, match="nothing is counted under the name 'hit'"):
        ledger.add("hit")


def test_every_cause_has_a_meaning_and_a_cure() -> None:
    assert set(WORDS) == set(Cause)
    for words in WORDS.values():
        assert words.meaning.endswith(".") and words.fix.endswith(".")
    assert all(figure.help.endswith(".") for figure in FIGURES.values())


def test_a_store_that_cannot_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "absent", readonly=True)
    assert folder_to_write(store.root, True)[1] is None and not store.root.exists()


def test_a_sheet_is_one_line_of_plain_json() -> None:
    line = Sheet(0.1, 0.2, "m", "/s", {Series("misses", KEY, "", "a\nb", "\u2028", "raised"): 1}).to_line()
    assert line.count(b"\n") == 1 and line.isascii() and json.loads(line)["sums"][0][3] == "a\nb"
