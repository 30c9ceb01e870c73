"""`precast tune`: what decides a device's code is measured on that device, problem by problem, and kept in the store by architecture.

The programs of a build file are captured (and compiled, into a temporary store); scheduling them yields every question that compiling
them asks: a tiling for each kernel, an implementation for each library call, a library's product or one kernel with its epilogue.
Questions without a stored answer are measured. As answers lead to other questions, the programs are scheduled again until none is left.
Each answer is stored at once, so that an interrupted run can be resumed, and answers of other runs and machines are kept.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from precast.artifact_store import Store
from precast.building.build_file import Loaded
from precast.building.build_job import Job, Outcome
from precast.codegen import backend_of
from precast.codegen.common.measure import Record
from precast.codegen.common.tuner import Answer, Problem
from precast.compiling.build_graph import keep_choices, known_choices
from precast.compiling.observers import lowerings
from precast.lowering.ir.nodes import Program
from precast.lowering.options import LoweringOptions
from precast.runtime.settings.options import list_mode_options

Say = Callable[[str], None]


@dataclass
class Question:
    """A problem, the programs and signatures that ask it, and its state: "known", "measured", "failed" (with why) or "left" (no time)."""

    problem: Problem
    asked: set[tuple[str, int]] = field(default_factory=set)
    status: str = "left"
    record: Record | None = None
    reason: str = ""

    @property
    def answer(self) -> str:
        """The choice that a build takes."""
        return self.problem.default if self.record is None else str(self.record["winner"])

    @property
    def gain(self) -> float:
        """How many times faster than the default the winner is."""
        times: Mapping[str, float] = (self.record or {}).get("us", {})
        winner, default = times.get(self.answer), times.get(self.problem.default)
        return default / winner if winner and default else 1.0


@dataclass(frozen=True)
class Outdated:
    """A stored artifact of a job's signature. `choices`: in how many choices it differs from the present answers."""

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


@dataclass(frozen=True)
class Captured:
    """A program before it is scheduled, with its options and the names of its weights; `owner`: a program's name and a signature."""

    program: Program
    options: LoweringOptions
    weights: tuple[str, ...]
    owner: tuple[str, int]


def capture(jobs: Sequence[Loaded], target: str, say: Say) -> tuple[list[Captured], list[str]]:
    """Every program that compiling the jobs for `target` schedules; and which signatures failed."""
    found: list[Captured] = []
    failures: list[str] = []
    by_artifact: dict[str | None, list[Captured]] = {}
    with tempfile.TemporaryDirectory(prefix="precast-tune-") as folder:
        store = Store.open(folder)
        for loaded in map(_without_measuring, jobs):
            name = loaded.spec.name
            for number in range(1, len(loaded.signatures) + 1):
                say(f"{name}: capturing signature {number} of {len(loaded.signatures)}")
                with _watching(target, (name, number)) as seen:
                    outcome = Job(loaded, store).build(number, target)
                if not outcome.good:
                    failures.append(f"{name}, signature {number}: {outcome.reason}")
                if outcome.status == "there already":  # an equal program was captured before
                    seen = [replace(c, owner=(name, number)) for c in by_artifact.get(outcome.artifact, [])]
                by_artifact[outcome.artifact] = seen
                found += seen
    return found, failures


def _without_measuring(loaded: Loaded) -> Loaded:
    """The job without the option that would measure while it is captured: the same questions are asked."""
    spec = loaded.spec
    options = list_mode_options(spec.mode) if spec.mode is not None else spec.options or {}
    if not options.get("max_autotune"):
        return loaded
    return replace(loaded, spec=replace(spec, mode=None, options={n: value for n, value in options.items() if n != "max_autotune"}))


@contextmanager
def _watching(target: str, owner: tuple[str, int]) -> Iterator[list[Captured]]:
    """Every program that this thread compiles for `target` meanwhile."""
    seen: list[Captured] = []

    def look(program: Program, its_target: str, options: LoweringOptions, weights: tuple[str, ...]) -> None:
        if its_target == target:
            seen.append(Captured(program, options, weights, owner))

    with lowerings.watch(look):
        yield seen


def ask(programs: Sequence[Captured], target: str, known: Mapping[str, Record]) -> dict[str, Question]:
    """Every question that compiling the programs asks, by its key in order of asking.

    Answers that are `known` decide what else is asked: a product inside of a kernel asks other questions than a library's.
    """
    questions: dict[str, Question] = {}
    tuner = backend_of(target).tuner
    assert tuner is not None, f"{target} is of a family without a tuner"
    for captured in programs:

        def note(problem: Problem, owner: tuple[str, int] = captured.owner) -> Record | None:
            questions.setdefault(problem.key, Question(problem)).asked.add(owner)
            return known.get(problem.key)

        tuner.ask(captured.program, target, captured.options, captured.weights, note)
    return questions


def tune(jobs: Sequence[Loaded], store: Store, target: str, measure: Answer, *, budget: float, say: Say, again: bool = False) -> Tuned:
    """Measures the questions without an answer in `store`, for at most `budget` seconds; `again`: measures all of them."""
    began = time.monotonic()
    programs, failures = capture(jobs, target, say)
    done: dict[str, Question] = {}
    left = budget
    while True:
        known = known_choices(store, target)
        questions = ask(programs, target, known)
        for key, question in questions.items():
            if key in done:
                questions[key] = replace(done[key], asked=question.asked)
            elif key in known and question.problem.accepts(str(known[key]["winner"])):
                question.record, question.status = known[key], "left" if again else "known"
        open_ones = [q for key, q in questions.items() if q.status == "left" and key not in done]
        if not open_ones or left <= 0:
            break
        # a library's way is measured in its best form: what its kernels ask comes before the question in which it stands
        batch = [q for q in open_ones if not q.problem.library] or open_ones
        started = time.monotonic()
        done |= _answer_all(batch, store, target, measure, left, say)
        left -= time.monotonic() - started
    if left <= 0 and open_ones:
        say(f"the budget of {budget:.0f} s is spent; {len(open_ones)} problems are left for another run")
    return Tuned(
        target, backend_of(target).tuning_name(target), tuple(questions.values()), tuple(failures), round(time.monotonic() - began, 1)
    )


def _answer_all(questions: Sequence[Question], store: Store, target: str, measure: Answer, budget: float, say: Say) -> dict[str, Question]:
    """Answers questions in order until the budget is spent; those that were tried, by key."""
    until = time.monotonic() + budget
    tried: dict[str, Question] = {}
    for number, question in enumerate(questions, 1):
        left = until - time.monotonic()
        if left <= 0:
            break
        say(f"{number} of {len(questions)}, {left:.0f} s left: {question.problem.key}")
        _answer(question, store, target, measure)
        tried[question.problem.key] = question
    return tried


def _answer(question: Question, store: Store, target: str, measure: Answer) -> None:
    try:
        found = measure(question.problem)
    except RuntimeError as error:  # one problem that cannot be measured must not stop the others; the report says why
        question.status, question.reason = "failed", str(error)
        return
    if found is not None:
        question.status, question.record = "measured", found
        keep_choices(store, target, {question.problem.key: found})


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
    """Remove the artifact and compile it again, with the present choices."""
    store.remove(old.artifact, old.program_key)
    return old.job.build(old.signature, target)
