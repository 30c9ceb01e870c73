"""What one attempt to compile cost, and what came of it: for the statistics and the report of what cannot be cached."""

from __future__ import annotations

import time

from precast.artifact_store.statistics.causes import Cause, Outcome
from precast.runtime.common.errors import InProcess, Refused, Taken
from precast.runtime.counting.counted import Counted
from precast.runtime.counting.write_counts import Miss, count_bypass, count_compile


class Attempt:
    """Begins when it is made. `miss`: of the call that it is made for; None where that is not counted."""

    def __init__(self, program: Counted, miss: Miss | None = None) -> None:
        self._program = program
        self._miss = miss
        self._begin = time.perf_counter()

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._begin

    def ended(self, outcome: str | InProcess, in_background: bool = False) -> None:
        """It made an artifact, or what lives in this process only, or found that another process had made it."""
        program, seconds = self._program, self._seconds
        if isinstance(outcome, InProcess):
            count_compile(program, seconds, "in process")
            count_bypass(program, "in process", outcome.reason or "it cannot be stored", seconds)
        elif isinstance(outcome, Taken):
            count_compile(program, seconds, "taken")
        else:
            count_compile(program, seconds, "stored", self._stored(outcome))
        if in_background:
            self._end(Outcome.EAGER)
        else:
            self._end(Outcome.WAITED if isinstance(outcome, Taken) else Outcome.COMPILED)

    def _stored(self, artifact_id: str) -> int:
        manifest = self._program.store.get(artifact_id, self._program.key)
        return sum(manifest.blobs.values()) if manifest is not None else 0

    def refused(self, refusal: Refused) -> None:
        """The program, or this kind of call, has to run eagerly."""
        seconds = self._seconds
        count_compile(self._program, seconds, "refused")
        count_bypass(self._program, "skipped" if refusal.skipped else "refused", refusal.text, seconds)
        if not refusal.skipped:
            self._end(Outcome.EAGER, Cause.REFUSED)

    def failed(self, error: Exception) -> None:
        """It ended in an error."""
        seconds = self._seconds
        count_compile(self._program, seconds, "failed")
        count_bypass(self._program, "failed", f"{type(error).__name__}: {error}", seconds)
        self._end(Outcome.EAGER, Cause.FAILED)

    def broken(self) -> None:
        """Nothing can be compiled in this process."""
        self._end(Outcome.EAGER, Cause.NO_COMPILER)

    def _end(self, outcome: Outcome, cause: Cause | None = None) -> None:
        miss, self._miss = self._miss, None
        if miss is not None:
            miss.ended(outcome, cause)


__all__ = ["Attempt"]
