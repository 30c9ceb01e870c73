"""The order in which several workers build: as parallel as possible, such that the artifacts are those that one worker would make.

A compile reads from the artifacts of its program which sizes vary (`runtime/programs/automatic_dynamic.py`). So the signatures of a
program are built one
after another, and so are programs with one key (two factories that return the same function), for all targets whose artifacts one machine
may run. With `dynamic = "no"` nothing depends on other artifacts, and signatures may be built in parallel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
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


@dataclass(eq=False)
class Line:
    """The signatures of one program for one target; `place`: its number in the order of the file."""

    place: int
    program: int
    target: str
    learns: bool
    todo: deque[int] = field(default_factory=deque)
    running: int = 0


class Lines:
    """The tasks that remain, and which of them may begin now. It looks through what has begun and is not finished only."""

    def __init__(self, programs: Sequence[ProgramSpec]) -> None:
        named = [
            (number, target, merge_options(program.mode, program.options)["dynamic"] != "no")
            for number, program in enumerate(programs)
            for target in dict.fromkeys(program.targets)
        ]
        self._lines = [Line(place, *name) for place, name in enumerate(named)]
        self._of: dict[int, list[Line]] = {number: [] for number in range(len(programs))}
        for line in self._lines:
            self._of[line.program].append(line)
        self._labels = [program.label for program in programs]
        self._known: dict[int, Known] = {}
        self._unbegun = deque(number for number, lines in self._of.items() if lines)
        self._unknown: dict[str | None, list[int]] = {}
        """By label: the programs whose factories have not answered, in the order of the file."""
        for number in self._unbegun:
            self._unknown.setdefault(self._labels[number], []).append(number)
        self._open: dict[int, Line] = {}
        """Lines with tasks that have not begun, by place."""
        self._unfinished: dict[str, dict[int, Line]] = {}
        """By program key: lines with tasks that have not ended, by place."""
        self._seconds = self._ended = 0.0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def splits(self) -> bool:
        """Whether signatures of one program may be built at once."""
        return not all(line.learns for line in self._lines)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return len(self._known) == len(self._of) and not self._unfinished

    def own(self, program: int | None) -> Task | None:
        """A task of the program whose factory the worker has already called."""
        found = next((line for line in self._of.get(program, ()) if self._is_ready(line)), None) if program is not None else None
        return self._begin(found) if found is not None else None

    def other(self) -> Task | None:
        """A task for a worker whose own program is finished: a program that nobody has begun, else part of another worker's."""
        if self._unbegun:
            number = self._unbegun.popleft()
            return Task(number, self._of[number][0].target, 0)
        found = next((line for _, line in sorted(self._open.items()) if self._is_ready(line) and self._pays(line)), None)
        return self._begin(found) if found is not None else None

    def again(self, task: Task) -> None:
        """The task that had begun is to begin anew: its worker was lost."""
        if task.number == 0:
            self._unbegun.appendleft(task.program)
            return
        line = self._line(task)
        line.running -= 1
        line.todo.appendleft(task.number)
        self._open[line.place] = line

    def loaded(self, program: int, known: Known) -> None:
        """The program's factory has been called."""
        self._known[program] = known
        self._unknown[self._labels[program]].remove(program)
        for line in self._of[program] if known.count else ():
            line.todo.extend(range(1, known.count + 1))
            self._open[line.place] = line
            self._unfinished.setdefault(known.key, {})[line.place] = line

    def count(self, program: int) -> int:
        """How many signatures the program has, as far as its factory has said."""
        return self._known[program].count if program in self._known else 0

    def total(self) -> int:
        """How many signatures there are in all; programs whose factories have not answered count as many as the others have on average."""
        known = sum(self._known[number].count * len(self._of[number]) for number in self._known)
        lines = sum(len(self._of[number]) for number in self._known)
        return known + round((len(self._lines) - lines) * (max(1.0, known / lines) if lines else 1.0))

    def lost(self, program: int) -> list[str]:
        """Records that the program's factory failed; returns the targets for which nothing can be built."""
        self.loaded(program, Known(0, "", 0.0))
        return [line.target for line in self._of[program]]

    def done(self, task: Task, seconds: float) -> bool:
        """Records that the task has ended. Returns whether it was the last of its line."""
        line = self._line(task)
        line.running -= 1
        self._seconds, self._ended = self._seconds + seconds, self._ended + 1
        if line.todo or line.running:
            return False
        same = self._unfinished[self._known[task.program].key]
        del same[line.place]
        if not same:
            del self._unfinished[self._known[task.program].key]
        return True

    def _line(self, task: Task) -> Line:
        (line,) = (line for line in self._of[task.program] if line.target == task.target)
        return line

    def _begin(self, line: Line) -> Task:
        line.running += 1
        task = Task(line.program, line.target, line.todo.popleft())
        if not line.todo:
            del self._open[line.place]
        return task

    def _is_ready(self, line: Line) -> bool:
        if not line.todo or (line.running and line.learns):
            return False
        unknown = self._unknown[self._labels[line.program]]  # another name is another key
        if unknown and unknown[0] < line.program and (line.learns or any(earlier.learns for earlier in self._before(line, unknown))):
            return False
        same = self._unfinished[self._known[line.program].key]
        return not any(place < line.place and self._comes_first(earlier, line) for place, earlier in same.items())

    def _before(self, line: Line, programs: Sequence[int]) -> Iterator[Line]:
        return (earlier for number in programs if number < line.program for earlier in self._of[number])

    def _comes_first(self, earlier: Line, line: Line) -> bool:
        """Whether the artifacts of one line of the same key may depend on those of the other, so that `earlier` has to be built first."""
        if not (earlier.learns or line.learns):
            return False
        if earlier.program == line.program and self._known[line.program].count == 1:
            return False
        here, there = resolve(earlier.target), resolve(line.target)
        return concerns(here, there) or concerns(there, here)

    def _pays(self, line: Line) -> bool:
        """Whether it pays that another worker calls the program's factory, too, and takes some of its signatures."""
        if not any(other.running for other in self._of[line.program]):
            return True
        usual = self._seconds / self._ended if self._ended else 1.0
        return self._known[line.program].seconds < usual * len(line.todo)
