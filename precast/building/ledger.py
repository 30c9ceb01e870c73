"""The outcomes of a build by several workers: noted as they come, reported in the order of the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from precast.building.build_file import ProgramSpec
from precast.building.build_job import Outcome
from precast.building.build_order import Known, Lines, Task
from precast.building.progress import Display, Tally


class Stopped(Exception):
    """The build as a whole cannot go on: `usage` where the file or the command line is wrong."""

    def __init__(self, text: str, usage: bool) -> None:
        super().__init__(text)
        self.usage = usage


@dataclass
class Ledger:
    """What has become of each task so far, with the display that is told."""

    programs: Sequence[ProgramSpec]
    lines: Lines
    display: Display
    tally: Tally = field(init=False)
    _outcomes: dict[Task, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tally = Tally(self.lines.total())

    def began(self, worker: str, task: Task) -> None:
        """A worker was given the task."""
        of = self.lines.count(task.program)
        doing = f"compiling signature {task.number} of {of} for {task.target}" if task.number else "making the program"
        said = f"{self.programs[task.program].name}: {doing}"
        self.tally.began(worker, said)
        self.display.note(said)

    def loaded(self, program: int, known: Known) -> None:
        """A program's factory has been called."""
        self.lines.loaded(program, known)
        self.tally.total = max(self.lines.total(), self.tally.done)

    def note(self, task: Task, outcome: Outcome) -> None:
        """The task has ended; its number is 0 where the program's factory failed."""
        self._outcomes[task] = outcome
        if task.number:
            self.lines.done(task, outcome.seconds)
        self.tally.ended(outcome.good)
        self.display.note(f"{outcome.program}: signature {task.number} for {task.target}: {outcome.status} ({self.tally})")

    def fail(self, task: Task, text: str) -> None:
        """The task cannot be done; where it was to call the factory, nothing of its program can."""
        targets = [task.target] if task.number else self.lines.lost(task.program)
        for target in targets:
            failed = Outcome(self.programs[task.program].name, task.number, target, "failed", None, 0.0, text)
            self.note(Task(task.program, target, task.number), failed)

    def outcomes(self) -> list[Outcome]:
        """In the order of the file."""
        places = {(p, target): i for p, program in enumerate(self.programs) for i, target in enumerate(program.targets)}
        return [self._outcomes[t] for t in sorted(self._outcomes, key=lambda t: (t.program, places[t.program, t.target], t.number))]
