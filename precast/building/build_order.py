"""The order in which several workers build: as parallel as possible, such that the artifacts are those that one worker would make.

A compile reads from the artifacts of its program which sizes vary (`runtime/programs/automatic_dynamic.py`). So the signatures of a
program are built one
after another, and so are programs with one key (two factories that return the same function), for all targets whose artifacts one machine
may run. With `dynamic = "no"` nothing depends on other artifacts, and signatures may be built in parallel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from precast.building.build_file import ProgramSpec
from precast.runtime.settings.options import merge_options
from precast.runtime.targets.ladder import concerns, resolve


@dataclass(frozen=True)
class Task:
    """One signature (counted from 1) of a program for a target. Number 0: call the factory, and say how many there are."""

    program: int
    target: str
    number: int


@dataclass(frozen=True)
class Known:
    """The result of a program's factory: the number of signatures, the program key ("" where unknown), and the seconds that it took."""

    count: int
    key: str
    seconds: float


@dataclass
class Line:
    """The signatures of one program for one target."""

    program: int
    target: str
    learns: bool
    todo: deque[int] = field(default_factory=deque)
    running: int = 0


class Lines:
    """The tasks that remain, and which of them may begin now."""

    def __init__(self, programs: Sequence[ProgramSpec]) -> None:
        self._lines = [
            Line(number, target, merge_options(program.mode, program.options)["dynamic"] != "no")
            for number, program in enumerate(programs)
            for target in dict.fromkeys(program.targets)
        ]
        self._labels = [program.label for program in programs]
        self._known: dict[int, Known] = {}
        self._loading: set[int] = set()
        self._seconds: list[float] = []

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def splits(self) -> bool:
        """Whether signatures of one program may be built at once."""
        return not all(line.learns for line in self._lines)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return not self._unfinished()

    def own(self, program: int | None) -> Task | None:
        """A task of the program whose factory the worker has already called."""
        found = next((line for line in self._lines if line.program == program and self._is_ready(line)), None)
        return self._begin(found) if found is not None else None

    def other(self) -> Task | None:
        """A task for a worker whose own program is finished: a program that nobody has begun, else part of another worker's."""
        for line in self._lines:
            if line.program not in self._known and line.program not in self._loading:
                self._loading.add(line.program)
                return Task(line.program, line.target, 0)
        found = next((line for line in self._lines if self._is_ready(line) and self._pays(line)), None)
        return self._begin(found) if found is not None else None

    def loaded(self, program: int, known: Known) -> None:
        """The program's factory has been called."""
        self._loading.discard(program)
        self._known[program] = known
        for line in self._of(program):
            line.todo.extend(range(1, known.count + 1))

    def count(self, program: int) -> int:
        """How many signatures the program has, as far as its factory has said."""
        return self._known[program].count if program in self._known else 0

    def lost(self, program: int) -> list[str]:
        """Records that the program's factory failed; returns the targets for which nothing can be built."""
        self.loaded(program, Known(0, "", 0.0))
        return [line.target for line in self._of(program)]

    def done(self, task: Task, seconds: float) -> bool:
        """Records that the task has ended. Returns whether it was the last of its line."""
        (line,) = (line for line in self._of(task.program) if line.target == task.target)
        line.running -= 1
        self._seconds.append(seconds)
        return not line.todo and not line.running

    def _of(self, program: int) -> list[Line]:
        return [line for line in self._lines if line.program == program]

    def _begin(self, line: Line) -> Task:
        line.running += 1
        return Task(line.program, line.target, line.todo.popleft())

    def _is_ready(self, line: Line) -> bool:
        if not line.todo or (line.running and line.learns):
            return False
        earlier = self._lines[: self._lines.index(line)]
        return not any(
            self._comes_first(other, line) for other in earlier if other.program not in self._known or other.todo or other.running
        )

    def _unfinished(self) -> list[Line]:
        return [line for line in self._lines if line.program not in self._known or line.todo or line.running]

    def _comes_first(self, earlier: Line, line: Line) -> bool:
        """Whether the artifacts of one line may depend on those of the other, so that `earlier` has to be built first."""
        if not (earlier.learns or line.learns):
            return False
        one, other = self._known.get(earlier.program), self._known[line.program]
        if one is None:
            return self._labels[earlier.program] == self._labels[line.program]  # another name is another key
        if one.key != other.key or (earlier.program == line.program and one.count == 1):
            return False
        here, there = resolve(earlier.target), resolve(line.target)
        return concerns(here, there) or concerns(there, here)

    def _pays(self, line: Line) -> bool:
        """Whether it pays that another worker calls the program's factory, too, and takes some of its signatures."""
        if not any(other.running for other in self._of(line.program)):
            return True
        usual = sum(self._seconds) / len(self._seconds) if self._seconds else 1.0
        return self._known[line.program].seconds < usual * len(line.todo)
