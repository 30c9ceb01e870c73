"""`precast tune`: what decides GPU code is measured on a device, problem by problem, and kept in the store by architecture.

The programs of a build file are captured and scheduled (into a store that is thrown away), which shows every question that compiling them
asks: a tiling for each kernel, an implementation for each library call. What the store has no answer to is measured. Each answer is kept
as soon as it is there, so that a run that is cut off goes on where it stopped, and answers of other runs and machines stay.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from precast import graph_build
from precast.artifact_store import Store
from precast.build import Job, Outcome
from precast.build_file import Loaded
from precast.codegen import with_choices
from precast.codegen.choices import Record, tuning_name
from precast.codegen.cuda_choices import LIBRARY, WITH_LIBRARY, CudaChooser, Problem
from precast.codegen.cuda_pipeline import choose_all
from precast.graph_build import keep_choices, known_choices
from precast.lowering.ir import Program
from precast.lowering.pipeline import schedule

Say = Callable[[str], None]
Measure = Callable[[Problem], Record | None]


@dataclass
class Question:
    """A problem, who asks it (programs and signatures), and what came of it: "known", "measured", "failed" (why) or "left" (no time)."""

    problem: Problem
    asked: set[tuple[str, int]] = field(default_factory=set)
    status: str = "left"
    record: Record | None = None
    reason: str = ""

    @property
    def answer(self) -> str:
        """What a build takes."""
        return self.problem.default if self.record is None else str(self.record["winner"])

    @property
    def gain(self) -> float:
        """How many times faster than the default the winner is."""
        times: Mapping[str, float] = (self.record or {}).get("us", {})
        winner, default = times.get(self.answer), times.get(self.problem.default)
        return default / winner if winner and default else 1.0


@dataclass(frozen=True)
class Outdated:
    """An artifact of the store for a signature of a job that was built with `choices` other answers than the records have now."""

    job: Job
    signature: int
    artifact: str
    program_key: str
    choices: int


@dataclass(frozen=True)
class Tuned:
    """What a run did. `failures`: programs that could not be captured, with the reason."""

    target: str
    record: str
    questions: tuple[Question, ...]
    failures: tuple[str, ...]
    seconds: float

    def count(self, status: str) -> int:
        return sum(q.status == status for q in self.questions)


def ask(jobs: Sequence[Loaded], target: str, known: Mapping[str, Record], say: Say) -> tuple[dict[str, Question], list[str]]:
    """Every question that compiling the programs for `target` asks, by its key in order of asking; and which signatures failed.

    Answers that are `known` decide what else is asked: a product inside of a kernel asks other questions than a library's.
    """
    questions: dict[str, Question] = {}
    failures: list[str] = []
    by_artifact: dict[str | None, list[Problem]] = {}
    with tempfile.TemporaryDirectory(prefix="precast-tune-") as folder:
        store = Store.open(folder)
        for loaded in jobs:
            name = loaded.spec.name
            for number in range(1, len(loaded.signatures) + 1):
                say(f"{name}: capturing signature {number} of {len(loaded.signatures)}")
                with _watching(target, known) as problems:
                    outcome = Job(loaded, store).build(number, target)
                if not outcome.good:
                    failures.append(f"{name}, signature {number}: {outcome.reason}")
                if outcome.status == "there already":  # an equal program was captured before
                    problems = by_artifact.get(outcome.artifact, [])
                by_artifact[outcome.artifact] = problems
                for problem in problems:
                    questions.setdefault(problem.key, Question(problem)).asked.add((name, number))
    return questions, failures


@contextmanager
def _watching(target: str, known: Mapping[str, Record]) -> Iterator[list[Problem]]:
    """The problems of every program that is compiled for `target` meanwhile, with the answers that are `known`."""
    problems: list[Problem] = []

    def note(problem: Problem) -> Record | None:
        problems.append(problem)
        return known.get(problem.key)

    def look(program: Program, its_target: str, options: Mapping[str, Any]) -> None:
        if its_target == target:
            asking = with_choices(target, {**options, "tuning": {}, "chooser": CudaChooser(measure=note)})
            choose_all(schedule(program, target, asking), asking)

    graph_build.observers.append(look)
    try:
        yield problems
    finally:
        graph_build.observers.remove(look)


def tune(jobs: Sequence[Loaded], store: Store, target: str, measure: Measure, *, budget: float, say: Say, again: bool = False) -> Tuned:
    """Answers what `store` has no answer to, for at most `budget` seconds of measuring; `again`: also what it has.

    Where answers lead to other questions (what was a library's product is a kernel, or the other way round), those are answered, too.
    """
    began = time.monotonic()
    questions: dict[str, Question] = {}
    left = budget
    while True:
        known = known_choices(store, target)
        found, failures = ask(jobs, target, known, say)
        new = {key: question for key, question in found.items() if key not in questions}
        for key, question in new.items():
            if key in known and not again:
                question.status, question.record = "known", known[key]
        questions |= new
        for key, question in questions.items():  # what the answers made pointless is nobody's question any more
            question.asked = found[key].asked if key in found else set()
        started = time.monotonic()
        turned = _answer_all([q for q in new.values() if q.status == "left"], known, store, target, measure, left, say)
        left -= time.monotonic() - started
        if not turned or left <= 0:
            return Tuned(target, tuning_name(target), tuple(questions.values()), tuple(failures), round(time.monotonic() - began, 1))


def _answer_all(
    questions: Sequence[Question], known: Mapping[str, Record], store: Store, target: str, measure: Measure, budget: float, say: Say
) -> bool:
    """Answers questions in order until the budget is spent; whether an answer, other than what was `known`, changes what is to be asked."""
    until = time.monotonic() + budget
    turned = False
    for number, question in enumerate(questions, 1):
        left = until - time.monotonic()
        if left <= 0:
            say(f"the budget is spent; {len(questions) - number + 1} problems are left for another run")
            break
        say(f"{number} of {len(questions)}, {left:.0f} s left: {question.problem.key}")
        _answer(question, store, target, measure)
        key = question.problem.key
        before = known.get(key, {"winner": question.problem.default})["winner"]
        turned = turned or (key.startswith(WITH_LIBRARY) and (question.answer == LIBRARY) != (before == LIBRARY))
    return turned


def _answer(question: Question, store: Store, target: str, measure: Measure) -> None:
    try:
        question.record = measure(question.problem)
    except RuntimeError as error:  # one problem that cannot be measured must not stop the others; the report says why
        question.status, question.reason = "failed", str(error)
        return
    if question.record is not None:
        question.status = "measured"
        keep_choices(store, target, {question.problem.key: question.record})


def outdated(jobs: Sequence[Loaded], store: Store, tuned: Tuned) -> list[Outdated]:
    """The stored artifacts of these programs that a build would now make from other choices."""
    found = []
    for loaded in jobs:
        job = Job(loaded, store)
        for number in range(1, len(loaded.signatures) + 1):
            manifest = job.find(number, tuned.target)
            if manifest is None or manifest.target != tuned.target:
                continue
            made: Mapping[str, Record] = manifest.evidence.get("choices", {})
            asked = [q for q in tuned.questions if (loaded.spec.name, number) in q.asked and q.record is not None]
            other = sum(made.get(q.problem.key, {"winner": q.problem.default})["winner"] != q.answer for q in asked)
            if other:
                found.append(Outdated(job, number, manifest.artifact_id, manifest.program_key, other))
    return found


def rebuild(store: Store, old: Outdated, target: str) -> Outcome:
    """Take the artifact out and compile it anew, with the choices as they are now."""
    store.remove(old.artifact, old.program_key)
    return old.job.build(old.signature, target)
