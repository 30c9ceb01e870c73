"""The models: whether a way can do them, the first answer of fresh processes, the steady state, and the bytes of the artifact."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import Bench, Outcome, Process, Settings
from rounds import Failed, Plan, Result, steady_rounds


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _first_answers(benches: dict[str, Bench], row: str, able: dict[str, Outcome], warm: int) -> dict[str, Process]:
    """Fresh processes in turn, A B C A B C …; those of the last turn are kept for the steady rounds."""
    kept: dict[str, Process] = {}
    answers: dict[str, list[Outcome]] = {way: [] for way in able}
    for turn in range(warm):
        for way in [w for w in able if "error" not in able[w]]:
            process = None
            try:
                process = benches[way].start()
                answers[way].append(process.ask("first", program=row, folder=str(benches[way].build(row)[0])))
            except Failed as failure:
                able[way]["error"] = f"after the load: {failure}"
            if process and turn == warm - 1 and "error" not in able[way]:
                kept[way] = process
            elif process:
                process.close()
    for way, got in answers.items():
        if got and "error" not in able[way]:
            able[way]["firsts"] = [a["seconds"] for a in got]
            able[way] |= {key: _median([a[key] for a in got]) for key in ("seconds", "load", "torch", "own")}
            able[way] |= {key: got[-1][key] for key in ("traced", "imports", "wrong")}
    return kept


def measure(row: str, ways: list[str], warm: int, rounds: int, block: float, settings: Settings) -> dict[str, Outcome]:
    """Everything about one model; a way that fails keeps its sentence in `error` and the others go on."""
    root = Path(tempfile.mkdtemp(prefix="precast-upstream-"))
    kept: dict[str, Process] = {}
    try:
        benches = {way: Bench(root / way, way, settings) for way in ways}
        results: dict[str, Outcome] = {}
        for way in ways:
            _say(f"{row}: {way}: build")
            said = benches[way].build(row)[1]
            benches[way].close()
            results[way] = {"error": said["error"]} if "error" in said else {"built": said["seconds"], "bytes": said["bytes"]}
        _say(f"{row}: first answers")
        kept = _first_answers(benches, row, results, warm)
        _say(f"{row}: steady rounds of {', '.join(kept)}")
        steady: dict[str, Result] = {way: Result() for way in kept}
        running: dict[str, Any] = dict(kept)
        steady_rounds(running, steady, Plan(2, rounds, warm, block))
        for way, result in steady.items():
            quiet = [t for t, ok in zip(result.blocks, result.quiet, strict=True) if ok]
            results[way]["steady"] = _median(quiet if len(quiet) >= 3 else result.blocks)
            results[way]["disturbed"] = len(result.blocks) - len(quiet)
    finally:
        for process in kept.values():
            process.close()
        shutil.rmtree(root, ignore_errors=True)
    return results
